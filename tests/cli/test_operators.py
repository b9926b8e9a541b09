"""What operators do: steps, workers, fail, complete, create, label, wait, bulk rm, and the filters of ls."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import pytest

import saveslot

ME = f"{socket.gethostname()}:{os.getpid()}"


async def crash(url: str) -> None:
    """lesson-1: one step finished, one failed twice, one started and never ended; its worker is dead."""
    sessions = await saveslot.open(url)
    held = await sessions.take("lesson-1")
    await held.step("ask", lambda: {"text": "3/4"}, key="turn-1")
    for retry in (False, True):
        with pytest.raises(TimeoutError):
            await held.step("search", fail, retry=retry)
    run = await held.runs.begin(held.call("charge", print, key="order-7", mode="at_most_once"))
    run.end()
    await sessions.close()


def fail() -> None:
    raise TimeoutError("no answer")


async def rerun(url: str, name: str, key: str | None = None, mode: str = "idempotent") -> list:
    """Call the step once more, as the agent of a new worker would."""
    calls: list[str] = []

    def effect(idempotency_key: str) -> str:
        calls.append(idempotency_key)
        return "again"

    async with saveslot.open(url) as sessions, sessions.hold("lesson-1") as held:
        return [await held.step(name, effect, key=key, mode=mode), len(calls)]


@pytest.fixture
def crashed(samples):
    asyncio.run(crash(samples.url))
    return samples


def states(run) -> dict[str, tuple[str, int]]:
    rows = json.loads(run("steps", "lesson-1", "--json").out)
    return {row["name"]: (row["state"], row["attempts"]) for row in rows}


def test_steps_say_what_ran_failed_and_is_unknown(run, crashed):
    """Each step once, with its outcome, how often it ran, and its result or error; in a table and in JSON."""
    assert states(run) == {"ask": ("finished", 1), "search": ("failed", 2), "charge": ("unknown", 1)}
    rows = {row["name"]: row for row in json.loads(run("steps", "lesson-1", "--json").out)}
    assert rows["ask"]["result"] == {"text": "3/4"}
    assert rows["search"]["error"] == "TimeoutError: no answer"
    out = run("steps", "lesson-1").out
    assert "ask:turn-1" in out
    assert "charge:order-7  unknown      1" in out
    assert json.loads(run("steps", "lesson-10", "--json").out) == []


def test_settleable_steps_and_workers_are_completed(run, crashed):
    """After --retry and --resolve: the failed and unknown ones; after --owner: who holds a session, alive or not."""
    for option in ("--retry", "--resolve"):
        answer = run("__complete", "steps", "lesson-1", option, "")
        assert answer.out.strip().split("\n")[1:] == ["search\tfailed", "charge:order-7\tunknown"]
    assert f"\n{ME}\tdead\n" in run("__complete", "ls", "--owner", "").out


def test_a_step_that_runs_now_is_running(run, samples):
    """A started step of a live worker is not unknown, and cannot be settled."""

    async def work() -> None:
        async with saveslot.open(samples.url) as sessions, sessions.hold("lesson-1") as held:
            run_ = await held.runs.begin(held.call("charge", print, mode="at_most_once"))
            answers.append(await asyncio.to_thread(run, "steps", "lesson-1", "--json"))
            answers.append(await asyncio.to_thread(run, "steps", "lesson-1", "--retry", "charge"))
            run_.end()

    answers: list = []
    asyncio.run(work())
    assert json.loads(answers[0].out)[0]["state"] == "running"
    assert answers[1].code == 3
    assert ME in answers[1].err


def test_a_resolved_step_returns_its_result(run, crashed):
    """The agent gets what the operator found out, and does nothing again; the log says that it was resolved."""
    answer = run("steps", "lesson-1", "--resolve", "charge:order-7", "--result", '{"paid": true}')
    assert answer.code == 0
    assert "step charge:order-7 is finished" in answer.out
    assert states(run)["charge"] == ("finished", 1)
    assert asyncio.run(rerun(crashed.url, "charge", "order-7", "at_most_once")) == [{"paid": True}, 0]
    entry = next(e for e in json.loads(run("log", "lesson-1", "--all", "--json").out) if e["name"] == "charge" and
                 e["kind"] == "step_finished")  # fmt: skip
    assert entry["metadata"] == {"key": "order-7", "resolved": True}


def test_a_retried_step_runs_again(run, crashed):
    """Failed or unknown: the next call runs it once more, by the same idempotency key."""
    before = {row["name"]: row["idempotency_key"] for row in json.loads(run("steps", "lesson-1", "--json").out)}
    assert run("steps", "lesson-1", "--retry", "search").code == 0
    assert run("steps", "lesson-1", "--retry", "charge").code == 0  # its only key
    assert states(run) == {"ask": ("finished", 1), "search": ("retry", 2), "charge": ("retry", 1)}
    assert asyncio.run(rerun(crashed.url, "search")) == ["again", 1]
    assert asyncio.run(rerun(crashed.url, "charge", "order-7", "at_most_once")) == ["again", 1]
    assert states(run) == {"ask": ("finished", 1), "search": ("finished", 3), "charge": ("finished", 2)}
    after = {row["name"]: row["idempotency_key"] for row in json.loads(run("steps", "lesson-1", "--json").out)}
    assert after == before


def test_settling_leaves_an_orphan_an_orphan(run, crashed):
    """It is not a sign of life either: a keeper still finds the session."""
    seen = json.loads(run("show", "lesson-1", "--json").out)["last_heartbeat"]
    assert run("steps", "lesson-1", "--retry", "search").code == 0
    assert run("ls", "--orphaned", "-q").out == "lesson-1\n"
    assert json.loads(run("show", "lesson-1", "--json").out)["last_heartbeat"] == seen


@pytest.mark.parametrize(
    ("argv", "code", "why"),
    [
        (["--retry", "ask"], 2, "finished"),
        (["--retry", "nothing"], 5, "has no step"),
        (["--resolve", "search"], 2, "--result"),
        (["--resolve", "search", "--result", "{"], 2, "is not JSON"),
        (["--resolve", "search", "--result", "1", "--retry", "search"], 2, "exclude"),
    ],
)
def test_what_cannot_be_settled_is_refused(argv, code, why, run, crashed):
    """A usage error says what is wrong, and nothing is written."""
    before = run("log", "lesson-1", "--all", "--json").out
    answer = run("steps", "lesson-1", *argv)
    assert (answer.code, answer.out) == (code, "")
    assert why in answer.err
    assert run("log", "lesson-1", "--all", "--json").out == before


def test_workers_lists_workers_and_their_sessions(run, crashed):
    """Live and dead ones, with their sessions; nothing if no session is held."""

    async def listed() -> None:
        async with saveslot.open(crashed.url) as sessions:
            await sessions.create_session("tutor", session_id="fresh")
            async with sessions.hold("fresh"):
                answers.append(await asyncio.to_thread(run, "workers", "--json"))
                answers.append(await asyncio.to_thread(run, "ls", "--held", "-q"))
                answers.append(await asyncio.to_thread(run, "ls", "--owner", ME, "-q"))

    answers: list = []
    asyncio.run(listed())
    [worker] = json.loads(answers[0].out)  # the dead one had the same name
    assert worker["worker"] == ME
    assert sorted(worker["sessions"]) == ["fresh", "lesson-1"]
    assert worker["alive"]
    assert answers[1].out == "fresh\n"
    assert answers[2].out == "fresh\nlesson-1\n"
    [dead] = json.loads(run("workers", "--json").out)
    assert (dead["alive"], dead["left"], dead["sessions"]) == (False, 0.0, ["lesson-1"])
    assert f"{ME}  dead       1    0s  lesson-1" in run("workers").out
    assert run("ls", "--held", "-q").out == ""


def test_ls_takes_several_states(run, samples):
    """Newest first over all of them, and cut at the limit as a whole."""
    assert run("ls", "--state", "failed", "--state", "completed", "-q").out == "nightly\nlesson-10\n"
    everything = run("ls", "-q").out
    words = [word for state in ("active", "paused", "completed", "failed") for word in ("--state", state)]
    assert run("ls", "-q", *words).out == everything
    assert run("ls", "-q", *words, "-n", "2").out == "".join(everything.splitlines(keepends=True)[:2])
    assert json.loads(run("ls", "-q", "--json", "--state", "failed").out) == ["nightly"]
    assert run("ls", "--orphaned", "--held").code == 2


def test_create_prints_the_id(run, samples):
    """Only the id is on stdout; context, metadata and labels are stored, and a taken id is refused."""
    assert (
        run("create", "tutor", "--id", "new", "--user", "bo", "--context", '{"n": 1}', "--label", "env=test").out
        == "new\n"
    )
    answer = json.loads(run("show", "new", "--json").out)
    assert (answer["agent_type"], answer["user_id"], answer["context"], answer["labels"]) == (
        "tutor",
        "bo",
        {"n": 1},
        {"env": "test"},
    )
    assert run("create", "tutor").out.strip() in run("ls", "-q").out.split()
    assert run("create", "tutor", "--id", "new").code == 3
    refused = run("create", "tutor", "--context", "[1]")
    assert refused.code == 2
    assert "a JSON object" in refused.err


def test_create_makes_the_file(run, tmp_path):
    """The first session of a store may be created by hand."""
    url = f"sqlite:///{tmp_path / 'first.db'}"
    assert run("create", "tutor", "--id", "first", "--store", url).out == "first\n"
    assert run("ls", "-q", "--store", url).out == "first\n"


def test_labels_are_set_and_removed(run, samples):
    """Others stay; what was not there is not silently ignored."""
    assert run("label", "lesson-1", "tier=gold", "env=test").out == "lesson-1  env=test  tier=gold\n"
    assert run("ls", "--label", "tier=gold", "-q").out == "lesson-1\n"
    assert run("label", "lesson-1", "--remove", "env").out == "lesson-1  tier=gold\n"
    count = len(run("log", "lesson-1", "--all").out.splitlines())
    assert run("label", "lesson-1", "tier=gold").code == 0
    assert len(run("log", "lesson-1", "--all").out.splitlines()) == count
    assert run("label", "lesson-1", "--remove", "env").code == 5
    assert run("label", "lesson-1").code == 2
    assert "name=value" in run("label", "lesson-1", "tier").err


def test_complete_and_fail_by_id(run, samples):
    """With result, reason and details; an ended session exits 3."""
    assert run("complete", "lesson-1", "--result", '{"grade": "A"}').out == "lesson-1  is completed\n"
    assert json.loads(run("show", "lesson-1@session_completed", "--json").out)["data"] == {"result": {"grade": "A"}}
    assert run("fail", "mail:cleo@example.org", "gone", "--details", '{"by": "me"}').code == 0
    answer = json.loads(run("show", "mail:cleo@example.org@session_failed", "--json").out)["data"]
    assert answer == {"error": "gone", "details": {"by": "me"}}
    assert run("complete", "lesson-1").code == run("fail", "lesson-1", "late").code == 3


def test_complete_is_refused_while_a_worker_holds_it(run, samples):
    """Only the owner knows whether its work is done; failing it ends the hold."""

    async def work() -> None:
        async with saveslot.open(samples.url) as sessions, sessions.hold("lesson-1") as held:
            answers.append(await asyncio.to_thread(run, "complete", "lesson-1"))
            answers.append(await asyncio.to_thread(run, "fail", "lesson-1", "stuck"))
            with pytest.raises((saveslot.Conflict, saveslot.LeaseLost)):
                await held.checkpoint("late", {"n": 1})

    answers: list = []
    asyncio.run(work())
    assert [answer.code for answer in answers] == [3, 0]


def test_wait_returns_once_the_state_is_reached(run, samples, spawn):
    """It returns at once if it is there already; otherwise when another process gets there."""
    assert run("wait", "lesson-10").out == "lesson-10  is completed\n"
    waiting = spawn("wait", "lesson-1", "--state", "completed", "--state", "paused")

    async def work() -> None:
        async with saveslot.open(samples.url) as sessions:
            n = 0
            while waiting.poll() is None:
                await sessions.checkpoint("lesson-1", "tick", {"n": (n := n + 1)})
                if n == 3:
                    session = await sessions.get_session("lesson-1")
                    session.pause()
                    await sessions.update_session(session)
                await asyncio.sleep(0.05)

    asyncio.run(work())
    assert (waiting.wait(), waiting.stdout.read()) == (0, "lesson-1  is paused\n")


def test_wait_ends_when_the_state_cannot_be_reached(run, samples):
    """A session that ended otherwise, and a time that is up, exit 1; an unknown one exits 5."""
    answer = run("wait", "nightly", "--state", "completed")
    assert (answer.code, answer.out) == (1, "nightly  is failed\n")
    answer = run("wait", "lesson-1", "--timeout", "0s")
    assert (answer.code, answer.out) == (1, "")
    assert "lesson-1 is not completed after 0s" in answer.err
    assert run("wait", "nobody").code == 5


def test_bulk_rm_is_a_dry_run_first(run, samples):
    """It lists what ls lists with the same filters, and deletes them with --apply only."""
    answer = run("rm", "--state", "failed", "--state", "completed")
    assert answer.out == "would delete nightly\nwould delete lesson-10\n"
    assert "--apply deletes 2 sessions" in answer.err
    assert len(run("ls", "-q").out.split()) == 4
    assert json.loads(run("rm", "--state", "failed", "--older-than", "30d", "--apply", "--json").out)["sessions"] == []
    done = json.loads(run("rm", "--state", "failed", "--older-than", "0s", "--apply", "--json").out)
    assert done == {"sessions": ["nightly"], "applied": True}
    assert "nightly" not in run("ls", "-q").out.split()


@pytest.mark.parametrize("argv", [["lesson-1", "--state", "failed"], [], ["--apply"], ["lesson-1", "--apply"]])
def test_rm_takes_either_ids_or_filters(argv, run, samples):
    """A mixture is a usage error, and deletes nothing."""
    answer = run("rm", *argv)
    assert (answer.code, answer.out) == (2, "")
    assert len(run("ls", "-q").out.split()) == 4


def test_ls_sorts_by_the_newest_entry(run, samples):
    """With --sort changed the session that changed last is first, over all states, and cut at the limit."""
    run("label", "lesson-1", "tier=gold")
    assert run("ls", "-q", "--sort", "changed").out.split()[0] == "lesson-1"
    run("resume", "nightly", "--failed")
    run("pause", "nightly")
    states = ["--state", "paused", "--state", "active"]
    assert run("ls", "-q", "--sort", "changed", *states).out.split() == ["nightly", "lesson-1", "mail:cleo@example.org"]
    assert run("ls", "-q", "--sort", "changed", *states, "-n", "2").out.split() == ["nightly", "lesson-1"]
    assert run("ls", "-q", "--sort", "created").out == run("ls", "-q").out
    assert run("ls", "--sort", "name").code == 2


def test_cancel_stops_the_owner(run, samples):
    """A held session's owner notices, and the session fails once it stops; without an owner it fails at once."""

    async def work() -> None:
        async with saveslot.open(samples.url, worker_beat=0.2, worker_ttl=10) as sessions:
            held = await sessions.take("lesson-1")
            answers.append(await asyncio.to_thread(run, "cancel", "lesson-1", "--reason", "wrong student"))
            await asyncio.wait_for(held.cancelled.wait(), 60)
            with pytest.raises(saveslot.Cancelled):
                await held.step("ask", lambda: 1)
            await held.release()

    answers: list = []
    asyncio.run(work())
    assert answers[0].out == f"lesson-1  is cancelled: {ME} was asked to stop\n"
    assert json.loads(run("show", "lesson-1", "--json").out)["state"] == "failed"
    assert json.loads(run("cancel", "mail:cleo@example.org", "--json").out)["state"] == "failed"
    assert run("cancel", "lesson-10").code == 3


def test_release_takes_the_lease_away(run, samples):
    """The former owner is refused, and the session has no owner; doing it again changes nothing."""

    async def work() -> None:
        async with saveslot.open(samples.url) as sessions, sessions.hold("lesson-1") as held:
            answers.append(await asyncio.to_thread(run, "release", "lesson-1", "--reason", "stuck"))
            with pytest.raises(saveslot.LeaseLost):
                await held.checkpoint("late", {"n": 1})

    answers: list = []
    asyncio.run(work())
    assert answers[0].out == f"lesson-1  is released: {ME} lost its lease\n"
    assert json.loads(run("show", "lesson-1", "--json").out)["owner"] is None
    count = len(run("log", "lesson-1", "--all").out.splitlines())
    assert run("release", "lesson-1").out == "lesson-1  has no owner\n"
    assert len(run("log", "lesson-1", "--all").out.splitlines()) == count


def test_a_session_left_by_an_error_has_no_worker(run, samples):
    """It is an orphan that no worker held until it died: ls and show say so, and the log has the error."""

    async def work() -> None:
        async with saveslot.open(samples.url) as sessions:
            with pytest.raises(RuntimeError):
                async with sessions.hold("lesson-1"):
                    raise RuntimeError("model API down")

    asyncio.run(work())
    assert run("ls", "--orphaned", "-q").out == "lesson-1\n"
    assert "left by an error" in run("ls").out
    assert "left by an error; saveslot log lesson-1 --all says which" in run("show", "lesson-1").out
    assert "error=RuntimeError: model API down" in run("log", "lesson-1", "--all").out
    assert json.loads(run("workers", "--json").out) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["label", "nigh", "env=prod"],
        ["cancel", "lesson-"],
        ["release", "lesson-"],
        ["fail", "nigh", "late"],
        ["complete", "lesson-"],
        ["steps", "mail", "--retry", "search"],
    ],
)
def test_changes_need_the_whole_id_in_scripts(argv, run, crashed):
    """Without a terminal a beginning names no session: it might be another one tomorrow."""
    before = run("ls", "--json").out
    answer = run(*argv)
    assert answer.code == 5
    assert run("ls", "--json").out == before
