"""Reaching a PostgreSQL server: a pool, retries, deadlines, migrations, its errors in Saveslot's words."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from saveslot.errors import InvalidInput, SaveslotError, Unavailable
from saveslot.stores import postgres_partitions, shown
from saveslot.stores.lines import Lines

T = TypeVar("T")
Connection = Any  # asyncpg.Connection, or one of its pool: the stubs do not tell them apart

# Every await ends within this: a restart of the server takes seconds, and callers should not wait for ever.
PATIENCE = 30.0
# Connections of one process: two lanes of appends, and readers beside them.
POOL = 10
SCHEMA = "saveslot"
# Prepared statements of a connection. Behind a pooler there are none, unless the URL says `statement_cache_size=100`:
# one that hands connections on between transactions may not know of them.
CACHE = "100"
ESCAPED = "in user and password write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23, [ as %5B"

# The server or the way to it is gone, for now: what is asked again does no harm, so it is.
PASSING = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # of a connection that broke at a bad moment
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
    """One by its URL, or one that a pool of the caller's reaches: that one is never closed here."""

    def __init__(self, url: str = "", pool: Any = None, schema: str | None = None) -> None:
        self.schema, self._dsn, self._cache = taken_apart(url if schema is None else f"?schema={quote(schema)}")
        self._doubtful = bool(self._cache) and "statement_cache_size=" not in url
        self._shown = shown(url) or "PostgreSQL"
        self._pool = pool
        self._theirs = pool is not None
        self._lines: Lines | None = None
        self._closed = False
        self._opening: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beside: dict[asyncio.AbstractEventLoop, AsyncGenerator[Connection]] = {}

    async def open(self) -> None:
        """Connect, and bring the tables up to date; once, by whoever needs it first."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self._within(self._opened()))
        await asyncio.shield(self._opening)

    async def _opened(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self._theirs:
            self._lines = Lines(self._connected, POOL)
        try:
            await self._tried(self._migrated)
        except ValueError:  # it may quote a part of the password
            raise InvalidInput("url", f"{self._shown} cannot be read; {ESCAPED}") from None

    async def close(self) -> None:
        self._closed = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._lines is not None:
            try:
                await asyncio.wait_for(self._lines.close(PATIENCE), PATIENCE)
            except PASSING:
                self._lines.terminate()

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do it, and again when the connection breaks: everything asked here may be asked twice."""
        if self._opening is None or not self._opening.done() or self._opening.exception() is not None:
            await self.open()
        return await self._within(self._tried(work))

    async def run_beside(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """The same from another event loop, on a connection of its own; with their pool, in their loop after all."""
        loop = asyncio.get_running_loop()
        if self._loop is None or loop is self._loop:
            return await self.run(work)
        if self._theirs:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.run(work), self._loop))
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
        connect = cast("Any", asyncpg.connect)
        connection = await asyncio.wait_for(connect(self._dsn, statement_cache_size=self._cache), PATIENCE)
        if self._doubtful:
            self._doubtful = False
            if await _pooled(connection):
                connection.terminate()
                self._cache = 0
                return await self._connected()
        return connection

    @property
    def keeps_state(self) -> bool:
        """Whether a connection of our own stays with one of the server's: no pooler lends it to others."""
        return not self._theirs and self._cache > 0

    async def connected(self) -> Connection:
        """A connection beside the others, for whoever asks; it is theirs to end."""
        return await self._within(self._connected())

    async def _tried(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        wait = 0.02
        while True:
            try:
                if self._lines is None:
                    async with self._pool.acquire() as connection:
                        return await self._worked(connection, work)
                line = await self._lines.take()
                try:
                    return await self._worked(line, work)
                finally:
                    self._lines.give(line)
            except asyncpg.ClientConfigurationError:  # no server was asked
                raise
            except PASSING as exc:
                if self._closed:
                    raise Unavailable("this store is closed; open it again") from exc
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311  (jitter)
                wait = min(wait * 2, 1.0)

    async def _worked(self, connection: Connection, work: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await work(connection)
        except (*PASSING, asyncio.CancelledError):
            connection.terminate()  # whatever state it is in, nobody else shall get it
            raise

    async def _within(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(PATIENCE):
                return await work
        except SaveslotError:
            raise
        except PASSING as exc:
            raise Unavailable(f"{self._shown} does not answer ({exc or type(exc).__name__}); retry") from exc
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as exc:
            raise Unavailable(f"{self._shown} refuses us ({exc}); check user, password and database") from exc
        except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError) as exc:
            hint = "a pooler lends another connection for each transaction; add statement_cache_size=0 to the URL"
            raise Unavailable(f"{self._shown} has lost a prepared statement: {hint}") from exc
        except asyncpg.InsufficientPrivilegeError as exc:
            raise Unavailable(f"{self._shown}: {exc}; `saveslot doctor` says what to grant") from exc
        except (asyncpg.DataError, UnicodeEncodeError) as exc:
            raise InvalidInput("argument", f"cannot be handed to PostgreSQL ({exc})") from exc
        except asyncpg.PostgresError as exc:
            raise Unavailable(f"{self._shown}: {exc}; nothing was acknowledged; retry") from exc

    async def _migrated(self, connection: Connection) -> None:
        scripts = migrations()
        with suppress(asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            # One round trip, without preparing anything: who resumes in a new process waits for it.
            same = f"select from {self.schema}.format where version = {len(scripts)}"
            if await connection.execute(same) == "SELECT 1":
                return
        async with connection.transaction():
            # Of eight processes that open an empty database one migrates and seven wait, then find nothing to do.
            await connection.execute("select pg_advisory_xact_lock($1)", postgres_partitions.lock(self.schema))
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
            if not version:  # nothing is there yet that it could disturb
                await postgres_partitions.make(connection, self.schema)

    async def _version(self, connection: Connection) -> int:
        # The catalog itself: `to_regclass` may still remember that there was none, from before the lock was waited for.
        there = """
            select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where n.nspname = $1 and c.relname = 'format'"""
        if await connection.fetchval(there, self.schema) is None:
            return 0
        version: int = await connection.fetchval(f"select version from {self.schema}.format")  # noqa: S608
        if version > (known := len(migrations())):
            told = f"(format {version}, this one knows {known}); upgrade saveslot"
            raise InvalidInput("url", f"{self._shown} is of a newer Saveslot {told}")
        return version


async def _pooled(connection: Connection) -> bool:
    """Whether somebody stands between us and the server: then another process answers than the one we were told of."""
    try:
        return await connection.fetchval("select pg_backend_pid()") != connection.get_server_pid()
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        return True


@cache
def migrations() -> list[str]:
    """The numbered scripts, oldest first."""
    folder = Path(__file__).with_name("sql")
    return [file.read_text() for file in sorted(folder.glob("postgres_*.sql"))]


def taken_apart(url: str) -> tuple[str, str, int]:
    """The schema that a URL names, the rest of it for the driver, and how many statements that may keep prepared."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidInput("url", f"{shown(url)} cannot be read; {ESCAPED}") from None
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise InvalidInput("url", f"schema {schema!r} must be lower-case letters, digits and underscores")
    cache = options.pop("statement_cache_size", CACHE)
    if not cache.isdecimal():
        raise InvalidInput("url", f"statement_cache_size {cache!r} must be a number, 0 for a pooler of transactions")
    return schema, urlunsplit(parts._replace(query=urlencode(options))), int(cache)
