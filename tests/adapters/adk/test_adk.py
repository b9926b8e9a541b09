"""Google ADK's session service, with the real package, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.adk.cli.service_registry import get_service_registry
from google.adk.cli.utils.service_factory import create_session_service_from_options
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

import saveslot
from saveslot import InvalidInput, LeaseHeld, SessionState
from saveslot.adapters.adk import SaveslotSessionService
from tests.adapters.adk.chats import CHAT, called, said, texts, turn, tutor, user

ROOT = Path(__file__).parents[3]
KEYS = {"app_name": "tutor", "user_id": "anna"}


def event(text, *, at=None, author="user", **delta):
    about = {} if at is None else {"timestamp": at}
    return Event(author=author, content=user(text), actions=EventActions(state_delta=delta), **about)


async def test_runs_hear_the_conversation(service, other, sessions):
    """A run hears the earlier turns, also in another process; each event is a checkpoint, named by who said it."""
    await service.create_session(**CHAT)

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    first = tutor(called("add", a=1, b=2), said("three"), tools=[add])
    assert await turn(service, first, "1 + 2?") == ["three"]
    second = tutor(said("yes, three"))
    assert await turn(other, second, "sure?") == ["yes, three"]
    heard = [part for content in second.model.heard[-1] for part in content.parts]
    assert [part.text for part in heard if part.text] == ["1 + 2?", "three", "sure?"]
    assert [part.function_response.response for part in heard if part.function_response] == [{"result": 3}]
    [session] = await sessions.find(agent_type="google-adk")
    assert (session.session_id, session.user_id, session.state) == ("tutor/anna/chat", "anna", SessionState.PAUSED)
    log = [line.name for line in await sessions.log("tutor/anna/chat")]
    assert log[2:] == ["created", "user", "tutor: add", "tutor", "tutor", "user", "tutor"]


async def test_a_new_process_reads_the_same(service, other):
    """Events and state come back as they were appended: bytes, times, tool calls, and null."""
    session = await service.create_session(**CHAT, state={"a": 1, "app:b": None, "user:c": [1.5], "temp:d": "gone"})
    assert session.state == {"a": 1, "app:b": None, "user:c": [1.5]}
    image = types.Part(inline_data=types.Blob(data=b"\xff\x00\xfe", mime_type="image/png"), thought_signature=b"\x80")
    call = types.Part(function_call=types.FunctionCall(id="c1", name="pay", args={"amount": 2.5}))
    content = types.Content(role="model", parts=[image, call, types.Part(text='ü " \\ ]')])
    actions = EventActions(state_delta={"a": {"x": None}, "none": None, "temp:t": 1}, artifact_delta={"f": 3})
    appended = Event(author="tutor", content=content, actions=actions, long_running_tool_ids={"c1"}, branch="a.b")
    await service.append_event(session, appended)
    assert session.state == {"a": {"x": None}, "none": None, "app:b": None, "user:c": [1.5], "temp:t": 1}
    for each in (service, other):
        loaded = await each.get_session(**CHAT)
        assert loaded.events == session.events == [appended]
        assert loaded.events[0].content.parts[0].inline_data.data == b"\xff\x00\xfe"
        assert loaded.state == {key: value for key, value in session.state.items() if key != "temp:t"}
        assert loaded.last_update_time == session.last_update_time == appended.timestamp
    ours, theirs = await service.get_session(**CHAT), await other.get_session(**CHAT)
    assert ours == theirs


async def test_parts_of_a_conversation(service, other):
    """num_recent_events and after_timestamp return what ADK's service in memory returns for them."""
    reference = InMemorySessionService()
    one, two = await service.create_session(**CHAT), await reference.create_session(**CHAT)
    for n in range(6):
        appended = event(str(n), at=100.0 + n)
        await service.append_event(one, appended.model_copy(deep=True))
        await reference.append_event(two, appended.model_copy(deep=True))
    for recent in (None, 0, 1, 4, 99):
        for after in (None, 0.0, 103.0, 104.5, 999.0):
            config = GetSessionConfig(num_recent_events=recent, after_timestamp=after)
            expected = await reference.get_session(**CHAT, config=config)
            for each in (service, other):
                loaded = await each.get_session(**CHAT, config=config)
                assert texts(loaded.events) == texts(expected.events), (recent, after)
                assert loaded.last_update_time == 105.0
    short = await other.get_session(**CHAT, config=GetSessionConfig(num_recent_events=0))
    await other.append_event(short, event("6", at=106.0))
    assert len((await service.get_session(**CHAT)).events) == 7


async def test_shared_state(service, other):
    """What an event sets under app: and user: is read by all conversations of the app and the user, and only those."""
    chat = await service.create_session(**CHAT, state={"app:course": "fractions"})
    await service.append_event(chat, event("hi", **{"user:name": "Anna", "app:course": "decimals", "mine": 1}))
    same = await other.create_session(**KEYS, session_id="other")
    assert same.state == {"app:course": "decimals", "user:name": "Anna"}
    ben = await other.create_session(app_name="tutor", user_id="ben", state={"user:name": "Ben"})
    assert ben.state == {"app:course": "decimals", "user:name": "Ben"}
    assert (await other.create_session(app_name="cook", user_id="anna")).state == {}
    assert await service.get_user_state(**KEYS) == {"name": "Anna"}
    assert await service.get_user_state(app_name="cook", user_id="anna") == {}
    await other.append_event(same, event("x", **{"user:name": None}))
    assert (await service.get_session(**CHAT)).state == {"app:course": "decimals", "user:name": None, "mine": 1}


async def test_a_refused_event_changes_no_state(service, other):
    """An event that is refused changes nothing of the shared state."""
    chat = await service.create_session(**CHAT)
    stale = await other.get_session(**CHAT)
    await service.append_event(chat, event("a", **{"app:n": 1, "user:n": 1}))
    with pytest.raises(StaleSessionError, match="tutor/anna/chat: another caller changed it"):
        await other.append_event(stale, event("b", **{"app:n": 2, "user:n": 2}))
    loaded = await other.get_session(**CHAT)
    assert (texts(loaded.events), loaded.state) == (["a"], {"app:n": 1, "user:n": 1})


WRITER = """
import asyncio, sys
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from saveslot.adapters.adk import SaveslotSessionService

async def main():
    service = SaveslotSessionService(sys.argv[1])
    chat = await service.create_session(app_name="tutor", user_id="anna", session_id="chat")
    for n in range(1, 100_000):
        delta = {"n": n, "app:n": n, "user:n": n}
        await service.append_event(chat, Event(author="user", actions=EventActions(state_delta=delta)))
        print(n, flush=True)

asyncio.run(main())
"""


async def test_event_and_shared_state_are_one_commit(database):
    """After kill -9 in the middle of appends, each acknowledged event is there, and all states are the last one's."""
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, database, stdout=subprocess.PIPE)
    for _ in range(20):
        acknowledged = int(await writer.stdout.readline())
    writer.kill()
    acknowledged = max([acknowledged, *map(int, (await writer.communicate())[0].split()[:-1])])
    service = SaveslotSessionService(database)
    chat = await service.get_session(**CHAT)
    count = len(chat.events)
    assert count >= acknowledged
    assert chat.state == {"n": count, "app:n": count, "user:n": count}
    await service.append_event(chat, event("on"))
    await service.close()


async def test_conversations_at_once_share_state(service, other):
    """Conversations of two processes that write the same shared state at once lose no key and no event."""
    chats = [await service.create_session(**KEYS, session_id=f"c{n}") for n in range(8)]
    pair = [service, other]

    async def talk(n):
        chat = await pair[n % 2].get_session(**KEYS, session_id=f"c{n}")
        for number in range(5):
            await pair[n % 2].append_event(
                chat, event(f"{number}", **{f"{scope}:{n}-{number}": number for scope in ("app", "user")})
            )

    await asyncio.gather(*map(talk, range(len(chats))))
    state = (await other.get_session(**KEYS, session_id="c0")).state
    assert sorted(state) == sorted(
        f"{scope}:{n}-{number}" for scope in ("app", "user") for n in range(8) for number in range(5)
    )
    for n in range(8):
        assert texts((await service.get_session(**KEYS, session_id=f"c{n}")).events) == list("01234")


@pytest.mark.parametrize("delta", [{}, {"user:n": 1}], ids=["events", "shared state"])
async def test_one_of_two_processes_wins(service, other, delta):
    """Of two processes that add an event to what both have read, one is stored; the other gets StaleSessionError."""
    await service.create_session(**CHAT)
    for number in range(6):
        pair = [(each, await each.get_session(**CHAT)) for each in (service, other)]
        results = await asyncio.gather(
            *(each.append_event(chat, event(f"{number}{n}", **delta)) for n, (each, chat) in enumerate(pair)),
            return_exceptions=True,
        )
        assert sum(isinstance(result, StaleSessionError) for result in results) == 1
        assert len((await other.get_session(**CHAT)).events) == number + 1


async def test_an_overtaken_run_is_told(service, other):
    """A run that another process overtook while its model was thinking gets StaleSessionError; nothing interleaves."""
    await service.create_session(**CHAT)
    thinking, overtaken = asyncio.Event(), asyncio.Event()

    async def think():
        thinking.set()
        await overtaken.wait()

    slow = asyncio.create_task(turn(service, tutor(said("slow"), wait=think), "slow?"))
    await asyncio.wait_for(thinking.wait(), 60)
    await turn(other, tutor(said("fast")), "fast?")
    overtaken.set()
    with pytest.raises(StaleSessionError):
        await slow
    assert texts((await service.get_session(**CHAT)).events) == ["slow?", "fast?", "fast"]
    assert await turn(service, tutor(said("third")), "again?") == ["third"]


async def test_parallel_branches_of_one_run(service):
    """Events that share one session object are stored one after another, none refused."""
    chat = await service.create_session(**CHAT)
    await asyncio.gather(*(service.append_event(chat, event(str(n), **{f"k{n}": n})) for n in range(20)))
    loaded = await service.get_session(**CHAT)
    assert sorted(texts(loaded.events), key=int) == [str(n) for n in range(20)]
    assert loaded.events == chat.events
    assert loaded.state == {f"k{n}": n for n in range(20)}


async def test_other_entries_do_not_count(service, other, others):
    """A conversation that was held, labelled or recorded on between a read and an event is not stale."""
    await service.create_session(**CHAT)
    for delta in ({}, {"user:n": 1}):
        chat = await service.get_session(**CHAT)
        async with others.hold("tutor/anna/chat"):
            pass
        await others.record("tutor/anna/chat", "seen", {"by": "anna"})
        await service.append_event(chat, event("a", **delta))
    assert texts((await other.get_session(**CHAT)).events) == ["a", "a"]


async def test_events_are_stored_once(service, other):
    """An event that is appended again, by its run or by one that knows nothing of it, is stored once."""
    chat = await service.create_session(**CHAT)
    before = chat.model_copy(deep=True)
    before._storage_update_marker = chat._storage_update_marker  # noqa: SLF001
    appended = event("a", k=1)
    await service.append_event(chat, appended)
    await service.append_event(chat, appended)
    await other.append_event(before, appended)
    assert texts((await service.get_session(**CHAT)).events) == texts(before.events) == ["a"]
    await service.append_event(chat, event("b"))
    assert await service.append_event(chat, Event(author="user", content=user("c"), partial=True))
    assert texts((await other.get_session(**CHAT)).events) == ["a", "b"]


async def test_sessions_made_by_hand(service):
    """A session value that was not read from here may be appended to if its events are those that are stored."""
    chat = await service.create_session(**CHAT)
    await service.append_event(chat, event("a"))
    copy = type(chat)(id="chat", app_name="tutor", user_id="anna", events=list(chat.events))
    await service.append_event(copy, event("b"))
    old = type(chat)(id="chat", app_name="tutor", user_id="anna", events=chat.events[:1])
    with pytest.raises(StaleSessionError):
        await service.append_event(old, event("c"))


async def test_cancelled_events_are_known(service):
    """An append that is cancelled has ended when it raises; the next event follows it."""
    chat = await service.create_session(**CHAT)
    for n in range(20):
        call = asyncio.create_task(service.append_event(chat, event(f"{n}")))
        for _ in range(n % 5):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        await service.append_event(chat, event(f"after {n}"))
    loaded = await service.get_session(**CHAT)
    assert [text for text in texts(loaded.events) if text.startswith("after")] == [f"after {n}" for n in range(20)]
    assert loaded.events == chat.events


async def test_ids(service, other):
    """Ids are stripped, drawn if none is given, and taken only once per user of an app."""
    made = await service.create_session(**KEYS, session_id="  chat ")
    assert made.id == "chat"
    assert (await other.get_session(**KEYS, session_id=" chat")).id == "chat"
    with pytest.raises(AlreadyExistsError, match="tutor/anna/chat exists already"):
        await other.create_session(**CHAT)
    drawn = {(await service.create_session(**KEYS, session_id=given)).id for given in (None, "", " ")}
    assert len(drawn) == 3
    odd = [("a/b", "c", "d"), ("a", "b/c", "d"), ("a", "b", "c/d"), ("a%2Fb", "c", "d"), ("p" * 300, "u", "s")]
    odd += [("p" * 299 + "q", "u", "s")]
    for app, person, session_id in odd:
        chat = await service.create_session(app_name=app, user_id=person, session_id=session_id, state={"app:k": app})
        assert chat.state == {"app:k": app}
        assert [one.id for one in (await other.list_sessions(app_name=app, user_id=person)).sessions] == [session_id]
    with pytest.raises(InvalidInput, match="session_id"):
        await service.create_session(**KEYS, session_id="a\nb")


async def test_lists(service, other):
    """A list has the conversations of an app or a user with their state and no events, the last changed last."""
    for n, person in enumerate(["anna", "ben", "anna", "anna"]):
        chat = await service.create_session(app_name="tutor", user_id=person, session_id=f"s{n}", state={"n": n})
        await service.append_event(chat, event("x", at=200.0 - n, **{"user:last": n}))
    await service.create_session(app_name="cook", user_id="anna")
    listed = (await other.list_sessions(**KEYS)).sessions
    assert [(one.id, one.state, one.events, one.last_update_time) for one in listed] == [
        (f"s{n}", {"n": n, "user:last": 3}, [], 200.0 - n) for n in (3, 2, 0)
    ]
    everyone = (await other.list_sessions(app_name="tutor")).sessions
    assert [(one.user_id, one.id) for one in everyone] == [
        ("anna", "s3"),
        ("anna", "s2"),
        ("ben", "s1"),
        ("anna", "s0"),
    ]
    assert (await other.list_sessions(app_name="nobody")).sessions == []
    await other.append_event(everyone[0], event("y"))
    assert len((await service.get_session(**KEYS, session_id="s3")).events) == 2


async def test_deleted_conversations(service, other):
    """A deleted conversation is gone, its run gets SessionNotFoundError, and the state that it shared stays."""
    chat = await service.create_session(**CHAT, state={"user:k": 1, "k": 1})
    late = await other.get_session(**CHAT)
    await other.delete_session(**CHAT)
    await other.delete_session(**CHAT)
    assert await service.get_session(**CHAT) is None
    for each, session in ((service, chat), (other, late)):
        with pytest.raises(SessionNotFoundError, match="tutor/anna/chat is not there"):
            await each.append_event(session, event("x"))
    again = await service.create_session(**CHAT)
    assert again.state == {"user:k": 1}
    with pytest.raises(StaleSessionError):
        await other.append_event(late, event("x"))


async def test_held_conversations(service, other, sessions):
    """Inside a hold this process appends with its lease, steps in between; another process gets LeaseHeld. After it the
    conversation rests paused.
    """
    await service.create_session(**CHAT)
    async with sessions.hold(service.saveslot_id(**CHAT)) as held:
        await held.resume()
        chat, theirs = await service.get_session(**CHAT), await other.get_session(**CHAT)
        await service.append_event(chat, event("a"))
        assert await held.step("pay", lambda: 5) == 5
        await service.append_event(chat, event("b", **{"user:k": 1, "k": 2}))
        assert held.data["state"] == {"k": 2}
        assert [item["content"]["parts"][0]["text"] for item in held.data["events"]] == ["a", "b"]
        for delta in ({}, {"user:k": 2}):
            fresh = await other.get_session(**CHAT)
            with pytest.raises(LeaseHeld):
                await other.append_event(fresh, event("c", **delta))
        with pytest.raises(StaleSessionError):
            await other.append_event(theirs, event("c"))
    assert (await sessions.head(service.saveslot_id(**CHAT))).state is SessionState.PAUSED
    await service.append_event(chat, event("d"))
    assert await other.get_user_state(**KEYS) == {"k": 1}
    assert texts((await other.get_session(**CHAT)).events) == ["a", "b", "d"]


async def test_what_json_does_not_have(service, other):
    """Values that JSON does not have are stored as ADK's own services store them."""
    chat = await service.create_session(**CHAT, state={"at": datetime(2026, 11, 19, tzinfo=UTC), "f": print})
    await service.append_event(chat, event("a", set={1}, call=len))
    state = (await other.get_session(**CHAT)).state
    assert state == {"at": "2026-11-19T00:00:00Z", "f": repr(print), "set": [1], "call": repr(len)}


async def test_other_loops_and_urls(database):
    """A service on a URL opens it at first use, in any loop, and can be closed and used again."""
    service = SaveslotSessionService(database, namespace="adk")
    await service.create_session(**CHAT)
    await service.close()
    chat = await service.get_session(**CHAT)
    await service.append_event(chat, event("a"))

    def elsewhere():
        async def add():
            chat = await service.get_session(**CHAT)
            await service.append_event(chat, event("b", **{"app:k": 1}))

        asyncio.run(add())

    await asyncio.to_thread(elsewhere)
    assert texts((await service.get_session(**CHAT)).events) == ["a", "b"]
    await service.close()
    async with saveslot.open(database, namespace="adk") as sessions:
        assert len(await sessions.find(agent_type="google-adk")) == 1


# Package


async def test_uris(tmp_path, monkeypatch, servers):
    """`adk web --session_service_uri saveslot://…` finds the service: of the settings, a file, or any store's URL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAVESLOT_URL", "settings.db")
    postgres = servers.schema()
    for uri in (
        "saveslot://",
        "saveslot:///file.db",
        f"saveslot:///{tmp_path / 'absolute.db'}",
        f"saveslot+{postgres}",
    ):
        service = create_session_service_from_options(base_dir=tmp_path, session_service_uri=uri)
        assert isinstance(service, SaveslotSessionService)
        await service.create_session(**CHAT)
        await service.close()
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["absolute.db", "file.db", "settings.db"]
    assert get_service_registry().create_session_service("saveslot+http://127.0.0.1:1") is not None


def test_versions():
    """The extra allows the versions that the adapter is tested with; another one is refused with what to install."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["adk"] == ["google-adk>=2.13,<2.14"]
    program = """
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "2.14.0" if name == "google-adk" else real(name)
import saveslot.adapters.adk
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: this adapter works with google-adk 2.13 up to, but not including, 2.14; 2.14.0 is installed: "
        "pip install 'saveslot[adk]'"
    )


def test_example_survives_a_kill(tmp_path):
    """The example is killed with -9 in the middle of its second booking; started again, it books each hotel once."""
    command = [sys.executable, str(ROOT / "examples" / "adk_trip.py")]
    with subprocess.Popen([*command, "600"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        heard = [first.stdout.readline() for _ in range(2)]
        first.kill()
    assert heard == ["asked for a hotel in Paris\n", "asked for a hotel in Rome\n"]
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines() == ["asked for a hotel in Rome", "Both hotels are booked."]
    bookings = [line.split()[1] for line in (tmp_path / "bookings.txt").read_text().splitlines()]
    assert bookings == ["Paris", "Rome"]
