"""Session owners in ls, show, log, stats and top."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import pytest

import saveslot
from saveslot import blocking

ME = f"{socket.gethostname()}:{os.getpid()}"


@pytest.fixture
def held(samples):
    """lesson-1 held by this process, with its own step and checkpoint."""
    with blocking.open(samples.url) as sessions, sessions.hold("lesson-1") as held:
        held.step("ask", lambda: "3/4", key="turn-1")
        held.checkpoint("resumed", {"tries": 1})
        yield held


async def leave(url: str, session_id: str) -> None:
    """Hold it, and be no more."""
    sessions = await saveslot.open(url)
    await sessions.take(session_id)
    await sessions.close()


@pytest.fixture
def orphaned(samples) -> None:
    """lesson-1, an orphan of a dead worker."""
    asyncio.run(leave(samples.url, "lesson-1"))


def test_ls_shows_owners_if_any(run, held):
    """The worker column is empty for unowned sessions, and absent if no session is held."""
    header, *rows = run("ls").out.splitlines()
    assert header.split()[:5] == ["ID", "STATE", "AGENT", "USER", "OWNER"]
    assert [ME in row for row in rows] == [False, False, False, True]
    held.release()
    assert "OWNER" not in run("ls").out


def test_orphans_are_marked(run, orphaned):
    """The list, `show` and JSON mark it: its owner has no time left."""
    assert f"orphan of {ME}" in run("ls").out
    assert f"orphan of {ME}, which held it for 0s, until its last heartbeat just now" in run("show", "lesson-1").out
    answer = json.loads(run("show", "lesson-1", "--json").out)
    assert answer["owner"] == {"worker": ME, "left": 0.0, "fence": 1, "since": None}
    assert "0 by live workers, 1 orphaned" in run("stats").out


def test_show_names_the_owner(run, held):
    """It names the owner and how long it holds; JSON has the owner's remaining seconds."""
    assert f"\nheld by {ME} for 0s\n" in run("show", "lesson-1").out
    owner = json.loads(run("show", "lesson-1", "--json").out)["owner"]
    assert owner["worker"] == ME
    assert 0 < owner["left"] <= 20
    assert json.loads(run("show", "nightly", "--json").out)["owner"] is None
    assert "held by" not in run("show", "nightly").out


def test_log_names_the_owner_of_each_entry(run, held):
    """The owner is named from the take to the release; steps show their key."""
    held.release()
    answer = json.loads(run("log", "lesson-1", "--all", "--json").out)
    assert [(line["kind"], line["owner"]) for line in answer[6:]] == [
        ("rollback", None),
        ("taken", ME),
        ("step_finished", ME),
        ("checkpoint", ME),
        ("released", None),
    ]
    header, *rows = run("log", "lesson-1", "--all").out.splitlines()
    assert header.split()[:5] == ["SEQ", "TIME", "KIND", "NAME", "OWNER"]
    assert rows[8].endswith("key=turn-1")
    assert "OWNER" not in run("log", "lesson-1").out


def test_limited_log_still_names_the_owner(run, held):
    """The entry that took the session may come before the ones shown."""
    [line] = json.loads(run("log", "lesson-1", "--all", "--json", "-n", "1").out)
    assert (line["name"], line["owner"]) == ("resumed", ME)
    assert ME in run("log", "lesson-1", "--all", "-n", "1").out


def test_takeover_names_the_former_owner(run, orphaned, samples):
    """The log names the dead worker beside the one that claimed."""

    async def claim() -> None:
        opened = saveslot.open(samples.url, worker_beat=0.1, worker_ttl=0.5)
        async with opened as sessions, sessions.hold("lesson-1", wait=10) as held:
            await held.complete()

    asyncio.run(claim())
    lines = run("log", "lesson-1", "--all").out.splitlines()
    assert f"from {ME}, silent for " in lines[-2]
    assert f"session_completed  {ME}" in lines[-1]


def test_top_names_owners_and_orphans(terminal, held, run, samples):
    """It shows owners, the newest checkpoint and totals, and on the next refresh new orphans."""
    view = terminal("top", "--every", "0.1", columns=160)
    shown = view.until(ME)
    assert "1 worker  1 held  0 orphaned" in shown
    view.until("resumed")
    held.checkpoint("went_on", {"tries": 2})
    view.until("went_on")
    assert run("fork", "lesson-1", "--as", "left").code == 0
    asyncio.run(leave(samples.url, "left"))
    view.until(f"orphan of {ME}")
    view.until("1 held  1 orphaned")
    view.type("\x03")
    assert view.end() == 130


def test_top_in_a_pipe_shows_owners(run, held):
    """It prints the same list as `ls`, newest heartbeat first."""
    first = run("top").out.splitlines()[1]
    assert first.startswith("lesson-1 ")
    assert ME in first
    assert json.loads(run("top", "--json").out)[0]["owner"]["worker"] == ME
