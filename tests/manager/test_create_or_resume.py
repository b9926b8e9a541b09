"""Create or resume: a program killed and run again continues, any number of times; and sessions by latest change."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import saveslot
from saveslot import AlreadyExists, InvalidInput, LeaseHeld, NotFound, SessionManager, SessionState
from tests.session.test_attempts import left, stores  # noqa: F401  (a fixture)


@pytest.fixture
def sessions(stores):  # noqa: F811
    return SessionManager(store=stores[0])


@pytest.fixture
def others(stores):  # noqa: F811
    return SessionManager(store=stores[1])


# hold(create=…)


async def test_hold_creates_and_resumes(sessions, others):
    """The first hold creates the session with what it was given; later ones take it as it is."""
    new = {"user_id": "anna", "context": {"topic": "fractions"}, "metadata": {"v": 1}, "labels": {"team": "red"}}
    async with sessions.hold("s", create="tutor", **new, data={"n": 1}) as held:
        assert held.data == {"n": 1}
        session = held.session
        assert (session.agent_type, session.user_id, session.labels) == ("tutor", "anna", {"team": "red"})
        assert (session.context, session.metadata) == ({"topic": "fractions"}, {"v": 1})
        await held.checkpoint("two", {"n": 2})
    async with others.hold("s", create="coder", user_id="bert", data={}) as held:
        assert held.data == {"n": 2}
        assert (held.session.agent_type, held.session.user_id) == ("tutor", "anna")
    assert [entry.name for entry in await others.history("s")] == ["session_created", "created", "two"]
    for manager in (sessions, others):
        await left(manager)


async def test_hold_without_create_finds_only(sessions):
    """An unknown id is not found, and arguments for a new session need `create`."""
    with pytest.raises(NotFound):
        await sessions.take("s")
    for given in ({"user_id": "anna"}, {"context": {"n": 1}}, {"data": {}}):
        with pytest.raises(InvalidInput, match=f"{next(iter(given))}: .*create"):
            await sessions.take("s", **given)
    with pytest.raises(InvalidInput, match="create"):
        await sessions.take("s", create="x" * 201)
    assert await sessions.count() == 0


async def test_arguments_for_a_new_session_are_checked_even_if_it_exists(sessions):
    """A program that would be refused at its first run is refused at its second, too."""
    await sessions.create_session("tutor", session_id="s")
    for wrong in ({"create": 5}, {"user_id": 5}, {"labels": {"a": 1}}, {"context": "x"}, {"metadata": []}, {"data": 5}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            await sessions.take("s", **{"create": "tutor", **wrong})


async def test_many_first_holds_create_one_session(stores):  # noqa: F811
    """However many processes start at once: one session, each has it in turn, and none gets an error but LeaseHeld."""
    managers = [SessionManager(store=stores[n % 2]) for n in range(6)]
    seen = []

    async def work(manager: SessionManager) -> None:
        async with manager.hold("s", create="tutor", data={"n": 0}, wait=60) as held:
            seen.append(held.data["n"])
            await held.checkpoint("one more", {"n": held.data["n"] + 1})

    await asyncio.gather(*map(work, managers))
    assert seen == list(range(6))
    assert await managers[0].count() == 1
    async with managers[0].hold("s", create="tutor"):
        with pytest.raises(LeaseHeld):
            await managers[1].take("s", create="tutor")
    for manager in managers:
        await left(manager)


# create_session(exist_ok=…, data=…)


async def test_first_checkpoint_lands_with_the_session(sessions, others):
    """`data` is a checkpoint in the same write: no reader sees the session without it."""
    session = await sessions.create_session("tutor", session_id="s", data={"n": 1}, name="begun")
    assert [(cp.name, cp.data) for cp in session.checkpoints[1:]] == [("begun", {"n": 1})]
    assert await others.get_data("s") == {"n": 1}
    await sessions.checkpoint(session, "two", append={"list": [1]})
    assert await others.get_data("s") == {"n": 1, "list": [1]}
    assert (await sessions.create_session("tutor", session_id="t", data={})).checkpoints[-1].name == "created"
    with pytest.raises(InvalidInput, match="name"):
        await sessions.create_session("tutor", name="begun")
    with pytest.raises(InvalidInput, match="data"):
        await sessions.create_session("tutor", session_id="u", data={"wrong": {1, 2}})
    assert await others.get_session("u") is None


async def test_exist_ok_gives_the_one_that_is_there(sessions, others):
    """Without `exist_ok` a taken id is refused; with it the session comes back as it is, whatever the arguments."""
    await sessions.create_session("tutor", session_id="s", data={"n": 1})
    with pytest.raises(AlreadyExists):
        await others.create_session("tutor", session_id="s")
    same = await others.create_session("coder", user_id="bert", session_id="s", data={"n": 9}, exist_ok=True)
    assert (same.agent_type, same.user_id) == ("tutor", "")
    assert same.checkpoints[-1].data == {"n": 1}
    await others.checkpoint(same, "two", {"n": 2})
    answers = await asyncio.gather(
        *(manager.create_session("tutor", session_id="new", exist_ok=True) for manager in (sessions, others) * 3)
    )
    assert {session.session_id for session in answers} == {"new"}
    assert await sessions.count() == 2


PROGRAM = """
import asyncio, os, sys
import saveslot

async def ask_model(messages):
    with open(sys.argv[2], "a") as asked:
        asked.write("asked\\n")
    return "5/6"

async def main():
    async with saveslot.open(sys.argv[1], worker_beat=0.1, worker_ttl=0.5) as sessions:
        async with sessions.hold("lesson-1", create="tutor", wait=30) as held:  # create or resume
            if not held.data:  # first run
                await held.checkpoint("asked", {"messages": ["1/2 + 1/3?"]})
            if sys.argv[3] == "first":
                os.kill(os.getpid(), 9)
            answer = await held.step("ask-model", ask_model, held.data["messages"])
            if sys.argv[3] == "second":
                os.kill(os.getpid(), 9)
            await held.checkpoint("answered", {**held.data, "answer": answer})
            print(held.data["answer"])

asyncio.run(main())
"""


def test_program_is_killed_and_run_again(tmp_path):
    """README's first program continues after each kill -9, can be run any number of times, and asks the model once."""
    url, query = f"sqlite:///{tmp_path / 'agents.db'}", tmp_path / "asked"
    for kill, code in (("first", -9), ("second", -9), ("", 0), ("", 0)):
        run = [sys.executable, "-c", PROGRAM, url, str(query), kill]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (code, "" if kill else "5/6\n"), done.stderr
    assert Path(query).read_text() == "asked\n"


def test_blocking_create_or_resume():
    """The same for synchronous callers."""
    with saveslot.blocking.open("memory:") as sessions:
        for n in range(3):
            with sessions.hold("s", create="tutor", data={"n": 0}) as held:
                assert held.data == {"n": n}
                held.checkpoint("next", {"n": n + 1})
        assert sessions.create_session("tutor", session_id="s", exist_ok=True).state is SessionState.ACTIVE
        assert [session.session_id for session in sessions.find(order="changed")] == ["s"]


# find(order="changed")


async def pages(manager: SessionManager, **query) -> list[str]:
    result: list[str] = []
    after = None
    while True:
        page = await manager.find(limit=2, after=after, **query)
        result += [session.session_id for session in page]
        if (after := page.next) is None:
            return result


async def test_changed_order_is_by_the_newest_entry(sessions, others):
    """Sessions come in the order of their newest entries, whatever their kind, page by page; pins do not count."""
    for name in "abcdef":
        await sessions.create_session("tutor", session_id=name, labels={"team": "red" if name in "abc" else "blue"})
    assert await pages(sessions, order="changed") == list("fedcba") == await pages(sessions)
    await sessions.checkpoint("a", "one", {"n": 1})
    async with others.hold("c") as held:
        await held.pause()
    session = await others.get_session("b")
    session.context["n"] = 1
    await others.update_session(session)
    await sessions.pin("a", "one")
    assert await pages(others, order="changed") == list("bcafed")
    assert await pages(others, order="changed", labels={"team": "red"}) == list("bca")
    assert await pages(others, order="changed", state="active") == list("bafed")
    assert await pages(others, order="changed", text="A") == ["a"]
    assert await pages(others, order="created", state="active") == list("fedba")
    await sessions.delete_session("a")
    assert await pages(others, order="changed") == list("bcfed")
    await left(others)


async def test_order_and_cursor_are_checked(sessions):
    """An unknown order is refused, and so is a cursor of the other one."""
    for name in "abc":
        await sessions.create_session("tutor", session_id=name)
    with pytest.raises(InvalidInput, match="order"):
        await sessions.find(order="updated")
    for one, other in (("created", "changed"), ("changed", "created")):
        page = await sessions.find(order=one, limit=1)
        with pytest.raises(InvalidInput, match="order"):
            await sessions.find(order=other, after=page.next)
