"""Who may look, who may act, and whether everybody can: tokens, axe, small and dark screens."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page.api import saveslot
from tests.page.conftest import Watched, serving

PLACES = {
    "/": ".counters",
    "/sessions": "tr.row",
    "/events": ".event-head",
    "/sessions/trip-lisbon": "[role=slider]",
    "/compare?a=trip-lisbon@5&b=trip-lisbon@latest": ".sum-line",
    "/settings": ".settings",
    "/storage": ".sort-bar",
    "/analytics": ".heatmap",
    "/sessions/lesson-2207": "[role=slider]",
}


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_axe_finds_nothing_and_nothing_overflows(watched, look):
    """No accessibility fault in any screen, and no sideways scrolling on a phone."""
    width = 390 if look == "narrow" else 1440
    faults = []
    for path, there in PLACES.items():
        page = watched.open(
            path, viewport={"width": width, "height": 844}, color_scheme="dark" if look == "dark" else "light"
        )
        expect(page.locator(there).first).to_be_visible()
        page.wait_for_timeout(800)
        found = Axe().run(page).response["violations"]
        faults += [(path, fault["id"], [node["html"][:160] for node in fault["nodes"][:3]]) for fault in found]
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{path} is {wide} px too wide"
        page.context.close()
    assert faults == []


# What floats above a screen, by the keys that open it; and its other faces.
FACES = {
    "/sessions/trip-lisbon?at=5": {
        "r": "dialog .operations li",
        "f": "dialog .field",
        "?": "dialog .key-groups",
        "Control+k": ".palette .choice",
        "2": ".operations li",
        "3": ".messages li",
        "4": "pre.raw",
        "a": ".from-a",
    },
    "/sessions/lesson-2207": {"1": ".card"},
    "/sessions": {"x": ".bulk-bar"},
    "/sessions?state=completed": {"j": ".no-match"},
    "/sessions/never-was": {"j": ".missing"},
    "/storage": {"r": ".chart-axis"},
}


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_axe_finds_nothing_in_dialogs_and_tabs(watched, look):
    """No accessibility fault in what floats above a screen, in a session's other tabs, or where nothing is found."""
    watched.expected = ["404"]
    size = {"width": 390 if look == "narrow" else 1440, "height": 844}
    faults = []
    for path, keys in FACES.items():
        page = watched.open(path, viewport=size, color_scheme="dark" if look == "dark" else "light")
        expect(page.locator("main h1, main h2").first).to_be_attached()
        page.wait_for_timeout(800)
        for key, there in keys.items():
            if key == "x":
                page.keyboard.press("j")
            page.keyboard.press(key)
            expect(page.locator(there).first).to_be_attached()
            page.wait_for_timeout(300)
            found = Axe().run(page).response["violations"]
            faults += [(path, key, it["id"], [node["html"][:160] for node in it["nodes"][:3]]) for it in found]
            if page.locator("dialog[open]").count():
                page.keyboard.press("Escape")
        page.context.close()
    assert faults == []


def test_read_token_sees_why_it_may_not_act(chromium, store):
    """The token is typed once; with scope read every action is disabled and names the scope that it needs."""
    text = saveslot(store, "token", "create", "viewer", "--scope", "read").strip()
    saveslot(store, "token", "create", "boss", "--scope", "admin")
    with serving(str(store)) as url:
        watched = Watched(chromium, url)
        watched.expected = ["401"]
        page = watched.open("/sessions/trip-lisbon")
        page.get_by_label("Token").fill(text)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("slider")).to_be_visible()
        buttons = page.locator(".actions button")
        for button in buttons.all():
            expect(button).to_be_disabled()
        expect(page.locator(".actions .needs").first).to_have_text("needs scope write")
        page.keyboard.press("p")
        expect(page.locator(".toast")).to_have_text("needs scope write")
        status = page.evaluate("fetch('/v1/sessions/trip-lisbon/pause', {method: 'POST'}).then((r) => r.status)")
        assert status == 403
        watched.expected.append("403")
        assert page.evaluate("document.cookie") == ""
        assert text not in page.evaluate("JSON.stringify(localStorage) + location.href")
        page.context.close()
        watched.check()


def test_conflict_names_the_token_that_came_first(chromium, store):
    """What a person did has no worker: the token says who it was, there and in the trail of a deleted session."""
    text = saveslot(store, "token", "create", "boss", "--scope", "admin").strip()
    anna = saveslot(store, "token", "create", "anna", "--scope", "write").strip()
    with serving(str(store)) as url:
        watched = Watched(chromium, url)
        watched.expected = ["401", "412"]
        page = watched.open("/sessions/trip-lisbon")
        page.get_by_label("Token").fill(text)
        page.get_by_role("button", name="Sign in").click()
        page.locator(".log-row", has_text="planned").first.click()
        page.keyboard.press("r")
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".operations li").first).to_be_visible()
        saveslot(url, "label", "trip-lisbon", "seen=yes", token=anna)
        dialog.get_by_role("button", name="Roll back to 5").click()
        expect(dialog.locator(".came")).to_contain_text("anna")
        page.keyboard.press("Escape")
        saveslot(url, "rm", "review-8812", "--yes", token=anna)
        watched.expected.append("404")
        page.goto(f"{url}/sessions/review-8812")
        expect(page.locator(".plain-table")).to_contain_text("anna")
        page.context.close()
        watched.check()


def test_erased_session_says_so(watched, store):
    """An erased session shows no data and no traceback, but the trail of what happened to it."""
    watched.expected = ["404"]
    saveslot(store, "erase", "review-8812", "--apply")
    page = watched.open("/sessions/review-8812")
    expect(page.get_by_role("heading", level=1)).to_have_text("review-8812 was deleted")
    expect(page.locator("main")).not_to_contain_text("Timeout: no answer")


def test_reduced_motion_stops_all(watched):
    """With reduced motion no animation runs, even on a page with live marks."""
    page = watched.open("/sessions/lesson-2207", reduced_motion="reduce")
    expect(page.get_by_role("slider")).to_be_visible()
    running = "document.getAnimations().filter((it) => it.playState === 'running').length"
    assert page.evaluate(running) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colours_leave_the_tape_readable(watched, scheme):
    """With colours that the user forces, names on the tape have another colour than what they stand on."""
    page = watched.open("/sessions/trip-lisbon?at=5", forced_colors="active", color_scheme=scheme)
    expect(page.locator(".owner-name").first).to_be_visible()
    fills = """() => [".owner-name", ".playhead text", ".name"].map((text) => {
        const under = { ".owner-name": ".o0-head", ".playhead text": ".flag", ".name": ".panel" }[text];
        const fill = (it) => getComputedStyle(document.querySelector(it));
        return [fill(text).fill, under === ".panel" ? fill(under).backgroundColor : fill(under).fill];
    })"""
    for text, under in page.evaluate(fills):
        assert text != under
