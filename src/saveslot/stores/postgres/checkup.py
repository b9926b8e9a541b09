"""Checks of a PostgreSQL store, with advice. Read-only."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import asyncpg

from saveslot.errors import InvalidInput, Unavailable
from saveslot.stores import shown
from saveslot.stores.findings import NAMED, Finding, Logs, Progress, few, problem, warning
from saveslot.stores.postgres import partitions
from saveslot.stores.postgres.connection import Connection
from saveslot.stores.postgres.readonly import set_read_only
from saveslot.stores.postgres.rows import fetched
from saveslot.stores.postgres.schema import migrations
from saveslot.stores.postgres.statements import LABELS_OF, OWNED, ROW
from saveslot.stores.postgres.url import ATTRIBUTES, parse_url, unreadable
from saveslot.stores.stored import shown_text, to_row
from saveslot.values.words import many, size, span

TABLES = True
# Older versions are not tested, and their support ends by November 2026.
OLDEST = 15
# Seconds to connect, and for one query (a count of a large table).
PATIENCE, LONGEST = 10.0, 600.0
# Milliseconds of a round trip; more slows down every save.
FAR = 20.0
# Lag of a replica, in seconds and in bytes, that is more than a hiccup.
LATE, BEHIND = 30.0, 256_000_000
# Seconds. Running workers claim an orphan sooner; an older one has no worker to claim it.
FORGOTTEN = 60
# Seconds after which an open transaction counts as forgotten.
OPEN = 60
# Sessions in the sample, and entries after which no further session is checked.
SAMPLE, MOST = 200, 20_000

OFF = ("off", "false", "no", "0")
DANGERS = {
    "fsync": "a power cut or a crash of the machine can destroy the whole database",
    "full_page_writes": "a power cut can leave half-written pages (only a file system like ZFS prevents that)",
    "synchronous_commit": "a crash of the server loses what was acknowledged in the last moments",
}
GRANTED = ("checkpoints", "sessions", "labels", "workers", "format")


async def check(url: str, progress: Progress, *, every: bool = False) -> AsyncGenerator[Finding | Logs]:
    """All findings, from the outside in; a broken layer ends the check. `every`: look at all sessions, not a sample."""
    schema, _, _ = parse_url(url)
    progress("server", 0, 0)
    try:
        async with looking(url) as connection:
            yield _version(connection, url)
            yield await _round_trip(connection)
            yield await _settings(connection)
            yield await _checksums(connection)
            if finding := await _read_only(connection):
                yield finding
            async for finding in _replication(connection):
                yield finding
            for look in (_rights, _format):
                finding = await look(connection, schema)
                yield finding
                if finding.state != "ok":
                    return
            yield await _counts(connection, schema)
            yield await _partitions(connection, schema)
            yield await _owners(connection, schema)
            if finding := await _hollow(connection, schema):
                yield finding
            if finding := await _open_transactions(connection):
                yield finding
            drawn = f"{ROW} from {OWNED} order by random() limit $2".replace("{s}", f'"{schema}"')
            if finding := await _labels(connection, schema):
                yield finding
            rows = [to_row(row) for row in await fetched(connection, drawn, "{null,null}", None if every else SAMPLE)]
            entries: int = await connection.fetchval(f'select count(*) from "{schema}".checkpoints')  # noqa: S608
    except (InvalidInput, Unavailable) as exc:
        yield problem("server", *str(exc).split("; ", 1))
        return
    here = url if ATTRIBUTES in url else f"{url}{'&' if '?' in url else '?'}{ATTRIBUTES}=any"  # also on a replica
    yield Logs(here, rows, entries, None if every else MOST)


@asynccontextmanager
async def looking(url: str) -> AsyncGenerator[Connection]:
    """A connection whose errors are translated to Saveslot's."""
    _, dsn, _ = parse_url(url)
    with _translated(url):
        connect = cast("Any", asyncpg.connect)  # the stubs want whole seconds
        connection = await connect(dsn, timeout=PATIENCE, command_timeout=LONGEST, statement_cache_size=0)
        try:
            yield connection
        finally:
            await connection.close(timeout=PATIENCE)


@contextmanager
def _translated(url: str) -> Generator[None]:
    place = shown(url)
    try:
        yield
    except asyncpg.InvalidCatalogNameError as exc:
        raise Unavailable(f"{place}: {exc}; create it (createdb), or name another one") from None
    except asyncpg.InvalidAuthorizationSpecificationError as exc:
        raise Unavailable(f"{place} refused the connection ({exc}); check user, password and pg_hba.conf") from None
    except asyncpg.PostgresError as exc:
        raise Unavailable(f"{place}: {exc}") from None
    except ValueError as exc:
        raise unreadable(place, exc) from None
    except (OSError, asyncpg.InterfaceError) as exc:
        hint = "start the server, or correct host and port"
        raise Unavailable(f"{place} does not answer ({str(exc) or type(exc).__name__}); {hint}") from None


async def formats(url: str) -> tuple[int, int]:
    """The format of the tables, 0 if there are none, and the newest one that this Saveslot knows."""
    async with looking(url) as connection:
        return await _formats(connection, parse_url(url)[0])


async def _formats(connection: Connection, schema: str) -> tuple[int, int]:
    version = f'select version from "{schema}".format'  # noqa: S608
    stored: int = await connection.fetchval(version) if await _there(connection, schema) else 0
    return stored, len(migrations())


async def _there(connection: Connection, schema: str) -> bool:
    sql = "select 1 from pg_tables where schemaname = $1 and tablename = 'format'"
    return await connection.fetchval(sql, schema) is not None


# The server


def _version(connection: Connection, url: str) -> Finding:
    version = connection.get_server_version()
    text = f"PostgreSQL {version.major}.{version.minor} at {shown(url)}"
    if version.major < OLDEST:
        return problem("server", text, f"upgrade it: Saveslot is tested on PostgreSQL {OLDEST} and newer")
    return Finding("server", text)


async def _round_trip(connection: Connection) -> Finding:
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        await connection.execute("select 1")
        times.append((time.perf_counter() - began) * 1000)
    text = f"{sorted(times)[2]:.2g} ms"
    if sorted(times)[2] > FAR:
        return warning("round trip", text, "every save takes at least this long; run the agents closer to the database")
    return Finding("round trip", text)


async def _settings(connection: Connection) -> Finding:
    """Durability settings of this connection, and overrides for other roles of this database."""
    rows = await connection.fetch(
        "select name, setting, source from pg_settings where name = any($1) order by 1", [*DANGERS]
    )
    role, database = await connection.fetchrow("select current_user::text, current_database()::text")
    off = [(name, source) for name, setting, source in rows if setting == "off"]
    if off:
        return problem(
            "settings",
            ", ".join(f"{name} is off" for name, _ in off),
            *(_cure(name, source, role, database) for name, source in off),
            details=[f"{name}: {DANGERS[name]}" for name, _ in off],
        )
    others = """
        select coalesce(r.rolname, ''), coalesce(d.datname, '') from pg_db_role_setting s
        left join pg_roles r on r.oid = s.setrole left join pg_database d on d.oid = s.setdatabase
        cross join unnest(s.setconfig) c(line)
        where split_part(c.line, '=', 1) = 'synchronous_commit' and split_part(c.line, '=', 2) = any($1)
          and (d.datname is null or d.datname = current_database())"""
    cures = [_cure("synchronous_commit", "", *names) for names in await connection.fetch(others, list(OFF))]
    if cures:
        text = "synchronous_commit is off for other roles of this database"
        return warning("settings", text, *few(cures), details=[DANGERS["synchronous_commit"]])
    return Finding("settings", ", ".join(f"{name} {setting}" for name, setting, _ in rows))


async def _checksums(connection: Connection) -> Finding:
    if await connection.fetchval("select current_setting('data_checksums')") == "on":
        return Finding("checksums", "on for every page")
    text = "data checksums are off: PostgreSQL does not notice a page that the disk has changed"
    return warning("checksums", text, "stop the server, run pg_checksums --enable on its data directory, start it")


async def _read_only(connection: Connection) -> Finding | None:
    """A warning if a primary refuses writes by default; replicas are checked elsewhere."""
    setting = await set_read_only(connection)
    if setting is None:
        return None
    return warning("writes", "default_transaction_read_only is on: agents cannot write", setting[1])


def _cure(name: str, source: str, role: str, database: str) -> str:
    """The statement that resets a setting where it was set."""
    if source == "client":
        return f"take {name} out of the URL (or out of PGOPTIONS)"
    if source == "command line":
        return f"start the server without {name}=off on its command line"
    if source in {"default", "configuration file"}:
        return f"alter system set {name} = on; select pg_reload_conf()"
    whose = {"user": f"role {role}", "database": f"database {database}"}.get(source, "")
    if not whose:
        inside = f" in database {database}" if database else ""
        whose = f"role {role}{inside}" if role else f"database {database}"
    return f"alter {whose} reset {name}"


async def _replication(connection: Connection) -> AsyncGenerator[Finding]:
    if await connection.fetchval("select pg_is_in_recovery()"):
        late = await connection.fetchval("""
            select case when pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() then 0
              else extract(epoch from now() - pg_last_xact_replay_timestamp()) end::float8""")
        text = "unknown" if late is None else f"{late:.1f} s"
        yield problem(
            "replica",
            f"this server is a replica and read only; lag {text}",
            "name the primary, or all hosts with target_session_attrs=read-write",
        )
        return
    rows = await connection.fetch("""
        select coalesce(nullif(application_name, ''), host(client_addr), pid::text), sync_state,
          extract(epoch from replay_lag)::float8,
          pg_wal_lsn_diff(pg_current_wal_lsn(), coalesce(replay_lsn, flush_lsn))::int8
        from pg_stat_replication""")
    wanted, waits = await connection.fetchrow(
        "select current_setting('synchronous_standby_names'), current_setting('synchronous_commit')"
    )
    if rows and all(sync is None for _, sync, _, _ in rows):
        hint = "grant pg_monitor to this role to see their lag"
        yield Finding("replicas", f"{len(rows)}; {hint}")
        return
    yield _lag(rows)
    if wanted and not any(sync in {"sync", "quorum"} for _, sync, _, _ in rows):
        yield problem(
            "synchronous",
            f"no replica of {wanted!r} is connected: every save waits for one",
            "start it, or remove it from synchronous_standby_names and reload",
        )
    elif wanted and waits == "local":
        text = "synchronous_commit is local: a save does not wait for the replica, and a failover may lose it"
        yield warning("synchronous", text, "set synchronous_commit to on, remote_apply or remote_write")


def _lag(rows: list[Any]) -> Finding:
    if not rows:
        return Finding("replicas", "none connected: this server has the only copy")
    details = [f"{name} ({sync}): {late or 0:.1f} s, {size(behind or 0)} behind" for name, sync, late, behind in rows]
    if any((late or 0) > LATE or (behind or 0) > BEHIND for _, _, late, behind in rows):
        hint = "check its load, disk and network: a failover now would lose what it has not received"
        return warning("replicas", f"{many(len(rows), 'replica')}, some far behind", hint, details=few(details))
    return Finding("replicas", f"{len(rows)}, none far behind", details=few(details))


async def _open_transactions(connection: Connection) -> Finding | None:
    """Events come in commit order, so watchers wait for every open transaction that has written."""
    rows = await connection.fetch(
        """
        select format('process %s, %s, %s', pid, usename, state), extract(epoch from now() - xact_start)::int8
        from pg_stat_activity where backend_xid is not null and now() - xact_start > make_interval(secs => $1)
        union all
        select format('prepared transaction %L', gid), extract(epoch from now() - prepared)::int8
        from pg_prepared_xacts where now() - prepared > make_interval(secs => $1)
        order by 2 desc""",
        OPEN,
    )
    if not rows:
        return None
    text = f"{many(len(rows), 'transaction')} open for {span(rows[0][1])}: watch and tail show nothing newer"
    hint = "end it: select pg_terminate_backend(PROCESS), or rollback prepared"
    return warning("watching", text, hint, details=few([f"{who}, since {span(age)}" for who, age in rows]))


# The tables


async def _rights(connection: Connection, schema: str) -> Finding:
    # In an existing schema, the rights on the schema count, not those on the database.
    role, database, named, inside, beside = await connection.fetchrow(
        """
        select quote_ident(current_user), quote_ident(current_database()), n.name,
          has_schema_privilege(to_regnamespace(n.name), 'create')
            and has_schema_privilege(to_regnamespace(n.name), 'usage'),
          has_database_privilege(current_database(), 'create')
        from quote_ident($1) n(name)""",
        schema,
    )
    if not await _there(connection, schema):
        if not (beside if inside is None else inside):
            grant = f"create on database {database}" if inside is None else f"usage, create on schema {named}"
            cure = f"let the owner run saveslot migrate --apply; or: grant {grant} to {role}"
            return problem("rights", f"{role} may not create the tables", cure)
        return Finding("rights", f"{role} may create the tables")
    lacking: list[Any] = await connection.fetch(
        """
        select r.verb || ' on ' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        cross join unnest(array['select', 'insert', 'update', 'delete']) r(verb)
        where n.nspname = $1 and c.relname = any($2) and not has_table_privilege(c.oid, r.verb)
          and (c.relname <> 'format' or r.verb = 'select')
        union all select 'usage of the schema' where not has_schema_privilege($1, 'usage')""",
        schema,
        GRANTED,
    )
    if lacking:
        return problem(
            "rights",
            f"{role} lacks {many(len(lacking), 'right')}",
            f"grant usage on schema {named} to {role}",
            f"grant select, insert, update, delete on all tables in schema {named} to {role}",
            details=few([right for (right,) in lacking]),
        )
    return Finding("rights", f"{role} may read and write every table")


async def _format(connection: Connection, schema: str) -> Finding:
    stored, known = await _formats(connection, schema)
    if not stored:
        return warning(
            "format", f"no tables in schema {schema} yet", "saveslot migrate --apply (the first use creates them, too)"
        )
    if stored > known:
        return problem(
            "format", f"{stored}, but this Saveslot reads only up to {known}", "pip install --upgrade saveslot"
        )
    if stored < known:
        return warning(
            "format", f"{stored} of {known}", "saveslot migrate --apply (any use by the owner migrates them, too)"
        )
    return Finding("format", f"{stored}, the newest, in schema {schema}")


async def _counts(connection: Connection, schema: str) -> Finding:
    living, deleted, namespaces, entries, stored = await connection.fetchrow(
        f"""
        select count(*) filter (where deleted_at is null), count(deleted_at), count(distinct namespace),
          (select count(*) from "{schema}".checkpoints),
          (select coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8 from pg_class c
            join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relkind = 'r')
        from "{schema}".sessions""",  # noqa: S608
        schema,
    )
    text = f"{many(living, 'session')} in {many(namespaces, 'namespace')}, {many(entries, 'entry')}"
    return Finding("content", text + (f", {deleted:,} deleted" if deleted else "") + f", {size(stored)}")


async def _partitions(connection: Connection, schema: str) -> Finding:
    """A missing partition is only a warning: its entries go to the default one, which grows."""
    known = await partitions.look(connection, schema)
    text = many(len(known.months), "month")
    if known.due:
        text += ", none for " + ", ".join(f"{month:%B %Y}" for month in known.due)
        who = "" if known.may else f" as {known.owner}, who owns the tables"
        hint = f"saveslot migrate --apply{who}; or let a keeper run{who}"
        taken = f'select exists (select from "{schema}".checkpoints_default where key >= $1)'  # noqa: S608
        if await connection.fetchval(taken, partitions.begins(known.due[0])):
            hint += "; a month that has begun in the default partition stays there"
        return warning("partitions", text, hint)
    return Finding("partitions", f"{text}, created up to {known.months[-1][-7:].replace('_', '-')}")


async def _hollow(connection: Connection, schema: str) -> Finding | None:
    """Sessions whose entries are gone, as after a dropped partition: counted, but unreadable; their ids are taken."""
    gone = 'not exists (select from "{schema}".checkpoints c where c.key = {key})'
    sql = f"""
        select id || ' in namespace ' || namespace, count(*) over () from "{schema}".sessions s
        where {gone.format(schema=schema, key="s.key")} order by 1 limit {NAMED}"""  # noqa: S608
    rows = await fetched(connection, sql)
    if not rows:
        return None
    lost, named = rows[0][1], [shown_text(name) for name, _ in rows]
    more = [f"and {lost - len(named):,} more"] if lost > len(named) else []
    return problem(
        "log",
        f"{many(lost, 'session')} without entries: a partition was dropped, or never restored",
        "restore it from a backup; or remove what is left of them:",
        f'delete from "{schema}".labels l where {gone.format(schema=schema, key="l.session")}',  # noqa: S608
        f'delete from "{schema}".sessions s where {gone.format(schema=schema, key="s.key")}',  # noqa: S608
        details=[*named, *more],
    )


async def _labels(connection: Connection, schema: str) -> Finding | None:
    """Of a sample: sessions that a search by label cannot find."""
    sql = f"""
        select count(*)
        from (select * from {{s}}.sessions s where s.deleted_at is null order by random() limit {SAMPLE}) s
        where exists (select from jsonb_each_text({LABELS_OF}) e where e.value is not null and not exists (
          select from {{s}}.labels l where l.space = s.namespace and l.label = e.key and l.value = e.value
            and l.made = s.created_at and l.session = s.key))"""  # noqa: S608
    wrong: int = await connection.fetchval(sql.replace("{s}", f'"{schema}"'))
    if not wrong:
        return None
    text = f"{many(wrong, 'session')} cannot be found by label"
    return problem("labels", text, "saveslot doctor --repair  rewrites their label rows")


async def _owners(connection: Connection, schema: str) -> Finding:
    """Owners and orphans, by the database's clock."""
    sql = f"""
        select coalesce(w.name, ''), count(s.key), w.dead,
          (extract(epoch from clock_timestamp()) - w.expires / 1e6)::int8
        from "{schema}".workers w
        full join (select key, owner from "{schema}".sessions where owner is not null and deleted_at is null) s
          on s.owner = w.worker
        group by w.worker, w.name, w.expires, w.dead"""  # noqa: S608
    rows = [(shown_text(name), *counts) for name, *counts in await fetched(connection, sql)]
    gone = [(name, held, late) for name, held, dead, late in rows if dead is not False or late >= 0]
    orphans, held = sum(held for _, held, _ in gone), sum(held for _, held, _, _ in rows)
    workers = many(len(rows) - len(gone), "living worker")
    text = f"{many(held - orphans, 'session')} held by {workers}" if held > orphans else "no session is held"
    if not orphans:
        return Finding("owners", text + (f", {many(len(gone), 'worker')} gone, nothing left behind" if gone else ""))
    text += f"; {many(orphans, 'orphan')}"
    details = [f"{name or 'unknown'}: dead for {span(late or 0)}, left {held}" for name, held, late in gone if held]
    if all(late is not None and late < FORGOTTEN for _, held, late in gone if held):
        return Finding("owners", text, details=few(details))
    hint = 'start a worker that claims them, or: saveslot keeper --run "python agent.py {id}"'
    return warning("owners", text, hint, details=few(details))
