"""One PostgreSQL and one Valkey for a whole test process, started when a test first needs them.

Each caller gets a place of its own: a database, a schema, or a schema that was emptied. A test that stops a server or
changes its settings starts its own (`saveslot.stack`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

import asyncpg
import pytest

from saveslot.stack import Postgres, Valkey
from saveslot.stores.postgres import PostgresStore

# How many databases the Valkey has: one for each call of `Servers.valkey`.
DATABASES = 1000
# Makes the statements that empty every table but the one with the schema's version.
EMPTYING = """
select string_agg('delete from emptied.' || relname, '; ') from pg_class
where relnamespace = 'emptied'::regnamespace and relkind in ('r', 'p') and not relispartition and relname <> 'format'
""".strip()


class Database(NamedTuple):
    """A PostgreSQL database of its own."""

    url: str
    folder: Path  # the server's, with its socket and its log


class Servers:
    def __init__(self) -> None:
        self._running = ExitStack()
        self._numbers = count()
        self._emptying = ""

    @cached_property
    def _postgres(self) -> Postgres:
        # Tests that crash a server start their own, so this one need not survive a crash.
        return self._running.enter_context(Postgres(options={"fsync": "off"}))

    @cached_property
    def _valkey(self) -> Valkey:
        return self._running.enter_context(Valkey(options={"databases": str(DATABASES)}))

    def database(self) -> Database:
        """A new database: for tests that name the schema `saveslot`, or create roles and tables."""
        name = f"test_{next(self._numbers)}"
        # Copying files takes 54 ms of CPU, writing them to the WAL 183.
        asyncio.run(_execute(self._postgres.url, f"create database {name} strategy file_copy"))
        return Database(self._postgres.url.replace("/postgres?", f"/{name}?"), self._postgres.folder)

    def schema(self) -> str:
        """The URL of a schema that is not there yet. Making its tables takes 100 ms of CPU."""
        return f"{self._postgres.url}&schema=test_{next(self._numbers)}"

    async def emptied(self) -> str:
        """The URL of one schema whose tables are empty, in 1 ms: for a few hundred tests, one after another."""
        url = f"{self._postgres.url}&schema=emptied"
        if not self._emptying:
            await make_tables(url)
            self._emptying = str(await _execute(self._postgres.url, EMPTYING))
        await _execute(self._postgres.url, self._emptying)
        return url

    def valkey(self) -> str:
        """The URL of an empty Valkey database."""
        return f"{self._valkey.url}/{next(self._numbers) % DATABASES}"

    def stop(self) -> None:
        self._running.close()


async def make_tables(url: str) -> None:
    """Create the tables, as the first write does."""
    store = await PostgresStore.open(url)
    await store.tend()
    await store.close()


async def _execute(url: str, statement: str) -> Any:
    """Run one statement; for a `select`, return the first column of its first row."""
    connection = await cast("Any", asyncpg.connect)(url)
    try:
        if statement.startswith("select"):
            return await connection.fetchval(statement)
        return await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.stop()


@pytest.fixture
def valkey_url(servers: Servers) -> str:
    return servers.valkey()


@pytest.fixture(scope="module")
def database(servers: Servers) -> Database:
    """A database for the tests of one module."""
    return servers.database()
