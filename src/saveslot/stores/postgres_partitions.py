"""Partitions of the log, one a month, made ahead. What fits into none of them lies in the default one: correct, too.

A session's key begins with the time when it was made (UUIDv7), so all of its entries lie in one partition, and a month
that nobody needs any more can be detached and dropped whole.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import asyncpg

# This month and the next two: whoever looks once a month is early enough.
AHEAD = 3
# Appends wait while the lock on the default partition is waited for, and while that one is looked through. So: not for
# long, and not at all where it is larger than this, in bytes.
LOCKED, LOOKED, LARGE = "500ms", "2s", 256 << 20

# A partition that is not made is no harm: somebody else made it, writers were in the way, or it would overlap.
LEFT = (
    asyncpg.DuplicateTableError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.QueryCanceledError,
    asyncpg.CheckViolationError,
    asyncpg.InvalidObjectDefinitionError,
    asyncpg.InsufficientPrivilegeError,
)


class Partitions(NamedTuple):
    """What there is. `due` are the months, this one and those ahead, that have no partition of their own."""

    months: list[str]
    due: list[datetime]
    owner: str  # who may make them
    may: bool  # whether we may
    default: int  # bytes of the default partition, without frames


async def look(connection: Any, schema: str) -> Partitions:
    names: list[str]
    at, owner, may, default, names = await connection.fetchrow(
        """
        select now(), pg_get_userbyid(c.relowner)::text,
          pg_has_role(c.relowner, 'usage') and has_schema_privilege(c.relnamespace, 'create'),
          coalesce(pg_relation_size(to_regclass($1 || '.checkpoints_default')), 0),
          array(select p.relname::text from pg_inherits i join pg_class p on p.oid = i.inhrelid
            where i.inhparent = c.oid order by 1)
        from pg_class c where c.oid = to_regclass($1 || '.checkpoints')""",
        schema,
    )
    first = at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    due = [month for n in range(AHEAD) if named(month := _later(first, n)) not in names]
    return Partitions([name for name in names if name != "checkpoints_default"], due, owner, may, default)


async def make(connection: Any, schema: str) -> None:
    """Make what is due, where that is allowed and disturbs nobody; safe when several do it at once."""
    found = await look(connection, schema)
    if found.may and found.default <= LARGE:
        for month in found.due:
            await add(connection, schema, month)


async def add(connection: Any, schema: str, month: datetime) -> None:
    """A partition for this month, unless entries of it lie in the default one already."""
    first, end = begins(month), begins(_later(month, 1))
    taken = f'select exists (select 1 from "{schema}".checkpoints_default where key >= $1 and key < $2)'  # noqa: S608
    if await connection.fetchval(taken, first, end):
        return
    # All in one message, hence one transaction: nothing waits for this client with a lock held.
    script = f"""
        select set_config('lock_timeout', '{LOCKED}', true), set_config('statement_timeout', '{LOOKED}', true);
        select pg_advisory_xact_lock({lock(schema)});
        create table "{schema}".{named(month)} (like "{schema}".checkpoints_default including all)
          with (autovacuum_analyze_threshold = 5000);
        alter table "{schema}".checkpoints attach partition "{schema}".{named(month)}
          for values from ('\\x{first.hex()}') to ('\\x{end.hex()}');"""  # noqa: S608
    with suppress(*LEFT):
        await connection.execute(script)


def lock(schema: str) -> int:
    """The number of the advisory lock under which the tables of a schema are made and changed."""
    return zlib.crc32(f"saveslot {schema}".encode())


def named(month: datetime) -> str:
    return f"checkpoints_{month:%Y_%m}"


def begins(month: datetime) -> bytes:
    """What the keys of sessions made then begin with: milliseconds in 48 bits."""
    return (int(month.timestamp()) * 1000).to_bytes(6, "big")


def _later(month: datetime, months: int) -> datetime:
    years, number = divmod(month.month - 1 + months, 12)
    return month.replace(year=month.year + years, month=number + 1)
