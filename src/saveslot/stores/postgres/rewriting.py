"""Rewrites the tables, so that no old version of an erased row is left in the server's data files."""

from __future__ import annotations

from saveslot.errors import Forbidden
from saveslot.stores.postgres.connection import Connection

_FILES = """
    select format('%I.%I', n.nspname, c.relname), pg_relation_filenode(c.oid)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = $1 and c.relkind = 'r' and (c.relname ~ '^checkpoints_' or c.relname in ('sessions', 'labels'))
    order by 1"""


async def rewrite(connection: Connection, schema: str) -> None:
    """Rewrite the tables with content, one after the other. Its readers and writers wait meanwhile."""
    before = dict(await connection.fetch(_FILES, schema))
    for table in before:
        await connection.execute(f"vacuum (full, analyze) {table}")
    after = dict(await connection.fetch(_FILES, schema))
    if kept := [table for table, file in before.items() if after.get(table) == file]:  # the server only warns
        raise Forbidden(f"{', '.join(kept)}: not rewritten; erase again with rewrite as the owner of the tables")
