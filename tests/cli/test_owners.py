"""Who holds a session, as ls, show, log, stats and top tell it."""

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
    """lesson-1 in the hands of this process, with a step and a checkpoint of its own."""
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
    """lesson-1 left by a worker that is no more."""
    asyncio.run(leave(samples.url, "lesson-1"))


def test_a_list_names_owners_where_there_are_any(run, held):
    """A column for the worker, empty for what nobody holds; without a holder there is no such column."""
    header, *rows = run("ls").out.splitlines()
    assert header.split()[:5] == ["ID", "STATE", "AGENT", "USER", "OWNER"]
    assert [ME in row for row in rows] == [False, False, False, True]
    held.release()
    assert "OWNER" not in run("ls").out


def test_an_orphan_is_marked(run, orphaned):
    """In the list, in `show` and in JSON: nothing is left of its owner's time."""
    assert f"orphan of {ME}" in run("ls").out
    assert f"orphan of {ME}, which held it for 0s and is silent" in run("show", "lesson-1").out
    told = json.loads(run("show", "lesson-1", "--json").out)
    assert told["owner"] == {"worker": ME, "left": 0.0}
    assert "1, 1 of them by workers that died" in run("stats").out


def test_a_session_is_shown_with_who_holds_it(run, held):
    """Who, and for how long; in JSON how many seconds its owner has at least."""
    assert f"\nheld by {ME} for 0s\n" in run("show", "lesson-1").out
    owner = json.loads(run("show", "lesson-1", "--json").out)["owner"]
    assert owner["worker"] == ME
    assert 0 < owner["left"] <= 20
    assert json.loads(run("show", "nightly", "--json").out)["owner"] is None
    assert "held by" not in run("show", "nightly").out


def test_a_whole_log_names_the_owner_of_each_entry(run, held):
    """From the entry that took the session to the one that let it go; steps say their key."""
    held.release()
    told = json.loads(run("log", "lesson-1", "--all", "--json").out)
    assert [(line["kind"], line["owner"]) for line in told[6:]] == [
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


def test_a_cut_log_still_knows_the_owner(run, held):
    """The entry that took the session may lie before what is shown."""
    [line] = json.loads(run("log", "lesson-1", "--all", "--json", "-n", "1").out)
    assert (line["name"], line["owner"]) == ("resumed", ME)
    assert ME in run("log", "lesson-1", "--all", "-n", "1").out


def test_a_takeover_says_from_whom(run, orphaned, samples):
    """The log names the one who died beside the one who claimed."""

    async def claim() -> None:
        opened = saveslot.open(samples.url, worker_beat=0.1, worker_ttl=0.5)
        async with opened as sessions, sessions.hold("lesson-1", wait=10) as held:
            await held.complete()

    asyncio.run(claim())
    lines = run("log", "lesson-1", "--all").out.splitlines()
    assert lines[-2].endswith(f"from {ME}")
    assert f"session_completed  {ME}" in lines[-1]


def test_top_names_owners_and_orphans(terminal, held, run, samples):
    """Owners, the newest checkpoint, and the totals; a look later also what became an orphan."""
    view = terminal("top", "--every", "0.1", columns=160)
    shown = view.until(ME)
    assert "1 worker  1 held  0 orphaned" in shown
    view.until("resumed")
    held.checkpoint("went_on", {"tries": 2})
    view.until("went_on")
    assert run("fork", "lesson-1", "--as", "left").code == 0
    asyncio.run(leave(samples.url, "left"))
    view.until(f"orphan of {ME}")
    view.until("2 held  1 orphaned")
    view.type("\x03")
    assert view.end() == 130


def test_top_in_a_pipe_has_owners(run, held):
    """The same list as `ls`, newest sign of life first."""
    first = run("top").out.splitlines()[1]
    assert first.startswith("lesson-1 ")
    assert ME in first
    assert json.loads(run("top", "--json").out)[0]["owner"]["worker"] == ME
