"""pin, unpin, thin, gc: what is dropped and kept, and that dry runs drop nothing."""

from __future__ import annotations

import asyncio
import json

import saveslot


def ids(run) -> list[str]:
    return sorted(session["session_id"] for session in json.loads(run("ls", "--json").out))


def test_gc_is_a_dry_run_by_default(run, samples):
    """It names the sessions that ended long enough ago; --apply removes just those; the default age is 30 days."""
    before = ids(run)
    answer = run("gc", "--older-than", "0d")
    assert answer.code == 0
    assert "2 sessions would be removed" in answer.out
    assert answer.err == "nothing was changed; pass --apply to do it\n"
    assert ids(run) == before
    assert run("gc").out == "0 sessions would be removed, 0 B\n"
    document = json.loads(run("gc", "--older-than", "0d", "--json").out)
    assert (sorted(document["sessions"]), document["tombstones"], document["dry_run"]) == (
        ["lesson-10", "nightly"],
        [],
        True,
    )
    assert document["bytes"] > 0
    assert json.loads(run("gc", "--older-than", "0s", "--state", "failed", "--json").out)["sessions"] == ["nightly"]
    done = json.loads(run("gc", "--older-than", "0d", "--apply", "--json").out)
    assert done == {**document, "dry_run": False}
    assert ids(run) == ["lesson-1", "mail:cleo@example.org"]
    assert run("doctor").code == 0


def test_gc_removes_tombstones_after_their_grace(run, samples):
    """A deleted session's tombstone stays a week for audits, or as long as the option says."""
    run("rm", "lesson-1", "--yes")
    assert json.loads(run("gc", "--json").out)["tombstones"] == []
    answer = json.loads(run("gc", "--grace", "0d", "--apply", "--json").out)
    assert (answer["tombstones"], answer["sessions"]) == (["lesson-1"], [])
    assert json.loads(run("gc", "--grace", "0d", "--json").out)["count"] == 0


def test_gc_accepts_only_durations(run, samples):
    """A duration is a number and a unit; only ended sessions are garbage."""
    for wrong in (("--older-than", "30"), ("--older-than", "x"), ("--grace", "-1d"), ("--state", "active")):
        assert run("gc", *wrong).code == 2


def test_thin_keeps_pinned_checkpoints(run, samples):
    """It is a dry run until --apply; a pinned checkpoint stays; the whole log still shows thinned entries."""
    assert run("pin", "lesson-1@tool_called").out == "lesson-1@3  is pinned (tool_called)\n"
    assert json.loads(run("pin", "lesson-1@4", "--json").out) == {"id": "lesson-1:4", "pinned": [3, 4]}
    assert run("unpin", "lesson-1@4").code == 0
    answer = run("thin", "lesson-1", "--max", "1")
    assert answer.out == "lesson-1  2 checkpoints would be dropped\n"
    assert run("show", "lesson-1@answered").code == 0
    document = json.loads(run("thin", "lesson-1", "--max", "1", "--apply", "--json").out)
    assert document == {"session_id": "lesson-1", "dry_run": False, "marked": 2, "emptied": 0, "freed_bytes": 0}
    assert run("show", "lesson-1@answered").code == 5
    assert json.loads(run("show", "lesson-1@tool_called", "--json").out)["data"]["plan"]["step"] == 1
    assert "thinned" in run("log", "lesson-1", "--all").out
    assert run("doctor").code == 0
    assert run("pin", "lesson-1@session_paused").code == 2
    assert run("thin", "nobody").code == 5
    refused = run("thin", "lesson-", "--max", "1", "--apply")
    assert refused.code == 5
    assert "needs the full id" in refused.err


def test_keeper_reports_thinning_and_gc(spawn, samples):
    """It prints one line per action; long-ended sessions are removed only on request."""

    async def grow():
        async with saveslot.open(samples.url) as sessions:
            await sessions.create_session("t", session_id="long", retention=saveslot.Retention(keep_last=1))
            for n in range(9):
                await sessions.checkpoint("long", "c", {"n": n})

    asyncio.run(grow())
    process = spawn("keeper", "--every", "0.1", "--tidy-every", "1s", "--gc-after", "0d", "--json")
    answer = ""
    while "removed" not in answer:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        event = json.loads(line)
        assert event["event"] != "trouble", line
        answer += event["text"] if event["event"] == "tidied" else ""
    assert "6 checkpoints dropped" in answer
    assert "2 sessions removed" in answer


def test_gc_accepts_an_age_of_zero(run, samples):
    """0d is a valid age, and is not replaced by the default."""
    answer = run("gc", "--older-than", "0d", "--grace", "0d").out
    assert "lesson-10  ended more than 0s ago\n" in answer
    assert run("rm", "lesson-1", "--yes").code == 0
    assert "lesson-1  deleted more than 0s ago\n" in run("gc", "--older-than", "0d", "--grace", "0d").out
    assert "ended more than 30d ago" not in answer


def test_thin_all(run, samples):
    """With --all it thins each session that its rule, or the one given, shortens; filters narrow it."""

    async def grow():
        async with saveslot.open(samples.url) as sessions:
            for n in range(25):
                own = {} if n else {"retention": saveslot.Retention()}
                agent = "judge" if n % 2 else "tutor"
                await sessions.create_session(agent, session_id=f"t{n:02}", **own)
                for turn in range(5):
                    await sessions.checkpoint(f"t{n:02}", "turn", {"turn": turn})

    async def held(work):
        async with saveslot.open(samples.url) as sessions, sessions.hold("t24"):
            await asyncio.to_thread(work)

    asyncio.run(grow())
    assert run("thin", "--all").out == "0 checkpoints of 0 sessions would be dropped, 0 B\n"  # by their own rules
    every = run("thin", "--all", "--keep-last", "1")
    assert (every.code, every.err) == (0, "nothing was changed; pass --apply to do it\n")
    assert "t24  2 checkpoints would be dropped\n" in every.out
    assert "and those of 5 other sessions\n" in every.out
    assert json.loads(run("thin", "--all", "--keep-last", "1", "--json").out)["looked_at"] == 29
    only = ("thin", "--all", "--agent", "judge", "--state", "active", "--state", "paused", "--keep-last", "1", "--json")
    shown = json.loads(run(*only).out)
    assert (shown["sessions"], shown["checkpoints"]) == ([f"t{n:02}" for n in range(23, 0, -2)], 24)
    done = json.loads(run(*only, "--apply").out)
    assert done == {**shown, "dry_run": False}
    assert json.loads(run(*only).out)["sessions"] == []
    answers = []
    asyncio.run(held(lambda: answers.append(run("thin", "--all", "--keep-last", "1", "--apply"))))
    assert "t24  left as it is: session t24 is held" in answers[0].out
    assert run("thin", "--all", "--keep-last", "1").out.splitlines()[-1].startswith("2 checkpoints of 1 session would")
    assert run("log", "t01").out.count("  checkpoint  ") == 3
    for wrong in (("thin",), ("thin", "t01", "--all"), ("thin", "t01", "--agent", "judge")):
        assert run(*wrong).code == 2
