"""rollback, fork, pause, resume, rm, erase: what they change, and what they leave alone."""

from __future__ import annotations

import asyncio
import json

import saveslot
from saveslot import Conflict, SessionManager


def ids(run) -> list[str]:
    return [session["session_id"] for session in json.loads(run("ls", "--json").out)]


def data(run, what: str):
    return json.loads(run("show", what, "--json").out)["data"]


def test_a_rollback_can_be_undone(run, samples):
    """It is one more entry, says which, and going back to the entry before restores what was."""
    answer = run("rollback", "lesson-1", "--to", "answered")
    assert (answer.code, answer.out) == (0, "lesson-1@8  is back at 4 (answered)\n")
    assert "saveslot rollback lesson-1 --to 7" in answer.err
    assert data(run, "lesson-1@latest") == data(run, "lesson-1@4")
    made = json.loads(run("rollback", "lesson-1", "--to", "7", "--json").out)
    assert made["id"] == "lesson-1:9"
    assert data(run, "lesson-1@latest") == data(run, "lesson-1@2")


def test_a_failed_session_rolled_back_says_what_became_of_it(run, samples):
    """Going back to the failure would not undo it: the hint says what it brings back, and does."""
    run("fork", "lesson-1@answered", "--as", "again")
    asyncio.run(fail(samples, "again"))
    before = data(run, "again@latest")
    answer = run("rollback", "again", "--to", "1")
    assert "undo" not in answer.err
    assert "it was failed and is active again" in answer.err
    assert data(run, "again@latest") != before
    hint = answer.err.split("saveslot ")[1].split()
    assert run(*hint).code == 0
    assert data(run, "again@latest") == before


async def fail(samples, name: str) -> None:
    async with saveslot.open(samples.url) as sessions:
        session = await sessions.get_session(name)
        session.fail("timeout")
        await sessions.update_session(session)


def test_a_fork_prints_the_new_id(run, samples):
    """Alone on stdout, for a shell's $(…); the source is untouched, also a completed one."""
    answer = run("fork", "lesson-1", "--at", "tool_called")
    forked = answer.out.strip()
    assert forked in ids(run)
    assert answer.err == "forked from lesson-1:3\n"
    assert data(run, f"{forked}@latest") == data(run, "lesson-1@3")
    assert run("fork", "lesson-10@read", "--as", "again").out == "again\n"
    assert json.loads(run("show", "again", "--json").out)["state"] == "active"
    assert run("fork", "lesson-10", "--as", "again").code == 3


def test_pause_and_resume(run, samples):
    """An active session pauses once; resuming an active one changes nothing, an ended one ends with 3."""
    assert run("pause", "lesson-1").out == "lesson-1  is paused\n"
    assert run("pause", "lesson-1").code == 3
    assert run("resume", "lesson-1").out == "lesson-1  is active\n"
    count = len(json.loads(run("log", "lesson-1", "--json").out))
    assert json.loads(run("resume", "lesson-1", "--json").out)["state"] == "active"
    assert len(json.loads(run("log", "lesson-1", "--json").out)) == count
    assert run("resume", "lesson-10").code == 3


def test_a_failed_session_is_resumed_on_purpose_only(run, samples):
    """The refusal names the option that does it."""
    refused = run("resume", "nightly")
    assert refused.code == 3
    assert "--failed" in refused.err
    assert run("resume", "nightly", "--failed").out == "nightly  is active\n"


def test_a_busy_session_can_be_paused(run, samples, monkeypatch):
    """When the agent writes between our read and our write, the command reads again and decides anew."""
    update, tries = SessionManager.update_session, []

    async def after_the_agent(self, session):
        tries.append(session)
        if len(tries) < 3:
            await self.checkpoint(session.session_id, "busy", {"n": len(tries)})
        return await update(self, session)

    monkeypatch.setattr(SessionManager, "update_session", after_the_agent)
    assert run("pause", "lesson-1").code == 0
    assert len(tries) == 3


def test_a_session_that_never_rests_ends_with_3(run, samples, monkeypatch):
    """After some tries the conflict is told, and nothing was changed."""

    async def never(self, session):
        raise Conflict("someone wrote")

    monkeypatch.setattr(SessionManager, "update_session", never)
    assert run("pause", "lesson-1").code == 3


def test_rm_never_asks_without_a_terminal(run, samples):
    """Without --yes and without a terminal it refuses, and nothing is gone."""
    answer = run("rm", "lesson-1")
    assert (answer.code, answer.out) == (2, "")
    assert "--yes" in answer.err
    assert "lesson-1" in ids(run)


def test_rm_deletes_what_was_named(run, samples):
    """Several at once; afterwards they are unknown, and their ids are free."""
    assert run("rm", "lesson-1", "nightly", "--yes").out == "deleted lesson-1\ndeleted nightly\n"
    assert ids(run) == ["mail:cleo@example.org", "lesson-10"]
    assert run("rm", "nightly", "-y").code == 5
    assert json.loads(run("rm", "lesson-10", "lesson-10", "-y", "--json").out) == ["lesson-10"]


def test_a_misspelt_name_deletes_nothing(run, samples):
    """All names are looked up before the first session goes."""
    assert run("rm", "lesson-1", "nobody", "--yes").code == 5
    assert len(ids(run)) == 4


def test_a_second_rm_spares_what_begins_like_the_first(run, samples):
    """Where nobody is asked an id is whole: no other session goes in place of one that is gone, and it is named."""
    assert run("rm", "lesson-1", "--yes").code == 0
    answer = run("rm", "lesson-1", "--yes")
    assert (answer.code, answer.out) == (5, "")
    assert "no session lesson-1 in" in answer.err
    assert "the only one that begins so is lesson-10: give the whole id" in answer.err
    assert run("rm", "night", "--yes").code == 5
    assert ids(run) == ["mail:cleo@example.org", "nightly", "lesson-10"]


def test_rm_names_no_single_one_where_several_are_meant(run, samples):
    """The beginning of two ids deletes neither."""
    answer = run("rm", "lesson", "--yes")
    assert answer.code == 5
    assert "several begin so: give the whole id" in answer.err
    assert len(ids(run)) == 4


def test_a_second_erase_spares_what_begins_like_the_first(run, samples):
    """It finds the erased one again, and nothing to do; once that is purged it is unknown. The other stays whole."""
    before = run("export", "lesson-10").out
    told = json.loads(run("erase", "lesson-1", "--json").out)
    assert told["entries"] == 7
    assert json.loads(run("erase", "lesson-1", "--apply", "--json").out) == {**told, "applied": True}
    assert json.loads(run("erase", "lesson-1", "--apply", "--json").out)["entries"] == 0
    run("gc", "--grace", "0d", "--apply")
    for argv in (["erase", "lesson-1"], ["erase", "lesson-1", "--apply"], ["erase", "night", "--apply"]):
        answer = run(*argv)
        assert (answer.code, answer.out) == (5, "")
        assert "give the whole id" in answer.err
    assert run("export", "lesson-10").out == before


def test_a_deleted_session_is_erased_not_one_that_begins_like_it(run, samples):
    """The whole id names it, though it is no longer found."""
    run("rm", "lesson-1", "--yes")
    assert json.loads(run("erase", "lesson-1", "--json").out)["sessions"] == ["lesson-1"]
    assert run("erase", "lesson-1", "--apply").out == "erased lesson-1\n"
    assert "lesson-10" in ids(run)


def test_the_trail_of_a_deleted_session_is_its_own(run, samples):
    """Not that of another one that begins with its id."""
    run("rm", "lesson-1", "--yes")
    trail = json.loads(run("audit", "lesson-1", "--json").out)
    assert (trail["session_id"], trail["state"]) == ("lesson-1", "deleted")
    assert json.loads(run("audit", "night", "--json").out)["session_id"] == "nightly"
