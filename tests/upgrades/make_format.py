"""Makes databases of the present format: `python tests/upgrades/make_format.py`. A released one is never made again.

format_N.sqlite, format_N.sql (for PostgreSQL: the tables as they were then, and their rows) and format_N.json, what is
in them: each session's export.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import asyncpg

from saveslot import SessionManager
from saveslot.moving.copy import copy_sessions
from saveslot.stack import Postgres
from saveslot.stores import Store, open_store
from saveslot.stores.postgres import schema as postgres_schema
from saveslot.stores.sqlite import file as sqlite_file

HERE = Path(__file__).parent
TABLES = ("format", "sessions", "checkpoints", "labels", "entry_labels", "workers")


async def lived(store: Store) -> None:
    """A few sessions with every kind of entry."""
    sessions = SessionManager(store=store)
    lesson = await sessions.create_session(
        "tutor", "anna", {"topic": "fractions"}, {"n": 1}, labels={"env": "prod"}, session_id="lesson"
    )
    messages: list[dict[str, object]] = []
    for n in range(40):
        messages.append({"role": "user", "content": f"question {n} ä\0"})
        await sessions.checkpoint(lesson, f"turn-{n % 7}", {"messages": messages, "raw": b"\0\1"}, {"model": "small"})
    await sessions.rollback("lesson", "~30")
    await sessions.checkpoint("lesson", "after", append={"messages": [{"role": "user", "content": "back"}]})
    await sessions.fork("lesson", "turn-3", "forked")
    done = await sessions.create_session("grader", session_id="done")
    done.pause()
    done.resume()
    done.context["more"] = [1, 2]
    done.complete({"grade": "B+"})
    await sessions.update_session(done)
    async with sessions.hold("forked") as held:
        await held.step("charge", lambda: {"paid": True}, key="k-1")
        await held.checkpoint("paid", {"paid": True})
    await sessions.create_session("tutor", session_id="gone")
    await sessions.delete_session("gone")


async def exports(store: Store) -> dict[str, str]:
    sessions = SessionManager(store=store)
    return {
        session.session_id: await sessions.export(session.session_id) for session in await sessions.find(limit=1000)
    }


async def dumped(dsn: str, schema: str) -> str:
    connection = await asyncpg.connect(dsn)
    parts = [f"create table format (version int not null);\n{''.join(postgres_schema.migrations())}"]
    for table in TABLES:
        sql = "select column_name from information_schema.columns where table_schema = $1 and table_name = $2"
        sql += " and is_generated = 'NEVER'"
        items = [row[0] for row in await connection.fetch(sql, schema, table)]
        columns = [name for name in items if name != "tx"]  # numbers of another server's transactions
        literals = " || ', ' || ".join(f"coalesce(quote_literal({name}::text), 'null')" for name in columns)
        rows = await connection.fetch(f"select {literals} from {schema}.{table} order by 1")  # noqa: S608
        parts += [f"insert into {table} ({', '.join(columns)}) values ({row[0]});" for row in rows]  # noqa: S608
    await connection.close()
    return "\n".join(parts) + "\n"


async def main() -> None:
    name = f"format_{len(sqlite_file.migrations())}"
    draft = HERE / f"{name}.draft"
    first = await open_store(f"sqlite:///{draft}")
    await lived(first)
    result = await exports(first)
    with Postgres() as server:
        second = await open_store(f"{server.url}&schema=fixture")
        await copy_sessions(first, second, "default")
        text = await dumped(server.url, "fixture")
        await second.close()
    await first.close()
    draft.replace(HERE / f"{name}.sqlite")
    (HERE / f"{name}.sql").write_text(text)
    (HERE / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
