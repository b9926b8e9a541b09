"""Connections to a PostgreSQL server: retries, deadlines, and its errors translated to Saveslot's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from saveslot.errors import Forbidden, InvalidInput, SaveslotError, Unauthorized, Unavailable
from saveslot.stores import shown
from saveslot.stores.postgres.anchor import ANCHORED
from saveslot.stores.postgres.readonly import why_read_only
from saveslot.stores.postgres.schema import migrate, migrations, stored_version
from saveslot.stores.postgres.url import ATTRIBUTES, PRIMARY, checked_schema, hosts, parse_url, unreadable
from saveslot.stores.wire.deadlines import Deadlines, Within
from saveslot.stores.wire.loops import running
from saveslot.stores.wire.metrics import Counters
from saveslot.stores.wire.pool import Pool

T = TypeVar("T")
Connection = Any  # asyncpg.Connection, or one of its pool: the stubs do not tell them apart

# Seconds that a call may take: a restart of the server takes a few, and callers must not wait for ever.
PATIENCE = 30.0
# Seconds for which a caller in a hurry, such as a command, tries a host that is unknown or refuses connections.
HURRY = 0.3
# Seconds without an answer after which a connection may be dead: the call is repeated on a new one, which may take all
# the time left.
SILENCE = 5.0
# Seconds to connect to one host before the next one is tried.
WELCOME = 10.0
# Seconds for closing a connection or cancelling a query, which take a round trip; after that they are skipped.
FAREWELL = 2.0
# Seconds that a heartbeat gets at least, even where a third of the worker's time to live is less.
BEAT = 2.0
# Connections per process: two lanes of appends, and readers beside them.
POOL = 10
# The server or the network is down for now. Every statement may run twice, so it is retried.
PASSING = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the connection broke at a bad moment
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.ReadOnlySQLTransactionError,  # a failover is under way
)
# The URL sets an option that the server does not know, does not let us set, or not to that value.
UNSETTABLE = (asyncpg.UndefinedObjectError, asyncpg.CantChangeRuntimeParamError, asyncpg.InvalidParameterValueError)
# The driver's messages about a caller's pool that is not open; nothing reached a server.
POOL_SHUT = ("pool is not initialized", "pool is closing", "pool is closed")
# Errors behind a pooler that does not support prepared statements.
STATEMENT_LOST = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
# The tables do not exist, or this role may not see them.
MISSING = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.InsufficientPrivilegeError,
)


class Server:
    """A server given by URL, or reached by the caller's pool, which is never closed here."""

    def __init__(self, url: str = "", pool: Any = None, schema: str | None = None, *, patient: bool = True) -> None:
        named, dsn, self._cache = parse_url(url)
        self.schema = named if schema is None else checked_schema(schema)
        self._hosts = hosts(dsn)  # in the order in which they are tried
        self._doubtful = bool(self._cache) and "statement_cache_size=" not in url
        self._shown = shown(url) or "PostgreSQL"
        self._pool = pool
        self._theirs = pool is not None
        self._connections: Pool | None = None
        self._leaving: set[asyncio.Task[None]] = set()  # connections that are being closed
        self._deadlines = Deadlines()  # of the store's event loop
        self._closed = False
        self._reached = False  # a server has accepted a connection
        self._patient = patient
        self.counters = Counters()
        self._trouble: Exception | None = None  # the last error of any call, until the server answers again
        self._current = False  # the tables are known to be up to date
        self._opening: asyncio.Task[None] | None = None
        self._making: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beside: dict[asyncio.AbstractEventLoop, AsyncGenerator[Connection]] = {}

    def __repr__(self) -> str:
        return self._shown

    async def open(self) -> None:
        """Connect, and migrate tables of an older format. The first caller does it; the others wait for it."""
        if _failed(self._opening):
            self._opening = asyncio.ensure_future(self._within(self._opened()))
        await asyncio.shield(cast("asyncio.Task[None]", self._opening))

    async def _opened(self) -> None:
        self._loop, self._deadlines = asyncio.get_running_loop(), Deadlines()
        if not self._theirs and self._connections is None:
            self._connections = Pool(self._connected, POOL)
            self.counters.pool = self._connections.metrics
        try:
            if not self._current:
                await self._tried(self._look)
        except ValueError as exc:
            raise unreadable(self._shown, exc) from None

    async def _look(self, connection: Connection) -> None:
        """Find out whether there are tables, and migrate those of an older format."""
        if await stored_version(connection, self.schema, self._shown):
            await self._migrate(connection)

    async def _migrate(self, connection: Connection) -> None:
        await migrate(connection, self.schema, self._shown)
        self._current = True

    async def _made(self) -> None:
        """Create the tables for the first write. The first caller does it; the others wait for it."""
        await self.open()
        if self._current:
            return
        if _failed(self._making):
            self._making = asyncio.ensure_future(self._within(self._tried(self._migrate)))
        await asyncio.shield(cast("asyncio.Task[None]", self._making))

    async def close(self) -> None:
        self._closed = True
        for task in (self._opening, self._making):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        if self._leaving:
            await asyncio.wait(self._leaving)
        if self._connections is not None:
            try:
                async with asyncio.timeout(FAREWELL):
                    await self._connections.close(FAREWELL)
            except PASSING:
                self._connections.terminate()

    async def run(self, work: Callable[[Connection], Awaitable[T]], within: float | None = None) -> T:
        """Run `work`, again if the connection breaks: every statement here may run twice. Creates missing tables."""
        if not self._current:
            await self._made()
        return await self.ask(work, within)

    async def look(self, work: Callable[[Connection], Awaitable[T]], blank: T) -> T:
        """Run `work`, which reads; return `blank` while there are no tables."""
        if not self._current:
            await self.open()
            if not self._current:
                await self.ask(self._look)
                if not self._current:
                    return blank
        return await self.ask(work)

    async def ask(self, work: Callable[[Connection], Awaitable[T]], within: float | None = None) -> T:
        """Run `work`, which needs no tables."""
        if self._opening is None or not self._opening.done() or self._opening.exception() is not None:
            await self.open()
        return await self._within(self._tried(work, SILENCE), within)

    async def run_beside(self, work: Callable[[Connection], Awaitable[T]], within: float | None = None) -> T:
        """Run `work` from another event loop, on its own connection. A caller's pool runs it in the store's loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None or loop is self._loop:
            return await self.run(work, within)
        if self._theirs:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.run(work, within), self._loop))
        return await self._within(self._once_beside(work, loop), within)

    async def alone(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` on a connection of its own, once, for as long as it takes."""
        if self._theirs:
            async with self._pool.acquire() as connection:
                return await work(connection)
        connection = await self._within(self._connected())
        try:
            return await work(connection)
        except PASSING as exc:
            raise self._unavailable(exc) from exc
        finally:
            await _close_now(connection)

    async def _once_beside(self, work: Callable[[Connection], Awaitable[T]], loop: asyncio.AbstractEventLoop) -> T:
        connection = await anext(self._beside.setdefault(loop, self._kept(loop)))
        return await self._worked(connection, work)

    async def _kept(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Connection]:
        """A connection that is closed with its event loop: asyncio closes async generators then."""
        connection: Any = None
        try:
            while True:
                if connection is None or connection.is_closed():
                    connection = await self._connected()
                yield connection
        finally:
            self._beside.pop(loop, None)
            if connection is not None:
                await _close_now(connection)

    async def _connected(self) -> Connection:
        """Connect to the first host that accepts writes, or has the `target_session_attrs` of the URL."""
        connect = cast("Any", asyncpg.connect)
        failed: Exception = Unavailable("the URL names no host")
        for host in list(self._hosts):
            self._hosts.sort(key=host.__eq__)  # tried last from now on, until a connection succeeds
            try:
                # Not wait_for: up to Python 3.11 it may swallow a cancellation, and with it the deadline of the call.
                async with asyncio.timeout(WELCOME):
                    connection = await connect(host, statement_cache_size=self._cache)
                    settled = self._cache > 0 and await self._settled(connection)
                    pooled = self._cache > 0 and not settled and self._doubtful
            except asyncpg.ClientConfigurationError:  # nothing reached a server
                raise
            except UNSETTABLE as exc:
                raise InvalidInput("url", f"{self._shown}: {exc}; correct or remove the option") from None
            except asyncpg.TargetServerAttributeNotMatched as exc:
                if barred := await _barred_at(host):
                    raise Unavailable(f"{self._shown} {barred}") from exc
                failed = exc
                continue
            except STATEMENT_LOST:
                if not self._doubtful:
                    raise
                pooled, connection = True, None  # a pooler lost the driver's own statement
            except PASSING as exc:
                failed = exc
                continue
            self._hosts.sort(key=host.__ne__)
            self._doubtful, self._reached = False, True
            if not pooled:
                return connection
            if connection is not None:
                connection.terminate()
            self._cache = 0
            return await self._connected()
        raise failed

    async def _settled(self, connection: Connection) -> bool:
        """Fix plans; the first time, check the tables' format in the same round trip, since a resume waits for it."""
        if await _settled(connection, f'"{self.schema}".format where version = {len(migrations())} and {ANCHORED}'):
            self._current = True
            return True
        if settled := await _settled(connection):
            self.recheck()
        return settled

    def recheck(self) -> None:
        """Look at the tables again before the next call: this is another server, or it was promoted."""
        if self._current:
            self._current, self._opening, self._making = False, None, None

    @property
    def keeps_state(self) -> bool:
        """True if each of our connections keeps its server process: no pooler lends it to other clients."""
        return not self._theirs and self._cache > 0

    async def connected(self) -> Connection:
        """A connection outside the pool. The caller closes it."""
        return await self._within(self._connected())

    async def _tried(self, work: Callable[[Connection], Awaitable[T]], silence: float | None = None) -> T:
        clock = asyncio.get_running_loop().time
        wait, began = 0.02, clock()
        while True:
            answer = self._deadlines.within(silence)
            try:
                if self._connections is None:
                    connection = await self._pool.acquire()
                    try:
                        with answer:
                            done = await self._worked(connection, work)
                    finally:  # release() resets the connection, and would wait for ever
                        await self._pool.release(connection, timeout=SILENCE)
                else:
                    done = await self._pooled(self._connections, work, answer)
                self._trouble = None
                return done
            except asyncpg.ClientConfigurationError:  # nothing reached a server
                raise
            except PASSING as exc:
                if self._closed:
                    raise Unavailable("this store is closed; open it again") from exc
                if self._theirs and str(exc) in POOL_SHUT:
                    hint = "await asyncpg.create_pool(url), and close it after the manager"
                    raise Unavailable(f"the {exc} (db_pool): {hint}") from exc
                self.counters.retries += 1
                self._trouble = exc
                if not (self._patient or self._reached) and absent(exc) and clock() - began > HURRY:
                    why = f"{str(exc) or type(exc).__name__}, tried for {HURRY:g} s"
                    hint = "start the server, or correct host and port"
                    raise Unavailable(f"no PostgreSQL answers at {self._shown} ({why}); {hint}") from None
                if clock() - began > PATIENCE:  # even if the deadline's cancellation was swallowed
                    raise
                if silence is not None and answer.expired:
                    silence = None
                    if self._connections is not None:
                        self._connections.doubt()
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311  (jitter)
                wait = min(wait * 2, 1.0)

    async def _pooled(self, pool: Pool, work: Callable[[Connection], Awaitable[T]], answer: Within) -> T:
        connection = await pool.take()
        try:
            with answer:
                done = await self._allowed(connection, work)
        except BaseException as exc:
            if answer.expired or isinstance(exc, asyncio.CancelledError):  # close it without keeping the caller waiting
                leaving = asyncio.ensure_future(_close_now(connection))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
                leaving.add_done_callback(lambda _: pool.give(connection))
            else:
                if isinstance(exc, PASSING):
                    connection.terminate()  # its state is unknown: no other caller may get it
                pool.give(connection)
            raise
        pool.give(connection)
        return done

    async def _allowed(self, connection: Connection, work: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await work(connection)
        except asyncpg.ReadOnlySQLTransactionError as exc:
            if barred := await why_read_only(connection):
                raise Unavailable(f"{self._shown} {barred}") from exc
            raise

    async def _worked(self, connection: Connection, work: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await self._allowed(connection, work)
        except asyncio.CancelledError:
            await _close_now(connection)
            raise
        except PASSING:
            connection.terminate()  # its state is unknown: no other caller may get it
            raise

    async def _within(self, work: Awaitable[T], within: float | None = None) -> T:
        deadlines = self._deadlines if running() is self._loop else Deadlines()
        try:
            with deadlines.within(PATIENCE if within is None else min(PATIENCE, max(BEAT, within))):
                return await work
        except SaveslotError:
            raise
        except PASSING as exc:
            _redact(exc)
            raise self._unavailable(exc) from exc
        except asyncpg.InvalidCatalogNameError as exc:
            raise Unavailable(f"{self._shown}: {exc}; create it (createdb), or name another one") from exc
        except asyncpg.InvalidAuthorizationSpecificationError as exc:
            # Once connected, the lost answer to a write may be the cause: it is then unknown, and retried.
            kind = Unavailable if self._reached else Unauthorized
            raise kind(f"{self._shown} refuses the connection ({exc}); check user, password and database") from exc
        except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError) as exc:
            hint = "a pooler may switch connections per transaction; add statement_cache_size=0 to the URL"
            raise Unavailable(f"{self._shown} lost a prepared statement: {hint}") from exc
        except asyncpg.InsufficientPrivilegeError as exc:
            raise Forbidden(f"{self._shown}: {exc}; `saveslot doctor` says what to grant") from exc
        except (asyncpg.DataError, UnicodeEncodeError) as exc:
            _redact(exc)
            raise InvalidInput("argument", f"cannot be stored in PostgreSQL ({exc})") from exc
        except asyncpg.PostgresError as exc:
            _redact(exc)
            raise Unavailable(f"{self._shown}: {exc}; nothing was acknowledged; retry") from exc

    def _unavailable(self, exc: Exception) -> Unavailable:
        cause = self._trouble if isinstance(exc, TimeoutError) and self._trouble is not None else exc
        if isinstance(cause, (asyncpg.TargetServerAttributeNotMatched, asyncpg.ReadOnlySQLTransactionError)):
            hint = "name the primary or all hosts, then retry (to read from a replica: target_session_attrs=any)"
            hint += "; if it is not a replica, `saveslot doctor` shows other causes"
            return Unavailable(f"{self._shown} refuses writes, as a replica does; {hint}")
        return Unavailable(f"{self._shown} does not answer ({str(cause) or type(cause).__name__}); retry")


def absent(exc: BaseException) -> bool:
    """True if there is no server: the host is unknown, or refuses connections."""
    return isinstance(exc, OSError) and not isinstance(exc, TimeoutError | ConnectionResetError | BrokenPipeError)


def _failed(task: asyncio.Task[None] | None) -> bool:
    """True if the task was never started, or raised."""
    return task is None or (task.done() and task.exception() is not None)


async def _settled(connection: Connection, known: str = "(values (0)) t where true") -> bool:
    """Make our statements keep their plans: on partitioned tables PostgreSQL would replan them each time.

    False if a pooler sits in between, so that another server process answers than the one we connected to: it may be
    lent to other clients, and its settings stay. Also False if `known` does not hold.
    """
    settled = f"""
        select set_config('plan_cache_mode', 'force_generic_plan', false)
        from {known} and pg_backend_pid() = {connection.get_server_pid()}"""  # noqa: S608
    try:
        return await connection.execute(settled) == "SELECT 1"  # one round trip: nothing is prepared
    except MISSING:
        return False
    except BaseException:
        connection.terminate()
        raise


async def _barred_at(host: str) -> str | None:
    parts = urlsplit(host)
    options = dict(parse_qsl(parts.query))
    if options[ATTRIBUTES] != PRIMARY:  # the caller does not need writes
        return None
    options[ATTRIBUTES] = "any"
    connect = cast("Any", asyncpg.connect)
    try:
        async with asyncio.timeout(WELCOME):
            connection = await connect(urlunsplit(parts._replace(query=urlencode(options))), statement_cache_size=0)
            try:
                return await why_read_only(connection)
            finally:
                connection.terminate()
    except PASSING:
        return None


def _redact(exc: BaseException) -> None:
    """Remove row contents from a server's error: errors and logs carry ids, never saved data."""
    error = cast("Any", exc)
    if getattr(error, "detail", None):
        error.detail = None
    if getattr(error, "context", None):
        error.context = None


async def _close_now(connection: Connection) -> None:
    """Close the connection and cancel its query on the server."""
    try:
        async with asyncio.timeout(FAREWELL):
            await connection.close(timeout=FAREWELL)
    except PASSING:
        connection.terminate()
