"""Checkpoints and histories of Microsoft's Agent Framework, with the real package and models that follow a script."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    CheckpointStorage,
    Executor,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    handler,
)

from saveslot import Conflict, LeaseHeld, SessionState
from saveslot.adapters.agent_framework import SaveslotCheckpointStorage, SaveslotHistoryProvider
from saveslot.errors import InvalidInput

ROOT = Path(__file__).parents[2]


class Script(BaseChatClient):
    """Answers one after another; `heard` is what the model was given each time."""

    def __init__(self, *answers, wait=None):
        super().__init__()
        self.answers, self.heard, self.wait = list(answers), [], wait

    async def _inner_get_response(self, *, messages, **_):
        self.heard.append([message.text for message in messages])
        if self.wait is not None:
            await self.wait()
        return ChatResponse(messages=[Message("assistant", [self.answers.pop(0)])])


class Add(Executor):
    """Counts up, superstep by superstep, to 5; `ran` is what this process ran."""

    def __init__(self, id, ran):
        super().__init__(id=id)
        self.ran = ran

    @handler
    async def add(self, n: int, ctx: WorkflowContext[int, int]) -> None:
        self.ran.append(n)
        ctx.set_state("n", n)
        await (ctx.send_message(n + 1) if n < 5 else ctx.yield_output(n))


def counting(storage, ran):
    """Build a workflow that counts to 5 by two executors in turn."""
    one, two = Add("one", ran), Add("two", ran)
    builder = WorkflowBuilder(start_executor=one, name="count", checkpoint_storage=storage, output_from=[one, two])
    return builder.add_edge(one, two).add_edge(two, one).build()


class Choice:
    """A type of the application."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


def checkpoint(id, previous=None, name="w", n=0, **state):
    return WorkflowCheckpoint(
        workflow_name=name,
        graph_signature_hash="h",
        checkpoint_id=id,
        previous_checkpoint_id=previous,
        iteration_count=n,
        state=state,
    )


@pytest.fixture
def storage(sessions):
    return SaveslotCheckpointStorage(sessions=sessions)


# Checkpoints


async def test_checkpoints_come_back(storage, others):
    """A checkpoint is loaded as it was saved, by its id, in any process; what the caller changes later is not in it."""
    assert all(hasattr(storage, name) for name in vars(CheckpointStorage) if not name.startswith("_"))
    saved = checkpoint("c1", who={"a": (1, 2)}, seen={3}, text='ü " \\ ]', n=1)
    assert await storage.save(saved) == "c1"
    assert await storage.save(checkpoint("c2", "c1", n=2)) == "c2"
    saved_before = checkpoint("c1", who={"a": (1, 2)}, seen={3}, text='ü " \\ ]', n=1)
    saved_before.timestamp = saved.timestamp
    saved.state["who"]["a"] = "changed"
    for each in (storage, SaveslotCheckpointStorage(sessions=others)):
        assert await each.load("c1") == saved_before
        assert [(await each.load(name)).iteration_count for name in ("c1", "c2")] == [1, 2]
        with pytest.raises(WorkflowCheckpointException, match="there is no checkpoint c9"):
            await each.load("c9")


async def test_lists_and_the_latest(storage, others):
    """A workflow's checkpoints are listed oldest first, over all of its runs; the latest is the one saved last."""
    assert await storage.get_latest(workflow_name="w") is None
    for key, previous, name in [("a1", None, "w"), ("b1", None, "w"), ("x1", None, "x"), ("a2", "a1", "w")]:
        await storage.save(checkpoint(key, previous, name))
    await storage.save(checkpoint("b2", "b1"))
    for each in (storage, SaveslotCheckpointStorage(sessions=others)):
        assert await each.list_checkpoint_ids(workflow_name="w") == ["a1", "b1", "a2", "b2"]
        listed = await each.list_checkpoints(workflow_name="w")
        assert [saved.checkpoint_id for saved in listed] == ["a1", "b1", "a2", "b2"]
        assert (await each.get_latest(workflow_name="w")).checkpoint_id == "b2"
        assert (await each.get_latest(workflow_name="x")).checkpoint_id == "x1"
        assert await each.list_checkpoints(workflow_name="y") == []


async def test_one_session_for_each_run(sessions, storage):
    """Checkpoints that follow each other are one session, which rests paused and is readable in its log."""
    for n in range(3):
        await storage.save(checkpoint(f"c{n}", f"c{n - 1}" if n else None, n=n, total=n))
    [session] = await sessions.find(agent_type="agent-framework-workflow")
    assert (session.session_id, session.state) == ("c0", SessionState.PAUSED)
    assert await storage.session_id("c2") == "c0"
    names = [entry.name for entry in await sessions.entries("c0", kinds=["checkpoint"])]
    assert names == ["superstep-0", "superstep-1", "superstep-2"]
    assert (await sessions.get_data("c0"))["state"] == {"total": 2}


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
async def test_deleted_checkpoints_are_gone(storage, others, order):
    """A deleted checkpoint is no longer loaded, listed or the latest, in whatever order they are deleted."""
    for n in range(3):
        await storage.save(checkpoint(f"c{n}", f"c{n - 1}" if n else None, n=n))
    left, other = ["c0", "c1", "c2"], SaveslotCheckpointStorage(sessions=others)
    for n in order:
        assert await other.delete(f"c{n}")
        assert not await storage.delete(f"c{n}")
        left.remove(f"c{n}")
        assert await storage.list_checkpoint_ids(workflow_name="w") == left
        latest = await storage.get_latest(workflow_name="w")
        assert (None if latest is None else latest.checkpoint_id) == (left[-1] if left else None)
        with pytest.raises(WorkflowCheckpointException):
            await storage.load(f"c{n}")
    with pytest.raises(Conflict, match="another caller deleted it"):
        await storage.save(checkpoint("c3", "c2"))
    await other.save(checkpoint("c0"))
    assert await storage.list_checkpoint_ids(workflow_name="w") == ["c0"]


async def test_saved_again(storage):
    """A checkpoint that is saved again under the same id replaces the former one."""
    await storage.save(checkpoint("c1", n=1))
    await storage.save(checkpoint("c1", n=2))
    assert (await storage.load("c1")).iteration_count == 2
    assert [saved.iteration_count for saved in await storage.list_checkpoints(workflow_name="w")] == [2]


async def test_types_of_the_application(sessions, storage):
    """A value of a type that could not be loaded is refused when it is saved; an allowed one comes back."""
    with pytest.raises(WorkflowCheckpointException, match="Choice"):
        await storage.save(checkpoint("c1", choice=Choice(1)))
    assert await storage.list_checkpoint_ids(workflow_name="w") == []
    allowing = SaveslotCheckpointStorage(sessions=sessions, allowed_checkpoint_types=[f"{Choice.__module__}:Choice"])
    await allowing.save(checkpoint("c1", choice=Choice(1)))
    assert (await allowing.load("c1")).state == {"choice": Choice(1)}


async def test_one_continuation_wins(storage, others):
    """Of two processes that continue from one checkpoint, the first wins; the other one's saves are conflicts."""
    await storage.save(checkpoint("c1"))
    other = SaveslotCheckpointStorage(sessions=others)
    await storage.load("c1")
    await other.load("c1")
    await other.save(checkpoint("theirs", "c1"))
    for name in ("ours", "ours-again"):
        with pytest.raises(Conflict, match="another caller changed it"):
            await storage.save(checkpoint(name, "c1"))
    await other.save(checkpoint("theirs-2", "theirs"))
    assert await storage.list_checkpoint_ids(workflow_name="w") == ["c1", "theirs", "theirs-2"]


async def test_an_earlier_checkpoint_can_be_continued(storage, others):
    """A run may go on from an earlier checkpoint that it loads; one that did not load it may not."""
    for n in range(3):
        await storage.save(checkpoint(f"c{n}", f"c{n - 1}" if n else None))
    other = SaveslotCheckpointStorage(sessions=others)
    with pytest.raises(Conflict):
        await other.save(checkpoint("blind", "c0"))
    await other.load("c0")
    await other.save(checkpoint("again", "c0"))
    assert (await storage.get_latest(workflow_name="w")).previous_checkpoint_id == "c0"
    with pytest.raises(Conflict):
        await storage.save(checkpoint("c3", "c2"))


async def test_workflows_resume(storage, others):
    """A workflow resumes in another process at any of its checkpoints, and runs only what is left."""
    ran, rest = [], []
    result = await counting(storage, ran).run(1)
    assert (ran, result.get_outputs()) == ([1, 2, 3, 4, 5], [5])
    other = SaveslotCheckpointStorage(sessions=others)
    saved = await other.list_checkpoints(workflow_name="count")
    third = next(one for one in saved if one.state.get("n") == 3)
    result = await counting(other, rest).run(checkpoint_id=third.checkpoint_id)
    assert (rest, result.get_outputs()) == ([4, 5], [5])
    assert len(await other.list_checkpoint_ids(workflow_name="count")) == len(saved) + 2
    assert len({await other.session_id(one.checkpoint_id) for one in saved}) == 1


async def test_a_workflow_that_was_overtaken(storage, others, caplog):
    """The framework logs the conflict of a workflow whose checkpoints another process continued, and stores no more
    of them; held by the one, the session refuses the other.
    """
    await counting(storage, []).run(1)
    first, *_, last = await storage.list_checkpoint_ids(workflow_name="count")
    other = SaveslotCheckpointStorage(sessions=others)
    async with others.hold(await other.session_id(first)):
        before = await storage.list_checkpoint_ids(workflow_name="count")
        with caplog.at_level(logging.WARNING, "agent_framework"):
            await counting(storage, []).run(checkpoint_id=first)
        assert "Failed to create checkpoint" in caplog.text
        assert await storage.list_checkpoint_ids(workflow_name="count") == before
        with pytest.raises(LeaseHeld):
            await storage.save(checkpoint("c", last, name="count"))
        await counting(other, []).run(checkpoint_id=first)
    assert len(await storage.list_checkpoint_ids(workflow_name="count")) > len(before)


WORKER = """
import asyncio, os, signal, sys
from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler
from saveslot.adapters.agent_framework import SaveslotCheckpointStorage
database, last = sys.argv[1], int(sys.argv[2])
class Add(Executor):
    @handler
    async def add(self, n: int, ctx: WorkflowContext[int, int]) -> None:
        print(n, flush=True)
        if n == last:
            os.kill(os.getpid(), signal.SIGKILL)
        await (ctx.send_message(n + 1) if n < 8 else ctx.yield_output(n))
async def main():
    storage = SaveslotCheckpointStorage(database)
    one, two = Add(id="one"), Add(id="two")
    builder = WorkflowBuilder(start_executor=one, name="count", checkpoint_storage=storage, output_from=[one, two])
    workflow = builder.add_edge(one, two).add_edge(two, one).build()
    latest = await storage.get_latest(workflow_name="count")
    result = await (workflow.run(1) if latest is None else workflow.run(checkpoint_id=latest.checkpoint_id))
    print("result", *result.get_outputs())
    await storage.close()
asyncio.run(main())
"""


def test_a_workflow_survives_kills(database):
    """A workflow that is killed with -9 in the middle of a superstep, twice, goes on there in the next process."""
    ran = []
    for last in (3, 6, 0):
        command = [sys.executable, "-c", WORKER, database, str(last)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == (-9 if last else 0), done.stderr
        ran.append(done.stdout.split("\n")[:-1])
    assert ran == [["1", "2", "3"], ["3", "4", "5", "6"], ["6", "7", "8", "result 8"]]


# Conversations


def texts(messages):
    return [message.text for message in messages]


async def test_agents_hear_the_history(sessions, others):
    """An agent hears the earlier turns of its conversation, also in another process; each turn is a checkpoint."""
    model = Script("one", "two")
    agent = Agent(model, context_providers=[SaveslotHistoryProvider(sessions=sessions)])
    chat = AgentSession(session_id="chat")
    await agent.run("a", session=chat)
    await agent.run("b", session=chat)
    later = Script("three")
    provider = SaveslotHistoryProvider(sessions=others)
    await Agent(later, context_providers=[provider]).run("c", session=AgentSession(session_id="chat"))
    assert model.heard == [["a"], ["a", "one", "b"]]
    assert later.heard == [["a", "one", "b", "two", "c"]]
    assert texts(await provider.get_messages("chat")) == ["a", "one", "b", "two", "c", "three"]
    assert [entry.name for entry in await sessions.entries("chat", kinds=["checkpoint"])] == ["turn"] * 3
    assert (await sessions.get_session("chat")).state is SessionState.PAUSED


async def test_one_of_two_runs_wins(sessions, others):
    """Of two runs on one conversation, in two processes, one is stored; the other one gets Conflict, and can run
    again.
    """
    both = asyncio.Barrier(2)
    agents = [
        Agent(Script("x1", "x2", wait=both.wait), context_providers=[SaveslotHistoryProvider(sessions=manager)])
        for manager in (sessions, others)
    ]
    for turn in (1, 2):
        results = await asyncio.gather(
            *(agent.run(f"a{turn}", session=AgentSession(session_id="chat")) for agent in agents),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["AgentResponse", "Conflict"]
        stored = texts(await SaveslotHistoryProvider(sessions=others).get_messages("chat"))
        assert stored == ["a1", "x1", "a2", "x2"][: 2 * turn]


async def test_runs_in_one_process(sessions):
    """Two runs of one agent object on one conversation at once: one is stored, the other one gets Conflict."""
    both = asyncio.Barrier(2)
    provider = SaveslotHistoryProvider(sessions=sessions)
    agent, chat = Agent(Script("x", "y", wait=both.wait), context_providers=[provider]), AgentSession(session_id="chat")
    results = await asyncio.gather(agent.run("a", session=chat), agent.run("b", session=chat), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["AgentResponse", "Conflict"]
    assert len(await provider.get_messages("chat")) == 2


async def test_held_conversations(sessions, others):
    """While one process holds a conversation, its own runs are stored, and those of others get LeaseHeld."""
    ours, theirs = [
        Agent(Script("x"), context_providers=[SaveslotHistoryProvider(sessions=manager)])
        for manager in (sessions, others)
    ]
    async with sessions.hold("chat", create="agent-framework"):
        with pytest.raises(LeaseHeld):
            await theirs.run("b", session=AgentSession(session_id="chat"))
        await ours.run("a", session=AgentSession(session_id="chat"))
    assert (await sessions.head("chat")).state is SessionState.PAUSED
    assert texts(await SaveslotHistoryProvider(sessions=others).get_messages("chat")) == ["a", "x"]


async def test_messages_sent_again(sessions, others):
    """Messages that overlap the end of the history are stored once, as by the framework's own providers."""
    provider, other = SaveslotHistoryProvider(sessions=sessions), SaveslotHistoryProvider(sessions=others)
    said = [Message("user" if n % 2 else "assistant", [str(n)], message_id=str(n)) for n in range(6)]
    await provider.save_messages("chat", said[:2])
    await other.save_messages("chat", said[:4])
    await provider.save_messages("chat", said[2:5])
    await provider.save_messages("chat", said[4:5])
    await other.save_messages("chat", [])
    assert texts(await other.get_messages("chat")) == ["0", "1", "2", "3", "4"]


async def test_writers_without_a_run(sessions, others):
    """Messages saved outside of a run, by several processes at once, are all stored, none torn."""
    pair = [SaveslotHistoryProvider(sessions=manager) for manager in (sessions, others)]
    await asyncio.gather(
        *(
            pair[n % 2].save_messages(
                "chat", [Message("user", [f"{n}{part}"], message_id=f"{n}{part}") for part in "ab"]
            )
            for n in range(20)
        )
    )
    stored = texts(await pair[0].get_messages("chat"))
    assert sorted(stored) == sorted(f"{n}{part}" for n in range(20) for part in "ab")
    assert all(second == f"{first[:-1]}b" for first, second in zip(stored[::2], stored[1::2], strict=True))


async def test_a_session_without_id(sessions):
    """Without a session id nothing is kept silently: the caller is refused."""
    provider = SaveslotHistoryProvider(sessions=sessions)
    with pytest.raises(InvalidInput, match="create_session"):
        await provider.get_messages(None)
    with pytest.raises(InvalidInput, match="create_session"):
        await provider.save_messages(None, [Message("user", ["a"])])


async def test_from_a_url(database):
    """From a URL, both open the store at first use, and read it again after they are closed."""
    storage, provider = SaveslotCheckpointStorage(database), SaveslotHistoryProvider(database)
    await storage.save(checkpoint("c1"))
    await provider.save_messages("chat", [Message("user", ["a"])])
    for each in (storage, provider):
        await each.close()
    assert (await storage.load("c1")).checkpoint_id == "c1"
    assert texts(await provider.get_messages("chat")) == ["a"]
    for each in (storage, provider):
        await each.close()


def test_versions():
    """The extra allows the versions that the adapter is tested with; another one is refused with what to install."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["agent-framework"] == ["agent-framework-core>=1.23,<1.24"]
    program = """
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "1.24.0" if name == "agent-framework-core" else real(name)
import saveslot.adapters.agent_framework
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "works with agent-framework-core 1.23 up to, but not including, 1.24; 1.24.0 is installed" in done.stderr
