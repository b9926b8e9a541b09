"""Drops partitions of the log that `gc` has emptied: this frees disk space, which vacuum only reuses."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

# Lock timeout: appends queue up behind this lock, so give up soon; the next run tries again.
LOCKED = "200ms"
# Names of monthly partitions. The one before the current month stays: a slow clock may still write keys into it.
PREFIX = "checkpoints_"

# Reasons not to drop: it is not empty after all, writers hold locks, another process dropped it, or rights are missing.
LEFT = (
    asyncpg.DivisionByZeroError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UndefinedTableError,
    asyncpg.InsufficientPrivilegeError,
)


async def drop_empty(connection: Any, schema: str, now: datetime | None = None) -> list[str]:
    """Drop the empty partitions of past months; return their names."""
    before = ((now or datetime.now(UTC)).replace(day=1) - timedelta(days=1)).strftime(f"{PREFIX}%Y_%m")
    partitions = await connection.fetch(
        """
        select p.relname::text from pg_inherits i join pg_class p on p.oid = i.inhrelid
        where i.inhparent = to_regclass($1 || '.checkpoints') and p.relname ~ $2 order by 1""",
        schema,
        rf"^{PREFIX}\d{{4}}_\d\d$",
    )
    dropped: list[str] = []
    for (name,) in partitions:
        empty = f'not exists (select 1 from "{schema}".{name})'  # noqa: S608
        # One message, hence one transaction: check again under the lock, and divide by zero if an entry has arrived.
        script = f"""
            select set_config('lock_timeout', '{LOCKED}', true);
            lock table only "{schema}".checkpoints in access exclusive mode;
            select 1 / ({empty})::int;
            drop table "{schema}".{name};"""
        with suppress(*LEFT):
            if name < before and await connection.fetchval(f"select {empty}"):
                await connection.execute(script)
                dropped.append(name)
    return dropped
