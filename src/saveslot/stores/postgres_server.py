"""Reaching a PostgreSQL server: a pool, retries, deadlines, migrations, its errors in Saveslot's words."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from saveslot.errors import InvalidInput, SaveslotError, Unavailable
from saveslot.loops import running
from saveslot.metrics import Counters
from saveslot.stores import postgres_partitions, shown
from saveslot.stores.deadlines import Deadlines, Within
from saveslot.stores.lines import Lines

T = TypeVar("T")
Connection = Any  # asyncpg.Connection, or one of its pool: the stubs do not tell them apart

# Every await ends within this: a restart of the server takes seconds, and callers should not wait for ever.
PATIENCE = 30.0
# A connection may be dead without a word. Who waited so long for an answer asks again on a new one, and for that answer
# there is all the time that is left.
SILENCE = 5.0
# One host has so long to let us in before the next one is tried.
WELCOME = 10.0
# Closing, and calling off what nobody waits for any more, needs a round trip. Where there is no way it is left undone.
FAREWELL = 2.0
# A beat that takes longer than a third of its worker's time is worth little, but this much it always has.
BEAT = 2.0
# Connections of one process: two lanes of appends, and readers beside them.
POOL = 10
SCHEMA = "saveslot"
# Prepared statements of a connection. Behind a pooler there are none, unless the URL says `statement_cache_size=100`:
# one that hands connections on between transactions may not know of them.
CACHE = "100"
LAST_PORT = 65535
# Sessions are read where they are written, unless the URL says otherwise: a replica may be behind, or become one.
ATTRIBUTES, PRIMARY = "target_session_attrs", "read-write"
# What the driver takes for these options; anything else it refuses in words of its own.
CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    ATTRIBUTES: ("any", "primary", "standby", PRIMARY, "read-only", "prefer-standby"),
}
ESCAPED = "in user and password write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23, [ as %5B"

# What a replica says to who writes (the second, where that begins with a look at an unlogged table).
READ_ONLY = (asyncpg.ReadOnlySQLTransactionError, asyncpg.FeatureNotSupportedError)
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
    *READ_ONLY,  # a failover is under way
)
# A setting that the URL names and the server does not know, or does not let us choose, or not so.
UNSETTABLE = (asyncpg.UndefinedObjectError, asyncpg.CantChangeRuntimeParamError, asyncpg.InvalidParameterValueError)
# What the driver says of a caller's pool that nobody opened, or somebody closed: no server was asked.
POOL_SHUT = ("pool is not initialized", "pool is closing", "pool is closed")
# What a pooler that does not know of prepared statements makes of them.
STATEMENT_LOST = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
# There are no tables, or none for us.
MISSING = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.InsufficientPrivilegeError)


class Server:
    """One by its URL, or one that a pool of the caller's reaches: that one is never closed here."""

    def __init__(self, url: str = "", pool: Any = None, schema: str | None = None) -> None:
        named, dsn, self._cache = taken_apart(url)
        self.schema = named if schema is None else checked_schema(schema)
        self._hosts = hosts(dsn)  # in the order in which they are tried
        self._doubtful = bool(self._cache) and "statement_cache_size=" not in url
        self._shown = shown(url) or "PostgreSQL"
        self._pool = pool
        self._theirs = pool is not None
        self._lines: Lines | None = None
        self._leaving: set[asyncio.Task[None]] = set()  # of connections that are being called off
        self._deadlines = Deadlines()  # in our loop
        self._closed = False
        self.counters = Counters()
        self._trouble: Exception | None = None  # what the server last said to anybody, until it answers again
        self._current = False  # the tables are known to be up to date
        self._opening: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beside: dict[asyncio.AbstractEventLoop, AsyncGenerator[Connection]] = {}

    async def open(self) -> None:
        """Connect, and bring the tables up to date; once, by whoever needs it first."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self._within(self._opened()))
        await asyncio.shield(self._opening)

    async def _opened(self) -> None:
        self._loop, self._deadlines = asyncio.get_running_loop(), Deadlines()
        if not self._theirs and self._lines is None:
            self._lines = Lines(self._connected, POOL)
        try:
            await self._tried(self._migrated)
        except ValueError as exc:
            raise unreadable(self._shown, exc) from None

    async def close(self) -> None:
        self._closed = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._leaving:
            await asyncio.wait(self._leaving)
        if self._lines is not None:
            try:
                async with asyncio.timeout(FAREWELL):
                    await self._lines.close(FAREWELL)
            except PASSING:
                self._lines.terminate()

    async def run(self, work: Callable[[Connection], Awaitable[T]], within: float | None = None) -> T:
        """Do it, and again when the connection breaks: everything asked here may be asked twice."""
        if self._opening is None or not self._opening.done() or self._opening.exception() is not None:
            await self.open()
        return await self._within(self._tried(work, SILENCE), within)

    async def run_beside(self, work: Callable[[Connection], Awaitable[T]], within: float | None = None) -> T:
        """The same from another event loop, on a connection of its own; with their pool, in their loop after all."""
        loop = asyncio.get_running_loop()
        if self._loop is None or loop is self._loop:
            return await self.run(work, within)
        if self._theirs:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.run(work, within), self._loop))
        return await self._within(self._once_beside(work, loop), within)

    async def _once_beside(self, work: Callable[[Connection], Awaitable[T]], loop: asyncio.AbstractEventLoop) -> T:
        connection = await anext(self._beside.setdefault(loop, self._kept(loop)))
        return await self._worked(connection, work)

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
                await _called_off(connection)

    async def _connected(self) -> Connection:
        """To the first host that takes writes, or whatever else the URL asks for."""
        connect = cast("Any", asyncpg.connect)
        failed: Exception = Unavailable("no host is named")
        for host in list(self._hosts):
            self._hosts.sort(key=host.__eq__)  # the last to be tried, until it lets us in
            try:
                # Not wait_for: up to Python 3.11 it may swallow a cancellation, and with it the deadline of the call.
                async with asyncio.timeout(WELCOME):
                    connection = await connect(host, statement_cache_size=self._cache)
                    settled = self._cache > 0 and await self._settled(connection)
                    pooled = self._cache > 0 and not settled and self._doubtful
            except asyncpg.ClientConfigurationError:  # no server was asked
                raise
            except UNSETTABLE as exc:
                raise InvalidInput("url", f"{self._shown}: {exc}; correct the option, or take it out") from None
            except asyncpg.TargetServerAttributeNotMatched as exc:
                if barred := await _barred_at(host):
                    raise Unavailable(f"{self._shown} {barred}") from exc
                failed = exc
                continue
            except STATEMENT_LOST:
                if not self._doubtful:
                    raise
                pooled, connection = True, None  # a pooler lost the driver's own question
            except PASSING as exc:
                failed = exc
                continue
            self._hosts.sort(key=host.__ne__)
            self._doubtful = False
            if not pooled:
                return connection
            if connection is not None:
                connection.terminate()
            self._cache = 0
            return await self._connected()
        raise failed

    async def _settled(self, connection: Connection) -> bool:
        """The first time the same round trip tells whether the tables are up to date: who resumes waits for it."""
        if not self._current:
            self._current = await _settled(connection, f'"{self.schema}".format where version = {len(migrations())}')
            if self._current:
                return True
        return await _settled(connection)

    @property
    def keeps_state(self) -> bool:
        """Whether a connection of our own stays with one of the server's: no pooler lends it to others."""
        return not self._theirs and self._cache > 0

    async def connected(self) -> Connection:
        """A connection beside the others, for whoever asks; it is theirs to end."""
        return await self._within(self._connected())

    async def _tried(self, work: Callable[[Connection], Awaitable[T]], silence: float | None = None) -> T:
        clock = asyncio.get_running_loop().time
        wait, began = 0.02, clock()
        while True:
            answer = self._deadlines.within(silence)
            try:
                if self._lines is None:
                    connection = await self._pool.acquire()
                    try:
                        with answer:
                            done = await self._worked(connection, work)
                    finally:  # a pool asks the server once more, and would wait for ever
                        await self._pool.release(connection, timeout=SILENCE)
                else:
                    done = await self._by_line(self._lines, work, answer)
                self._trouble = None
                return done
            except asyncpg.ClientConfigurationError:  # no server was asked
                raise
            except PASSING as exc:
                if self._closed:
                    raise Unavailable("this store is closed; open it again") from exc
                if self._theirs and str(exc) in POOL_SHUT:
                    hint = "await asyncpg.create_pool(url), and close it after the manager"
                    raise Unavailable(f"the {exc} (db_pool): {hint}") from exc
                self.counters.retries += 1
                self._trouble = exc
                if clock() - began > PATIENCE:  # whatever became of the deadline on its way here
                    raise
                if silence is not None and answer.expired:
                    silence = None
                    if self._lines is not None:
                        self._lines.doubt()
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311  (jitter)
                wait = min(wait * 2, 1.0)

    async def _by_line(self, lines: Lines, work: Callable[[Connection], Awaitable[T]], answer: Within) -> T:
        line = await lines.take()
        try:
            with answer:
                done = await self._allowed(line, work)
        except BaseException as exc:
            if answer.expired or isinstance(exc, asyncio.CancelledError):  # whoever waited need not wait for this
                leaving = asyncio.ensure_future(_called_off(line))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
                leaving.add_done_callback(lambda _: lines.give(line))
            else:
                if isinstance(exc, PASSING):
                    line.terminate()  # whatever state it is in, nobody else shall get it
                lines.give(line)
            raise
        lines.give(line)
        return done

    async def _allowed(self, connection: Connection, work: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await work(connection)
        except asyncpg.ReadOnlySQLTransactionError as exc:
            if barred := await _barred(connection):
                raise Unavailable(f"{self._shown} {barred}") from exc
            raise

    async def _worked(self, connection: Connection, work: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await self._allowed(connection, work)
        except asyncio.CancelledError:
            await _called_off(connection)
            raise
        except PASSING:
            connection.terminate()  # whatever state it is in, nobody else shall get it
            raise

    async def _within(self, work: Awaitable[T], within: float | None = None) -> T:
        deadlines = self._deadlines if running() is self._loop else Deadlines()
        try:
            with deadlines.within(PATIENCE if within is None else min(PATIENCE, max(BEAT, within))):
                return await work
        except SaveslotError:
            raise
        except PASSING as exc:
            _hushed(exc)
            raise self._unavailable(exc) from exc
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as exc:
            raise Unavailable(f"{self._shown} refuses us ({exc}); check user, password and database") from exc
        except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError) as exc:
            hint = "a pooler lends another connection for each transaction; add statement_cache_size=0 to the URL"
            raise Unavailable(f"{self._shown} has lost a prepared statement: {hint}") from exc
        except asyncpg.InsufficientPrivilegeError as exc:
            raise Unavailable(f"{self._shown}: {exc}; `saveslot doctor` says what to grant") from exc
        except (asyncpg.DataError, UnicodeEncodeError) as exc:
            _hushed(exc)
            raise InvalidInput("argument", f"cannot be handed to PostgreSQL ({exc})") from exc
        except asyncpg.PostgresError as exc:
            _hushed(exc)
            raise Unavailable(f"{self._shown}: {exc}; nothing was acknowledged; retry") from exc

    def _unavailable(self, exc: Exception) -> Unavailable:
        told = self._trouble if isinstance(exc, TimeoutError) and self._trouble is not None else exc
        if isinstance(told, (asyncpg.TargetServerAttributeNotMatched, *READ_ONLY)):
            hint = "name the primary or all hosts, then retry (to look at a replica: target_session_attrs=any)"
            hint += "; if it is none, `saveslot doctor` says what else it may be"
            return Unavailable(f"{self._shown} takes no writes, as a replica; {hint}")
        return Unavailable(f"{self._shown} does not answer ({str(told) or type(told).__name__}); retry")

    async def _migrated(self, connection: Connection) -> None:
        if self._current:
            return
        scripts = migrations()
        with suppress(asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            # One round trip, without preparing anything: who resumes in a new process waits for it.
            same = f'select from "{self.schema}".format where version = {len(scripts)}'
            if await connection.execute(same) == "SELECT 1":
                return
        async with connection.transaction():
            # Of eight processes that open an empty database one migrates and seven wait, then find nothing to do.
            await connection.execute("select pg_advisory_xact_lock($1)", postgres_partitions.lock(self.schema))
            version = await self._version(connection)
            if version == len(scripts):
                return
            if not version:
                # Looked for first: `if not exists` asks for the right to make one, also where there is nothing to do.
                if not await connection.fetchval("select 1 from pg_namespace where nspname = $1", self.schema):
                    await connection.execute(f'create schema if not exists "{self.schema}"')
                await connection.execute(f'create table if not exists "{self.schema}".format (version int not null)')
                await connection.execute(f'insert into "{self.schema}".format values (0)')  # noqa: S608
            await connection.execute(f'set local search_path to "{self.schema}"')
            for script in scripts[version:]:
                await connection.execute(script)
            await connection.execute(f'update "{self.schema}".format set version = $1', len(scripts))  # noqa: S608
            if not version:  # nothing is there yet that it could disturb
                await postgres_partitions.make(connection, self.schema)

    async def _version(self, connection: Connection) -> int:
        # The catalog itself: `to_regclass` may still remember that there was none, from before the lock was waited for.
        there = """
            select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where n.nspname = $1 and c.relname = 'format'"""
        if await connection.fetchval(there, self.schema) is None:
            return 0
        version: int = await connection.fetchval(f'select version from "{self.schema}".format')  # noqa: S608
        if version > (known := len(migrations())):
            told = f"(format {version}, this one knows {known}); upgrade saveslot"
            raise InvalidInput("url", f"{self._shown} is of a newer Saveslot {told}")
        return version


async def _settled(connection: Connection, known: str = "(values (0)) t where true") -> bool:
    """Let our statements keep their plans: with partitions PostgreSQL would rather plan them anew each time.

    False if somebody stands between us and the server, so that another process answers than the one we were told of:
    that one may be lent to others, and is left as it is. Or if there is not what is `known`.
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


async def set_read_only(connection: Connection) -> tuple[str, str] | None:
    """Of a server that is no replica, and yet takes no writes from us: where that was set, and how to take it back."""
    found = await connection.fetchrow("""
        select source, quote_ident(current_user), quote_ident(current_database()) from pg_settings
        where name = 'default_transaction_read_only' and setting = 'on' and not pg_is_in_recovery()""")
    return None if found is None else (found[0], _writable(*found))


async def _barred(connection: Connection) -> str | None:
    """That it is set so for us. Set for the whole server it may pass: a failover or a full disk may be behind it."""
    source, cure = await set_read_only(connection) or ("", "")
    if not cure or source in {"configuration file", "command line"}:
        return None
    return f"takes no writes: default_transaction_read_only is on; {cure}"


async def _barred_at(host: str) -> str | None:
    parts = urlsplit(host)
    options = dict(parse_qsl(parts.query))
    if options[ATTRIBUTES] != PRIMARY:  # something else is wanted than writes
        return None
    options[ATTRIBUTES] = "any"
    connect = cast("Any", asyncpg.connect)
    try:
        async with asyncio.timeout(WELCOME):
            connection = await connect(urlunsplit(parts._replace(query=urlencode(options))), statement_cache_size=0)
            try:
                return await _barred(connection)
            finally:
                connection.terminate()
    except PASSING:
        return None


def _writable(source: str, role: str, database: str) -> str:
    name = "default_transaction_read_only"
    if source in {"default", "configuration file"}:
        return f"alter system reset {name}; select pg_reload_conf()"
    whose = {
        "user": f"alter role {role} reset {name}",
        "database": f"alter database {database} reset {name}",
        "database user": f"alter role {role} in database {database} reset {name}",
        "command line": f"start the server without {name} on its command line",
    }
    return whose.get(source, f"take {name} out of the URL (or out of what the pool sets)")


def _hushed(exc: BaseException) -> None:
    """Take from a server's error what quotes rows: errors and logs carry ids, never what was saved."""
    told = cast("Any", exc)
    if getattr(told, "detail", None):
        told.detail = None
    if getattr(told, "context", None):
        told.context = None


async def _called_off(connection: Connection) -> None:
    """Close it, and let the server know that nobody waits for an answer any more."""
    try:
        async with asyncio.timeout(FAREWELL):
            await connection.close(timeout=FAREWELL)
    except PASSING:
        connection.terminate()


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
    if parts.netloc.count("@") > 1:  # the driver ends the password at the first one, and takes the rest for a host
        raise InvalidInput("url", f"{shown(url)} has an @ too many before its host; {ESCAPED}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = checked_schema(options.pop("schema", SCHEMA))
    cache = options.pop("statement_cache_size", CACHE)
    if not cache.isdecimal():
        raise InvalidInput("url", f"statement_cache_size {cache!r} must be a number, 0 for a pooler of transactions")
    for name, choices in CHOICES.items():
        if options.get(name) and options[name] not in choices:
            raise InvalidInput("url", f"{name} {options[name]!r} must be one of {', '.join(choices)}")
    if "," in parts.netloc or "," in options.get("host", ""):
        options.setdefault(ATTRIBUTES, PRIMARY)
    for port in _ports(parts.netloc, options):
        if not 0 < int(port) <= LAST_PORT:  # the driver would wrap it around
            raise InvalidInput("url", f"{shown(url)} names port {port}; the last one is {LAST_PORT}")
    return schema, urlunsplit(parts._replace(query=urlencode(options))), int(cache)


def checked_schema(name: str) -> str:
    """A name that PostgreSQL takes as it is, when it is quoted."""
    if name == "":
        raise InvalidInput("schema", f"must not be empty; leave it out for {SCHEMA!r}")
    if not isinstance(cast("object", name), str) or not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise InvalidInput("schema", f"{name!r} must be lower-case letters, digits and underscores, 63 at most")
    if name.startswith("pg_"):
        raise InvalidInput("schema", f"{name!r} begins with pg_: such names are PostgreSQL's own; choose another")
    return name


def unreadable(place: str, exc: ValueError) -> InvalidInput:
    """A URL that the driver cannot use. Only its words about options are shown: others may quote a password."""
    told = str(exc)
    if isinstance(exc, asyncpg.ClientConfigurationError) and re.search(r"ssl|TLS|certificate|gsslib|attrs", told):
        return InvalidInput("url", f"{place} cannot be used: {told}")
    return InvalidInput("url", f"{place} cannot be read; {ESCAPED}")


def _ports(netloc: str, options: dict[str, str]) -> list[str]:
    """Those that are numbers; of anything else the driver says that it cannot be read."""
    names = netloc.rpartition("@")[2].split(",")
    told = [name.rpartition("]")[2].rpartition(":")[2] for name in names if ":" in name.rpartition("]")[2]]
    return [port for port in [*told, *options.get("port", "").split(",")] if port.isdecimal()]


def hosts(dsn: str) -> list[str]:
    """A DSN for each host that this one names: the driver alone gives up when one of them is silent or broken."""
    parts = urlsplit(dsn)
    options = dict(parse_qsl(parts.query))
    options.setdefault(ATTRIBUTES, os.environ.get("PGTARGETSESSIONATTRS", PRIMARY))
    user, at, names = parts.netloc.rpartition("@")
    if names or "host" not in options:
        found = [parts._replace(netloc=f"{user}{at}{name}", query=urlencode(options)) for name in names.split(",")]
    else:
        ports = options.get("port", "").split(",")
        folders = options["host"].split(",")
        each = zip(folders, ports * len(folders) if len(ports) == 1 else ports, strict=False)
        told = [options | {"host": folder} | ({"port": port} if port else {}) for folder, port in each]
        found = [parts._replace(query=urlencode(one)) for one in told]
    return [urlunsplit(one) for one in found]
