"""Which server numbers the feed: entries are ordered by the numbers of transactions, which mean nothing elsewhere.

The table `format` names the transaction that wrote its row, the server's timeline, and a random id of the feed. If the
row was copied (a dump, logical replication), the restored entries may have higher numbers than new ones would get: new
numbers are shifted above them. After a failover or a restore of the files, entries and numbers fit, but a cursor may
name an entry that is gone; the new id shows that it was not purged.
"""

from __future__ import annotations

from typing import Any

import asyncpg

from saveslot.errors import Forbidden

# Of the table `format`: whether this server's transaction wrote the row; a replica's timeline is its primary's.
OWN = "format.xmin::text::int8 = format.tx::text::int8 % 4294967296"
TIMELINE = "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int8"
SAME = f"case when pg_is_in_recovery() then true else format.timeline = {TIMELINE} end"
ANCHORED = f"{OWN} and {SAME}"


async def anchor(connection: Any, schema: str) -> None:
    """Make the row in `format` that of this server and timeline. In the caller's transaction, under its lock."""
    state = f'select {OWN}, {SAME}, shift, pg_is_in_recovery() from "{schema}".format'  # noqa: S608
    own, same, shift, replica = await connection.fetchrow(state)
    if (own and same) or replica:
        return
    if not own:
        shift = await _shift(connection, schema, shift)
    sql = f"""
        update "{schema}".format set feed = gen_random_uuid(), tx = pg_current_xact_id(), timeline = {TIMELINE}, shift = $1"""  # noqa: S608, E501
    await connection.execute(sql, shift)


async def _shift(connection: Any, schema: str, before: int) -> int:
    """Shift the numbers of new entries above those of copied ones; return by how much.

    Entries that this server has written since the copy, before any process noticed, are moved there too.
    """
    log = f'"{schema}".checkpoints'
    await connection.execute(f"lock table {log} in access exclusive mode")
    now, since = await connection.fetchrow(f"""
        select n, n - (n - format.xmin::text::int8) % 4294967296
        from "{schema}".format, (select pg_current_xact_id()::text::int8) t(n)""")  # noqa: S608
    number = f"(tx::text::int8 - {before})"
    # The range is found by an index. Only of an entry written here `xmin`, without its upper half, is that number.
    mine = f"""
        tx between '{since + before}' and '{now + before}' and {number} % 4294967296 = xmin::text::int8"""
    first: int | None = await connection.fetchval(f"select min({number}) from {log} where {mine}")  # noqa: S608
    highest: int | None = await connection.fetchval(
        f"select tx::text::int8 from {log} where not ({mine}) order by tx desc limit 1"  # noqa: S608
    )
    shift = max(0, (highest or 0) + 1 - (now if first is None else first))
    if not shift and not before:
        return 0
    new = f"((pg_current_xact_id()::text::int8 + {shift})::text::xid8)" if shift else "pg_current_xact_id()"
    try:
        await connection.execute(f"alter table {log} alter column tx set default {new}")
    except asyncpg.InsufficientPrivilegeError:
        hint = "let the owner of its tables run: saveslot migrate --apply"
        raise Forbidden(
            f"schema {schema} was copied from another server, and its feed must be continued; {hint}"
        ) from None
    if first is not None:
        await connection.execute(f"update {log} set tx = ({number} + {shift})::text::xid8 where {mine}")  # noqa: S608
    return shift
