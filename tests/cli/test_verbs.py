"""rollback, fork, pause, resume, rm, erase: what they change, and what they leave unchanged."""

from __future__ import annotations

import asyncio
import json

import saveslot
from saveslot import Conflict, SessionManager


def ids(run) -> list[str]:
    return [session["session_id"] for session in json.loads(run("ls", "--json").out)]


def data(run, what: str):
    return json.loads(run("show", what, "--json").out)["data"]


def test_rollback_can_be_undone(run, samples):
    """It is one more entry, which the output names; rolling back to the entry before restores the state."""
    answer = run("rollback", "lesson-1", "--to", "answered")
    assert (answer.code, answer.out) == (0, "lesson-1@8  is back at 4 (answered)\n")
    assert "saveslot rollback lesson-1 --to 7" in answer.err
    assert data(run, "lesson-1@latest") == data(run, "lesson-1@4")
    document = json.loads(run("rollback", "lesson-1", "--to", "7", "--json").out)
    assert document["id"] == "lesson-1:9"
    assert data(run, "lesson-1@latest") == data(run, "lesson-1@2")


def test_rollback_of_a_failed_session_explains_itself(run, samples):
    """Rolling back to the failure would not undo it: the hint says what it restores, and it does."""
    run("fork", "lesson-1@answered", "--as", "again")
    asyncio.run(fail(samples, "again"))
    before = data(run, "again@latest")
    answer = run("rollback", "again", "--to", "1")
    assert "undo" not in answer.err
    assert "it had failed and is active again" in answer.err
    assert data(run, "again@latest") != before
    hint = answer.err.split("saveslot ")[1].split()
    assert run(*hint).code == 0
    assert data(run, "again@latest") == before


async def fail(samples, name: str) -> None:
    async with saveslot.open(samples.url) as sessions:
        session = await sessions.get_session(name)
        session.fail("timeout")
        await sessions.update_session(session)


def test_fork_prints_the_new_id(run, samples):
    """Only the id is on stdout, for a shell's $(…); the source is unchanged, even a completed one."""
    answer = run("fork", "lesson-1", "--at", "tool_called")
    forked = answer.out.strip()
    assert forked in ids(run)
    assert answer.err == "forked from lesson-1:3\n"
    assert data(run, f"{forked}@latest") == data(run, "lesson-1@3")
    assert run("fork", "lesson-10@read", "--as", "again").out == "again\n"
    assert json.loads(run("show", "again", "--json").out)["state"] == "active"
    assert run("fork", "lesson-10", "--as", "again").code == 3


def test_pause_and_resume(run, samples):
    """An active session pauses once; resuming an active one changes nothing, an ended one exits 3."""
    assert run("pause", "lesson-1").out == "lesson-1  is paused\n"
    assert run("pause", "lesson-1").code == 3
    assert run("resume", "lesson-1").out == "lesson-1  is active\n"
    count = len(json.loads(run("log", "lesson-1", "--json").out))
    assert json.loads(run("resume", "lesson-1", "--json").out)["state"] == "active"
    assert len(json.loads(run("log", "lesson-1", "--json").out)) == count
    assert run("resume", "lesson-10").code == 3


def test_resuming_a_failed_session_needs_an_option(run, samples):
    """The refusal names the option."""
    refused = run("resume", "nightly")
    assert refused.code == 3
    assert "--failed" in refused.err
    assert run("resume", "nightly", "--failed").out == "nightly  is active\n"


def test_pause_retries_on_a_busy_session(run, samples, monkeypatch):
    """When the agent writes between the command's read and write, the command reads again and decides again."""
    update, tries = SessionManager.update_session, []

    async def after_the_agent(self, session, seen=None):
        tries.append(session)
        if len(tries) < 3:
            await self.checkpoint(session.session_id, "busy", {"n": len(tries)})
        return await update(self, session)

    monkeypatch.setattr(SessionManager, "update_session", after_the_agent)
    assert run("pause", "lesson-1").code == 0
    assert len(tries) == 3


def test_endless_conflicts_exit_3(run, samples, monkeypatch):
    """After some attempts the conflict is reported, and nothing is changed."""

    async def never(self, session, seen=None):
        raise Conflict("someone wrote")

    monkeypatch.setattr(SessionManager, "update_session", never)
    assert run("pause", "lesson-1").code == 3


def test_rm_without_a_terminal_needs_yes(run, samples):
    """Without --yes and a terminal it refuses, and nothing is deleted."""
    answer = run("rm", "lesson-1")
    assert (answer.code, answer.out) == (2, "")
    assert "--yes" in answer.err
    assert "lesson-1" in ids(run)


def test_rm_deletes_the_named_sessions(run, samples):
    """It takes several at once; afterwards they are unknown, and their ids are free."""
    assert run("rm", "lesson-1", "nightly", "--yes").out == "deleted lesson-1\ndeleted nightly\n"
    assert ids(run) == ["mail:cleo@example.org", "lesson-10"]
    assert run("rm", "nightly", "-y").code == 5
    assert json.loads(run("rm", "lesson-10", "lesson-10", "-y", "--json").out) == ["lesson-10"]


def test_misspelt_id_deletes_nothing(run, samples):
    """All names are looked up before the first session is deleted."""
    assert run("rm", "lesson-1", "nobody", "--yes").code == 5
    assert len(ids(run)) == 4


def test_second_rm_spares_ids_with_the_same_prefix(run, samples):
    """Without a prompt the id must be whole: no other session is deleted in place of a missing one, which is named."""
    assert run("rm", "lesson-1", "--yes").code == 0
    answer = run("rm", "lesson-1", "--yes")
    assert (answer.code, answer.out) == (5, "")
    assert "no session lesson-1 in" in answer.err
    assert "did you mean lesson-10? This command needs the full id" in answer.err
    assert run("rm", "night", "--yes").code == 5
    assert ids(run) == ["mail:cleo@example.org", "nightly", "lesson-10"]


def test_rm_refuses_an_ambiguous_prefix(run, samples):
    """A prefix of two ids deletes neither."""
    answer = run("rm", "lesson", "--yes")
    assert answer.code == 5
    assert "several ids start or end with that. This command needs the full id" in answer.err
    assert len(ids(run)) == 4


def test_second_erase_spares_ids_with_the_same_prefix(run, samples):
    """It finds the erased one again, with nothing to do; once that is purged it is unknown. The other stays whole."""
    before = run("export", "lesson-10").out
    document = json.loads(run("erase", "lesson-1", "--json").out)
    assert document["entries"] == 7
    assert json.loads(run("erase", "lesson-1", "--apply", "--json").out) == {**document, "applied": True}
    assert json.loads(run("erase", "lesson-1", "--apply", "--json").out)["entries"] == 0
    run("gc", "--grace", "0d", "--apply")
    for argv in (["erase", "lesson-1"], ["erase", "lesson-1", "--apply"], ["erase", "night", "--apply"]):
        answer = run(*argv)
        assert (answer.code, answer.out) == (5, "")
        assert "needs the full id" in answer.err
    assert run("export", "lesson-10").out == before


def test_erase_prefers_the_deleted_exact_id(run, samples):
    """The whole id names it, even though it is no longer listed."""
    run("rm", "lesson-1", "--yes")
    assert json.loads(run("erase", "lesson-1", "--json").out)["sessions"] == ["lesson-1"]
    assert run("erase", "lesson-1", "--apply").out == "erased lesson-1\n"
    assert "lesson-10" in ids(run)


def test_audit_of_a_deleted_session_uses_the_exact_id(run, samples):
    """It is not the trail of another session whose id begins with it."""
    run("rm", "lesson-1", "--yes")
    trail = json.loads(run("audit", "lesson-1", "--json").out)
    assert (trail["session_id"], trail["state"]) == ("lesson-1", "deleted")
    assert json.loads(run("audit", "night", "--json").out)["session_id"] == "nightly"


def test_records_stand_beside_the_state(run, samples):
    """`record` adds a value once per key, also to an ended session; `records` lists them."""
    before = data(run, "lesson-1@latest")
    answer = run("record", "lesson-1", "note", '"called her mother"')
    assert (answer.code, answer.out) == (0, "lesson-1@8  records note\n")
    assert json.loads(run("record", "lesson-1", "score", "0.8", "--key", "g", "--json").out)["seq"] == 9
    assert run("record", "lesson-1", "score", "0.8", "--key", "g").out == "lesson-1@9  records score\n"
    assert run("record", "lesson-1", "score", "0.9", "--key", "g").code == 2
    assert run("record", "lesson-1", "score", "so-so").code == 2
    assert run("complete", "lesson-1").code == 0
    assert run("record", "lesson-1", "note", "[1]").code == 0
    listed = json.loads(run("records", "lesson-1", "--name", "note", "--json").out)
    assert [(one["seq"], one["value"]) for one in listed] == [(8, "called her mother"), (11, [1])]
    assert [row.split()[0] for row in run("records", "lesson-1", "--after", "8").out.splitlines()] == ["SEQ", "9", "11"]
    assert data(run, "lesson-1@latest") == before


def test_one_session_is_copied_under_a_new_id(run, samples):
    """With its history, up to an entry; without --as, two stores are needed."""
    assert run("copy", "lesson-1", "--as", "twin").out == "twin\n"
    assert data(run, "twin@latest") == data(run, "lesson-1@latest")
    answer = run("copy", "lesson-1", "--as", "half", "--upto", "4")
    assert "up to half:4" in answer.err
    assert data(run, "half@latest") == data(run, "lesson-1@4")
    assert run("copy", "lesson-1", "--as", "twin").code != 0
    for wrong in (("lesson-1",), ("lesson-1", "other.db", "--as", "x"), ("a.db", "b.db", "--upto", "3")):
        assert run("copy", *wrong).code == 2


def test_seen_refuses_a_session_that_moved_on(run, samples):
    """Every command that changes one session writes only after the version that it is given."""
    old = json.loads(run("show", "lesson-1", "--json").out)["version"]
    assert run("label", "lesson-1", "tier=gold", "--seen", old).code == 0
    new = json.loads(run("show", "lesson-1", "--json").out)["version"]
    commands = (
        *("record lesson-1 note 1", "rollback lesson-1 --to answered", "fork lesson-1", "label lesson-1 tier=tin"),
        *("pause lesson-1", "complete lesson-1", "fail lesson-1 late", "rm lesson-1 --yes"),
    )
    for command in commands:
        answer = run(*command.split(), "--seen", old)
        assert (answer.code != 0, "another writer" in answer.err) == (True, True), command
    assert json.loads(run("show", "lesson-1", "--json").out)["version"] == new
    assert run("pause", "lesson-1", "--seen", new).code == 0
    paused = json.loads(run("show", "lesson-1", "--json").out)["version"]
    assert run("resume", "lesson-1", "--seen", new).code != 0
    assert run("rm", "lesson-1", "nightly", "--yes", "--seen", paused).code == 2
    assert run("rm", "lesson-1", "--yes", "--seen", paused).code == 0
