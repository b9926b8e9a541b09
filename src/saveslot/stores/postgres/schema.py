"""Creates and migrates the tables of a PostgreSQL schema by numbered scripts."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import asyncpg

from saveslot.errors import InvalidInput
from saveslot.stores.postgres import partitions
from saveslot.stores.postgres.anchor import ANCHORED, anchor

Connection = Any  # asyncpg.Connection, or one of its pool


@cache
def migrations() -> list[str]:
    """The numbered scripts, oldest first."""
    folder = Path(__file__).with_name("migrations")
    return [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.sql"))]


async def migrate(connection: Connection, schema: str, shown: str) -> None:
    """Create the tables or bring them up to date; safe to run in many processes at once."""
    scripts = migrations()
    with suppress(asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedColumnError):
        # One round trip, without a prepared statement: a resume in a new process waits for it.
        same = f'select from "{schema}".format where version = {len(scripts)} and {ANCHORED}'
        if await connection.execute(same) == "SELECT 1":
            return
    async with connection.transaction():
        # If eight processes open an empty database, one migrates; seven wait, then find nothing to do.
        await connection.execute("select pg_advisory_xact_lock($1)", partitions.lock(schema))
        version = await stored_version(connection, schema, shown)
        if version == len(scripts):
            await anchor(connection, schema)
            return
        if not version:
            # Check first: `if not exists` needs the right to create a schema even if there is nothing to do.
            if not await connection.fetchval("select 1 from pg_namespace where nspname = $1", schema):
                await connection.execute(f'create schema if not exists "{schema}"')
            await connection.execute(f'create table if not exists "{schema}".format (version int not null)')
            await connection.execute(f'insert into "{schema}".format values (0)')  # noqa: S608
        await connection.execute(f'set local search_path to "{schema}"')
        for script in scripts[version:]:
            await connection.execute(script)
        await connection.execute(f"update \"{schema}\".format set version = $1, tx = '0'", len(scripts))  # noqa: S608
        await anchor(connection, schema)
        if not version:  # no writers yet that it could hold up
            await partitions.make(connection, schema)


async def stored_version(connection: Connection, schema: str, shown: str) -> int:
    """The format of the tables, 0 if there are none; refuse a newer Saveslot's."""
    # Query the catalog: `to_regclass` may have cached, before the wait for the lock, that there was no table.
    there = """
        select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = $1 and c.relname = 'format'"""
    if await connection.fetchval(there, schema) is None:
        return 0
    version: int = await connection.fetchval(f'select version from "{schema}".format')  # noqa: S608
    if version > (known := len(migrations())):
        newer = f"has format {version}, but this Saveslot reads only up to {known}; upgrade it"
        raise InvalidInput("url", f"{shown} {newer}")
    return version
