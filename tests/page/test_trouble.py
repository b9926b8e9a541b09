"""What a page says when something is not there: a key, sound bytes, a token, the network, somebody who looks."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

from saveslot.stores.sqlite.file import connect
from tests.page.api import get, post, saveslot
from tests.page.conftest import Watched, serving

KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
SEALED = """
import asyncio, sys, saveslot
async def main(store):
    async with saveslot.open(store) as sessions, sessions.hold("sealed-1", create="clerk") as held:
        await held.checkpoint("received", {"name": "Anna Secret"})
        await held.step("look-up", lambda: "Anna Secret", key="1")
        await held.checkpoint("answered", put={"balance": 12})
asyncio.run(main(sys.argv[1]))
"""


def test_sealed_session_shows_all_but_its_data(chromium, store):
    """Without its key a session has its tape and log, and says what is missing; nothing of its data is in the page."""
    subprocess.run(
        [sys.executable, "-c", SEALED, str(store)],
        check=True,
        timeout=120,
        env={**os.environ, "SAVESLOT_ENCRYPTION_KEY": KEY},
    )
    with serving(str(store)) as url:
        watched = Watched(chromium, url)
        watched.expected = ["409"]
        entries = get(url, "/sessions/sealed-1/log?limit=100")["entries"]
        page = watched.open("/sessions/sealed-1")
        expect(page.get_by_role("slider")).to_be_visible()
        expect(page.locator(".log .panel-head")).to_contain_text(f"{entries} entries")
        expect(page.locator(".tape rect.notch")).to_have_count(2)
        for tab in ("State", "Diff", "Raw"):
            page.get_by_role("tab", name=tab).click()
            expect(page.locator(".centre-body")).to_contain_text("Sealed: this server does not have the key")
        expect(page.get_by_role("region", name="Facts")).to_contain_text("this server does not have its key")
        page.goto(url + "/sessions")
        row = page.locator("tr.row", has_text="sealed-1")
        expect(row).to_be_visible()
        expect(row.locator(".small-tape")).to_be_visible()
        assert "Secret" not in page.content()
        page.context.close()
        watched.check()


def damage(store: Path, id: str, seq: int) -> None:
    with closing(connect(str(store), None)) as connection:
        which = "key = (select key from sessions where id = ?) and seq = ?"
        connection.execute(f"update checkpoints set frame = x'00ff00ff' where {which}", (id, seq))  # noqa: S608
        assert connection.changes() == 1


def test_damaged_entry_is_marked_and_the_others_are_shown(chromium, store):
    """Damaged bytes are a sentence in place of the state; other entries show theirs, and no list lacks the session."""
    damage(store, "trip-lisbon", 5)
    with serving(str(store)) as url:
        watched = Watched(chromium, url)
        watched.expected = ["500"]
        page = watched.open("/sessions/trip-lisbon?at=5")
        expect(page.locator(".centre-body")).to_contain_text("Damaged: ")
        expect(page.locator(".centre-body")).to_contain_text("roll back to an older checkpoint")
        expect(page.locator(".centre-body")).to_contain_text("saveslot doctor")
        wrong = [
            entry["seq"]
            for entry in get(url, "/sessions/trip-lisbon/log?limit=500&changed=true")["items"]
            if entry["damaged"]
        ]
        assert 5 in wrong
        expect(page.locator(".tape .damage")).to_have_count(len(wrong))
        expect(page.locator(".tape .damage").first).to_have_text("! damaged")
        expect(page.locator(".log-row.selected")).to_contain_text("damaged")
        expect(page.locator(".actions").get_by_role("button", name="Roll back")).to_be_disabled()
        page.goto(url + "/sessions/trip-lisbon?at=3")
        expect(page.locator(".tree")).to_contain_text("Book two of us to Lisbon")
        for place in ("/", "/sessions", "/storage", "/analytics"):
            page.goto(url + place)
            expect(page.locator("main h1")).to_have_count(1)
        page.goto(url + "/sessions")
        expect(page.locator("tr.row", has_text="trip-lisbon")).to_have_count(2)
        page.context.close()
        watched.check()


def test_damage_that_a_read_finds_is_marked_then(chromium, store):
    """A damaged state that the log does not tell of is marked on tape and log once it was to be shown."""
    damage(store, "trip-lisbon", 5)
    with serving(str(store)) as url:
        watched = Watched(chromium, url)
        watched.expected = ["500"]
        page = watched.browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.route("**/log?*", lambda route: route.continue_(url=route.request.url.replace("&changed=true", "")))
        page.goto(url + "/sessions/trip-lisbon?at=3")
        expect(page.locator(".tree")).to_contain_text("Book two of us to Lisbon")
        expect(page.locator(".tape .damage")).to_have_count(0)
        page.keyboard.press("}")
        expect(page.locator(".centre-body")).to_contain_text("Damaged: ")
        expect(page.locator(".tape .damage")).to_have_text("! damaged")
        page.context.close()
        watched.check()


def test_expired_token_is_asked_for_again_and_the_view_stays(chromium, store):
    """When the token expires the page says so and asks for one; then the same view, and what was begun, go on."""
    boss = saveslot(store, "token", "create", "boss", "--scope", "admin").strip()
    text = saveslot(store, "token", "create", "guest", "--scope", "write", "--expires", "20s").strip()
    with serving(str(store)) as url:
        watched = Watched(chromium, url)
        watched.expected = ["401"]
        page = watched.open("/sessions/trip-lisbon?tab=raw&at=5&from=3")
        page.get_by_label("Token").fill(text)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("pre.raw")).to_be_visible()
        page.keyboard.press("r")
        rollback = page.get_by_role("dialog", name="Roll trip-lisbon back")
        expect(rollback.locator(".operations li").first).to_be_visible()
        again = page.get_by_role("dialog", name="Sign in again")
        expect(again).to_contain_text("The token guest has expired or was revoked.")
        again.get_by_label("Token").fill("wrong")
        again.get_by_role("button", name="Sign in").click()
        expect(again.get_by_role("alert")).to_contain_text("does not accept this token")
        again.get_by_label("Token").fill(boss)
        again.get_by_role("button", name="Sign in").click()
        expect(again).to_have_count(0)
        rollback.get_by_role("button", name="Roll back to 5").click()
        expect(page.locator(".toast")).to_contain_text("Rolled back to 5")
        expect(page).to_have_url(f"{url}/sessions/trip-lisbon?tab=raw&at=5&from=3")
        expect(page.get_by_role("tab", name="Raw")).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("slider")).to_have_attribute("aria-valuenow", "5")
        expect(page.locator(".banner")).to_have_count(0)
        page.context.close()
        watched.check()


def test_offline_and_back(watched, url):
    """Without network the page says since when and does nothing; back again, it has each entry once."""
    watched.expected = ["ERR_INTERNET_DISCONNECTED", "ERR_NETWORK", "ERR_FAILED"]
    page = watched.open("/sessions/trip-lisbon")
    expect(page.locator(".actions button").first).to_be_visible()
    page.context.set_offline(True)
    expect(page.locator(".banner")).to_contain_text("No answer from the server")
    expect(page.locator("main")).to_have_class("stale")
    expect(page.locator(".actions").get_by_role("button", name="Pause")).to_be_disabled()
    for n in range(3):
        post(url, "/sessions/trip-lisbon/checkpoints", {"name": f"unseen_{n}", "put": {"n": n}})
    page.context.set_offline(False)
    expect(page.locator(".banner")).to_have_count(0)
    for n in range(3):
        expect(page.locator(".log-row", has_text=f"unseen_{n}")).to_have_count(1)
    count = get(url, "/sessions/trip-lisbon/log")["entries"]
    expect(page.locator(".log .panel-head")).to_contain_text(f"{count} entries")
    expect(page.locator(".actions").get_by_role("button", name="Pause")).to_be_enabled()


def test_hidden_page_stops_listening_and_reads_again(watched, url):
    """A page that nobody sees closes its stream after a minute; looked at again, it shows what came meanwhile."""
    page = watched.open("/settings")
    page.clock.install()
    begun: list[str] = []
    page.on("request", lambda request: "/v1/events" in request.url and begun.append(request.url))
    page.goto(url + "/sessions/trip-lisbon")
    expect(page.locator(".actions button").first).to_be_visible()
    page.wait_for_timeout(1000)
    look = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true})")
    page.evaluate(f"window.away = true; {look}")
    with page.expect_event("requestfailed", lambda request: "/v1/events" in request.url):
        page.clock.fast_forward(61_000)
    page.wait_for_timeout(1000)
    before = len(begun)
    page.clock.fast_forward(120_000)
    page.wait_for_timeout(1000)
    assert len(begun) == before
    post(url, "/sessions/trip-lisbon/checkpoints", {"name": "unseen", "put": {"n": 1}})
    with page.expect_request("**/v1/events*"):
        page.evaluate(f"window.away = false; {look}")
    expect(page.locator(".log-row", has_text="unseen")).to_have_count(1)
    post(url, "/sessions/trip-lisbon/checkpoints", {"name": "seen", "put": {"n": 2}})
    expect(page.locator(".log-row", has_text="seen").last).to_contain_text("seen")
    expect(page.locator(".banner")).to_have_count(0)


@pytest.mark.parametrize("module", ["analytics", "charts"])
def test_screen_that_did_not_load_loads_when_tried_again(watched, module):
    """A screen whose module, or one that it imports, did not come says so; trying again opens it."""
    watched.expected = ["ERR_FAILED"]
    page = watched.browser.new_context().new_page()
    page.route(f"**/{module}.js*", lambda route: route.abort())
    page.goto(watched.url + "/settings")
    expect(page.locator(".settings")).to_be_visible()
    page.get_by_role("link", name="Analytics").first.click()
    again = page.get_by_role("button", name="Try again")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text("This screen could not be loaded")
    with page.expect_navigation():  # the server answers: perhaps it has another version of the page
        again.click()
    expect(heading).to_have_text("This screen could not be loaded")
    page.unroute(f"**/{module}.js*")
    again.click()
    expect(page.locator(".heatmap")).to_be_visible()


def test_screen_loads_by_itself_once_the_network_is_back(watched):
    """A module that did not come while the page was offline comes when its screen is opened later."""
    watched.expected = ["ERR_FAILED"]
    page = watched.browser.new_context().new_page()
    failed: list[str] = []
    page.route("**/storage.js*", lambda route: route.abort())
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.goto(watched.url + "/settings")
    while not any("/storage.js" in text for text in failed):
        page.wait_for_timeout(50)
    page.unroute("**/storage.js*")
    page.get_by_role("link", name="Storage").first.click()
    expect(page.locator(".sort-bar")).to_be_visible()
