"""Conversations of Pydantic AI, with the real package and models that follow a script."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic_ai import Agent, BinaryImage, DeferredToolRequests, ToolCallPart
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

from saveslot import LeaseHeld, SessionState
from saveslot.adapters.pydantic_ai import SaveslotMessageHistory

ROOT = Path(__file__).parents[2]


def said(text):
    return ModelRequest(parts=[UserPromptPart(text)])


def texts(conversation):
    return [part.content for message in conversation.messages for part in message.parts]


def echo(messages, _):
    """Answer with the number of messages heard."""
    return ModelResponse(parts=[TextPart(f"heard {len(messages)}")])


@pytest.fixture
def history(sessions):
    return SaveslotMessageHistory(sessions=sessions)


@pytest.fixture
def other(others):
    return SaveslotMessageHistory(sessions=others)


async def test_agents_hear_the_history(sessions, history, other):
    """A run hears the earlier turns of its conversation, also in another process; each save is a checkpoint."""
    agent = Agent(FunctionModel(echo))
    assert await history.load("chat") is None
    for n, store in enumerate([history, history, other], 1):
        chat = await store.load("chat") or Conversation(conversation_id="chat")
        result = await agent.run(f"turn {n}", conversation=chat)
        entries = await store.save(result)
        assert [entry.message for entry in entries] == result.new_messages()
        assert await store.save(result) == []
    chat = await history.load("chat")
    assert texts(chat) == ["turn 1", "heard 1", "turn 2", "heard 3", "turn 3", "heard 5"]
    assert chat.usage.requests == 3
    [session] = await sessions.find(agent_type="pydantic-ai")
    assert (session.session_id, session.state) == ("chat", SessionState.PAUSED)
    data = await sessions.get_data("chat")
    assert [entry["message"]["parts"][0]["content"] for entry in data["entries"]] == texts(chat)


async def test_messages_come_back(history, other):
    """Messages, usage and the calls that a run waits on are loaded as they were saved."""
    image = BinaryImage(b"\xff\x00", media_type="image/png")
    chat = Conversation(conversation_id="chat", messages=[ModelRequest(parts=[UserPromptPart(['ü " \\ ]', image])])])
    chat.usage.details["cached"] = 3
    call = ToolCallPart("pay", {"amount": 25})
    chat.deferred_tool_requests = DeferredToolRequests(approvals=[call], metadata={call.tool_call_id: {"why": "much"}})
    await history.save(chat)
    for store in (history, other):
        loaded = await store.load("chat")
        assert loaded.messages == chat.messages
        assert (loaded.usage, loaded.deferred_tool_requests) == (chat.usage, chat.deferred_tool_requests)


async def test_one_of_two_runs_wins(history, other):
    """Of two processes that continue one conversation, one is stored; the other one gets ConversationConflict."""
    both, agent = asyncio.Barrier(2), Agent(FunctionModel(echo))

    async def turn(store, text):
        chat = await store.load("chat") or Conversation(conversation_id="chat")
        result = await agent.run(text, conversation=chat)
        await both.wait()
        await store.save(result)
        return text

    for turns in (1, 2):
        results = await asyncio.gather(turn(history, "a"), turn(other, "b"), return_exceptions=True)
        [won] = [result for result in results if isinstance(result, str)]
        assert sum(isinstance(result, ConversationConflict) for result in results) == 1
        chat = await other.load("chat")
        assert len(chat.messages) == 2 * turns
        assert texts(chat)[-2] == won


async def test_deleted_conversations(sessions, history, other):
    """A deleted conversation is gone, its late save is a conflict, and its fork keeps the messages that both had."""
    chat = Conversation(conversation_id="chat", messages=[said("a"), said("b")])
    await history.save(chat)
    await other.fork("chat", at=1, new_conversation_id="fork")
    late = await other.load("chat")
    await history.delete("chat")
    assert await other.load("chat") is None
    late.messages.append(said("c"))
    with pytest.raises(ConversationConflict):
        await other.save(late)
    assert texts(await history.load("fork")) == ["a"]
    await history.save(Conversation(conversation_id="chat", messages=[said("new")]))
    with pytest.raises(ConversationConflict):
        await other.save(late)
    assert texts(await other.load("chat")) == ["new"]


async def test_entries_without_messages_do_not_count(others, history, other):
    """A conversation that was held or labelled since it was loaded is saved and deleted as before."""
    await history.save(Conversation(conversation_id="chat", messages=[said("a")]))
    chat = await history.load("chat")
    async with others.hold("chat"):
        pass
    chat.messages.append(said("b"))
    await history.save(chat)
    async with others.hold("chat"):
        pass
    await history.delete("chat")
    assert await other.load("chat") is None


async def test_held_conversations(sessions, history, other):
    """While one process holds a conversation, it saves, and the others get LeaseHeld; after that it rests paused."""
    async with sessions.hold("chat", create="pydantic-ai"):
        assert await history.load("chat") is None
        with pytest.raises(LeaseHeld):
            await other.save(Conversation(conversation_id="chat", messages=[said("b")]))
        await history.save(Conversation(conversation_id="chat", messages=[said("a")]))
    assert (await sessions.head("chat")).state is SessionState.PAUSED
    assert texts(await other.load("chat")) == ["a"]


async def test_lists(history, other):
    """Conversations are listed newest first, by scope and up to a limit; those of other scopes are not loaded."""
    for n, scope in enumerate(["anna", "ben", "anna", None]):
        await history.save(Conversation(conversation_id=f"c{n}", messages=[said(str(n))]), scope=scope)
    chat = await other.load("c0", scope="anna")
    chat.messages.append(said("more"))
    await other.save(chat)
    for store in (history, other):
        assert [record.conversation_id for record in await store.list_conversations()] == ["c0", "c3", "c2", "c1"]
        assert [record.conversation_id for record in await store.list_conversations(scope="anna")] == ["c0", "c2"]
        assert [record.conversation_id for record in await store.list_conversations(limit=2)] == ["c0", "c3"]
        assert await store.list_conversations(limit=0) == await store.list_conversations(scope="carl") == []
        assert await store.load("c0", scope="ben") is None


async def test_entries_by_id(history, other):
    """An entry is read by its id in a process that has read no conversation; an unknown one is a LookupError."""
    for name in ("one", "two"):
        entries = await history.save(Conversation(conversation_id=name, messages=[said(name), said("end")]))
    assert await other.read_entry(entries[0].id) == entries[0]
    assert await other.read_history(entries[1].id) == entries
    with pytest.raises(LookupError, match="there is no entry x"):
        await other.read_entry("x")


async def outcome(call):
    try:
        return await call
    except (ConversationConflict, UserError) as exc:
        return type(exc)


@pytest.mark.parametrize("seed", range(4))
async def test_equal_to_the_frameworks_own(history, other, seed):
    """Saves, branches, forks, deletions and loads in any order have the results of the framework's store in memory."""
    choice, real = random.Random(seed), InMemoryConversationStore()
    loaded = {}  # by conversation: one as each store loaded it

    def shown(result):
        if isinstance(result, Conversation):
            return texts(result), result.new_message_index
        return [entry.message.parts[0].content for entry in result] if isinstance(result, list) else result

    for n in range(80):
        store = choice.choice([history, other])
        name, to, at = choice.choice("abc"), choice.choice("abcdef"), choice.randrange(4)
        match choice.choice(["load", "load", "save", "save", "save", "rewrite", "branch", "fork", "limit", "delete"]):
            case "load":
                calls = [each.load(name) for each in (store, real)]
                loaded[name] = [await call for call in calls]
                if loaded[name][0] is None:
                    loaded[name] = [Conversation(conversation_id=name) for _ in range(2)]
                results = loaded[name]
            case "save" | "rewrite" as verb:
                pair = loaded.get(name) or [Conversation(conversation_id=name) for _ in range(2)]
                for chat in pair:
                    chat.messages = [*(chat.messages[:at] if verb == "rewrite" else chat.messages), said(f"m{n}")]
                results = [await outcome(each.save(chat)) for each, chat in zip((store, real), pair, strict=True)]
            case "branch":
                pair = loaded.get(name) or [Conversation(conversation_id=name) for _ in range(2)]
                results = [
                    await outcome(each.branch(name, at=at, expected_revision=chat.revision))
                    for each, chat in zip((store, real), pair, strict=True)
                ]
            case "fork":
                results = [await outcome(each.fork(name, at=at, new_conversation_id=to)) for each in (store, real)]
            case "limit":
                results = [await each.load_entries(to, limit=at) for each in (store, real)]
            case _:
                results = [await each.delete(name) for each in (store, real)]
        assert shown(results[0]) == shown(results[1])
    ours, theirs = [
        {record.conversation_id: record for record in await each.list_conversations()} for each in (other, real)
    ]
    assert ours.keys() == theirs.keys()
    for name, record in ours.items():
        assert len(record.branches) == len(theirs[name].branches)
        for mine, its in zip(record.branches, theirs[name].branches, strict=True):
            assert shown(await history.read_history(mine)) == shown(await real.read_history(its))


WRITER = """
import asyncio, sys
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelRequest, UserPromptPart
from saveslot.adapters.pydantic_ai import SaveslotMessageHistory
async def main():
    history, chat = SaveslotMessageHistory(sys.argv[1]), Conversation(conversation_id="chat")
    for n in range(100_000):
        chat.messages += [ModelRequest(parts=[UserPromptPart(f"{n}{part}")]) for part in "ab"]
        await history.save(chat)
        print(n, flush=True)
asyncio.run(main())
"""


async def test_what_was_saved_survives_a_kill(database):
    """After kill -9 in the middle of saves, each acknowledged turn is there, whole, and another process goes on."""
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, database, stdout=subprocess.PIPE)
    acknowledged = -1
    for _ in range(20):
        acknowledged = int(await writer.stdout.readline())
    writer.kill()
    acknowledged = max([acknowledged, *map(int, (await writer.communicate())[0].split()[:-1])])
    history = SaveslotMessageHistory(database)
    chat = await history.load("chat")
    stored = texts(chat)
    assert stored == [f"{n}{part}" for n in range(len(stored) // 2) for part in "ab"]
    assert len(stored) // 2 > acknowledged
    chat.messages.append(said("after"))
    await history.save(chat)
    assert texts(await history.load("chat", limit=1)) == ["after"]
    await history.close()


def test_versions():
    """The extra allows the versions that the adapter is tested with; another one is refused with what to install."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["pydantic-ai"] == ["pydantic-ai-slim>=2.68,<3"]
    program = """
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "3.0.0" if name == "pydantic-ai-slim" else real(name)
import saveslot.adapters.pydantic_ai
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "works with pydantic-ai-slim 2.68 up to, but not including, 3; 3.0.0 is installed" in done.stderr
