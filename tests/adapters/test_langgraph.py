"""LangGraph's checkpointer on every store: its conformance suite, and what graphs and people see of a thread."""

from __future__ import annotations

import asyncio
import math
import operator
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, TypedDict
from uuid import UUID, uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

import saveslot
from saveslot import Conflict, InvalidInput, LeaseHeld, SaveslotError
from saveslot.adapters import langgraph as adapter
from saveslot.adapters.langgraph import SaveslotSaver, thread as thread_module
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.values.lifecycle import SessionState

THREAD = {"configurable": {"thread_id": "lesson-1", "checkpoint_ns": ""}}


@pytest.fixture(params=["memory", "sqlite", "postgres", "postgres+valkey", "http"])
def place(request, servers, tmp_path) -> Iterator[dict[str, str]]:
    """Where a saver keeps its threads, as arguments of it."""
    match request.param:
        case "memory":
            yield {"url": "memory:"}
        case "sqlite":
            yield {"url": str(tmp_path / "s.db")}
        case "postgres":
            yield {"url": servers.schema()}
        case "postgres+valkey":
            yield {"url": servers.schema(), "hot": servers.valkey()}
        case _:
            serving = request.getfixturevalue("serving")
            yield {"url": serving.serve(lambda: SqliteStore.open(str(tmp_path / "s.db")))}
            serving.stop()


@pytest.fixture
async def saver(file):
    async with SaveslotSaver.from_conn_string(file) as saver:
        yield saver


async def test_conformance(place):
    """LangGraph's own suite detects every capability and passes all of its tests."""

    @checkpointer_test(name="saveslot")
    async def ours():
        async with SaveslotSaver.from_conn_string(**place) as saver:
            yield saver

    report = await validate(ours)
    assert {name for name, result in report.results.items() if result.detected} == {part.value for part in Capability}
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert sum(result.tests_passed for result in report.results.values()) >= 81


def test_delta_channels_have_their_own_history():
    """The ninth capability, which the suite does not know, is overridden, too; so is each method's sync twin."""
    for name in ("get_delta_channel_history", "prune", "copy_thread", "delete_for_runs", "put", "list"):
        for method in (name, f"a{name}"):
            assert getattr(SaveslotSaver, method) is not getattr(BaseCheckpointSaver, method)


def test_versions_are_those_declared():
    """The extra in pyproject.toml names the range that the adapter checks."""
    from importlib.metadata import requires

    declared = [line for line in requires("saveslot") or [] if "extra == 'langgraph'" in line]
    assert [line.partition(";")[0].strip() for line in declared] == [
        f"langgraph-checkpoint<{adapter.BELOW},>={adapter.LOWEST}"
    ]


# Graphs


class Lesson(TypedDict):
    messages: Annotated[list, add_messages]
    turns: int
    marks: Annotated[list[int], operator.add]


class Check(TypedDict):
    messages: Annotated[list, add_messages]
    checked: int


def build(saver, *, own_memory: bool):
    """A graph with a subgraph, parallel tasks and a question to a person."""

    def think(state):
        return {
            "messages": [AIMessage(f"re {state['messages'][-1].content}", id=f"a{len(state['messages'])}")],
            "turns": state.get("turns", 0) + 1,
        }

    def check(state):
        return {"checked": 1, "messages": [AIMessage("checked", id=f"c{len(state['messages'])}")]}

    def ask(state):
        return {"messages": [AIMessage(f"heard {interrupt('ok?')}", id=f"i{len(state['messages'])}")]}

    checking = StateGraph(Check).add_node("check", check).add_node("count", lambda _: {"checked": 2})
    checking = checking.add_edge(START, "check").add_edge("check", "count").add_edge("count", END)
    graph = StateGraph(Lesson).add_node("think", think).add_node("ask", ask)
    graph.add_node("checking", checking.compile(checkpointer=True if own_memory else None))
    graph.add_node("mark", lambda task: {"marks": [task["number"]]})
    graph.add_edge(START, "think").add_edge("think", "checking").add_edge("mark", "ask").add_edge("ask", END)
    graph.add_conditional_edges("checking", lambda _: [Send("mark", {"number": n}) for n in range(3)], ["mark"])
    return graph.compile(checkpointer=saver)


def seen(state) -> dict:
    """What a graph's user sees of a state; the ids are other ones in each run."""
    tasks = [(task.name, [one.value for one in task.interrupts], task.error) for task in state.tasks]
    return {"values": state.values, "next": state.next, "metadata": state.metadata | {"parents": {}}, "tasks": tasks}


async def lesson(saver, *, own_memory: bool) -> list:
    graph, answers = build(saver, own_memory=own_memory), []

    async def run(given, config) -> None:
        answers.append({**await graph.ainvoke(given, config), "__interrupt__": None})
        answers.append(seen(await graph.aget_state(THREAD)))

    for turn in range(3):
        await run({"messages": [HumanMessage(f"q{turn}", id=f"h{turn}")]}, THREAD)
        await run(Command(resume=f"yes {turn}"), THREAD)
    history = [state async for state in graph.aget_state_history(THREAD)]
    answers.append([seen(state) for state in history])
    past = [state for state in history if state.next == ("think",)][1]
    await run(None, past.config)
    await run(Command(resume="again"), THREAD)
    for config, turns in ((THREAD, 100), (past.config, 500)):
        await graph.aupdate_state(config, {"turns": turns})
        answers.append(seen(await graph.aget_state(THREAD)))
    for wanted in ({"source": "update"}, {"step": 3}, {"source": "update", "step": 3}):
        found = graph.aget_state_history(THREAD, filter=wanted)
        answers.append([seen(state) async for state in found])
    answers.append([seen(state) async for state in graph.aget_state_history(THREAD)])
    return answers


@pytest.mark.parametrize("own_memory", [False, True])
async def test_graphs_see_what_langgraphs_own_saver_shows(place, own_memory):
    """Turns, a subgraph, parallel tasks, questions, time travel, updates and filters: all as with InMemorySaver."""
    expected = await lesson(InMemorySaver(), own_memory=own_memory)
    async with SaveslotSaver.from_conn_string(**place) as saver:
        assert await lesson(saver, own_memory=own_memory) == expected


def test_synchronous_graphs(place):
    """`with`, `invoke` and a state history without an event loop."""
    with SaveslotSaver.from_conn_string(**place) as saver:
        graph = build(saver, own_memory=False)
        graph.invoke({"messages": [HumanMessage("q")]}, THREAD)
        graph.invoke(Command(resume="yes"), THREAD)
        state = graph.get_state(THREAD)
        assert [message.content for message in state.values["messages"]] == ["q", "re q", "checked", "heard yes"]
        assert len(list(graph.get_state_history(THREAD))) == 6
        assert len(list(graph.get_state_history(THREAD, limit=2))) == 2
        saver.delete_thread("lesson-1")
        assert saver.get_tuple(THREAD) is None


async def test_another_process_goes_on(place, servers):
    """A saver that knows nothing yet continues a thread in the middle of a question."""
    if place["url"] == "memory:":
        place = {"sessions": saveslot.SessionManager()}
    first, second = SaveslotSaver(**place), SaveslotSaver(**place)
    await build(first, own_memory=False).ainvoke({"messages": [HumanMessage("q")]}, THREAD)
    answer = await build(second, own_memory=False).ainvoke(Command(resume="yes"), THREAD)
    assert answer["messages"][-1].content == "heard yes"
    again = await build(first, own_memory=False).ainvoke({"messages": [HumanMessage("r")]}, THREAD)
    assert len(again["messages"]) == 7
    await first.close()
    await second.close()


# Threads as sessions


async def test_a_thread_is_a_readable_session(saver, file):
    """A thread's steps are named entries of one session whose data people read; it rests paused."""
    await build(saver, own_memory=False).ainvoke({"messages": [HumanMessage("1/2 + 1/3?", id="h")]}, THREAD)
    async with saveslot.open(file) as sessions:
        session = await sessions.get_session("lesson-1")
        assert (session.agent_type, session.state) == ("langgraph", SessionState.PAUSED)
        assert {line.name for line in await sessions.log("lesson-1")} == {
            *("session_created", "session_paused", "input", "loop", "writes")
        }
        data = await sessions.get_data("lesson-1")
        assert data["messages"][0] == {
            "$class": "langchain_core.messages.human.HumanMessage",
            "content": "1/2 + 1/3?",
            "additional_kwargs": {},
            "response_metadata": {},
            "type": "human",
            "name": None,
            "id": "h",
        }
        assert [message["content"] for message in data["messages"]] == ["1/2 + 1/3?", "re 1/2 + 1/3?", "checked"]
        assert (data["turns"], data["marks"]) == (1, [0, 1, 2])
        paths = [change["path"] for change in await sessions.diff("lesson-1", "~2", "latest")]
        assert all(path.startswith("/") for path in paths)
        await sessions.cleanup_stale_sessions(0)
        assert (await sessions.get_session("lesson-1")).state is SessionState.PAUSED


async def test_rollback_and_fork_by_hand(saver, file):
    """A thread that a person rolled back goes on from there, and a fork of it is a thread of its own."""
    graph = build(saver, own_memory=False)
    await graph.ainvoke({"messages": [HumanMessage("q1")]}, THREAD)
    async with saveslot.open(file) as sessions:
        seq = (await sessions.head("lesson-1")).seq
        await graph.ainvoke(Command(resume="yes"), THREAD)
        await sessions.head("lesson-1")
        await sessions.rollback("lesson-1", seq)
        await sessions.fork("lesson-1", "latest", "lesson-2")
    state = await graph.aget_state(THREAD)
    assert state.next == ("ask",)
    for thread_id in ("lesson-1", "lesson-2"):
        answer = await graph.ainvoke(Command(resume="no"), {"configurable": {"thread_id": thread_id}})
        assert answer["messages"][-1].content == "heard no"


async def test_changes_beside_the_state_are_no_conflict(saver, file):
    """A label that a person adds while a graph runs does not stop it."""

    async def label(state):
        async with saveslot.open(file) as sessions:
            session = await sessions.get_session("lesson-1")
            session.labels["school"] = "7"
            await sessions.update_session(session)
        return {"turns": 1}

    graph = StateGraph(Lesson).add_node("label", label).add_edge(START, "label").compile(checkpointer=saver)
    assert (await graph.ainvoke({"marks": [1]}, THREAD, durability="sync"))["turns"] == 1
    assert (await graph.aget_state(THREAD)).values == {"messages": [], "turns": 1, "marks": [1]}


async def test_filters_name_what_is_there(place):
    """A filter's key must be there, with an equal value: None is not a wildcard, and 1 is not "1"."""
    async with SaveslotSaver.from_conn_string(**place) as saver:
        config = await put(saver, {"n": 1}, score=1, reviewer=None, tags=["a"])
        wanted = [({"score": 1}, 1), ({"score": "1"}, 0), ({"reviewer": None}, 1), ({"unknown": None}, 0)]
        for condition, count in [*wanted, ({"tags": ["a"]}, 1), ({"score' or 1=1 --": 1}, 0)]:
            assert [item.config async for item in saver.alist(None, filter=condition)] == [config] * count


# Values

VALUES = {
    "text": "½ + ⅓",
    "empty": None,
    "bytes": b"\x00\xff",
    "number": 2**63,
    "nan": math.nan,
    "infinite": [math.inf, -math.inf, 1e308],
    "keys": {1: "a", (1, "b"): {2: 3}, "c": None},
    "ours": {"$class": "x", "$ext": [1], "inner": {"$pairs": [], "$saveslot": ["uuid", "1"]}},
    "decimal": Decimal("1.50"),
    "uuid": UUID(int=7),
    "set": {1, 2, 3},
    "message": HumanMessage("nul \x00 $class $ext", id="1", additional_kwargs={"$class": 1, "n": 1}),
    "messages": [
        HumanMessage("first of its class"),
        HumanMessage("second", additional_kwargs={"at": [Decimal(1), {}, {1: 2}], "of": AIMessage("x")}),
        AIMessage("third", tool_calls=[{"name": "add", "args": {"n": 1.5}, "id": "1"}], id="2"),
        AIMessage("fourth", response_metadata={"tokens": [1, 2]}, usage_metadata=None),
    ],
    "snapshot": _DeltaSnapshot([HumanMessage("x")]),
    "a@b": 1,
    "$checkpoint": "a channel",
    "%": 2,
}


async def put(saver, values, parent=None, thread_id="lesson-1", **metadata) -> dict:
    """Put a checkpoint with these channel values; return its config."""
    checkpoint = empty_checkpoint() | {"id": str(uuid6()), "channel_values": values}
    checkpoint["channel_versions"] = new = dict.fromkeys(values, 1)
    config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": parent}}
    if parent is not None:
        config["configurable"]["checkpoint_id"] = parent["configurable"]["checkpoint_id"]
    return await saver.aput(config, checkpoint, {"source": "loop", "step": 1, **metadata}, new)


async def test_values_come_back_equal(place):
    """Whatever LangGraph's serialiser takes comes back as it gives it, from channels and from writes."""
    async with SaveslotSaver.from_conn_string(**place) as saver:
        config = await put(saver, VALUES)
        await saver.aput_writes(config, list(VALUES.items()), "task")
    if place["url"] == "memory:":
        return
    async with SaveslotSaver.from_conn_string(**place) as saver:
        item = await saver.aget_tuple(config)
        serde = saver.serde
    expected = {name: serde.loads_typed(serde.dumps_typed(value)) for name, value in VALUES.items()}
    assert repr(item.checkpoint["channel_values"]) == repr(expected)
    assert repr({name: value for _, name, value in item.pending_writes}) == repr(expected)


class Topic(BaseModel):
    topic: str


async def test_the_serialiser_decides_which_classes_are_called(file):
    """Objects of a class that the serialiser blocks come back as their fields, the second one as the first."""
    serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    values = {"lessons": [Topic(topic="fractions"), Topic(topic="sets")], "words": [HumanMessage("a")] * 2}
    async with SaveslotSaver.from_conn_string(file, serde=serde) as saver:
        config = await put(saver, values)
    async with SaveslotSaver.from_conn_string(file, serde=serde) as saver:
        item = await saver.aget_tuple(config)
    assert item.checkpoint["channel_values"] == {**values, "lessons": [{"topic": "fractions"}, {"topic": "sets"}]}


async def test_a_read_shares_nothing_with_the_thread(saver):
    """A caller may change what it read: the next reader of the same saver sees what is stored."""
    config = await put(saver, {"messages": [HumanMessage("a", id=n, additional_kwargs={}) for n in "12"], "list": []})
    for _ in range(2):
        values = (await saver.aget_tuple(config)).checkpoint["channel_values"]
        assert [message.additional_kwargs for message in values["messages"]] == [{}, {}]
        assert values["list"] == []
        values["list"].append(1)
        for message in values["messages"]:
            message.additional_kwargs["seen"] = True


async def test_other_serialisers(file):
    """What an encrypting serialiser wrote only it reads; the session holds no plain text."""
    serde = EncryptedSerializer(Sealing())
    async with SaveslotSaver.from_conn_string(file, serde=serde) as saver:
        config = await put(saver, {"messages": [HumanMessage("secret words")]})
    async with SaveslotSaver.from_conn_string(file, serde=serde) as saver:
        item = await saver.aget_tuple(config)
        assert item.checkpoint["channel_values"]["messages"][0].content == "secret words"
        later = await put(saver, {"messages": [HumanMessage("secret words"), AIMessage("more")]}, config)
        assert len((await saver.aget_tuple(later)).checkpoint["channel_values"]["messages"]) == 2
    async with saveslot.open(file) as sessions:
        assert b"secret" not in str(await sessions.get_data("lesson-1")).encode()


class Sealing:
    """A cipher for tests."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "pad", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, _: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in ciphertext)


@pytest.mark.parametrize("change", ["in place", "at the front", "shorter", "same", "extra field"])
async def test_a_changed_list_is_stored_whole(saver, change):
    """A list that does not begin with what is stored, even by a change in place, comes back as it was put."""
    messages = [HumanMessage("a", id="1"), AIMessage("b", id="2", additional_kwargs={"n": [1]})]
    first = await put(saver, {"messages": messages})
    match change:
        case "in place":
            messages[1].additional_kwargs["n"].append(2)
            messages.append(HumanMessage("c"))
        case "at the front":
            messages.insert(0, HumanMessage("c"))
        case "shorter":
            messages.pop()
        case "extra field":
            messages[0] = HumanMessage("a", id="1", mood="glad")
    await saver.aget_tuple(THREAD)
    await put(saver, {"messages": messages}, first)
    stored = (await saver.aget_tuple(THREAD)).checkpoint["channel_values"]["messages"]
    assert stored == messages
    assert [message.__dict__ for message in stored] == [message.__dict__ for message in messages]


async def test_long_thread_ids(place):
    """A thread id that is longer than a session's may be is kept, and listed as it is."""
    long = {"configurable": {"thread_id": "t" * 500, "checkpoint_ns": ""}}
    async with SaveslotSaver.from_conn_string(**place) as saver:
        config = await put(saver, {"n": 1}, thread_id="t" * 500)
        assert config["configurable"]["thread_id"] == "t" * 500
        assert [item.config async for item in saver.alist(None)] == [config]
        assert (await saver.aget_tuple(long)).config == config


# Writers


async def test_a_stale_run_is_told(place):
    """Of two runs that follow one checkpoint, in two processes or in one, one wins, and the other gets `Conflict`."""
    if place["url"] == "memory:":
        place = {"sessions": saveslot.SessionManager()}
    one, other = SaveslotSaver(**place), SaveslotSaver(**place)
    for first, second in ((one, other), (one, one)):
        thread_id = str(uuid4())
        config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        assert await first.aget_tuple(config) is await second.aget_tuple(config) is None
        start = await put(first, {"n": 0}, thread_id=thread_id)
        with pytest.raises(Conflict, match="start it again"):
            await put(second, {"n": 1}, thread_id=thread_id)
        assert (await second.aget_tuple(config)).config == start
        await put(first, {"n": 1}, start, thread_id)
        with pytest.raises(Conflict):
            await put(second, {"n": 2}, start, thread_id)
        with pytest.raises(Conflict):
            await put(second, {"n": 2}, start, thread_id)
        newest = await second.aget_tuple(config)
        assert newest.checkpoint["channel_values"] == {"n": 1}
        await put(second, {"n": 2}, newest.config, thread_id)
        assert (await first.aget_tuple(config)).checkpoint["channel_values"] == {"n": 2}
    await one.close()
    await other.close()


async def test_taking_turns_is_no_conflict(place):
    """Two processes that take turns, each reading first, never get a conflict."""
    if place["url"] == "memory:":
        place = {"sessions": saveslot.SessionManager()}
    savers = [SaveslotSaver(**place), SaveslotSaver(**place)]
    parent = None
    for turn in range(6):
        saver = savers[turn % 2]
        newest = await saver.aget_tuple(THREAD)
        assert (newest and newest.config) == parent
        parent = await put(saver, {"turn": turn}, parent)
        await saver.aput_writes(parent, [("n", turn)], f"task {turn}")
    assert len([item async for item in savers[0].alist(THREAD)]) == 6
    for saver in savers:
        await saver.close()


async def test_a_cancelled_put_is_known_whole(saver, monkeypatch):
    """A put whose caller is cancelled lands, and the next put follows it."""
    start = await put(saver, {"messages": [HumanMessage("a", id="1")]})
    slow, append = asyncio.Event(), SqliteStore.append

    async def held_up(self, groups, **how):
        await slow.wait()
        return await append(self, groups, **how)

    monkeypatch.setattr(SqliteStore, "append", held_up)
    messages = [HumanMessage("a", id="1"), AIMessage("b", id="2")]
    checkpoint = empty_checkpoint() | {"id": str(uuid6()), "channel_values": {"messages": messages}}
    checkpoint["channel_versions"] = {"messages": 2}
    running = asyncio.create_task(saver.aput(start, checkpoint, {"step": 2}, {"messages": 2}))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    slow.set()
    following = {"configurable": THREAD["configurable"] | {"checkpoint_id": checkpoint["id"]}}
    await put(saver, {"messages": [*messages, HumanMessage("c")]}, following)
    assert len((await saver.aget_tuple(THREAD)).checkpoint["channel_values"]["messages"]) == 3


class Counting(PassingStore):
    """A store that counts the groups of entries which it is sent."""

    groups = 0

    async def append(self, groups, *, together=False):
        self.groups += len(groups)
        return await super().append(groups, together=together)


async def test_what_comes_at_once_is_one_commit():
    """A thread begins in one commit, paused, with its first checkpoint or its first writes; tasks that end together
    write in one, too.
    """
    store = Counting(MemoryStore())
    sessions = saveslot.SessionManager(store=store)
    saver = SaveslotSaver(sessions=sessions)
    config = await put(saver, {"messages": [HumanMessage("a", id="1")]})
    assert store.groups == 1
    assert (await sessions.get_session("lesson-1")).state is SessionState.PAUSED
    await asyncio.gather(*(saver.aput_writes(config, [("n", n)], f"task {n}") for n in range(20)))
    assert store.groups == 2
    written = (await saver.aget_tuple(THREAD)).pending_writes
    assert sorted(written) == sorted((f"task {n}", "n", n) for n in range(20))
    other = {"configurable": {"thread_id": "lesson-2", "checkpoint_ns": "", "checkpoint_id": str(uuid6())}}
    await saver.aput_writes(other, [("n", 1)], "task 1")
    assert store.groups == 3
    assert (await sessions.get_session("lesson-2")).state is SessionState.PAUSED
    await sessions.close()


async def test_a_task_at_fault_fails_alone(saver):
    """Of tasks that write together, one whose value cannot be stored is refused, and the others are stored."""
    config = await put(saver, {"n": 0})
    values = [1, threading.Lock(), 3]
    calls = (saver.aput_writes(config, [("n", value)], f"task {n}") for n, value in enumerate(values))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), TypeError, type(None)]
    assert (await saver.aget_tuple(THREAD)).pending_writes == [("task 0", "n", 1), ("task 2", "n", 3)]


async def test_a_held_thread(file):
    """The process that holds a thread's session writes under its lease; any other gets `LeaseHeld`. After the hold the
    thread rests paused.
    """
    async with saveslot.open(file) as sessions, SaveslotSaver(sessions=sessions) as saver, SaveslotSaver(file) as other:
        async with sessions.hold("lesson-1", create="agent") as held:
            config = await put(saver, {"n": 1})
            await held.checkpoint("note", put={"mine": True})
            await saver.aget_tuple(THREAD)
            config = await put(saver, {"n": 2}, config)
            with pytest.raises(LeaseHeld):
                await other.aput_writes(config, [("n", 3)], "task 3")
            assert held.data["n"] == 2
        assert (await sessions.head("lesson-1")).state is SessionState.PAUSED
        await other.aput_writes(config, [("n", 3)], "task 3")
        assert (await saver.aget_tuple(THREAD)).checkpoint["channel_values"] == {"n": 2}


async def test_forgotten_threads_go_on(place, monkeypatch):
    """What a saver keeps of threads is bounded: forgotten ones are read again, and a stale run gets `Conflict`."""
    monkeypatch.setattr(thread_module, "MAX_BYTES", 2000)
    async with SaveslotSaver.from_conn_string(**place) as saver:
        ids = [f"thread {n}" for n in range(12)]
        configs = {}
        for _ in range(2):
            for thread_id in ids:
                config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
                newest = await saver.aget_tuple(config)
                configs[thread_id] = await put(
                    saver, {"text": "x" * 500, "n": len(configs)}, newest and newest.config, thread_id
                )
        for thread_id in ids:
            assert len([item async for item in saver.alist(configs[thread_id] | {})]) == 1
            with pytest.raises(Conflict):
                await put(saver, {"n": -1}, None, thread_id)


async def test_writes_before_their_checkpoint(place):
    """Writes that arrive before their checkpoint belong to it; repeated ones count once, special ones the last time."""
    async with SaveslotSaver.from_conn_string(**place) as saver:
        checkpoint = empty_checkpoint() | {"id": str(uuid6())}
        config = {"configurable": THREAD["configurable"] | {"checkpoint_id": checkpoint["id"]}}
        await saver.aput_writes(config, [("a", 1), ("b", 2)], "task 2", "~b")
        await saver.aput(THREAD, checkpoint, {"source": "loop"}, {})
        await saver.aput_writes(config, [("a", 10), ("b", 20), ("c", 30)], "task 2", "~b")
        await saver.aput_writes(config, [("__interrupt__", 1)], "task 1", "~a")
        await saver.aput_writes(config, [("__interrupt__", 2)], "task 1", "~a")
        expected = [("task 1", "__interrupt__", 2), ("task 2", "a", 1), ("task 2", "b", 2), ("task 2", "c", 30)]
        assert (await saver.aget_tuple(THREAD)).pending_writes == expected
        await put(saver, {"n": 1}, config)
        assert (await saver.aget_tuple(THREAD)).pending_writes == []
        assert (await saver.aget_tuple(config)).pending_writes == expected
        await saver.aput_writes(config, [("d", 4)], "task 3")
        await saver.aput_writes(config, [("e", 5)], "task 4")
        item = await saver.aget_tuple(config)
        assert item.pending_writes == [("task 3", "d", 4), ("task 4", "e", 5), *expected]


async def test_a_store_that_cannot_be_read_raises(file):
    """A store that cannot be read raises: the agent does not start over with an empty thread."""
    file.write_bytes(b"not a database, but long enough to be one" * 100)
    async with SaveslotSaver.from_conn_string(file) as saver:
        for _ in range(2):
            with pytest.raises(SaveslotError):
                await saver.aget_tuple(THREAD)


async def test_a_config_without_a_thread(saver):
    """A config that names no thread is refused with the key that it lacks."""
    with pytest.raises(InvalidInput, match="thread_id"):
        await saver.aget_tuple({"configurable": {}})
    with pytest.raises(InvalidInput, match="keep_latest, delete"):
        await saver.aprune(["lesson-1"], strategy="keep_all")


# Forgetting


async def test_prune_keeps_what_delta_channels_need(place):
    """`keep_latest` keeps the ancestors back to a delta channel's snapshot, with their writes, and no others."""
    async with SaveslotSaver.from_conn_string(**place) as saver:
        configs: list[dict] = []
        for step in range(6):
            values = {"log": _DeltaSnapshot(["old"] * step)} if step == 2 else {}
            checkpoint = empty_checkpoint() | {"id": str(uuid6()), "channel_values": values}
            checkpoint["channel_versions"] = {"log": step}
            counters = {"counters_since_delta_snapshot": {"log": (step, step)}}
            parent = configs[-1] if configs else THREAD
            metadata = {"source": "loop", "step": step, **counters}
            configs.append(await saver.aput(parent, checkpoint, metadata, {"log": step}))
            await saver.aput_writes(configs[-1], [("log", f"entry {step}")], f"task {step}")
        before = await saver.aget_delta_channel_history(config=configs[-1], channels=["log"])
        await saver.aprune(["lesson-1"])
        after = await saver.aget_delta_channel_history(config=THREAD, channels=["log"])
        assert after == before
        assert after["log"]["seed"] == _DeltaSnapshot(["old", "old"])
        assert [value for _, _, value in after["log"]["writes"]] == ["entry 2", "entry 3", "entry 4"]
        assert [item.config async for item in saver.alist(THREAD)] == configs[:1:-1]
        assert (await saver.aget_tuple(THREAD)).pending_writes == [("task 5", "log", "entry 5")]
        await put(saver, {"n": 1}, configs[-1])


async def test_deleting_the_newest_run(place):
    """After the newest run is deleted the thread goes on from the run before, in every process."""
    if place["url"] == "memory:":
        place = {"sessions": saveslot.SessionManager()}
    saver, other = SaveslotSaver(**place), SaveslotSaver(**place)
    first = await put(saver, {"n": 1}, run_id="run 1")
    second = await put(saver, {"n": 2}, first, run_id="run 2")
    await saver.aput_writes(second, [("n", 3)], "task")
    assert (await other.aget_tuple(THREAD)).config == second
    await saver.adelete_for_runs(["run 2", "unknown"])
    for one in (saver, other):
        item = await one.aget_tuple(THREAD)
        assert (item.config, item.checkpoint["channel_values"], item.pending_writes) == (first, {"n": 1}, [])
        assert await one.aget_tuple(second) is None
    await put(other, {"n": 4}, first, run_id="run 3")
    await saver.adelete_for_runs(["run 1", "run 3"])
    assert await saver.aget_tuple(THREAD) is None
    await put(saver, {"n": 5})
    await saver.close()
    await other.close()
