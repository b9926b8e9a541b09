"""Imports from other tools: everything usable is imported, the rest is named, and the source is unchanged."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
import valkey.asyncio
from hypothesis import example, given, strategies as st

from saveslot import CheckpointManager, CheckpointStore, Corrupt, InvalidInput, SessionManager, Unavailable
from saveslot.codec import Keyring
from saveslot.moving import jsonl, langgraph, parcel, records
from saveslot.moving.loader import Loader, Report
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.moving.sources import Ask, is_foreign, opened
from saveslot.session.vault import Vault
from saveslot.stores import Store, open_store
from saveslot.stores.memory import MemoryStore
from saveslot.values.log import Query


@pytest.fixture
async def store(fresh) -> Store:
    return await fresh("memory")


@pytest.fixture
def sessions(store) -> SessionManager:
    return SessionManager(store=store)


async def bring(store: Store, source: object, **ask) -> Report:
    report = Report()
    async with opened(str(source), Ask("default", **ask)) as result:
        for one in result:
            await Loader(store, report).load(one.parcels)
    return report


async def twice(store: Store, source: object, **ask) -> Report:
    """An import, and proof that a second one adds nothing."""
    report = await bring(store, source, **ask)
    again = await bring(store, source, **ask)
    assert (again.landed, again.entries, again.problems) == ([], 0, report.problems)
    assert again.already == len(report.landed)
    return report


def digests(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def named(report: Report) -> list[str]:
    return [problem.what for problem in report.problems]


# LangGraph


async def check_threads(store: Store, sessions: SessionManager, report: Report) -> None:
    assert sorted(report.landed) == ["ended", "waiting"]
    assert report.problems == []
    history = [item for item in await sessions.history("ended") if "step" in item.metadata]
    outer = [item for item in history if "ns" not in item.metadata]
    assert [(item.name, item.metadata["step"]) for item in outer] == [("input", -1), *(("loop", n) for n in range(3))]
    for before, after in pairwise(outer):
        assert after.data["$checkpoint"]["parent"] == before.data["$checkpoint"]["id"] == before.metadata["id"]
    last = outer[-1].data
    assert [message["content"] for message in last["messages"]] == ["What is 1/2 + 1/3?", "It is 5/6."]
    assert last["messages"][0]["$class"] == "langchain_core.messages.human.HumanMessage"
    assert last["odd"] == {
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "id": UUID(int=7),
        "price": {"$ext": [0, ["decimal", "Decimal", "1.50"]]},
        "tags": {"$ext": [0, ["builtins", "set", ["a"]]]},
        "numbers": {"$pairs": [[1, "one"]]},
        "raw": b"\x00\xff",
        "path": {"$ext": [1, ["pathlib", "PosixPath", ["a", "b"]]]},
    }
    inner = [item for item in history if item.metadata.get("ns") == "inner"]
    assert inner[-1].data["messages@inner"][0]["content"] == "What is 1/2 + 1/3?"
    assert not [key for key in last if key.endswith("@inner")]  # the subgraph had ended
    waiting = await sessions.get_checkpoint("waiting")
    assert waiting.data["steps"] == ["ask"]
    writes = [item for item in await sessions.history("waiting") if item.name == "writes"]
    assert [row[4] for row in writes[-1].data["$writes"]]
    session = await sessions.get_session("ended")
    assert (session.state, session.agent_type, session.metadata) == ("paused", "langgraph", {})


@pytest.mark.parametrize("source", ["openai_agents.sqlite", "langgraph.sqlite", "files", "export"])
async def test_imported_session_knows_its_own_context(store, sessions, foreign, tmp_path, source):
    """The context of another session in the row of one is noticed, also of sessions that were imported."""
    where = foreign / source
    if source == "files":
        where = tmp_path / "files"
        for name in ("one", "two"):
            CheckpointStore(where).write(name, {"task": "parse"})
    elif source == "export":
        where, origin = tmp_path / "all", MemoryStore()
        for name in ("one", "two"):
            await SessionManager(store=origin).create_session("tutor", session_id=name)
        await jsonl.Export(origin, "default", where).run(lambda _: None)
    assert len((await twice(store, where)).landed) == 2
    one, two = await store.find(Query(namespace="default"))
    assert await sessions.get_session(one.session_id) is not None
    assert await store.swap(one.key, one.body, two.body)
    with pytest.raises(Corrupt, match="context is another session's"):
        assert (await SessionManager(store=store).get_session(one.session_id)).context


async def test_langgraph_in_sqlite(store, sessions, foreign):
    """Threads become sessions, with their subgraphs; ids, parents, values and pending writes come along."""
    before = digests(foreign)
    await check_threads(store, sessions, await twice(store, foreign / "langgraph.sqlite"))
    assert digests(foreign) == before


async def test_langgraph_on_postgresql(store, sessions, foreign, database):
    """The same from the tables of the other saver."""
    connection = await asyncpg.connect(database.url)
    await connection.execute("create schema langgraph; set search_path to langgraph")
    await connection.execute((foreign / "langgraph.sql").read_text())
    await check_threads(store, sessions, await twice(store, f"{database.url}&schema=langgraph"))
    await connection.execute("drop table checkpoint_writes; alter table checkpoints add column mood text")
    report = await bring(store, f"{database.url}&schema=langgraph")
    assert named(report)[:2] == ["column checkpoints.mood", "table checkpoint_writes"]
    await connection.execute("drop schema langgraph cascade")
    await connection.close()


async def test_grown_thread_is_continued(store, sessions, foreign, tmp_path):
    """Importing again after the source grew adds only what is new."""
    path = tmp_path / "grown.sqlite"
    shutil.copy(foreign / "langgraph.sqlite", path)
    connection = sqlite3.connect(path)
    newest = connection.execute(
        "select max(checkpoint_id) from checkpoints where thread_id = 'ended' and checkpoint_ns = ''"
    )
    [(newest,)] = newest.fetchall()
    connection.execute("create temp table kept as select * from checkpoints where checkpoint_id = ?", (newest,))
    connection.execute("delete from checkpoints where checkpoint_id = ?", (newest,))
    connection.commit()
    assert len((await bring(store, path)).landed) == 2
    connection.execute("insert into checkpoints select * from kept")
    connection.commit()
    connection.close()
    report = await bring(store, path)
    assert (report.landed, report.entries, report.already, report.problems) == (["ended"], 1, 1, [])
    assert (await sessions.get_checkpoint("ended")).metadata["id"] == newest


def test_no_class_is_ever_instantiated():
    """Whatever class a value names, it stays data; an unknown type stays bytes."""
    call = b"\x93\xa2os\xa6system\xa4true"  # ("os", "system", "true")
    ext = b"\xc7" + bytes([len(call), 0]) + call
    opaque: list[str] = []
    assert langgraph.value("msgpack", ext, opaque, "x") == {"$ext": [0, ["os", "system", "true"]]}
    assert langgraph.value("msgpack", b"\xd4\x2a\x01", opaque, "x") == {"$ext": [42, 1]}
    assert langgraph.value("msgpack", b"\xd4\x00\xc1", opaque, "x") == {"$raw": [0, b"\xc1"]}
    assert langgraph.value("json", b'{"lc": 1, "id": ["os", "system"]}', opaque, "x") == {
        "lc": 1,
        "id": ["os", "system"],
    }
    assert opaque == []
    assert langgraph.value("pickle", b"cos\nsystem\n(S'true'\ntR.", opaque, "x") == {
        "$typed": ["pickle", b"cos\nsystem\n(S'true'\ntR."]
    }
    assert opaque == ["x (pickle)"]
    for bad in (10**12, -1, 1.5):
        with pytest.raises(InvalidInput, match="must be bytes or text"):
            langgraph.value("msgpack", bad, opaque, "x")
    for bad in (b"\xc1", b"\x91" * 5000 + b"\x01", b"\xdf\xff\xff\xff\xff", b""):
        with pytest.raises(InvalidInput):
            langgraph.value("msgpack", bad, opaque, "x")


async def test_invalid_thread_id_is_named_once(store, foreign, tmp_path):
    """However many checkpoints it has, it is one line, safe for a terminal."""
    path = tmp_path / "odd.sqlite"
    shutil.copy(foreign / "langgraph.sqlite", path)
    connection = sqlite3.connect(path)
    connection.execute("update checkpoints set thread_id = ? where thread_id = 'ended'", ("a\n\x1b[2J\u202eb",))
    connection.commit()
    connection.close()
    report = await twice(store, path)
    assert named(report) == ["thread a\\n\\x1b[2J\\u202eb"]
    assert report.landed == ["waiting"]


async def test_bad_rows_are_named_and_the_rest_imported(store, sessions, foreign, tmp_path):
    """Truncated, pickled and impossible checkpoints, unknown columns, a missing table."""
    path = tmp_path / "bad.sqlite"
    shutil.copy(foreign / "langgraph.sqlite", path)
    connection = sqlite3.connect(path)
    ids = connection.execute(
        "select checkpoint_id from checkpoints where thread_id = 'ended' and checkpoint_ns = '' order by 1"
    )
    first, second, third, _ = [row[0] for row in ids]
    connection.execute(
        "update checkpoints set checkpoint = substr(checkpoint, 1, 40) where checkpoint_id = ?", (first,)
    )
    connection.execute("update checkpoints set type = 'pickle' where checkpoint_id = ?", (second,))
    connection.execute("update checkpoints set metadata = '{\"a\": NaN}' where checkpoint_id = ?", (third,))
    connection.execute("insert into checkpoints values (?, '', 'x', null, 'msgpack', x'80', '{}')", ("t" * 300,))
    connection.execute("alter table checkpoints add column mood")
    connection.execute("drop table writes")
    connection.commit()
    connection.close()
    report = await twice(store, path)
    assert named(report) == [
        "column checkpoints.mood",
        "table writes",
        f"thread ended, checkpoint {first}",
        f"thread ended, checkpoint {second}",
        f"thread ended, checkpoint {second}",
        f"thread ended, checkpoint {third}",
        f"thread {'t' * 300}, checkpoint x",
    ]
    assert sorted(report.landed) == ["ended", "waiting"]
    assert len([item for item in await sessions.history("ended") if item.metadata and "ns" not in item.metadata]) == 1


# Google ADK


async def test_adk(store, sessions, foreign, tmp_path):
    """Each event is a checkpoint with the state after it; shared state is in sessions of its own."""
    report = await twice(store, foreign / "adk.sqlite")
    assert report.problems == []
    assert sorted(report.landed) == ["app:tutor", "tutor/anna/chat-1", "tutor/anna/chat-2", "user:tutor/anna"]
    history = [item for item in await sessions.history("tutor/anna/chat-1") if "events" in item.data]
    assert [item.name for item in history] == ["created", "user", "tutor: add", "tutor", "tutor"]
    assert [item.data["state"].get("turn") for item in history] == [None, None, None, None, 1]
    assert all(item.data["state"]["level"] == 2 for item in history)
    assert [len(item.data["events"]) for item in history] == [0, 1, 2, 3, 4]
    assert await sessions.get_data("app:tutor") == {"course": "fractions"}
    assert await sessions.get_data("user:tutor/anna") == {"name": "Anna", "seen": 1}
    found = await sessions.find(agent_type="google-adk", user_id="anna", labels={"google-adk.app": "tutor"})
    assert {session.state for session in found} == {"paused"}
    path = tmp_path / "bad.sqlite"
    shutil.copy(foreign / "adk.sqlite", path)
    connection = sqlite3.connect(path)
    connection.execute("update events set event_data = '{' where rowid = 1")
    connection.execute("update sessions set state = '[]' where id = 'chat-2'")
    connection.execute("update app_states set update_time = 'some day'")
    connection.execute("insert into user_states values ('tutor', 'a\nb', '{\"k\": 1}', '2026-01-01 00:00:00')")
    connection.execute("insert into sessions values ('tutor', 'ben', 'chat', '{}', 'never', '2026-01-01')")
    connection.commit()
    connection.close()
    report = await bring(store, path)
    assert sorted(named(report)) == [
        *("session tutor/anna/chat-1", "session tutor/anna/chat-1, event event-1", "session tutor/anna/chat-2"),
        *("session tutor/ben/chat", "state of app tutor", "state of user tutor/a\\nb"),
    ]


async def test_adk_pickles_are_not_opened(store, foreign, tmp_path):
    """A database of an early ADK, whose events are pickles, is refused with what to do."""
    path = tmp_path / "old.sqlite"
    shutil.copy(foreign / "adk.sqlite", path)
    connection = sqlite3.connect(path)
    connection.execute("alter table events rename column event_data to actions")
    connection.commit()
    connection.close()
    with pytest.raises(InvalidInput, match=r"pickles of google-adk before 1\.22.*adk migrate session"):
        await bring(store, path)


# OpenAI Agents


async def test_openai_agents(store, sessions, foreign, tmp_path):
    """Each turn is a checkpoint that adds its items; a message that is no JSON is named."""
    report = await twice(store, foreign / "openai_agents.sqlite")
    assert (sorted(report.landed), report.problems) == (["chat-1", "chat-2"], [])
    turns = [item for item in await sessions.history("chat-1") if item.name == "turn"]
    assert [len(turn.data["items"]) for turn in turns] == [2, 4, 6]
    assert turns[2].data["items"][4:] == [
        {"role": "user", "content": "question 2"},
        {"role": "assistant", "content": "answer 2"},
    ]
    path = tmp_path / "bad.sqlite"
    shutil.copy(foreign / "openai_agents.sqlite", path)
    connection = sqlite3.connect(path)
    connection.execute("update agent_messages set message_data = '{' where id = 1")
    connection.execute(
        "insert into agent_messages values (90, 'unlisted', '{\"role\": \"user\"}', '2026-01-01 00:00:00')"
    )
    connection.execute("insert into agent_messages values (91, 'a\nb', '{}', '2026-01-01 00:00:00')")
    connection.execute("insert into agent_messages values (92, 'chat-2', '{}', 'some day')")
    connection.commit()
    connection.close()
    report = await bring(store, path)
    assert named(report) == [
        "session a\\nb",
        "session chat-1, message 1",
        "session chat-2, turn at some day",
        "session chat-1",
    ]
    assert report.landed == ["unlisted"]


BAD = "cast(x'ff41' as text)"


@pytest.mark.parametrize(
    ("column", "what"),
    [
        ("session_id", "session \\udcffA"),
        ("message_data", "session chat-1, message 1"),
        ("created_at", "session chat-1, turn at \\udcffA"),
    ],
)
async def test_openai_agents_text_that_is_not_utf8_is_named(store, foreign, tmp_path, column, what):
    """Only what it belongs to is left out."""
    path = tmp_path / "bad.sqlite"
    shutil.copy(foreign / "openai_agents.sqlite", path)
    connection = sqlite3.connect(path)
    connection.execute(f"update agent_messages set {column} = {BAD} where id = 1")  # noqa: S608
    connection.commit()
    connection.close()
    report = await bring(store, path)
    assert named(report) == [what]
    assert "chat-2" in report.landed


@pytest.mark.parametrize(
    "column", ["thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "metadata"]
)
async def test_langgraph_text_that_is_not_utf8_is_named(store, foreign, tmp_path, column):
    """Only the checkpoint that it belongs to is left out."""
    path = tmp_path / "bad.sqlite"
    shutil.copy(foreign / "langgraph.sqlite", path)
    connection = sqlite3.connect(path)
    first = "select min(checkpoint_id) from checkpoints where thread_id = 'ended'"
    connection.execute(f"update checkpoints set {column} = {BAD} where checkpoint_id = ({first})")  # noqa: S608
    connection.execute(f"update writes set channel = {BAD} where thread_id = 'waiting' and idx = 0")  # noqa: S608
    connection.commit()
    connection.close()
    report = await bring(store, path)
    assert report.problems
    assert {"ended", "waiting"} <= set(report.landed)


# Checkpoint lists


async def test_a_list_of_checkpoints(store, sessions, tmp_path):
    """What `CheckpointManager.export` writes: numbers, names, times, data and metadata are kept."""
    manager = CheckpointManager("lesson", compress_after=5)
    for n in range(30):
        manager.create(f"step-{n % 9}", {"n": n}, {"m": n})
    path = tmp_path / "list.json"
    path.write_text(manager.export())
    report = await twice(store, path)
    assert (report.landed, report.problems) == (["lesson"], [])
    stored = [item.to_dict() for item in await sessions.history("lesson")]
    # A version names the write, not what was written.
    assert [{**item, "version": ""} for item in stored] == [{**i, "version": ""} for i in json.loads(manager.export())]
    assert (await bring(store, path, new_id="other")).landed == ["other"]


async def test_byte_order_mark_is_ignored(store, tmp_path):
    """Some editors put a byte order mark in front of UTF-8."""
    manager = CheckpointManager("lesson")
    manager.create("asked", {"n": 1})
    path = tmp_path / "list.json"
    path.write_text(manager.export(), encoding="utf-8-sig")
    assert is_foreign(str(path))
    assert (await twice(store, path)).landed == ["lesson"]


async def test_lists_of_other_hands(store, sessions, tmp_path):
    """Without ids the file names the session; with odd ones they are kept in the metadata; bad items are named."""
    path = tmp_path / "theirs.json"
    good = {"name": "a", "timestamp": "2026-01-01T00:00:00", "data": {"n": 1}}
    path.write_text(json.dumps([
        good, {**good, "name": "b", "metadata": None}, 7, {"data": {}}, {**good, "timestamp": "never"},
        {**good, "name": ""}, {**good, "data": [1]}, {**good, "id": "odd"}, {**good, "id": "x:900000000"},
        {**good, "id": "\x00:1"},
    ]))  # fmt: skip
    report = await twice(store, path)
    assert sorted(report.landed) == ["theirs", "x"]
    assert named(report) == [
        "checkpoint 3",
        "checkpoint 4",
        "session theirs, checkpoint 5",
        "session theirs, checkpoint 6",
        "session theirs, checkpoint 7",
        "session \\x00",
    ]
    assert [item.name for item in await sessions.history("theirs")] == ["a", "b", "a"]
    assert (await sessions.get_checkpoint("theirs")).metadata == {"imported_id": "odd"}
    assert (await sessions.get_checkpoint("x")).metadata == {"imported_id": "x:900000000"}


# Checkpoint files


async def test_a_folder_of_checkpoint_files(store, sessions, tmp_path):
    """Each document is one checkpoint; completed is completed, the rest waits; bad files are named and stay."""
    folder = tmp_path / "checkpoints"
    files = CheckpointStore(folder)
    files.write("a/b", {"task": "parse", "status": "in_progress", "created": "2026-01-01T00:00:00", "todo": ["x"]})
    files.write("done", {"status": "completed", "parent_session_id": "a/b"})
    (folder / "plain.yaml").write_text("task: no times at all\n")
    for name, text in (("alias", "a: &x 1\nb: *x"), ("half", "a: [1"), ("tabs", "a:\n\t- 1"), ("empty", "")):
        (folder / f"{name}.yaml").write_text(text)
    (folder / "binary.yaml").write_bytes(os.urandom(100) + b"\xff")
    (folder / "link.yaml").symlink_to(folder / "plain.yaml")
    with (folder / "huge.yaml").open("wb") as file:
        file.truncate(20 << 20)
    before = digests(folder)
    report = await twice(store, folder)
    assert sorted(report.landed) == ["a/b", "done", "plain"]
    bad = ("alias", "binary", "empty", "half", "huge", "link", "tabs")
    assert named(report) == [str(folder / f"{name}.yaml") for name in bad]
    assert digests(folder) == before
    assert (await sessions.get_checkpoint("a/b")).data == files.read("a/b")
    assert (await sessions.get_session("a/b")).state == "paused"
    done = await sessions.get_session("done")
    assert (done.state, done.context) == ("completed", {"parent_session_id": "a/b"})


async def test_changed_checkpoint_files_are_continued(store, sessions, tmp_path):
    """A changed document is one more checkpoint, whenever the file was written; sessions changed here
    are left alone.
    """
    files = CheckpointStore(tmp_path / "files")
    for name in ("a", "b", "touched"):
        files.write(name, {"task": "parse", "status": "in_progress"})
    files.write("told", {"created": "2026-01-01T00:00:00", "task": "parse"})
    assert len((await twice(store, tmp_path / "files")).landed) == 4
    os.utime(tmp_path / "files" / "touched.yaml", (1, 1))
    files.write("a", {"task": "parse all", "status": "in_progress", "progress": 50})
    files.write("b", {"task": "parse", "status": "completed"})
    files.write("told", {"created": "2026-01-01T00:00:00", "task": "parse", "progress": 10})
    report = await bring(store, tmp_path / "files")
    assert (report.landed, report.already, report.problems) == (["a", "b", "told"], 1, [])
    report = await bring(store, tmp_path / "files")
    assert (report.landed, report.already, report.entries, report.problems) == ([], 4, 0, [])
    assert (await sessions.get_checkpoint("a")).data == files.read("a")
    assert [item.name for item in await sessions.history("a")][2:] == ["imported", "imported"]
    assert (await sessions.get_session("a")).context == {"task": "parse all"}
    states = [(await sessions.get_session(name)).state.value for name in ("a", "b", "told")]
    assert states == ["paused", "completed", "paused"]
    await sessions.checkpoint("a", "here", {"n": 1})
    for name in ("a", "b"):
        files.write(name, {"task": "again", "status": "in_progress"})
    report = await bring(store, tmp_path / "files")
    assert (report.landed, named(report)) == ([], ["session a", "session b"])
    assert (await sessions.get_checkpoint("a")).name == "here"
    await sessions.delete_session("told")
    files.write("told", {"task": "parse", "progress": 20})
    assert "was deleted" in (await bring(store, tmp_path / "files")).problems[-1].reason


# agent_sessions


TABLE = """
create table agent_sessions (
  id uuid primary key, agent_type text, user_id text, state text, context jsonb, checkpoints jsonb,
  created_at timestamptz, updated_at timestamptz, last_heartbeat timestamptz)"""
EARLY, LATER = "2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00"


def row(n: int, **fields) -> dict:
    checkpoints = [
        {"name": "session_created", "timestamp": EARLY, "data": {"agent_type": "tutor", "user_id": "anna"}},
        {"name": "asked", "timestamp": EARLY, "data": {"messages": ["1/2 + 1/3?"]}},
        {"name": "session_paused", "timestamp": LATER, "data": {"previous_state": "active"}},
    ]
    return {
        "id": str(UUID(int=n)), "agent_type": "tutor", "user_id": "anna", "state": "paused",
        "context": {"topic": "fractions"}, "checkpoints": checkpoints,
        "created_at": EARLY, "updated_at": LATER, "last_heartbeat": LATER,
    } | fields  # fmt: skip


@pytest.fixture
async def table(database, request):
    """Puts rows into an `agent_sessions` table of the test's own, and says where that is."""
    schema = f"theirs_{time.monotonic_ns()}"
    connection = await asyncpg.connect(database.url)
    await connection.execute(f"create schema {schema}; set search_path to {schema}; {TABLE}")

    async def put(*rows: dict, **more: str) -> str:
        for name, kind in more.items():
            await connection.execute(f"alter table agent_sessions add column {name} {kind}")
        sql = "insert into agent_sessions select * from jsonb_populate_recordset(null::agent_sessions, $1::jsonb)"
        await connection.execute(sql, json.dumps(rows))
        return f"{database.url}&schema={schema}"

    put.run = connection.execute
    put.fetch = connection.fetch
    yield put
    await connection.execute(f"drop schema {schema} cascade")
    await connection.close()


async def test_agent_sessions(store, sessions, table):
    """State, context, times and history come over; deleted ones stay where they are; the table is only read."""
    url = await table(row(1), row(2, state="deleted"), row(3, state="active", checkpoints=None, user_id=None))
    before = await table.fetch("select xmin, * from agent_sessions order by id")
    report = await twice(store, url)
    assert (report.landed, report.problems) == ([str(UUID(int=1)), str(UUID(int=3))], [])
    session = await sessions.get_session(str(UUID(int=1)))
    assert (session.state, session.agent_type, session.user_id) == ("paused", "tutor", "anna")
    assert (session.context, session.created_at.isoformat(), session.last_heartbeat.isoformat()) == (
        {"topic": "fractions"}, EARLY, LATER,
    )  # fmt: skip
    assert [item.name for item in session.checkpoints] == ["session_created", "asked", "session_paused"]
    assert (await sessions.get_checkpoint(session.session_id)).data["messages"] == ["1/2 + 1/3?"]
    await sessions.checkpoint(session, "here", {"messages": []})
    assert await table.fetch("select xmin, * from agent_sessions order by id") == before


async def test_bad_agent_sessions_are_named_and_the_rest_imported(store, sessions, table):
    """Impossible states, missing times, half-written histories, unknown columns."""
    url = await table(
        row(1),
        row(2, state="dancing"),
        row(3, created_at=None),
        row(4, checkpoints={"not": "a list"}),
        row(5, checkpoints=[{"name": "ok", "timestamp": EARLY, "data": {}}, {"name": "bad", "timestamp": "never"}, 7]),
        row(6, context=[1]),
        mood="text",
        metadata="jsonb",
    )
    report = await twice(store, url)
    broken = [f"session {UUID(int=n)}" for n in (2, 4)]
    fifth = f"session {UUID(int=5)}"
    assert sorted(named(report)) == sorted(
        ["column agent_sessions.mood", *broken, f"{fifth}, checkpoint 2", f"{fifth}, checkpoint 3",
         f"session {UUID(int=6)}", f"session {UUID(int=3)}"]
    )  # fmt: skip
    assert report.landed == [str(UUID(int=1)), str(UUID(int=5))]
    fifth = await sessions.history(str(UUID(int=5)))
    assert [item.name for item in fifth] == ["session_created", "ok", "session_paused"]


LATEST = "2026-01-02T00:00:00+00:00"
MORE = [{"name": "session_resumed", "timestamp": LATEST, "data": {}},
        {"name": "answered", "timestamp": LATEST, "data": {"messages": ["1/2 + 1/3?", "5/6"]}}]  # fmt: skip


@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["open", "sealed"])
async def test_changed_agent_sessions_are_continued(fresh, table, key):
    """A new context, state and history in the source are appended to the import; equal ones add nothing."""
    stored = await fresh("sqlite")
    store = Vault(stored, None if key is None else Keyring.of(key))
    sessions = SessionManager(store=stored, encryption_key=key)
    one, two, three = (str(UUID(int=n)) for n in (1, 2, 3))
    url = await table(row(1), row(2), row(3, checkpoints=None), row(4), metadata="jsonb")
    assert len((await twice(store, url)).landed) == 4
    await table.run('update agent_sessions set context = \'{"topic": "roots", "n": 1}\', state = \'active\'')
    await sessions.checkpoint(str(UUID(int=4)), "here", {"messages": []})
    report = await bring(store, url)
    assert (report.landed, named(report)) == ([one, two, three], [f"session {UUID(int=4)}"])
    history = row(1)["checkpoints"] + MORE
    sql = "update agent_sessions set checkpoints = $1::text::jsonb, metadata = '{\"m\": 1}', state = 'completed'"
    await table.run(sql, json.dumps(history))
    assert (await bring(store, url)).landed == [one, two, three]
    await table.run('update agent_sessions set metadata = null, context = \'{"n": 1, "topic": "roots"}\'')
    again = await bring(store, url)
    assert (again.landed, again.entries, again.already) == ([], 0, 3)
    session = await sessions.get_session(one)
    assert (session.state, session.context, session.metadata) == ("completed", {"topic": "roots", "n": 1}, {"m": 1})
    assert (await sessions.get_checkpoint(one, "answered")).data == MORE[1]["data"]
    kinds = [line.kind for line in (await sessions.audit(one)).lines]
    assert kinds == [
        "created", "checkpoint", "paused", "updated", "resumed", "resumed", "checkpoint", "updated", "completed",
    ]  # fmt: skip
    assert (await sessions.audit(one)).misfit is None
    late = await sessions.get_session(three)
    assert [item.name for item in late.checkpoints][-2:] == ["answered", "session_completed"]
    text = await sessions.export(three)
    await SessionManager(encryption_key=key).import_session(text)


async def test_agent_sessions_changed_after_their_end_are_named(store, sessions, table):
    """An imported completed session stays as it is; a failed one is reactivated."""
    url = await table(row(1, state="completed"), row(2, state="failed"))
    await twice(store, url)
    await table.run("update agent_sessions set state = 'active'")
    report = await bring(store, url)
    assert (report.landed, named(report)) == ([str(UUID(int=2))], [f"session {UUID(int=1)}"])
    assert "is completed here" in report.problems[0].reason
    assert (await sessions.get_session(str(UUID(int=2)))).state == "active"


async def test_a_long_history_whose_import_was_cut_short_is_finished(fresh, table, monkeypatch):
    """Also when the session went on meanwhile; the verbs of its history are what they were."""
    monkeypatch.setattr(parcel, "MANY", 3)
    names = ["work", "session_paused", "session_resumed"]
    history = [{"name": names[n % 3], "timestamp": LATER, "data": {"n": n}} for n in range(12)]
    url = await table(row(1, state="active", checkpoints=history))
    whole, parted = await fresh("memory"), await fresh("memory")
    append, left = parted.append, [1, 1]

    async def breaking(groups):
        if not left:
            raise Unavailable("gone")
        left.pop()
        return await append(groups)

    parted.append = breaking
    with pytest.raises(Unavailable):
        await bring(parted, url)
    del parted.append
    await table.run("update agent_sessions set context = '{\"late\": true}'")
    assert (await bring(parted, url)).problems == []
    await bring(whole, url)
    there = [SessionManager(store=one) for one in (whole, parted)]
    contents = [[item.to_dict() for item in await one.history(str(UUID(int=1)))] for one in there]
    assert contents[0] == contents[1]
    copies = [await one.get_session(str(UUID(int=1))) for one in there]
    assert [(one.state, one.context) for one in copies] == [("active", {"late": True})] * 2


async def test_newer_valkey_key_wins(store, sessions, table, valkey_url):
    """The newer of row and key wins, with the key's metadata; a key without a row is imported, a deleted one never."""
    client = valkey.asyncio.from_url(valkey_url)

    async def put(n: int, **fields) -> None:
        result = row(n, session_id=str(UUID(int=n)), **fields)
        del result["id"]
        await client.set(f"school:session:{UUID(int=n)}", json.dumps(result), ex=900)

    await put(1, last_heartbeat="2026-01-02T00:00:00+00:00", state="failed", metadata={"from": "key"})
    await put(2, last_heartbeat=EARLY, state="failed", metadata={"from": "key"})
    await put(3)
    await put(4)
    await client.set("school:session:bad", "{")
    await client.set(f"other:session:{UUID(int=9)}", "{}")
    url = await table(row(1), row(2), row(4, state="deleted"))
    report = await twice(store, url, hot=valkey_url, prefix="school")
    assert sorted(report.landed) == [str(UUID(int=n)) for n in (1, 2, 3)]
    assert named(report) == ["key school:session:bad"]
    states = [(await sessions.get_session(str(UUID(int=n)))) for n in (1, 2, 3)]
    assert [(one.state.value, one.metadata) for one in states] == [
        ("failed", {"from": "key"}), ("paused", {"from": "key"}), ("paused", {}),
    ]  # fmt: skip
    assert 0 < await client.ttl(f"school:session:{UUID(int=1)}") <= 900
    alone = SessionManager(store=store, namespace="alone")
    report = Report()
    async with opened(valkey_url, Ask("alone", prefix="school")) as [source]:
        await Loader(store, report).load(source.parcels)
    assert len(report.landed) == await alone.count() == 4
    await client.flushall()
    await client.aclose()


async def test_keys_of_another_type_are_named(store, sessions, valkey_url):
    """A hash is not a session's text; the order of keys in the text does not matter."""
    client = valkey.asyncio.from_url(valkey_url)
    await client.hset("odd:session:hashed", mapping={"id": "hashed"})
    result = row(1, session_id=str(UUID(int=1)), context={"a": 1, "b": {"c": 1, "d": 2}})
    await client.set(f"odd:session:{UUID(int=1)}", json.dumps(result))
    report = await twice(store, valkey_url, prefix="odd")
    assert (report.landed, report.problems) == (
        [str(UUID(int=1))],
        [Problem("key odd:session:hashed", "is a hash; expected the text of a session")],
    )
    result["checkpoints"] += MORE[:1]
    await client.set(f"odd:session:{UUID(int=1)}", json.dumps(result, sort_keys=True))
    report = await bring(store, valkey_url, prefix="odd")
    assert (report.landed, report.entries) == ([str(UUID(int=1))], 2)
    await client.flushall()
    await client.aclose()


VERBS = ("session_paused", "session_resumed", "session_completed", "session_failed", "session_recovered")
ITEMS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from([*VERBS, "work", "work"])},
        optional={
            "metadata": st.just({"m": 1}),
            "data": st.just({"d": 1}),
            "timestamp": st.sampled_from([LATER, "never"]),
        },
    ),
    max_size=8,
)


async def each(parcels: Iterable[MemoryParcel | Problem]) -> AsyncIterator[MemoryParcel | Problem]:
    for one in parcels:
        yield one


async def taken(parcels: Iterable[MemoryParcel | Problem]) -> tuple[SessionManager, Report]:
    """What of a record comes in, after it was carried on to another store by its export."""
    store, report = MemoryStore(), Report()
    first, second = SessionManager(store=store), SessionManager()

    await Loader(store, report).load(each(parcels))
    for session_id in report.landed:
        text = await first.export(session_id)
        await second.import_session(text)
        assert await second.export(session_id) == text
    return second, report


@given(ITEMS, st.sampled_from(["active", "paused", "completed", "failed"]))
def test_histories_that_follow_other_rules_come_in_and_go_on(history, state):
    """Whatever verbs a history has: names and state are kept, and the session can be continued."""

    async def check() -> None:
        sessions, report = await taken(records.session(row(1, state=state, checkpoints=history), "default"))
        assert report.landed == [str(UUID(int=1))]
        items = [item["name"] for item in history if item.get("timestamp") != "never"]
        shown = [item.name for item in await sessions.history(report.landed[0])][1:]
        assert shown[: len(items)] == items
        assert len(shown) <= len(items) + 1
        assert (await sessions.get_session(report.landed[0])).state == state

    asyncio.run(check())


STATES = st.sampled_from(["active", "paused", "completed", "failed"])
CONTEXTS = st.sampled_from([{}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2}])


@example([(["work", "session_failed"], "failed", {}), ([], "active", {})])  # the history is the same, the state is not
@given(
    st.lists(st.tuples(st.lists(st.sampled_from([*VERBS, "work", "work"]), max_size=3), STATES, CONTEXTS), max_size=4)
)
def test_later_entries_are_continued_or_reported(stages):
    """Import after import: all of it is here, in order, and can be continued; or none of it, and the report says so."""

    async def check() -> None:
        stored = MemoryStore()
        store, sessions = Vault(stored), SessionManager(store=stored)
        history: list[dict] = []
        for names, state, context in stages:
            history += [
                {"name": name, "timestamp": LATER, "data": {"n": len(history) + n}} for n, name in enumerate(names)
            ]
            before = await sessions.export(str(UUID(int=1))) if await sessions.count() else None
            for second in (False, True):
                report = Report()
                answer = row(1, state=state, checkpoints=history, context=context)
                await Loader(store, report).load(each(records.session(answer, "default")))
                if report.problems:
                    assert (await sessions.export(str(UUID(int=1))), report.entries) == (before, 0)
                    return
                assert not second or (report.already, report.entries) == (1, 0)
            session = await sessions.get_session(str(UUID(int=1)))
            assert (session.state, session.context) == (state, context)
            left = iter([item.name for item in await sessions.history(session.session_id)])
            assert all(item["name"] in left for item in history)
            text = await sessions.export(session.session_id)
            again = SessionManager()
            await again.import_session(text)
            assert await again.export(session.session_id) == text
            assert (await sessions.audit(session.session_id)).misfit is None

    asyncio.run(check())


@given(ITEMS)
def test_lists_with_verbs_in_them_keep_their_numbers(history):
    """The same for a list of checkpoints, whose numbers stay."""

    async def check() -> None:
        items = [{"timestamp": LATER, **item, "id": f"lesson:{2 * n}"} for n, item in enumerate(history, 1)]
        sessions, report = await taken(records.checkpoints(items, "default", "list"))
        collected = [(item["id"], item["name"]) for item in items if item["timestamp"] != "never"]
        assert report.landed == (["lesson"] if collected else [])
        if collected:
            assert [(item.id, item.name) for item in await sessions.history("lesson")] == collected

    asyncio.run(check())


@pytest.mark.parametrize(
    ("names", "state", "kinds"),
    [
        (["work", "session_completed"], "completed", ["checkpoint", "completed"]),
        (["session_completed", "work"], "active", ["checkpoint", "checkpoint"]),
        (["work", "session_completed"], "active", ["checkpoint", "checkpoint"]),
        (["session_failed", "session_recovered", "work"], "active", ["failed", "recovered", "checkpoint"]),
        (["session_failed", "work"], "failed", ["checkpoint", "checkpoint", "failed"]),
        (["session_paused", "session_paused"], "paused", ["paused", "checkpoint"]),
        (["work"], "failed", ["checkpoint", "failed"]),
        (["session_paused"], "active", ["paused", "resumed"]),
    ],
)
async def test_verbs_that_our_table_allows_are_verbs(names, state, kinds):
    """An end in the middle of a history is imported as a checkpoint; a state without a lifecycle entry gets one."""
    history = [{"name": name, "timestamp": LATER, "data": {}} for name in names]
    sessions, report = await taken(records.session(row(1, state=state, checkpoints=history), "default"))
    entries = json.loads(await sessions.export(report.landed[0]))["entries"]
    assert [entry["kind"] for entry in entries] == ["created", *kinds]


# Files that are not a source


async def test_invalid_source_is_refused(store, tmp_path, database, fresh_url):
    """Each error says what was found there, and nothing is stored."""
    (tmp_path / "empty").mkdir()
    sqlite3.connect(tmp_path / "other.sqlite").execute("create table birds (name)").connection.close()
    (tmp_path / "torn.sqlite").write_bytes(b"SQLite format 3\0" + os.urandom(2000))
    (tmp_path / "dict.json").write_text("{}")
    mine = fresh_url("sqlite")
    new_store = await open_store(mine)
    await new_store.tend()
    await new_store.close()
    for source, said in (
        (tmp_path / "empty", "neither"),
        (tmp_path / "other.sqlite", "birds"),
        (tmp_path / "torn.sqlite", "cannot be read"),
        (tmp_path / "dict.json", "not a list"),
        (tmp_path / "missing", "cannot be read"),
        (mine, "saveslot copy"),
        (f"{database.url}&schema=nothing", "is empty"),
    ):
        with pytest.raises(InvalidInput, match=said):
            await bring(store, source)
    for url in ("postgresql://nobody@127.0.0.1:1/none", "valkey://127.0.0.1:1"):
        with pytest.raises(Unavailable):
            await bring(store, url)


async def test_a_source_in_use_is_read_as_it_is_now(store, foreign, tmp_path):
    """Entries still in the write-ahead log are read too, and no file is left beside a closed one."""
    path = tmp_path / "live.sqlite"
    shutil.copy(foreign / "openai_agents.sqlite", path)
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode = wal")
    connection.execute("insert into agent_messages values (90, 'fresh', '{}', '2026-01-01 00:00:00')")
    connection.commit()
    assert "fresh" in (await bring(store, path)).landed
    connection.close()
    assert [file.name for file in tmp_path.glob("live*")] == ["live.sqlite"]
    assert (await bring(store, path)).already == 3
    assert [file.name for file in tmp_path.glob("live*")] == ["live.sqlite"]
