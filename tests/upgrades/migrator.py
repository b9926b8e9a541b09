"""Opens a store with a migration of a version to come, and dies on the way: `migrator.py URL N FOLDER`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import apsw
from asyncpg import Connection

from saveslot.stores import open_store
from saveslot.stores.postgres import schema as postgres_schema
from saveslot.stores.sqlite import file as sqlite_file

# `die(n)` is made known to SQLite below; on PostgreSQL the process dies before its n-th statement.
SQLITE = """
create table later (x);
insert into later values (die(1));
alter table sessions add column mood text;
insert into later values (die(2));
update sessions set mood = 'calm';
insert into later values (die(3));
"""
POSTGRES = [
    "create table later (x int)",
    "alter table sessions add column mood text",
    "update sessions set mood = 'calm'",
]


def inject(folder: Path, place: int) -> None:
    calls = 0

    def die(n: int) -> int:
        if n == place:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    script = folder / "sqlite_later.sql"
    script.write_text(SQLITE)
    known, scripts = sqlite_file.migrations(), postgres_schema.migrations()
    sqlite_file.migrations = lambda: [*known, script]
    postgres_schema.migrations = lambda: [*scripts, *POSTGRES]
    apsw.connection_hooks.append(lambda connection: connection.create_scalar_function("die", die))
    execute = Connection.execute

    async def counted(self, *args, **options):
        nonlocal calls
        calls += 1
        die(calls)
        return await execute(self, *args, **options)

    Connection.execute = counted


async def main(url: str, place: str, folder: str) -> None:
    inject(Path(folder), int(place))
    await (await open_store(url)).close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
