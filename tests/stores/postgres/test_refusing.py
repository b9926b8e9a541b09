"""A PostgreSQL that refuses connections: the error says why, in Saveslot's words, and never shows a password."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Iterator

import asyncpg
import pytest

import saveslot
from saveslot import SaveslotError
from saveslot.stack import Postgres
from saveslot.stores.postgres import connection as postgres_connection

HUSH = "hush-7"


@pytest.fixture
def server() -> Iterator[Postgres]:
    few = {"max_connections": "5", "superuser_reserved_connections": "0", "reserved_connections": "0"}
    with Postgres(options={**few, "max_wal_senders": "0"}) as server:
        yield server


async def error_at(url: str, part: str) -> str:
    """What opening it says, as soon as that is about this: a server needs a moment to be of another mind."""
    async with asyncio.timeout(60):
        while True:
            try:
                await (await saveslot.open(url)).close()
            except SaveslotError as exc:
                if part in str(exc):
                    return "".join(traceback.format_exception(exc))


async def test_refused_connection_says_why(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong password fails at once; too many connections and a shutdown fail after the patience, since
    they may pass.
    """
    owner = await asyncpg.connect(server.url)
    await owner.execute(f"create role app login password '{HUSH}x'")
    rules = server.folder / "data" / "pg_hba.conf"
    rules.write_text(f"local all app scram-sha-256\n{rules.read_text()}")
    await owner.execute("select pg_reload_conf()")
    url = server.url.replace("//postgres@", f"//app:{HUSH}@")
    assert HUSH not in await error_at(url, "refuses the connection (password authentication failed")
    await error_at(server.url.replace("/postgres?", "/nowhere?"), "create it (createdb), or name another one")
    others = [await asyncpg.connect(server.url) for _ in range(4)]
    monkeypatch.setattr(postgres_connection, "PATIENCE", 1.0)
    await error_at(server.url, "does not answer (sorry, too many clients already)")
    monkeypatch.setattr(postgres_connection, "PATIENCE", 30.0)
    for connection in others:
        await connection.close()
    async with saveslot.open(server.url) as sessions:
        await sessions.create_session("agent")
    monkeypatch.setattr(postgres_connection, "PATIENCE", 1.0)
    os.kill(server.pid, signal.SIGTERM)  # it waits for its clients to leave, and accepts no new ones
    await error_at(server.url, "does not answer (the database system is shutting down)")
    await owner.close()
