"""Stores whose stored values a test can damage one by one, and restore."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol, cast

import apsw
import asyncpg
import msgspec

import saveslot
from saveslot.stores.sqlite.file import connect

NAMES = ("first", "second", "third")
# What damage may leave in a column. `NOT_TEXT` becomes a text that is not UTF-8 where a text was stored.
NOT_TEXT = b"\xff\xfe\x80"
NASTY: dict[str, Any] = {
    "text": "nonsense",
    "not UTF-8": NOT_TEXT,
    "bytes": b"\xff\xfe\x80\x01",
    "largest": (1 << 63) - 1,
    "large": 1 << 61,
    "negative": -1,
    "smallest": -(1 << 63),
    "77": 77,
    "fraction": 1.5,
    "empty text": "",
    "no bytes": b"",
    "control characters": "\x00\x1b[2J\n",
    "1 MB": "x" * 1_000_000,
    "JSON": '{"a": {"b": [1]}}',
    "JSON list": "[[1]]",
    "null": None,
}
SESSIONS = ("key", "namespace", "id", "agent_type", "user_id", "state", "created_at", "heartbeat", "fence", "lease")
ENTRIES = ("append_id", "kind", "name", "at", "alive", "fence", "lease", "data_seq", "about_seq", "recipe", "digest")
SQL_TABLES = {
    "sessions": (*SESSIONS, "owner", "labels", "request", "deleted_at", "body"),
    "checkpoints": ("key", "seq", *ENTRIES, "note", "request", "base", "frame"),
    "labels": ("space", "label", "value", "made", "session"),
}
MINE = "(select key from {sessions} where id = 'second')"


class Plant(Protocol):
    """A store with the three sessions of `filled`."""

    tables: dict[str, tuple[str, ...]]
    kind: str
    url: str

    def restore(self) -> None: ...

    def damage(self, table: str, column: str, value: Any, seq: int) -> bool:
        """Put a value into a column of the second session's rows; False if the database refuses it."""
        ...


Fill = Callable[[str], Coroutine[Any, Any, None]]


async def filled(url: str) -> None:
    """Three sessions; a worker that is gone holds the second one."""
    async with saveslot.open(url) as sessions:
        for name in NAMES:
            session = await sessions.create_session("tutor", "anna", {"n": 1}, labels={"team": "red"}, session_id=name)
            await sessions.checkpoint(session, "asked", {"messages": ["hello"]})
            await sessions.checkpoint(session, "answered", {"messages": ["hello", "there"]})
        held = await sessions.take("second")
        await held.step("look", lambda: 1)
        await held.checkpoint("looked", {"messages": []})


class SqlitePlant:
    kind = "sqlite"
    tables = {  # noqa: RUF012
        **SQL_TABLES,
        "sessions": (*SQL_TABLES["sessions"], "search"),
        "workers": ("worker", "name", "boot", "expires", "beaten", "dead"),
    }

    def __init__(self, folder: Path, fill: Fill = filled) -> None:
        self._sound, self._path = folder / "sound.db", folder / "s.db"
        asyncio.run(fill(f"sqlite:///{self._sound}"))
        with closing(connect(str(self._sound), None)) as connection:
            connection.execute("update workers set dead = 0, expires = 1")
        self.url = f"sqlite:///{self._path}"

    def restore(self) -> None:
        for path in self._path.parent.glob("s.db*"):
            path.unlink()
        shutil.copy(self._sound, self._path)

    def damage(self, table: str, column: str, value: Any, seq: int) -> bool:
        new = "cast(? as text)" if value == NOT_TEXT else "?"
        with closing(connect(str(self._path), None)) as connection:
            try:
                connection.execute(f"update {table} set {column} = {new} where {_where(table, seq)}", (value,))  # noqa: S608
            except apsw.ConstraintError:
                return False
            return connection.changes() > 0


class PostgresPlant:
    kind = "postgres"
    tables = {**SQL_TABLES, "workers": ("worker", "name", "expires", "beaten", "dead")}  # noqa: RUF012

    def __init__(self, url: str, fill: Fill = filled) -> None:
        """`url`: of a database of its own: it gets a cast that makes texts of any bytes."""
        self.url = url
        asyncio.run(fill(url))
        keep = [f"create table kept_{table} as table saveslot.{table}" for table in self.tables]
        cast = "create cast (bytea as text) without function"
        asyncio.run(self._run([cast, "update saveslot.workers set dead = true", *keep]))

    async def _run(self, statements: list[str], *values: Any) -> int:
        connection = await cast("Any", asyncpg.connect)(self.url)
        try:
            async with connection.transaction():
                return sum([(await connection.execute(sql, *values)).endswith(" 1") for sql in statements])
        finally:
            await connection.close()

    def restore(self) -> None:
        statements: list[str] = []
        for table in self.tables:
            columns = ", ".join((*SQL_TABLES[table], "tx") if table == "checkpoints" else self.tables[table])
            copy = f"insert into saveslot.{table} ({columns}) select {columns} from kept_{table}"  # noqa: S608
            statements += [f"delete from saveslot.{table}", copy]  # noqa: S608
        asyncio.run(self._run(statements))

    def damage(self, table: str, column: str, value: Any, seq: int) -> bool:
        new = "$1::bytea::text" if value == NOT_TEXT else "$1"
        if column == "labels":
            new = "$1::text::jsonb"
        sql = f"update saveslot.{table} set {column} = {new} where {_where(table, seq, 'saveslot.')}"  # noqa: S608
        with suppress(asyncpg.PostgresError, asyncpg.DataError, TypeError, ValueError):
            return asyncio.run(self._run([sql], value)) > 0
        return False


def _where(table: str, seq: int, schema: str = "") -> str:
    mine = MINE.format(sessions=f"{schema}sessions")
    places = {
        "sessions": "id = 'second'",
        "checkpoints": f"key = {mine} and seq = {seq}",
        "labels": f"session = {mine}",
    }
    return places.get(table, "true")


class ValkeyPlant:
    kind = "valkey"
    fields = (
        *(
            "last",
            "gone",
            "ns",
            "id",
            "type",
            "user",
            "state",
            "made",
            "beat",
            "alive",
            "fence",
            "lease",
            "owner",
            "ttl",
        ),
        *("bytes", "weight", "ended", "deleted", "body", "labels", "request", "marked"),
    )
    header = ("append_id", "at", "alive", "rest")
    rest = (
        "seq",
        "kind",
        "name",
        "fence",
        "lease",
        "data_seq",
        "about_seq",
        "recipe",
        "digest",
        "note",
        "request",
        "base",
    )
    tables = {  # noqa: RUF012
        "sessions": fields,
        "entries": (*header, *(f"rest.{name}" for name in rest), "whole", "frame"),
        "workers": ("worker",),
        "indexes": ("id", "remains", "made", "feed", "bytes", "hash"),
    }

    def __init__(self, url: str, fill: Fill = filled) -> None:
        from valkey import Valkey

        self.url = url
        self._client: Any = Valkey.from_url(url)
        asyncio.run(fill(url))
        workers = "saveslot:{store}:workers"
        for worker, kept in self._client.hgetall(workers).items():
            self._client.hset(workers, worker, b"1 0 1 0 " + kept.split(b" ", 4)[4])
        self._kept = {key: self._client.dump(key) for key in self._client.keys("*")}
        self._key: str = self._client.hget("saveslot:{store}:ids:default", "second").decode()

    def restore(self) -> None:
        self._client.flushdb()
        for key, value in self._kept.items():
            self._client.restore(key, 0, value)

    def damage(self, table: str, column: str, value: Any, seq: int) -> bool:
        stored = value if isinstance(value, bytes) else b"" if value is None else str(value).encode()
        client, session = self._client, f"saveslot:{{store}}:session:{self._key}"
        if table == "sessions":
            return (
                bool(client.hdel(session, column))
                if value is None
                else client.hset(session, column, stored) is not None
            )
        if table == "workers":
            return bool(
                [
                    client.hset("saveslot:{store}:workers", worker, stored)
                    for worker in client.hkeys("saveslot:{store}:workers")
                ]
            )
        if table == "indexes":
            return self._damage_index(column, stored, value)
        field = f"{'f' if column == 'frame' else 'e'}{seq}"
        if value is None and column in {"whole", "frame"}:
            return bool(client.hdel(session, field))
        header = client.hget(session, field)
        if header is None:
            return False
        if column not in {"whole", "frame"}:
            parts = header.split(b" ", 3)
            if column.startswith("rest."):
                try:
                    columns = msgspec.msgpack.decode(parts[3])
                except (msgspec.DecodeError, IndexError):  # damaged as a whole before
                    return False
                columns[self.rest.index(column[5:])] = value
                parts[3] = msgspec.msgpack.encode(columns)
            else:
                parts[self.header.index(column)] = stored
            stored = b" ".join(parts)
        client.hset(session, field, stored)
        return True

    def forget(self, session_id: str) -> None:
        """Take a session out of the indexes by id and time."""
        self._client.hdel("saveslot:{store}:ids:default", session_id)
        self._client.zrem("saveslot:{store}:made:default", self._key)

    def _damage_index(self, column: str, stored: bytes, value: Any) -> bool:
        client, prefix = self._client, "saveslot:{store}:"
        match column:
            case "id":
                client.hset(f"{prefix}ids:default", "second", stored)
            case "remains":
                client.hset(f"{prefix}remains", self._key, stored)
            case "bytes":
                client.hset(f"{prefix}counters", "bytes", stored)
            case "made" if isinstance(value, int):
                client.zadd(f"{prefix}made:default", {self._key: value})
            case "feed":
                client.zadd(f"{prefix}feed", {stored: 1})
            case "hash" if value == 77:
                client.set(f"{prefix}session:{self._key}", stored)
            case _:
                return False
        return True


def planted(request: Any, folders: Any, fill: Fill = filled) -> Plant:
    """The store that the parameter of a fixture names."""
    if request.param == "sqlite":
        return SqlitePlant(folders.mktemp("sound"), fill)
    servers = request.getfixturevalue("servers")
    if request.param == "postgres":
        return PostgresPlant(servers.database().url, fill)
    return ValkeyPlant(servers.valkey(), fill)
