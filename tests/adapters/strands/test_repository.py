"""Strands' session repository, with the real package, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from strands import tool
from strands.multiagent import GraphBuilder
from strands.session import FileSessionManager, RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

import saveslot
from saveslot import Conflict, InvalidInput, LeaseHeld, SessionState
from saveslot.adapters.strands import SaveslotSessionRepository
from tests.adapters.strands.chats import called, said, texts, tutor

ROOT = Path(__file__).parents[3]


@pytest.fixture
def repository(sessions):
    return SaveslotSessionRepository(sessions=sessions)


@pytest.fixture
def other(others):
    return SaveslotSessionRepository(sessions=others)


def chat(repository, name="chat"):
    return RepositorySessionManager(name, repository)


def message(number, text, role="user"):
    return SessionMessage({"role": role, "content": [{"text": text}]}, number)


def begun(repository, name="chat", agent="tutor"):
    repository.create_session(Session(name, SessionType.AGENT))
    repository.create_agent(name, SessionAgent(agent, {}, {}))


def test_agents_hear_the_conversation(repository, other, sessions):
    """An agent hears the earlier turns, also in another process; each message is a checkpoint, named by its role."""

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    first = tutor(chat(repository), called("add", "c1", a=1, b=2), said("three"), tools=[add])
    assert str(first("1 + 2?")).strip() == "three"
    first.state.set("level", 2)
    second = tutor(chat(other), said("yes, three"))
    assert texts(second.messages) == ["1 + 2?", "three"]
    second("sure?")
    assert texts(second.model.heard[0]) == ["1 + 2?", "three", "sure?"]
    [session] = sessions.find(agent_type="strands")
    assert (session.session_id, session.state) == ("chat", SessionState.PAUSED)
    log = [line.name for line in sessions.log("chat") if line.name != "agent"]
    assert log[2:] == ["created", "user", "assistant: add", "user", "assistant", "user", "assistant"]


def test_state_comes_back(repository, other):
    """The state of an agent and of its conversation manager come back in another process."""
    agent = tutor(chat(repository), said("a"), state={"level": 1})
    agent.state.set("name", "Anna")
    agent("hi")
    later = tutor(chat(other), said("b"))
    assert later.state.get() == {"level": 1, "name": "Anna"}
    later.state.set("level", 2)
    later("again")
    assert tutor(chat(repository)).state.get("level") == 2
    record = other.read_agent("chat", "tutor")
    assert record.created_at == repository.read_agent("chat", "tutor").created_at < record.updated_at


def test_what_the_files_do(repository, other, tmp_path):
    """Every call answers as Strands' own repository of files does."""
    files = FileSessionManager("reference", storage_dir=str(tmp_path / "files"))
    for one, two in ((files, files), (repository, other)):
        assert two.read_session("s") is None
        made = one.create_session(Session("s", SessionType.AGENT))
        assert two.read_session("s") == made
        with pytest.raises(SessionException):
            two.create_session(Session("s", SessionType.AGENT))
        assert two.read_agent("s", "a") is None
        with pytest.raises(SessionException):
            two.list_messages("s", "a")
        with pytest.raises(SessionException):
            two.update_agent("s", SessionAgent("a", {}, {}))
        agent = SessionAgent("a", {"k": [1, None]}, {"removed_message_count": 0}, {"interrupt_state": {}})
        one.create_agent("s", agent)
        assert two.read_agent("s", "a") == agent
        assert two.list_messages("s", "a") == []
        items = [message(n, f"t{n}") for n in range(12)]
        items[3].message["content"].append({"image": {"format": "png", "source": {"bytes": b"\xff\x00"}}})
        for item in items:
            one.create_message("s", "a", item)
        for limit in (None, 0, 3, 99):
            for offset in (0, 5, 11, 50):
                assert two.list_messages("s", "a", limit, offset) == items[offset:][:limit]
        assert two.list_messages("s", "a", limit=2) == items[:2]
        assert two.read_message("s", "a", 3) == items[3]
        assert two.read_message("s", "a", 99) is None
        redacted = message(3, "t3")
        redacted.redact_message = {"role": "user", "content": [{"text": "…"}]}
        two.update_message("s", "a", redacted)
        assert redacted.created_at == items[3].created_at
        assert one.list_messages("s", "a")[3].to_message()["content"] == [{"text": "…"}]
        with pytest.raises(SessionException):
            two.update_message("s", "a", message(99, "x"))
        one.delete_session("s")
        assert two.read_session("s") is None
        with pytest.raises(SessionException):
            two.delete_session("s")


def test_an_overtaken_agent_is_told(repository, other):
    """Of two processes that continue one conversation, one is stored; the other gets Conflict, and nothing of its own
    is stored after that.
    """
    tutor(chat(repository), said("first"))("begin")
    slow, fast = tutor(chat(repository), said("slow")), tutor(chat(other), said("fast"))
    fast.state.set("by", "fast")
    fast("fast?")
    slow.state.set("by", "slow")
    with pytest.raises(Conflict, match=r"^session chat: .* (is there already|changed agent:tutor)"):
        slow("slow?")
    third = tutor(chat(repository), said("third"))
    assert texts(third.messages) == ["begin", "first", "fast?", "fast"]
    assert third.state.get("by") == "fast"
    third("again")


def test_first_messages_of_two_processes(repository, other):
    """Of two agents that found no conversation, one begins it and the other is told."""
    both = threading.Barrier(2)

    def begin(each, text):
        both.wait(60)
        return str(tutor(chat(each), said(f"{text}!"))(text)).strip()

    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(begin, each, text) for each, text in ((repository, "a"), (other, "b"))]
        errors = [call.exception() for call in calls]
    [error] = [error for error in errors if error is not None]
    assert isinstance(error, Conflict | SessionException)
    won = "a" if errors[0] is None else "b"
    assert texts(tutor(chat(other)).messages) == [won, f"{won}!"]


def test_messages_of_several_agents(repository, other):
    """Agents of one session do not get into each other's way, however many threads and processes write."""
    begun(repository)
    for n in range(3):
        repository.create_agent("chat", SessionAgent(f"a{n}", {}, {}))

    def talk(n):
        for number in range(10):
            (repository, other)[number % 2].create_message("chat", f"a{n}", message(number, f"{number}"))

    with ThreadPoolExecutor() as pool:
        list(pool.map(talk, range(3)))
    for n in range(3):
        assert [item.message_id for item in other.list_messages("chat", f"a{n}")] == list(range(10))


def test_other_entries_do_not_count(repository, others):
    """A conversation that was held, labelled or recorded on meanwhile goes on."""
    agent = tutor(chat(repository), said("a"), said("b"))
    agent("one")
    with others.hold("chat"):
        pass
    others.record("chat", "seen", {"by": "anna"})
    agent("two")
    assert texts(tutor(chat(repository)).messages) == ["one", "a", "two", "b"]


def test_a_message_is_stored_once(repository, other):
    """A message that is created again, as after a lost answer, is stored once; another one of its number is refused."""
    begun(repository)
    first = message(0, "a")
    repository.create_message("chat", "tutor", first)
    other.create_message("chat", "tutor", first)
    with pytest.raises(Conflict):
        other.create_message("chat", "tutor", message(0, "b"))
    assert repository.list_messages("chat", "tutor") == [first]


def test_held_conversations(repository, other, sessions):
    """Inside a hold this process writes with its lease, steps in between; another process gets LeaseHeld. After it the
    conversation rests paused.
    """
    with sessions.hold("chat", create="strands") as held:
        agent = tutor(chat(repository), said("a"), said("b"))
        agent("one")
        assert held.step("pay", lambda: 5) == 5
        agent("two")
        assert [item["message"]["role"] for item in held.data["messages:tutor"]] == ["user", "assistant"] * 2
        late = tutor(chat(other), said("c"))
        assert texts(late.messages) == ["one", "a", "two", "b"]
        with pytest.raises(LeaseHeld):
            late("three")
    assert sessions.head("chat").state is SessionState.PAUSED
    assert texts(tutor(chat(other)).messages) == ["one", "a", "two", "b"]


def test_graphs(repository, other):
    """A graph's state is restored in another process: the nodes that were done are not run again."""

    def graph(each, *answers):
        agents = [tutor(None, *answer) for answer in answers]
        builder = GraphBuilder()
        for n, agent in enumerate(agents):
            agent.agent_id = f"n{n}"
            builder.add_node(agent, f"n{n}")
        builder.add_edge("n0", "n1")
        builder.set_entry_point("n0")
        builder.set_session_manager(chat(each, "graph"))
        builder.set_graph_id("g")
        builder.set_max_node_executions(10)
        return builder.build()

    def fail():
        raise RuntimeError("the process dies here")

    first = graph(repository, [said("zero")], [said("one")])
    first.nodes["n1"].executor.model.wait = fail
    with pytest.raises(RuntimeError):
        first("go")
    second = graph(other, [], [said("one")])
    result = second("go")
    assert result.completed_nodes >= 1
    assert second.nodes["n0"].executor.model.heard == []
    assert "n1" in result.results


async def test_any_loop(database):
    """Agents work inside an event loop, in threads, and after close; a manager of an event loop is refused."""
    repository = SaveslotSessionRepository(database, namespace="strands")
    agent = tutor(chat(repository), *[said(str(n)) for n in range(3)])
    await agent.invoke_async("in a loop")
    await asyncio.to_thread(agent, "in a thread")
    await asyncio.to_thread(repository.close)
    assert len(tutor(chat(repository)).messages) == 4
    await asyncio.to_thread(repository.close)
    async with saveslot.open(database, namespace="strands") as sessions:
        assert len(await sessions.find(agent_type="strands")) == 1
        with pytest.raises(InvalidInput, match=r"must be a manager of saveslot\.blocking"):
            SaveslotSessionRepository(sessions=sessions)


# Package


def test_versions():
    """The extra allows the versions that the adapter is tested with; another one is refused with what to install."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["strands"] == ["strands-agents>=1.62,<1.63"]
    program = """
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "1.63.0" if name == "strands-agents" else real(name)
import saveslot.adapters.strands
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: this adapter works with strands-agents 1.62 up to, but not including, 1.63; 1.63.0 is installed: "
        "pip install 'saveslot[strands]'"
    )


def test_example_survives_a_kill(tmp_path):
    """The example is killed with -9 in the middle of its second booking; started again, it books each hotel once."""
    command = [sys.executable, str(ROOT / "examples" / "strands_trip.py")]
    with subprocess.Popen([*command, "600"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        heard = [first.stdout.readline() for _ in range(2)]
        first.kill()
    assert heard == ["asked for a hotel in Paris\n", "asked for a hotel in Rome\n"]
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines() == ["asked for a hotel in Rome", "Both hotels are booked."]
    bookings = [line.split()[1] for line in (tmp_path / "bookings.txt").read_text().splitlines()]
    assert bookings == ["Paris", "Rome"]
