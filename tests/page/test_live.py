"""What happens elsewhere while the page is open: first sessions, deaths, takeovers, a server that is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter

from playwright.sync_api import expect

from tests.page.api import call, get, post
from tests.page.conftest import Watched, free_port, serving

# A worker that holds a session until it is killed; it counts as dead after TTL seconds.
TTL = 3.0
HOLDER = """
import asyncio, sys, saveslot
async def main(store, ttl):
    async with saveslot.open(store, worker_beat=ttl / 3, worker_ttl=ttl) as sessions:
        async with sessions.hold("held-1", create="tutor") as held:
            await held.checkpoint("asked", {"n": 1})
            print("held", flush=True)
            await asyncio.sleep(600)
asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""
CLAIMER = """
import asyncio, sys, saveslot
async def main(store):
    async with saveslot.open(store) as sessions:
        async for held in sessions.claims(agent_type="tutor"):
            async with held:
                await held.checkpoint("answered", put={"n": 2})
            if held.session.session_id == "held-1":
                return
asyncio.run(main(sys.argv[1]))
"""


def test_first_session_appears_by_itself(chromium, tmp_path):
    """An empty store shows what a tape is; once the demo runs, Now opens without a reload, and its tapes are whole."""
    store = str(tmp_path / "empty.db")
    with serving(store) as url:
        watched = Watched(chromium, url)
        page = watched.open("/")
        expect(page.get_by_role("heading", level=1)).to_have_text("Nothing saved here yet.")
        subprocess.run(
            [sys.executable, "-m", "saveslot", "demo", "--fast", "--store", store],
            check=True,
            capture_output=True,
            timeout=300,
        )
        expect(page.locator(".counters")).to_be_visible()
        sessions = get(url, "/sessions")["items"]
        logs = {
            row["session_id"]: get(url, f"/sessions/{row['session_id']}/log?limit=500")["items"] for row in sessions
        }
        taken = next(name for name, log in logs.items() if any(entry["from"] for entry in log))
        page.goto(f"{url}/sessions/{taken}")
        expect(page.get_by_role("slider")).to_be_visible()
        kinds = [entry["kind"] for entry in logs[taken]]
        expect(page.locator(".tape .torn.died")).to_have_count(kinds.count("claimed"))
        expect(page.locator(".tape rect.notch")).to_have_count(kinds.count("checkpoint"))
        page.context.close()
        watched.check()


def test_killed_worker_shows_as_an_orphan_until_it_is_claimed(watched, url, store):
    """A worker killed with -9 is an orphan in sentence, row, list and tape; a claim ends that, and the gap is drawn."""
    argv = [sys.executable, "-c", HOLDER, str(store), str(TTL)]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    page = watched.open("/")
    expect(page.locator(".wall")).to_contain_text("held-1")
    session = watched.open("/sessions/held-1")
    expect(session.locator(".headline .chip")).to_have_text("active")
    died = time.time()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    expect(page.locator("tr.need", has_text="held-1")).to_contain_text("orphaned")
    expect(page.get_by_role("heading", level=1)).to_contain_text("2 orphaned")
    expect(page).to_have_title("(4) saveslot")
    subprocess.run([sys.executable, "-c", CLAIMER, str(store)], check=True, timeout=120)
    claimed = time.time()
    expect(page.get_by_role("heading", level=1)).to_contain_text("failed in the last hour")
    expect(page.locator("tr.need", has_text="held-1")).to_have_count(0)
    expect(session.locator(".tape .torn.died")).to_have_count(1)
    row = session.locator(".log-row.death")
    expect(row).to_contain_text("✗ died")
    [gap] = [entry for entry in get(url, "/sessions/held-1/log")["items"] if entry["from"]]
    assert gap["from"]["silent_since"]
    assert claimed - died < 300


def test_lost_server_is_told_and_nothing_is_missed(chromium, store):
    """Without an answer a banner says since when, and nothing can be done; on return what came meanwhile is there."""
    port = free_port()
    with serving(str(store), port) as url:
        watched = Watched(chromium, url)
        watched.expected = ["ERR_CONNECTION", "ERR_INCOMPLETE", "Failed to load resource", "ERR_EMPTY", "ERR_NETWORK"]
        page = watched.open("/sessions/trip-lisbon")
        expect(page.get_by_role("slider")).to_be_visible()
        expect(page.locator(".actions button").first).to_be_visible()
    expect(page.locator(".banner")).to_contain_text("No answer from the server")
    expect(page.locator(".actions").get_by_role("button", name="Pause")).to_be_disabled()
    with serving(str(store), port) as url:
        post(url, "/sessions/trip-lisbon/checkpoints", {"name": "meanwhile", "put": {"x": 1}})
        page.locator(".banner button").click()
        expect(page.locator(".banner")).to_have_count(0)
        expect(page.locator(".log-row", has_text="meanwhile")).to_have_count(1)
        expect(page.locator(".actions").get_by_role("button", name="Pause")).to_be_enabled()
        seqs = [row["seq"] for row in get(url, "/sessions/trip-lisbon/log?limit=500")["items"]]
        expect(page.locator(".log .panel-head")).to_contain_text(f"{len(seqs)} entries")
        page.context.close()
    watched.check()


def test_a_second_window_follows(watched, url):
    """A checkpoint of another writer moves a playhead that stands at the newest entry, and no other."""
    following = watched.open("/sessions/trip-lisbon")
    staying = watched.open("/sessions/trip-lisbon?at=5")
    expect(following.get_by_role("slider")).to_be_visible()
    expect(staying.get_by_role("slider")).to_be_visible()
    following.wait_for_timeout(1500)
    call(url, "POST", "/sessions/trip-lisbon/checkpoints", {"name": "later", "put": {"x": 1}})
    newest = get(url, "/sessions/trip-lisbon/log")["entries"]
    expect(following.get_by_role("slider")).to_have_attribute("aria-valuenow", str(newest))
    expect(staying.get_by_text("newer →")).to_be_visible()
    expect(staying.get_by_role("slider")).to_have_attribute("aria-valuenow", "5")


def test_lists_follow(watched, url):
    """Sessions shows entries and states of others as they come; a new session waits while the list is scrolled."""
    for n in range(60):
        post(url, "/sessions", {"agent_type": "tutor", "session_id": f"filler-{n}"})
    page = watched.open("/sessions")
    row = page.locator("tr.row", has_text="filler-59")
    expect(row).to_contain_text("active")
    page.wait_for_timeout(1500)
    post(url, "/sessions/filler-59/checkpoints", {"name": "meanwhile", "put": {"x": 1}})
    expect(row.locator(".c-at")).to_have_text("meanwhile")
    post(url, "/sessions/filler-59/pause", {})
    expect(row.locator(".c-state")).to_contain_text("paused")
    post(url, "/sessions", {"agent_type": "tutor", "session_id": "newest"})
    expect(page.locator("tr.row").first).to_contain_text("newest")
    page.locator(".table-scroll").evaluate("it => it.scrollTo(0, 400)")
    page.wait_for_timeout(300)
    post(url, "/sessions", {"agent_type": "tutor", "session_id": "later"})
    page.get_by_role("button", name="1 new").click()
    expect(page.get_by_role("link", name="later", exact=True)).to_have_count(1)


def test_a_session_at_work_is_read_far_more_seldom_than_it_checkpoints(watched, url):
    """An open session shows the last of many checkpoints, and reads only its new entries, some at a time."""
    page = watched.open("/sessions/trip-lisbon")
    slider = page.get_by_role("slider")
    expect(slider).to_be_visible()
    expect(page.locator(".actions button").first).to_be_visible()
    page.wait_for_timeout(1500)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url.removeprefix(url).split("?")[0]))
    for n in range(200):
        post(url, "/sessions/trip-lisbon/checkpoints", {"name": f"n-{n}", "put": {"n": n}})
    last = get(url, "/sessions/trip-lisbon/log?limit=1")["entries"]
    expect(slider).to_have_attribute("aria-valuenow", str(last))
    expect(page.locator(".tree")).to_contain_text("199")
    expect(page.locator(".outlook")).to_contain_text(f"{last} n-199")
    assert len(requests) <= 100, Counter(requests)
    assert requests.count("/v1/sessions/trip-lisbon") <= 2  # by its owner's heartbeat


def test_pins_and_steps_of_others_show(watched, url):
    """What another writer pins gets its flag, and a step that ends is open no more where it began."""
    page = watched.open("/sessions/trip-lisbon?at=5")
    expect(page.locator(".tape .pin")).to_have_count(1)
    page.wait_for_timeout(1000)
    post(url, "/sessions/trip-lisbon/pin", {"ref": 5})
    expect(page.locator(".tape .pin")).to_have_count(2)
    expect(page.locator(".log-row.selected")).to_contain_text("pinned")


def test_an_open_session_says_by_itself_that_its_worker_died(watched, url, store):
    """The page of a session becomes orphaned when its worker falls silent, without an entry or a reload."""
    argv = [sys.executable, "-c", HOLDER, str(store), str(TTL)]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    page = watched.open("/sessions/held-1")
    expect(page.locator(".headline .chip")).to_have_text("active")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    expect(page.locator(".headline .chip")).to_have_text("orphaned")
    expect(page.locator(".tape .torn.orphaned")).to_have_count(1)


def test_a_log_is_read_on_in_both_directions(watched, url):
    """From the middle of a long log the playhead goes on beyond the loaded entries, and follows only at the newest."""
    post(url, "/sessions", {"agent_type": "indexer", "session_id": "long"})
    for n in range(560):
        post(url, "/sessions/long/checkpoints", {"name": "read", "put": {"n": n}})
    page = watched.open("/sessions/long?at=20")
    slider = page.get_by_role("slider")
    expect(slider).to_have_attribute("aria-valuenow", "20")
    expect(page.locator(".log .panel-head")).to_contain_text("500 loaded")
    page.locator(".log-rows").evaluate("it => it.scrollTo(0, 480 * 44)")
    page.locator(".log-row", has=page.get_by_text("490", exact=True)).click()
    expect(page.locator(".log .panel-head")).not_to_contain_text("loaded")
    expect(slider).to_have_attribute("aria-valuenow", "490")
    page.keyboard.press("End")
    expect(slider).to_have_attribute("aria-valuenow", "561")
