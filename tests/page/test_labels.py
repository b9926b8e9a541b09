"""What a person changes without touching the log's data: labels; and what stands beside a session."""

from __future__ import annotations

import shlex

from playwright.sync_api import expect

from tests.page.api import call, get, post, saveslot


def test_labels_are_set_undone_and_copied(watched, url):
    """Added, changed and removed labels are one write; undo takes it back; the copied command does it again."""
    call(url, "PATCH", "/sessions/trip-lisbon/labels", {"tier": "gold"})
    page = watched.open("/sessions/trip-lisbon")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.locator(".headline .label")).to_have_text(["env=prod", "tier=gold"])
    page.keyboard.press("l")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value of env").fill("test")
    dialog.get_by_role("button", name="Remove tier").click()
    dialog.get_by_label("Name", exact=True).last.fill("team")
    dialog.get_by_label("Value of team").fill("a b")
    expect(dialog.get_by_role("status")).to_have_text("removed tier, env: prod → test, added team=a b")
    dialog.get_by_role("button", name="copy as CLI").click()
    command = page.evaluate("navigator.clipboard.readText()")
    dialog.get_by_role("button", name="Set the labels").click()
    expect(page.locator(".headline .label")).to_have_text(["env=test", "team=a b"])
    page.keyboard.press("u")
    expect(page.locator(".headline .label")).to_have_text(["env=prod", "tier=gold"])
    words = shlex.split(command)
    assert words[-2:] == ["--store", url]
    saveslot(url, *words[1:-2])
    assert get(url, "/sessions/trip-lisbon")["labels"] == {"env": "test", "team": "a b"}


def test_labels_follow_another_writer(watched, url):
    """Nothing is set on a session that has moved on; the dialog says so and keeps what was typed."""
    watched.expected = ["412"]
    page = watched.open("/sessions/trip-lisbon")
    expect(page.locator(".headline .label")).to_have_text(["env=prod"])
    page.route("**/v1/events?**", lambda route: route.abort())
    page.keyboard.press("l")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value of env").fill("test")
    post(url, "/sessions/trip-lisbon/pause", {})
    dialog.get_by_role("button", name="Set the labels").click()
    expect(dialog.locator(".card")).to_contain_text("the session has moved on")
    assert get(url, "/sessions/trip-lisbon")["labels"] == {"env": "prod"}
    expect(dialog.get_by_label("Value of env")).to_have_value("test")
    dialog.get_by_role("button", name="Set the labels").click()
    expect(page.locator(".headline .label")).to_have_text(["env=test"])


def test_an_orphan_says_what_to_do_next(watched, url):
    """An orphan names the open step, the keeper that would start a worker for it, and how to end it."""
    page = watched.open("/sessions/lesson-2207")
    steps = page.get_by_role("region", name="What next").locator("li")
    expect(steps).to_have_count(5)
    expect(steps.nth(0)).to_contain_text("Find out whether send-mail happened")
    keeper = f"saveslot keeper --run 'python agent.py {{id}}' --agent tutor --store {url}"
    expect(steps.nth(1).locator(".code span")).to_have_text(keeper)
    expect(steps.nth(2)).to_contain_text('async with sessions.hold("lesson-2207") as held:')
    steps.nth(4).get_by_role("button", name="Cancel…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Its worker is silent.")
    dialog.get_by_role("button", name="Cancel the session").click()
    expect(page.locator(".log-row", has_text="cancelled")).to_have_count(1)
    steps.nth(3).get_by_role("button", name="Release…").click()
    dialog.get_by_role("button", name="Release the session").click()
    expect(page.locator(".headline .chip")).to_have_text("failed")
    expect(steps.last).to_contain_text("Then a worker goes on with it")


def test_raw_shows_what_the_state_is_rebuilt_from(watched, url):
    """Raw names keyframe, patches and digest as the API does, and leads to each of their entries."""
    recipe = get(url, "/sessions/trip-lisbon/checkpoints/7?recipe=1")["recipe"]
    page = watched.open("/sessions/trip-lisbon?tab=raw&at=7")
    details = page.locator(".recipe")
    expect(details).to_contain_text(f"keyframe {recipe['frames'][0]['seq']} and {len(recipe['frames']) - 1} patch")
    details.locator("summary").click()
    expect(details.locator("tbody tr")).to_have_count(len(recipe["frames"]))
    expect(details.locator(".digest")).to_have_text(recipe["digest"])
    details.get_by_role("link").first.click()
    expect(page.locator(".raw-head")).to_contain_text(f"trip-lisbon:{recipe['frames'][0]['seq']}")


def test_the_tape_zooms_at_the_playhead(watched):
    """Zooming widens the tape, keeps the playhead where it is and in sight, and is part of the link."""
    page = watched.open("/sessions/trip-lisbon?at=12")
    drawn = page.locator(".tape svg").first
    expect(drawn).to_be_visible()
    width = drawn.bounding_box()["width"]
    for _ in range(3):
        page.keyboard.press("+")
    page.wait_for_function(
        "width => document.querySelector('.tape svg').getBoundingClientRect().width > 2.5 * width", arg=width
    )
    assert "zoom=3" in page.url
    flag, panel = page.locator(".playhead .flag").bounding_box(), page.locator(".tape-scroll").first.bounding_box()
    assert panel["x"] < flag["x"] < panel["x"] + panel["width"]
    page.keyboard.press("-")
    page.keyboard.press("-")
    page.keyboard.press("-")
    page.wait_for_function(
        "width => document.querySelector('.tape svg').getBoundingClientRect().width <= width", arg=width
    )
    assert "zoom" not in page.url


def test_the_server_says_what_it_is(watched, url):
    """Settings show the version and the limits that `/v1/me` names."""
    me = get(url, "/me")
    page = watched.open("/settings")
    facts = page.get_by_role("region", name="This server")
    expect(facts).to_contain_text(me["version"])
    expect(facts).to_contain_text("sqlite")
    expect(facts).to_contain_text("dead after 20 s of silence")
