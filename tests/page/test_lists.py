"""Now, the list of sessions, and events."""

from __future__ import annotations

import re

from playwright.sync_api import Route, expect

from tests.page.api import get, post


def test_now_says_what_needs_somebody(watched):
    """Sentence, counters, rows and title agree: one orphan in an unknown step, two failures."""
    page = watched.open("/")
    expect(page.get_by_role("heading", level=1)).to_contain_text(
        "1 orphaned, 2 failed in the last hour. 3 are active in all."
    )
    rows = page.locator("tr.need")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("lesson-2207")
    expect(rows.first).to_contain_text("send-mail began, end unknown")
    expect(page).to_have_title("(3) saveslot")
    rows.first.get_by_role("link", name="Decide…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("lesson-2207")
    expect(page.locator(".card")).to_contain_text("It began, and no entry tells that it ended.")


def test_a_number_is_the_same_wherever_it_stands(watched, url):
    """Now and Sessions count states alike; a session's bytes are those of the API, in the list and beside its tape."""
    page = watched.open("/")
    expect(page.locator(".counter b")).to_have_count(5)
    counters = page.locator(".counter").evaluate_all(
        """all => Object.fromEntries(all.map((it) =>
            [it.querySelector(".state").innerText.trim(), it.querySelector("b").innerText]))"""
    )
    page = watched.open("/sessions")
    expect(page.locator(".facets .facet").first).to_be_visible()
    for word, number in counters.items():
        button = page.locator(".facets section").first.get_by_role("button", name=word)
        expect(button.locator(".facet-count")).to_have_text(number)
        if number != "0":
            button.click()
            expect(page.locator("tr.row")).to_have_count(int(number))
            button.click()
            expect(page.locator("tr.row")).to_have_count(5)
    for row in page.locator("tr.row").all():
        name, stored = row.locator(".c-id a").inner_text(), row.locator(".c-stored")
        expect(stored).not_to_be_empty()
        bytes_ = get(url, f"/sessions/{name}/summary")["stored_bytes"]
        assert stored.inner_text() == size(bytes_)
        session = watched.open(f"/sessions/{name}")
        expect(session.get_by_role("region", name="Facts")).to_contain_text(
            f"Stored\n{size(bytes_)}", use_inner_text=True
        )
        session.context.close()


def size(bytes_: int) -> str:
    return f"{bytes_} B" if bytes_ < 1000 else f"{bytes_ / 1000:.1f} KB"


def test_tokens_that_do_not_fit_say_what_does(watched):
    """A value that a token does not accept filters nothing; the list says what to write instead."""
    page = watched.open("/sessions?before=soon&label=env")
    expect(page.locator("tr.row")).to_have_count(5)
    expect(page.get_by_text("after before: write a date (2026-11-18), a time")).to_be_visible()
    expect(page.get_by_text("after label: write name=value")).to_be_visible()
    page.get_by_label("Search sessions").fill("before:1m")
    expect(page.locator(".list-head [role=alert]")).to_have_count(0)


def test_search_facets_and_url_agree(watched, url):
    """A facet, a token and a shortcut lead to the same URL, the same rows and the same count."""
    page = watched.open("/sessions")
    expect(page.locator("tr.row")).to_have_count(5)
    page.get_by_role("button", name="failed").first.click()
    expect(page).to_have_url(f"{url}/sessions?state=failed")
    expect(page.get_by_label("Search sessions")).to_have_value("state:failed")
    expect(page.locator("tr.row")).to_have_count(2)
    page.locator("body").click(position={"x": 5, "y": 500})
    page.keyboard.press("0")
    expect(page.locator("tr.row")).to_have_count(5)
    page.keyboard.press("/")
    page.keyboard.type("agent:tutor state:completed")
    expect(page.get_by_text("No session matches.")).to_be_visible()
    page.get_by_role("button", name="state:completed ✕").click()
    expect(page.locator("tr.row")).to_have_count(1)


def test_new_sessions_and_changes_appear(watched, url):
    """What other writers do shows by itself, in the list and in the tail."""
    events = watched.open("/events")
    expect(events.locator(".event-rows li").first).to_be_visible()
    page = watched.open("/sessions")
    expect(page.locator("tr.row")).to_have_count(5)
    events.wait_for_timeout(1000)
    post(url, "/sessions", {"agent_type": "tutor", "session_id": "lesson-1", "data": {"n": 1}, "name": "asked"})
    expect(page.locator("tr.row")).to_have_count(6)
    row = events.locator(".event-rows li", has_text="lesson-1").first
    expect(row.locator(".e-time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d\.\d{3}$"))
    events.keyboard.press(" ")
    post(url, "/sessions/lesson-1/checkpoints", {"name": "hinted", "put": {"n": 2}})
    expect(events.get_by_text("1 entry waits")).to_be_visible()
    events.keyboard.press(" ")
    expect(events.locator(".event-rows li", has_text="lesson-1").filter(has_text="hinted")).to_have_count(1)


def test_palette_finds_sessions_and_does_things(watched):
    """Ctrl K, a few letters and Enter open a session; what can be done has a name there."""
    page = watched.open("/sessions")
    page.keyboard.press("Control+k")
    page.keyboard.type("lesson")
    expect(page.get_by_role("option").first).to_contain_text("lesson-2207")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("lesson-2207")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("find or do")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_bulk_verbs_say_who_was_refused(watched, url):
    """A verb on all that match runs as a job; sessions that it does not fit are named with the reason."""
    page = watched.open("/sessions")
    expect(page.locator("tr.row")).to_have_count(5)
    page.keyboard.press("j")
    page.keyboard.press("x")
    bar = page.get_by_role("region", name="Selected sessions")
    expect(bar).to_contain_text("1 selected")
    bar.get_by_role("button", name="select all 5 that match").click()
    expect(bar).to_contain_text("5 selected")
    bar.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause 5 sessions").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Finished: 3 done, 2 refused of 5.")
    expect(dialog.locator(".refusals li")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("tr.row .state.s-paused")).to_have_count(2)  # the orphan says that it is one
    states = {row["session_id"]: row["state"] for row in get(url, "/sessions")["items"]}
    assert sorted(states.values()) == ["failed", "failed", "paused", "paused", "paused"]
    page.keyboard.press("Escape")
    expect(bar).to_have_count(0)


def test_events_begin_with_the_past(watched, url):
    """A tail where nothing happens shows the newest entries, those of its filter, and none twice when more come."""
    page = watched.open("/events?kind=trouble")
    rows = page.locator(".event-rows li")
    expect(rows.first).to_be_visible()
    kinds = set(rows.locator(".e-kind").all_inner_texts())
    assert kinds <= {"failed", "step failed", "claimed", "cancelled"}
    page.goto(f"{url}/events")
    written = get(url, "/entries?limit=200")["items"]
    expect(rows).to_have_count(len(written))
    post(url, "/sessions/trip-lisbon/checkpoints", {"name": "one_more", "put": {"n": 1}})
    expect(rows.first).to_contain_text("one_more")
    expect(rows).to_have_count(len(written) + 1)


def test_facets_are_a_sheet_on_a_phone(watched, url):
    """Where there is no room beside the list, a button opens the facets; they narrow the list behind the dialog."""
    page = watched.open("/sessions", viewport={"width": 390, "height": 844})
    expect(page.locator("tr.row")).to_have_count(5)
    expect(page.locator(".list-columns > .facets")).to_be_hidden()
    page.get_by_role("button", name="Filters").click()
    page.get_by_role("dialog").get_by_role("button", name="failed").click()
    expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("2 sessions")
    page.get_by_role("button", name="Show the list").click()
    expect(page.locator("tr.row")).to_have_count(2)
    expect(page.get_by_role("button", name="Filters 1")).to_be_visible()
    expect(page).to_have_url(f"{url}/sessions?state=failed")


def test_tapes_are_asked_for_once_while_the_list_scrolls(watched, url):
    """An answer that comes just after the list has moved on is followed by one request for the tapes in sight."""
    for n in range(60):
        post(url, "/sessions", {"agent_type": "crowd", "user_id": "u", "session_id": f"c-{n:02}"})
    page = watched.open("/events")
    held: list[Route] = []
    page.route("**/v1/shapes?*", lambda route: route.continue_() if held else held.append(route))
    page.get_by_role("link", name="Sessions").click()
    expect(page.locator("tr.row").first).to_be_visible()
    while not held:
        page.wait_for_timeout(50)
    page.locator(".table-scroll").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    last = page.locator("tr.row", has_text="lesson-2207")
    expect(last).to_be_visible()
    held[0].continue_()
    expect(last.locator(".small-tape")).to_be_visible()
    page.wait_for_timeout(600)  # a second request would come by now
