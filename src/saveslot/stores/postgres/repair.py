"""Rebuilds what PostgreSQL derives from the log: label rows and indexes."""

from __future__ import annotations

import asyncpg

from saveslot.stores.findings import Finding, problem
from saveslot.stores.postgres.checkup import looking
from saveslot.stores.postgres.connection import Connection
from saveslot.stores.postgres.statements import LABELS_OF
from saveslot.stores.postgres.url import parse_url
from saveslot.values.words import many

# Tables whose indexes are looked at, with their partitions.
TABLES = ("checkpoints", "sessions", "labels", "workers")
_SURPLUS = """
delete from {s}.labels l where not exists (
  select from {s}.sessions s where s.key = l.session and s.namespace = l.space and s.created_at = l.made
    and s.deleted_at is null and s.labels ->> l.label = l.value) returning session"""
_MISSING = f"""
insert into {{s}}.labels
select s.namespace, e.key, e.value, s.created_at, s.key from {{s}}.sessions s cross join jsonb_each_text({LABELS_OF}) e
where s.deleted_at is null and e.value is not null
on conflict do nothing returning session"""  # noqa: S608
_INDEXES = """
select i.indexrelid::regclass::text, i.indisvalid, a.amname = 'btree' and c.relkind = 'i'
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
join pg_class t on t.oid = i.indrelid join pg_namespace n on n.oid = t.relnamespace
where n.nspname = $1 and (t.relname = any($2) or t.relispartition) order by 1"""


async def repair(url: str) -> Finding | None:
    """Rewrite label rows and rebuild broken indexes. None if nothing is wrong.

    Indexes are checked with amcheck if it is installed (`create extension amcheck`).
    """
    schema, _, _ = parse_url(url)
    quoted = f'"{schema}"'
    async with looking(url) as connection:
        if await connection.fetchval("select to_regclass($1)", f"{quoted}.sessions") is None:
            return None
        async with connection.transaction():
            # Writers wait: a session that is labelled meanwhile must not lose its new row.
            await connection.execute(f"lock table {quoted}.labels in share row exclusive mode")
            changed: set[bytes] = set()
            for statement in (_SURPLUS, _MISSING):
                changed |= {key for (key,) in await connection.fetch(statement.replace("{s}", quoted))}
        broken = await _broken(connection, schema)
        failed: list[str] = []
        for index in broken:
            try:
                await connection.execute(f"reindex index {index}")
            except asyncpg.PostgresError as exc:
                failed.append(f"{index}: {exc}")
    if failed:
        advice = "restore the database from a backup; saveslot export --all  saves what can be read"
        return problem("repair", f"{many(len(failed), 'index')} cannot be rebuilt", advice, details=failed)
    done = [f"the label rows of {many(len(changed), 'session')} rewritten"] if changed else []
    done += [f"{many(len(broken), 'index')} rebuilt"] if broken else []
    return Finding("repair", ", ".join(done), details=broken) if done else None


async def _broken(connection: Connection, schema: str) -> list[str]:
    installed = """
        select quote_ident(n.nspname) from pg_extension e join pg_namespace n on n.oid = e.extnamespace
        where e.extname = 'amcheck'"""
    checks: str | None = await connection.fetchval(installed)
    broken: list[str] = []
    for index, valid, leaf in await connection.fetch(_INDEXES, schema, [*TABLES]):
        if not valid:
            broken.append(index)
        elif checks is not None and leaf:
            try:
                await connection.fetch(f"select {checks}.bt_index_check($1::text::regclass, true)", index)
            except asyncpg.PostgresError:
                broken.append(index)
    return broken
