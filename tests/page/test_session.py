"""One session on the page: scrubbing, its tabs, and what agents saved shown as text."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.page.api import get, post, saveslot


def selected(page: Page) -> int:
    return int(page.get_by_role("slider").get_attribute("aria-valuenow"))


def test_tape_log_and_url_agree_at_every_entry(watched, url):
    """Wherever the playhead goes, by key, by click in the log or by drag, tape, log and URL name the same entry."""
    entries = get(url, "/sessions/trip-lisbon/log?limit=500")["items"]
    page = watched.open("/sessions/trip-lisbon?at=1")
    slider = page.get_by_role("slider")
    for entry in entries:
        expect(slider).to_have_attribute("aria-valuenow", str(entry["seq"]))
        expect(page.locator(".log-row.selected .seq")).to_have_text(str(entry["seq"]))
        expect(page.locator(".tape-head .here b")).to_contain_text(f"{entry['seq']} ")
        page.keyboard.press("]")
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuenow", "1")
    page.locator(".log-row", has_text="planned").first.click()
    seq = selected(page)
    assert seq == next(entry["seq"] for entry in entries if entry["name"] == "planned")
    expect(page).to_have_url(f"{url}/sessions/trip-lisbon?at={seq}")
    box = page.locator(".tape svg").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 80, steps=8)
    page.mouse.up()
    dragged = selected(page)
    assert dragged > 1
    expect(page).to_have_url(f"{url}/sessions/trip-lisbon?at={dragged}")
    page.reload()
    expect(slider).to_have_attribute("aria-valuenow", str(dragged))


def test_state_and_diff_are_those_of_the_command_line(watched, url, store):
    """The state at each entry with data equals `saveslot show`, the diff from A to B `saveslot diff`."""
    entries = get(url, "/sessions/trip-lisbon/log?limit=500")["items"]
    data = [entry["seq"] for entry in entries if entry["data_seq"] == entry["seq"]]
    page = watched.open("/sessions/trip-lisbon?tab=raw&at=" + str(data[0]))
    for seq in data:
        page.goto(f"{url}/sessions/trip-lisbon?tab=raw&at={seq}")
        expect(page.locator(".raw-head")).to_contain_text(f"trip-lisbon:{seq}")
        shown = json.loads(page.locator("pre.raw").inner_text())
        assert shown == json.loads(saveslot(store, "show", f"trip-lisbon@{seq}", "--json"))["data"]
    page.goto(f"{url}/sessions/trip-lisbon?tab=diff&from={data[0]}&at={data[-1]}")
    operations = json.loads(saveslot(store, "diff", f"trip-lisbon@{data[0]}", f"@{data[-1]}", "--json"))
    expect(page.locator(".operations li")).to_have_count(len(operations))


def test_what_agents_saved_is_text(watched):
    """Markup in names and values is shown and never run; what cannot be seen is spelled out."""
    page = watched.open("/sessions/hostile")
    expect(page.get_by_role("heading", level=1)).to_have_text("hostile")
    for tab in ("State", "Diff", "Messages", "Raw"):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(".centre-body")).to_contain_text("<script>alert(1)</script> \\u202egnp.exe\\u200b")
    assert page.locator("main script, main img, main b:text-is('bold')").count() == 0


def test_tape_tells_who_died_and_what_was_left_behind(watched):
    """A dead worker's clip is torn, with its silence; a rollback is an arc; entries left behind are hatched."""
    page = watched.open("/sessions/trip-lisbon")
    tape = page.locator(".tape svg")
    expect(tape.locator(".torn.died")).to_have_count(1)
    expect(tape.get_by_text("✗ died")).to_be_visible()
    expect(tape.get_by_text("↩ rolled back to")).to_be_visible()
    assert tape.locator(".hatched").count() >= 2
    expect(tape.locator(".effect.failed")).to_have_count(1)
    expect(tape.locator(".pin")).to_have_count(1)
    tape.locator(".fork .fork-id").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("trip-lisbon-cheap")


@pytest.mark.parametrize("keys", [["1", "2", "3", "4"]])
def test_tabs_have_keys(watched, url, keys):
    """1 to 4 choose the tab, and the URL keeps it."""
    page = watched.open("/sessions/trip-lisbon")
    expect(page.get_by_role("slider")).to_be_visible()
    for key, name in zip(keys, ["State", "Diff", "Messages", "Raw"], strict=True):
        page.keyboard.press(key)
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")


def test_prefix_of_an_id_becomes_the_id(watched, url):
    """A unique beginning of an id opens the session, and the URL names it whole."""
    watched.expected = ["404"]
    page = watched.open("/sessions/lesson")
    expect(page).to_have_url(f"{url}/sessions/lesson-2207")


def test_unknown_id_says_what_may_have_happened(watched):
    """An unknown session is told apart from an error, with ways to look for it."""
    watched.expected = ["404"]
    page = watched.open("/sessions/never-was")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no session never-was here")
    expect(page.get_by_text("saveslot audit never-was")).to_be_visible()


def test_large_state_is_read_in_parts(watched, url):
    """Of a state of 15 MB two levels are read, and children on opening, 200 at a time; changes are marked in it."""
    post(url, "/sessions", {"agent_type": "reader", "session_id": "large"})
    pages = {f"page-{n:04}": {"text": "x" * 3000, "links": [n, n + 1]} for n in range(5000)}
    patch = [{"op": "replace", "path": "/pages/page-0007/links/0", "value": -7}]
    for body in (
        {"name": "read", "data": {"pages": pages, "notes": ["a"], "title": "t" * 5000}},
        {"name": "noted", "append": {"notes": ["b"]}},
        {"name": "marked", "patch": patch},
    ):
        post(url, "/sessions/large/checkpoints", body)
    page = watched.open("/")
    sizes: list[int] = []
    page.on("response", lambda answer: "/checkpoints/" in answer.url and sizes.append(len(answer.body())))
    page.goto(f"{url}/sessions/large")
    tree = page.locator(".tree")
    expect(tree.get_by_role("button", name="pages")).to_contain_text("5,000 keys")
    expect(tree).to_contain_text("5,000 characters")
    expect(tree.locator(".tree-row.changed")).to_contain_text("pages")
    tree.get_by_role("button", name="pages").click()
    expect(tree).to_contain_text("page-0199")
    tree.locator(".tree-row.changed").get_by_role("button", name="links").click()
    expect(tree.locator(".tree-row.changed del")).to_have_text("7")
    tree.get_by_role("button", name="4,800 more").click()
    expect(tree).to_contain_text("page-0399")
    expect(tree.get_by_role("button", name="4,600 more")).to_be_visible()
    page.keyboard.press("4")
    expect(page.get_by_role("link", name="Download it as JSON")).to_be_visible()
    page.wait_for_timeout(300)
    assert sum(sizes) < 2_000_000


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def centred(page: Page) -> None:
    """The selected entry is in the middle of the tape, whose padding is half as wide as what is seen of it."""
    page.wait_for_function("""() => {
        const [box, slider] = [document.querySelector('.tape-scroll'), document.querySelector('.tape')];
        return Math.abs(box.scrollLeft - Number(slider.dataset.x)) <= 1;
    }""")


def test_on_a_phone_the_tape_scrolls_under_a_playhead_that_stands_still(watched):
    """A finger scrolls the tape, and the entry in its middle is selected; a tap and a log line bring theirs there."""
    page = watched.open("/sessions/trip-lisbon?at=5", **PHONE)
    slider = page.get_by_role("slider")
    expect(slider).to_have_attribute("aria-valuenow", "5")
    centred(page)
    mark = page.locator(".playhead-still").bounding_box()
    box = page.locator(".tape-scroll").bounding_box()
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + 90}
    touch = page.context.new_cdp_session(page)
    for n in range(16):
        points = [{**at, "x": at["x"] - 10 * n}]
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove" if n else "touchStart", "touchPoints": points})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    expect(slider).not_to_have_attribute("aria-valuenow", "5")
    centred(page)
    page.wait_for_timeout(500)
    scrolled = selected(page)
    assert 6 <= scrolled <= 14
    expect(page.locator(".log-row.selected .seq")).to_have_text(str(scrolled))
    expect(page.locator(".playhead-still text")).to_have_text(str(scrolled))
    expect(page).to_have_url(re.compile(f"at={scrolled}"))
    assert page.locator(".playhead-still").bounding_box() == mark
    page.locator(".log-row", has_text="planned").first.tap()
    expect(slider).to_have_attribute("aria-valuenow", "5")
    centred(page)
    page.locator(".tape-scroll").tap(position={"x": box["width"] / 2 + 100, "y": 90})
    expect(slider).not_to_have_attribute("aria-valuenow", "5")
    page.locator(".transport").get_by_role("button", name="First entry").tap()
    expect(slider).to_have_attribute("aria-valuenow", "1")
    page.locator(".transport").get_by_role("button", name="Newest entry").tap()
    expect(page).to_have_url(re.compile("/sessions/trip-lisbon$"))


def test_two_fingers_zoom_the_tape_at_its_playhead(watched):
    """Fingers that move apart make the tape wider, those that meet narrower; the entry stays in the middle."""
    page = watched.open("/sessions/trip-lisbon?at=5", **PHONE)
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuenow", "5")
    centred(page)
    box = page.locator(".tape-scroll").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 90
    touch = page.context.new_cdp_session(page)

    def pinch(*apart: float) -> None:
        for n, half in enumerate([*apart, 0.0]):
            points = [{"x": x - half, "y": y, "id": 0}, {"x": x + half, "y": y, "id": 1}] if half else []
            kind = "touchMove" if n and half else "touchEnd" if n else "touchStart"
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    wide = page.locator(".tape svg").first.bounding_box()["width"]
    pinch(40, 50, 60, 70, 80, 90, 100, 110)
    expect(page).to_have_url(re.compile("zoom=3"))
    page.wait_for_function(f"document.querySelector('.tape svg').getBoundingClientRect().width > {wide}")
    centred(page)
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuenow", "5")
    assert page.evaluate("visualViewport.scale") == 1
    pinch(100, 90, 80, 70, 60, 50, 40, 30, 20)
    expect(page).not_to_have_url(re.compile("zoom="))
    centred(page)


def test_a_tape_that_is_laid_out_anew_keeps_its_entry(watched, url):
    """Turning a phone, or a window that becomes narrow and wide again, moves no playhead."""
    page = watched.open("/sessions/trip-lisbon?at=9")
    for width in (1440, 390, 700, 390, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(400)
        expect(page.get_by_role("slider")).to_have_attribute("aria-valuenow", "9")
        expect(page.locator(".playhead-still")).to_have_count(1 if width == 390 else 0)
        if width == 390:
            centred(page)
    expect(page).to_have_url(f"{url}/sessions/trip-lisbon?at=9")
