"""Conversations and interrupted runs of the OpenAI Agents SDK, with the real package and a scripted model."""

# ruff: noqa: SLF001  (two hooks that the SDK looks for by these names)

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from agents import Agent, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession, Session, SessionSettings
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from saveslot import Conflict, LeaseHeld, SessionState, Unavailable
from saveslot.adapters.openai_agents import SaveslotRunStateStore, SaveslotSession

ROOT = Path(__file__).parents[2]
QUIET = RunConfig(tracing_disabled=True)


def user(text):
    return {"role": "user", "content": text}


def said(text):
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id=f"m-{text}", type="message", role="assistant", status="completed", content=[part])


def called(tool, call_id, **arguments):
    return ResponseFunctionToolCall(type="function_call", name=tool, call_id=call_id, arguments=json.dumps(arguments))


class Script(Model):
    """Answers one after another; `heard` is what the model was given each time."""

    def __init__(self, *answers, wait=None):
        self.answers, self.heard, self.wait = list(answers), [], wait

    async def get_response(self, *, input, **_):
        self.heard.append(input)
        if self.wait is not None:
            await self.wait()
        return ModelResponse(output=[self.answers.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


@pytest.fixture
def chat(sessions):
    return SaveslotSession("chat", sessions=sessions)


async def test_items_come_back_in_order(chat):
    """get_items returns the newest items in the order in which they were added, as many as asked for."""
    assert isinstance(chat, Session)
    assert await chat.get_items() == []
    await chat.add_items([user(str(n)) for n in range(3)])
    await chat.add_items([])
    await chat.add_items([user('ü " \\ ]'), {"type": "x", "list": [1, 2.5, None, {"a": "}"}]}])
    assert texts(await chat.get_items(4)) == ["1", "2", 'ü " \\ ]']
    assert await chat.get_items(0) == []
    assert len(await chat.get_items(99)) == len(await chat.get_items(-1)) == len(await chat.get_items()) == 5
    for expected in range(5, 0, -1):
        assert await chat.get_items(1) == [await chat.pop_item()]
        assert len(await chat.get_items()) == expected - 1
    assert await chat.pop_item() is None


async def test_a_new_process_reads_the_same(chat, others):
    """A conversation is read alike by the process that wrote it and by one that knows nothing of it."""
    await chat.add_items([user(str(n)) for n in range(30)])
    later = SaveslotSession("chat", sessions=others)
    for limit in (None, 10, 1, 0, 100):
        assert await later.get_items(limit) == await chat.get_items(limit)


async def test_settings_limit_reads(sessions, chat):
    """The limit of the session's settings, also given as a dict, holds unless a call gives its own."""
    await chat.add_items([user(str(n)) for n in range(5)])
    for settings in (SessionSettings(limit=2), {"limit": 2}):
        short = SaveslotSession("chat", sessions=sessions, session_settings=settings)
        assert len(await short.get_items()) == 2
        assert len(await short.get_items(4)) == 4


async def test_clear_starts_a_new_conversation(chat):
    """After clear_session nothing is left, and the next items are the first."""
    await chat.add_items([user("old")])
    await chat.clear_session()
    assert await chat.get_items() == []
    await chat.clear_session()
    await chat.add_items([user("new")])
    assert await chat.get_items() == [user("new")]


async def test_closed_sessions_refuse(database):
    """A closed session raises on every call, also on adding nothing; its items stay."""
    chat = SaveslotSession("chat", database)
    await chat.add_items([user("hi")])
    await chat.close()
    for call in (chat.get_items, lambda: chat.add_items([]), chat.pop_item, chat.clear_session):
        with pytest.raises(Unavailable, match="SaveslotSession is closed"):
            await call()
    again = SaveslotSession("chat", database)
    assert await again.get_items() == [user("hi")]
    await again.close()


async def test_conversations_rest_paused(sessions, chat):
    """A conversation is paused from its first item on: no sweep fails it, however long it rests."""
    await chat.add_items([user("hi")])
    [session] = await sessions.find(agent_type="openai-agents")
    assert session.state is SessionState.PAUSED
    assert await sessions.cleanup_stale_sessions(0) == 0
    await chat.add_items([user("still there")])


async def test_a_run_reads_and_extends_the_conversation(chat):
    """A second run's model hears what the first run said."""
    model = Script(said("hello"), said("again"))
    agent = Agent("a", model=model)
    await Runner.run(agent, "one", session=chat, run_config=QUIET)
    await Runner.run(agent, "two", session=chat, run_config=QUIET)
    assert [item.get("content") for item in model.heard[1] if item.get("role") == "user"] == ["one", "two"]
    assert len(await chat.get_items()) == 4


@pytest.mark.parametrize("shared", [False, True], ids=["processes", "one object"])
async def test_two_runs_of_one_conversation(sessions, others, chat, shared):
    """A run that another one overtook while its model was thinking gets Conflict, and its answer is not stored.

    So it is for runs of two processes, and for two that share one session object.
    """
    thinking, overtaken = asyncio.Event(), asyncio.Event()

    async def think():
        thinking.set()
        await overtaken.wait()

    slow = Agent("slow", model=Script(said("slow answer"), wait=think))
    fast = Agent("fast", model=Script(said("fast answer")))
    run = asyncio.create_task(Runner.run(slow, "slow question", session=chat, run_config=QUIET))
    await asyncio.wait_for(thinking.wait(), 60)
    other = chat if shared else SaveslotSession("chat", sessions=others)
    await Runner.run(fast, "fast question", session=other, run_config=QUIET)
    overtaken.set()
    with pytest.raises(Conflict, match=r"^session chat: another caller changed it"):
        await run
    assert texts(await chat.get_items()) == ["slow question", "fast question", "fast answer"]
    await Runner.run(Agent("a", model=Script(said("third"))), "again", session=chat, run_config=QUIET)


async def test_first_items_of_two_processes(chat, others):
    """Of two runs that found no conversation, one creates it and the other gets Conflict."""
    other = SaveslotSession("chat", sessions=others)
    assert await chat.get_items() == await other.get_items() == []
    results = await asyncio.gather(chat.add_items([user("a")]), other.add_items([user("b")]), return_exceptions=True)
    [conflict] = [result for result in results if result is not None]
    assert isinstance(conflict, Conflict)
    assert len(await chat.get_items()) == 1


async def test_a_cleared_conversation_is_not_continued(chat, others):
    """A run that read a conversation which another process then cleared gets Conflict."""
    await chat.add_items([user("a")])
    await chat.get_items()
    other = SaveslotSession("chat", sessions=others)
    await other.clear_session()
    await other.add_items([user("b")])
    with pytest.raises(Conflict):
        await chat.add_items([user("c")])
    assert await chat.get_items() == [user("b")]


async def test_writes_without_a_read_append(chat, others):
    """Callers that have read nothing append to whatever is there, from several processes at once, and lose nothing."""
    pair = [chat, SaveslotSession("chat", sessions=others)]
    await asyncio.gather(*(pair[n % 2].add_items([user(f"{n}a"), user(f"{n}b")]) for n in range(12)))
    found = texts(await chat.get_items())
    assert sorted(found) == sorted(f"{n}{part}" for n in range(12) for part in "ab")
    assert all(first[:-1] == second[:-1] for first, second in zip(found[::2], found[1::2], strict=True))


async def test_pops_of_two_processes(sessions, chat, others):
    """Callers of two processes never pop the same item."""
    await chat.add_items([user(str(n)) for n in range(8)])
    pair = [SaveslotSession("chat", sessions=sessions), SaveslotSession("chat", sessions=others)]
    popped = await asyncio.gather(*(pair[n % 2].pop_item() for n in range(10)))
    assert sorted(texts(item for item in popped if item)) == [str(n) for n in range(8)]


async def test_other_changes_are_no_conflict(sessions, others, chat):
    """Labels, lifecycle and records that others add between a run's read and its write do not refuse the write."""
    await chat.add_items([user("a")])
    await chat.get_items()
    there = await others.get_session("chat")
    there.labels["topic"] = "hotels"
    await others.update_session(there)
    await others.resume("chat")
    await others.record("chat", "seen", {"by": "anna"})
    await chat.add_items([user("b")])
    assert texts(await chat.get_items()) == ["a", "b"]


async def test_a_held_conversation(sessions, others, chat):
    """Inside a hold the process writes with its lease, steps in between; another process gets LeaseHeld. After it the
    conversation rests paused.
    """
    async with sessions.hold("chat", create="openai-agents") as held:
        assert await chat.get_items() == []
        await chat.add_items([user("a")])
        assert await held.step("pay", lambda: 5) == 5
        await chat.add_items([user("b")])
        assert held.data == {"items": [user("a"), user("b")]}
        other = SaveslotSession("chat", sessions=others)
        assert texts(await other.get_items()) == ["a", "b"]
        with pytest.raises(LeaseHeld):
            await other.add_items([user("c")])
        assert await chat.pop_item() == user("b")
        await chat.clear_session()
        assert held.data == {"items": []}
    assert (await sessions.head("chat")).state is SessionState.PAUSED
    await chat.add_items([user("d")])


async def test_cancelled_calls_are_known(chat):
    """A call that is cancelled while it writes has ended when it raises, and the next one follows it."""
    await chat.add_items([user("first")])
    await chat.get_items()
    for n in range(20):
        call = asyncio.create_task(chat.add_items([user(str(n))]))
        for _ in range(n % 5):
            await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):  # on SQLite it may be done
            await call
        await chat.add_items([user(f"after {n}")])
    found = texts(await chat.get_items())
    assert [text for text in found if text.startswith("after")] == [f"after {n}" for n in range(20)]
    assert len(found) == len(set(found)) > 21


async def test_encrypted_sessions(chat):
    """The SDK's own encrypting wrapper works on it; what is stored cannot be read without its key."""
    secret = EncryptedSession("chat", chat, encryption_key="k" * 32)
    await secret.add_items([user("secret")])
    assert await secret.get_items() == [user("secret")]
    assert "secret" not in json.dumps(await chat.get_items())
    assert await secret.pop_item() == user("secret")


class Compacting:
    """An OpenAI client that compacts anything into one item."""

    def __init__(self, before=None):
        self.responses, self._before = self, before

    async def compact(self, **_):
        if self._before is not None:
            await self._before()
        return SimpleNamespace(output=[{"type": "compaction", "encrypted_content": "all"}], usage=None)


async def test_manual_compaction(sessions, chat):
    """The SDK's compaction replaces all items in one write."""
    await chat.add_items([user("a"), user("b")])
    session = OpenAIResponsesCompactionSession("chat", chat, client=Compacting())
    await session.run_compaction({"force": True, "compaction_mode": "input"})
    assert [item["type"] for item in await chat.get_items()] == ["compaction"]
    assert [line.name for line in await sessions.log("chat")][-1] == "replaced"


@pytest.mark.parametrize("overtaken", [False, True])
async def test_automatic_compaction(chat, others, overtaken):
    """After a run the SDK replaces what its model has seen, unless another process added an item meanwhile."""
    other = SaveslotSession("chat", sessions=others)

    async def before():
        if overtaken:
            await other.add_items([user("meanwhile")])

    session = OpenAIResponsesCompactionSession(
        "chat", chat, client=Compacting(before), compaction_mode="input", should_trigger_compaction=lambda _: True
    )
    model = Script(said("answer"))
    respond = model.get_response

    async def with_id(*arguments, **options):
        response = await respond(*arguments, **options)
        response.response_id = "r1"
        return response

    model.get_response = with_id
    await Runner.run(Agent("a", model=model), "question", session=session, run_config=QUIET)
    items = await chat.get_items()
    if overtaken:
        assert texts(items) == ["question", "answer", "meanwhile"]
    else:
        assert [item["type"] for item in items] == ["compaction"]


async def test_compaction_snapshots(sessions, chat):
    """A snapshot replaces the end of the items and drops expired ones before it; False once they changed."""
    await chat.add_items([user(str(n)) for n in range(6)])
    snapshot = await chat._get_compaction_snapshot(3)
    assert (texts(snapshot.items), snapshot.complete) == (["3", "4", "5"], False)
    assert await snapshot.replace_suffix(3, [user("x")]) is False
    assert await snapshot.replace_suffix(1, [user("x")]) is True
    assert await snapshot.replace_suffix(1, [user("y")]) is False
    assert texts(await chat.get_items()) == ["0", "1", "2", "3", "x"]
    snapshot = await chat._get_compaction_snapshot(9, prune_prefix=lambda item: item["content"] < "2")
    assert (len(snapshot.items), snapshot.complete) == (5, True)
    assert await snapshot.replace_suffix(4, [user("y")]) is True
    assert texts(await chat.get_items()) == ["2", "3", "y"]

    class Own(SaveslotSession):
        """A subclass may transform items: the SDK must not go past its methods."""

    own = Own("chat", sessions=sessions)
    assert await own._get_compaction_snapshot(3) is None
    assert await own._atomic_replace_items([]) is False


async def test_imported_conversations_go_on(tmp_path, database):
    """Half of a conversation in the SDK's SQLite session, half here, after saveslot import."""
    path = tmp_path / "theirs.db"
    theirs = SQLiteSession("chat", path)
    await Runner.run(Agent("a", model=Script(said("one"))), "first", session=theirs, run_config=QUIET)
    theirs.close()
    command = [Path(sys.executable).with_name("saveslot"), "--store", database, "import", path]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)
    chat = SaveslotSession("chat", database)
    model = Script(said("two"))
    await Runner.run(Agent("a", model=model), "second", session=chat, run_config=QUIET)
    assert texts(model.heard[0]) == ["first", "one", "second"]
    assert texts(await chat.get_items()) == ["first", "one", "second", "two"]
    await chat.close()


# Interrupted runs


def approving(paid):
    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    return pay


async def test_interrupted_runs(sessions, others):
    """A run that waits for an approval is resumed in another process; its tool runs once, after the approval."""
    paid = []
    chat = SaveslotSession("chat", sessions=sessions)
    agent = Agent("a", model=Script(called("pay", "c1", amount=5), said("done")), tools=[approving(paid)])
    result = await Runner.run(agent, "pay 5", session=chat, run_config=QUIET)
    runs = SaveslotRunStateStore(sessions=sessions)
    assert await runs.load("run-1", agent) is None
    await runs.save("run-1", result.to_state())

    later = SaveslotRunStateStore(sessions=others)
    state = await later.load("run-1", agent)
    [waiting] = state.get_interruptions()
    assert paid == []
    state.approve(waiting)
    await later.save("run-1", state)
    state = await later.load("run-1", agent)
    result = await Runner.run(agent, state, session=SaveslotSession("chat", sessions=others), run_config=QUIET)
    assert (result.final_output, paid) == ("done", [5])
    assert [item.get("type", "user") for item in await chat.get_items()] == [
        *("user", "function_call", "function_call_output", "message")
    ]
    log = [line.name for line in await others.log("run-1")]
    assert log == ["session_created", "session_paused", "interrupted", "interrupted"]

    with pytest.raises(Conflict):  # this process has not seen what the other one saved
        await runs.save("run-1", state)
    assert await later.delete("run-1") is True
    assert await later.delete("run-1") is False
    assert await runs.load("run-1", agent) is None


async def test_one_process_alone_resumes_a_run(sessions, others):
    """A run loaded inside a hold belongs to that process until it leaves the block."""
    agent = Agent("a", model=Script(called("pay", "c1", amount=5)), tools=[approving([])])
    result = await Runner.run(agent, "pay 5", run_config=QUIET)
    runs, later = SaveslotRunStateStore(sessions=sessions), SaveslotRunStateStore(sessions=others)
    await runs.save("run-1", result.to_state())
    async with sessions.hold("run-1"):
        state = await runs.load("run-1", agent)
        await runs.save("run-1", state)
        with pytest.raises(LeaseHeld):
            async with others.hold("run-1"):
                pass
        with pytest.raises(LeaseHeld):
            await later.save("run-1", state)


# Package


def test_versions():
    """The extra allows the versions that the adapter is tested with; another one is refused with what to install."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["openai"] == ["openai-agents>=0.24,<0.25"]
    program = """
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "0.25.0" if name == "openai-agents" else real(name)
import saveslot.adapters.openai_agents
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: this adapter works with openai-agents 0.24 up to, but not including, 0.25; 0.25.0 is installed: "
        "pip install 'saveslot[openai]'"
    )


def test_example_survives_a_kill(tmp_path):
    """The example is killed with -9 in the middle of its second booking; started again, it books each hotel once."""
    command = [sys.executable, str(ROOT / "examples" / "openai_agents_trip.py")]
    with subprocess.Popen([*command, "600"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert [first.stdout.readline() for _ in range(2)] == [
            "asked for a hotel in Paris\n",
            "asked for a hotel in Rome\n",
        ]
        first.kill()
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert second.stdout.splitlines() == ["asked for a hotel in Rome", "Both hotels are booked."]
    bookings = [line.split()[1] for line in (tmp_path / "bookings.txt").read_text().splitlines()]
    assert bookings == ["Paris", "Rome"]


def texts(items):
    return [
        content if isinstance(content := item["content"], str) else content[0]["text"]
        for item in items
        if "content" in item
    ]
