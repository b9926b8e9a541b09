"""Every key of the page, the way of the focus, and looks that people need: forced colours, large type, no motion."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.page.api import get


def opened(watched, path: str, there: str) -> Page:
    page = watched.open(path)
    expect(page.locator(there).first).to_be_visible()
    return page


def test_keys_that_work_everywhere(watched, url):
    """G and a letter go to a place, t changes the theme, ? lists the keys, Ctrl K finds, Esc closes and goes back."""
    page = opened(watched, "/settings", ".settings")
    for letter, path in {"n": "/", "s": "/sessions", "t": "/storage", "a": "/analytics", "e": "/events"}.items():
        page.keyboard.press("g")
        page.keyboard.press(letter)
        expect(page).to_have_url(re.compile(f"^{re.escape(url + path)}([?].*)?$"))
    theme = "document.documentElement.dataset.theme"
    page.keyboard.press("t")
    assert page.evaluate(theme) == "dark"
    page.keyboard.press("t")
    assert page.evaluate(theme) == "light"
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("Control+k")
    page.keyboard.type("review")
    expect(page.get_by_role("option").first).to_contain_text("review-8812")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.goto(url + "/sessions/review-8812")
    expect(page.get_by_role("slider")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page).to_have_url(url + "/sessions")
    for path in ("/sessions", "/events"):
        page.goto(url + path)
        expect(page.get_by_role("searchbox")).to_be_visible()
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox")).to_be_focused()
        page.keyboard.type("g?t")  # in a text field a key is a letter
        expect(page.get_by_role("searchbox")).to_have_value("g?t")


def test_keys_of_lists(watched, url):
    """J and k move, x and X select, Enter opens, ! and o filter, 0 clears, y copies the command."""
    page = opened(watched, "/sessions", "tr.row")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.locator("tr.row")).to_have_count(5)
    rows = page.locator("tr.row")
    page.keyboard.press("j")
    expect(rows.nth(0)).to_have_class("row selected")
    page.keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_have_class("row selected")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("X")
    expect(page.get_by_role("region", name="Selected sessions")).to_contain_text("3 selected")
    page.keyboard.press("Escape")
    expect(page.get_by_role("region", name="Selected sessions")).to_have_count(0)
    page.keyboard.press("k")
    expect(rows.nth(2)).to_have_class("row selected")
    name = rows.nth(2).locator(".c-id a").inner_text()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.go_back()
    expect(rows).to_have_count(5)
    page.keyboard.press("!")
    expect(page).to_have_url(url + "/sessions?state=failed")
    expect(rows).to_have_count(2)
    page.keyboard.press("y")
    expect(page.locator(".toast")).to_contain_text("Copied: saveslot ls --state failed")
    page.keyboard.press("0")
    expect(page).to_have_url(url + "/sessions")
    page.keyboard.press("o")
    expect(page).to_have_url(url + "/sessions?state=orphaned")
    expect(rows).to_have_count(1)


def test_keys_of_the_tape(watched, url):
    """Each key of the tape does what `?` says of it."""
    entries = get(url, "/sessions/trip-lisbon/log?limit=500")["items"]
    last = entries[-1]["seq"]
    saved = [entry["seq"] for entry in entries if entry["kind"] in {"checkpoint", "rollback"}]
    page = opened(watched, "/sessions/trip-lisbon", ".actions button")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    slider = page.get_by_role("slider")

    def press(key: str, seq: int) -> None:
        page.keyboard.press(key)
        expect(slider).to_have_attribute("aria-valuenow", str(seq))

    press("[", last - 1)
    press("ArrowLeft", last - 2)
    press("]", last - 1)
    press("ArrowRight", last)
    press("{", max(seq for seq in saved if seq < last))
    press("Home", 1)
    press("}", saved[0])
    press("End", last)
    press("Home", 1)
    press("}", saved[0])
    page.keyboard.press("a")
    press("End", last)
    expect(page).to_have_url(f"{url}/sessions/trip-lisbon?from={saved[0]}")
    page.keyboard.press("a")
    expect(page).to_have_url(f"{url}/sessions/trip-lisbon")
    for key, tab in {"2": "Diff", "3": "Messages", "4": "Raw", "1": "State"}.items():
        page.keyboard.press(key)
        expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
    expect(page.locator(".tree-row.same").first).to_be_visible()
    rows = page.locator(".tree-row").count()
    page.keyboard.press("e")
    expect(page.locator(".tree-row.same")).to_have_count(0)
    expect(page.locator(".tree-row").nth(rows)).to_be_attached()
    page.keyboard.press("z")
    expect(page.get_by_role("button", name="even", exact=True)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("z")
    page.keyboard.press("p")
    expect(page.locator(".headline .chip")).to_have_text("paused")
    page.keyboard.press("p")
    expect(page.locator(".headline .chip")).to_have_text("active")
    page.keyboard.press(".")
    expect(page.locator(".toast")).to_contain_text("Pinned.")
    page.keyboard.press("u")
    expect(page.locator(".toast")).to_contain_text("Undone.")
    page.keyboard.press("f")
    expect(page.get_by_role("dialog")).to_contain_text("Fork trip-lisbon at")
    page.keyboard.press("Escape")
    page.keyboard.press("{")
    page.keyboard.press("{")
    page.keyboard.press("r")
    expect(page.get_by_role("dialog")).to_contain_text("Roll trip-lisbon back to")
    page.keyboard.press("Escape")
    page.keyboard.press("y")
    expect(page.locator(".toast")).to_contain_text("Copied: saveslot show trip-lisbon@")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")


def test_focus_goes_round_in_a_dialog_and_returns(watched):
    """Tab stays inside a dialog; when it closes, the focus is where it was, with a ring that can be seen."""
    page = opened(watched, "/sessions/trip-lisbon?at=5", ".actions button")
    button = page.locator(".actions").get_by_role("button", name="Fork")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    inside = "document.activeElement.closest('dialog') !== null || document.activeElement === document.body"
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate(inside)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()
    style = page.evaluate(
        "(() => { const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]; })()"
    )
    assert style == ["solid", "2px"]


def test_focus_follows_the_order_of_the_page(watched):
    """The first Tab offers to skip the bar; then come the places, the tools, and what is on the screen."""
    page = opened(watched, "/sessions", "tr.row")
    names = []
    for _ in range(12):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText.trim()"))
    assert names[0] == "Skip to content"
    order = ["saveslot", "Now", "Sessions", "Storage", "Analytics", "Events", "Find or do", "Switch theme", "Settings"]
    assert [next(name for name in names if name.startswith(word)) for word in order] == names[1:10]
    page.keyboard.press("Shift+Tab")
    page.goto(page.url)
    expect(page.locator("tr.row").first).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("path", ["/", "/sessions", "/sessions/trip-lisbon", "/sessions/lesson-2207", "/storage"])
def test_forced_colours_keep_words_and_shapes(watched, path):
    """With the system's own colours each state is a word with a shape, and what is selected has a border."""
    page = watched.open(path, forced_colors="active")
    expect(page.locator(".state, .chip").first).to_be_visible()
    for state in page.locator(".state:visible").all()[:20]:
        assert state.inner_text().strip()
        assert state.locator("svg").count() == 1
    assert page.evaluate("matchMedia('(forced-colors: active)').matches")
    faults = Axe().run(page).response["violations"]
    assert [(fault["id"], [node["html"][:120] for node in fault["nodes"][:3]]) for fault in faults] == []
    if path == "/sessions/trip-lisbon":
        expect(page.locator(".log-row.selected")).to_have_css("border-top-style", "solid")


@pytest.mark.parametrize(
    "path",
    ["/", "/sessions", "/sessions/trip-lisbon", "/sessions/hostile", "/storage", "/analytics", "/events", "/settings",
     "/compare?a=trip-lisbon@5&b=trip-lisbon@latest"],
)  # fmt: skip
def test_320_pixels_are_enough(watched, path):
    """At 320 pixels, a screen of 1280 at 400 %, nothing scrolls sideways but tapes and tables, and nothing is cut."""
    page = watched.open(path, viewport={"width": 320, "height": 256})
    expect(page.locator("main h1").first).to_be_attached()
    page.wait_for_timeout(1000)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    cut = page.evaluate(
        """[...document.querySelectorAll('main h1, main p, main button, main a, main dd, main li')].filter((it) => {
            const wide = '.tape-scroll, .table-scroll, .table-wrap, .compare-scroll, .event-scroll';
            if (it.closest(wide)) return false;
            for (let up = it; up; up = up.parentElement)
                if (getComputedStyle(up).textOverflow === 'ellipsis') return false;
            const box = it.getBoundingClientRect();
            return box.width && it.offsetParent && box.right > 321 && getComputedStyle(it).position !== 'absolute';
        }).map((it) => it.outerHTML.slice(0, 140))"""
    )
    assert cut == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0


def test_single_keys_can_be_turned_off(watched):
    """With single keys off only Ctrl K, Tab and Escape are left; letters do nothing."""
    page = opened(watched, "/settings", ".settings")
    page.get_by_role("button", name="off").click()
    page.locator("main h1").click()
    for key in ("?", "t", "g", "s"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.url.endswith("/settings")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog")).to_have_count(1)


def test_back_closes_what_lies_over_a_place_before_it_leaves(watched, url):
    """Back closes a dialog, the palette and `?`; closed otherwise they leave nothing to go back over."""
    page = opened(watched, "/sessions", "tr.row")
    page.goto(url + "/sessions/trip-lisbon?at=5")
    expect(page.locator(".actions button").first).to_be_visible()
    dialog, here = page.get_by_role("dialog"), f"{url}/sessions/trip-lisbon?at=5"
    for key in ("f", "Control+k", "?"):
        page.keyboard.press(key)
        expect(dialog).to_be_visible()
        page.go_back()
        expect(dialog).to_have_count(0)
        expect(page).to_have_url(here)
    page.keyboard.press("f")
    page.keyboard.press("Control+k")
    expect(dialog).to_have_count(2)
    page.go_back()
    expect(dialog).to_have_count(1)
    expect(dialog).to_contain_text("Fork trip-lisbon")
    page.go_back()
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(here)
    page.keyboard.press("f")
    page.keyboard.press("Escape")
    page.keyboard.press("]")
    expect(page).to_have_url(f"{url}/sessions/trip-lisbon?at=6")
    page.keyboard.press("?")
    page.go_back()
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(f"{url}/sessions/trip-lisbon?at=6")
    page.keyboard.press("?")
    page.keyboard.press("Escape")
    page.go_back()
    expect(page).to_have_url(f"{url}/sessions")
    expect(page.locator("tr.row").first).to_be_visible()


def test_places_opened_from_a_dialog_are_one_step_away(watched, url):
    """The palette leads to another place; going back from it leads to the one before, with nothing over it."""
    page = opened(watched, "/sessions", "tr.row")
    page.keyboard.press("Control+k")
    page.keyboard.type("review")
    expect(page.get_by_role("option").first).to_contain_text("review-8812")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("review-8812")
    page.go_back()
    expect(page).to_have_url(f"{url}/sessions")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("tr.row").first).to_be_visible()
    page.go_forward()
    expect(page.get_by_role("heading", level=1)).to_have_text("review-8812")


def test_back_closes_a_sheet_on_a_phone_and_keeps_its_choice(watched, url):
    """On a phone Back closes the sheet of filters; what was chosen in it stays."""
    page = watched.open("/", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.get_by_role("navigation", name="Places on a phone").get_by_role("link", name="Sessions").tap()
    expect(page.locator("tr.row")).to_have_count(5)
    page.get_by_role("button", name="Filters").tap()
    page.get_by_role("dialog").get_by_role("button", name="failed").tap()
    expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("2 sessions")
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page).to_have_url(f"{url}/sessions?state=failed")
    expect(page.locator("tr.row")).to_have_count(2)
    page.go_back()
    expect(page).to_have_url(f"{url}/")
