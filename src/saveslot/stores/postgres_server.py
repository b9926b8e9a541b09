"""Reaching a PostgreSQL server: a pool, retries, deadlines, migrations, its errors in Saveslot's words."""

from __future__ import annotations

import asyncio
import random
import re
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from saveslot.errors import InvalidInput, SaveslotError, Unavailable

T = TypeVar("T")
Connection = Any  # asyncpg.Connection, or one of its pool: the stubs do not tell them apart

# Every await ends within this: a restart of the server takes seconds, and callers should not wait for ever.
PATIENCE = 30.0
# Connections of one process: two lanes of appends, and readers beside them.
POOL = 10
SCHEMA = "saveslot"

# The server or the way to it is gone, for now: what is asked again does no harm, so it is.
PASSING = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.ReadOnlySQLTransactionError,  # a failover is under way
)


class Server:
    def __init__(self, url: str) -> None:
        self.schema, self._dsn = _taken_apart(url)
        self._shown = re.sub(r"//[^@/]*@", "//", self._dsn)  # messages never show a password
        self._pool: Any = None
        self._loop = asyncio.get_running_loop()
        self._beside: dict[asyncio.AbstractEventLoop, AsyncGenerator[Connection]] = {}

    async def open(self) -> None:
        self._pool = asyncpg.create_pool(self._dsn, min_size=0, max_size=POOL, timeout=PATIENCE)
        await self._within(self._pool_ready())
        await self.run(self._migrated)

    async def _pool_ready(self) -> None:
        await self._pool

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), PATIENCE)
        except PASSING:
            self._pool.terminate()

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do it, and again when the connection breaks: everything asked here may be asked twice."""
        return await self._within(self._tried(work))

    async def run_beside(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """The same from another event loop, on a connection of its own."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return await self.run(work)
        return await self._within(self._once_beside(work, loop))

    async def _once_beside(self, work: Callable[[Connection], Awaitable[T]], loop: asyncio.AbstractEventLoop) -> T:
        connection = await anext(self._beside.setdefault(loop, self._kept(loop)))
        return await work(connection)

    async def _kept(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Connection]:
        """A connection that ends with its event loop: asyncio closes what its async generators still hold."""
        connection: Any = None
        try:
            while True:
                if connection is None or connection.is_closed():
                    connection = await self._connected()
                yield connection
        finally:
            self._beside.pop(loop, None)
            if connection is not None:
                await connection.close(timeout=PATIENCE)

    async def _connected(self) -> Connection:
        return await asyncio.wait_for(cast("Awaitable[Connection]", asyncpg.connect(self._dsn)), PATIENCE)

    async def _tried(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        wait = 0.02
        while True:
            try:
                async with self._pool.acquire() as connection:
                    return await work(connection)
            except PASSING:
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311  (jitter)
                wait = min(wait * 2, 1.0)

    async def _within(self, work: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(work, PATIENCE)
        except SaveslotError:
            raise
        except PASSING as exc:
            raise Unavailable(f"{self._shown} does not answer ({exc or type(exc).__name__}); retry") from exc
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as exc:
            raise Unavailable(f"{self._shown} refuses us ({exc}); check user, password and database") from exc
        except (asyncpg.DataError, UnicodeEncodeError) as exc:
            raise InvalidInput("argument", f"cannot be handed to PostgreSQL ({exc})") from exc
        except asyncpg.PostgresError as exc:
            raise Unavailable(f"{self._shown}: {exc}; nothing was acknowledged; retry") from exc

    async def _migrated(self, connection: Connection) -> None:
        scripts = _migrations()
        if await self._version(connection) == len(scripts):
            return
        async with connection.transaction():
            # Of eight processes that open an empty database one migrates and seven wait, then find nothing to do.
            await connection.execute("select pg_advisory_xact_lock($1)", zlib.crc32(f"saveslot {self.schema}".encode()))
            version = await self._version(connection)
            if version == len(scripts):
                return
            if not version:
                await connection.execute(f"create schema if not exists {self.schema}")
                await connection.execute(f"create table if not exists {self.schema}.format (version int not null)")
                await connection.execute(f"insert into {self.schema}.format values (0)")  # noqa: S608
            await connection.execute(f"set local search_path to {self.schema}")
            for script in scripts[version:]:
                await connection.execute(script)
            await connection.execute(f"update {self.schema}.format set version = $1", len(scripts))  # noqa: S608

    async def _version(self, connection: Connection) -> int:
        if await connection.fetchval("select to_regclass($1)", f"{self.schema}.format") is None:
            return 0
        version: int = await connection.fetchval(f"select version from {self.schema}.format")  # noqa: S608
        if version > (known := len(_migrations())):
            told = f"(format {version}, this one knows {known}); upgrade saveslot"
            raise InvalidInput("url", f"{self._shown} is of a newer Saveslot {told}")
        return version


def _migrations() -> list[str]:
    """The numbered scripts, oldest first."""
    folder = Path(__file__).with_name("sql")
    return [file.read_text() for file in sorted(folder.glob("postgres_*.sql"))]


def _taken_apart(url: str) -> tuple[str, str]:
    """The schema that a URL names (`?schema=…`), and the rest of it for the driver."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise InvalidInput("url", f"schema {schema!r} must be lower-case letters, digits and underscores")
    return schema, urlunsplit(parts._replace(query=urlencode(options)))
