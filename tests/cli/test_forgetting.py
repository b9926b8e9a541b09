"""pin, unpin, thin, gc: what goes and what stays, and that nothing goes unasked."""

from __future__ import annotations

import asyncio
import json

import saveslot


def ids(run) -> list[str]:
    return sorted(session["session_id"] for session in json.loads(run("ls", "--json").out))


def test_gc_only_tells_until_it_is_applied(run, samples):
    """It names what ended so long ago and changes nothing; --apply removes just that; 30 days if nothing is said."""
    before = ids(run)
    answer = run("gc", "--older-than", "0d")
    assert answer.code == 0
    assert "2 sessions would be removed" in answer.out
    assert answer.err == "nothing was changed; --apply does it\n"
    assert ids(run) == before
    assert run("gc").out == "0 sessions would be removed, 0 B\n"
    told = json.loads(run("gc", "--older-than", "0d", "--json").out)
    assert (sorted(told["sessions"]), told["tombstones"], told["dry_run"]) == (["lesson-10", "nightly"], [], True)
    assert told["bytes"] > 0
    assert json.loads(run("gc", "--older-than", "0s", "--state", "failed", "--json").out)["sessions"] == ["nightly"]
    done = json.loads(run("gc", "--older-than", "0d", "--apply", "--json").out)
    assert done == {**told, "dry_run": False}
    assert ids(run) == ["lesson-1", "mail:cleo@example.org"]
    assert run("doctor").code == 0


def test_gc_removes_tombstones_after_their_grace(run, samples):
    """What was deleted stays a week for those who audit, or as long as is said."""
    run("rm", "lesson-1", "--yes")
    assert json.loads(run("gc", "--json").out)["tombstones"] == []
    told = json.loads(run("gc", "--grace", "0d", "--apply", "--json").out)
    assert (told["tombstones"], told["sessions"]) == (["lesson-1"], [])
    assert json.loads(run("gc", "--grace", "0d", "--json").out)["count"] == 0


def test_gc_takes_durations_and_nothing_else(run, samples):
    """A span of time is a number and a unit; only what ended is garbage."""
    for wrong in (("--older-than", "30"), ("--older-than", "x"), ("--grace", "-1d"), ("--state", "active")):
        assert run("gc", *wrong).code == 2


def test_thin_drops_what_is_not_kept_or_pinned(run, samples):
    """It only tells until it is applied; a pinned checkpoint stays; the whole log still shows what was thinned."""
    assert run("pin", "lesson-1@tool_called").out == "lesson-1@3  is pinned (tool_called)\n"
    assert json.loads(run("pin", "lesson-1@4", "--json").out) == {"id": "lesson-1:4", "pinned": [3, 4]}
    assert run("unpin", "lesson-1@4").code == 0
    answer = run("thin", "lesson-1", "--max", "1")
    assert answer.out == "lesson-1  2 checkpoints would be dropped\n"
    assert run("show", "lesson-1@answered").code == 0
    told = json.loads(run("thin", "lesson-1", "--max", "1", "--apply", "--json").out)
    assert told == {"session_id": "lesson-1", "dry_run": False, "marked": 2, "emptied": 0, "freed_bytes": 0}
    assert run("show", "lesson-1@answered").code == 5
    assert json.loads(run("show", "lesson-1@tool_called", "--json").out)["data"]["plan"]["step"] == 1
    assert "thinned" in run("log", "lesson-1", "--all").out
    assert run("doctor").code == 0
    assert run("pin", "lesson-1@session_paused").code == 2
    assert run("thin", "nobody").code == 5
    refused = run("thin", "lesson-", "--max", "1", "--apply")
    assert refused.code == 5
    assert "give the whole id" in refused.err


def test_the_keeper_tells_what_it_thinned_and_removed(spawn, samples):
    """One line when it did something; sessions that ended long ago go only when that is asked for."""

    async def grow():
        async with saveslot.open(samples.url) as sessions:
            await sessions.create_session("t", session_id="long", retention=saveslot.Retention(keep_last=1))
            for n in range(9):
                await sessions.checkpoint("long", "c", {"n": n})

    asyncio.run(grow())
    process = spawn("keeper", "--every", "0.1", "--tidy-every", "1s", "--gc-after", "0d", "--json")
    told = ""
    while "removed" not in told:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        event = json.loads(line)
        assert event["event"] != "trouble", line
        told += event["told"] if event["event"] == "tidied" else ""
    assert "6 checkpoints dropped" in told
    assert "2 sessions removed" in told
