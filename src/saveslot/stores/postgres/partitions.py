"""Monthly partitions of the log, created ahead. Entries that fit none go to the default partition, which works as well.

A session's key begins with its creation time (UUIDv7), so all its entries are in one partition, and an old month can be
detached and dropped as a whole.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import asyncpg

# Months: this one and the next two, so that one run a month is enough.
AHEAD = 3
# Appends wait while this process waits for the lock on the default partition, and while PostgreSQL scans it. Hence the
# timeouts; a default partition of more than this many bytes is left alone.
LOCKED, LOOKED, LARGE = "500ms", "2s", 256 << 20

# Harmless reasons not to create one: another process did, writers hold locks, it would overlap, or rights are missing.
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
    """Existing partitions. `due`: months, from this one on, without a partition."""

    months: list[str]
    due: list[datetime]
    owner: str  # the role that may create them
    may: bool  # whether this role may
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
    """Create the partitions that are due, if this role may and writers are not held up; safe to run concurrently."""
    known = await look(connection, schema)
    if known.may and known.default <= LARGE:
        for month in known.due:
            await add(connection, schema, month)


async def add(connection: Any, schema: str, month: datetime) -> None:
    """Create a partition for this month, unless the default one already has entries of it."""
    first, end = begins(month), begins(_later(month, 1))
    taken = f'select exists (select 1 from "{schema}".checkpoints_default where key >= $1 and key < $2)'  # noqa: S608
    if await connection.fetchval(taken, first, end):
        return
    # One message, hence one transaction: no lock is held while waiting for this client.
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
    """Number of the advisory lock for creating and changing a schema's tables."""
    return zlib.crc32(f"saveslot {schema}".encode())


def named(month: datetime) -> str:
    return f"checkpoints_{month:%Y_%m}"


def begins(month: datetime) -> bytes:
    """First bytes of the keys of sessions created then: milliseconds in 48 bits."""
    return (int(month.timestamp()) * 1000).to_bytes(6, "big")


def _later(month: datetime, months: int) -> datetime:
    years, number = divmod(month.month - 1 + months, 12)
    return month.replace(year=month.year + years, month=number + 1)
