"""Partitions of the log that `gc` has emptied: dropped whole, so that the disk gets back what vacuum only reuses."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

# Appends wait while the lock on the log is waited for: not for long; the next time it may be free.
LOCKED = "200ms"
# The month before this one stays: somebody's clock may be slow, and make keys of yesterday.
PREFIX = "checkpoints_"

# Not dropped: it is not empty after all, writers were in the way, somebody else dropped it, or we may not.
LEFT = (
    asyncpg.DivisionByZeroError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UndefinedTableError,
    asyncpg.InsufficientPrivilegeError,
)


async def drop_empty(connection: Any, schema: str, now: datetime | None = None) -> list[str]:
    """Drop the partitions of months gone by that hold no entry any more, and tell which."""
    before = ((now or datetime.now(UTC)).replace(day=1) - timedelta(days=1)).strftime(f"{PREFIX}%Y_%m")
    found = await connection.fetch(
        """
        select p.relname::text from pg_inherits i join pg_class p on p.oid = i.inhrelid
        where i.inhparent = to_regclass($1 || '.checkpoints') and p.relname ~ $2 order by 1""",
        schema,
        rf"^{PREFIX}\d{{4}}_\d\d$",
    )
    dropped: list[str] = []
    for (name,) in found:
        empty = f'not exists (select 1 from "{schema}".{name})'  # noqa: S608
        # All in one message, hence one transaction: looked at once more under the lock, and divided by zero if somebody
        # was quicker.
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
