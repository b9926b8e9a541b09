"""Makes the files in foreign/ with the real programs: `python tests/moving/make_foreign.py` (needs the extra `bench`).

They are kept, so that the tests need none of those programs, and a new version of one cannot change what they mean.
"""

from __future__ import annotations

import asyncio
import json
import operator
import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import UUID

import asyncpg
from agents import SQLiteSession
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from saveslot.stack import Postgres

HERE = Path(__file__).with_name("foreign")
ADK = "adk.sqlite"  # make_adk.py makes that one
TABLES = ("checkpoint_migrations", "checkpoints", "checkpoint_blobs", "checkpoint_writes")


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    steps: Annotated[list[str], operator.add]
    odd: dict[str, Any]


ODD = {
    "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "id": UUID(int=7),
    "price": Decimal("1.50"),
    "tags": {"a"},
    "numbers": {1: "one"},
    "raw": b"\x00\xff",
    "path": Path("a/b"),
}


def ask(_: State) -> dict[str, Any]:
    return {"messages": [AIMessage("It is 5/6.", id="m-2")], "steps": ["ask"], "odd": ODD}


def check(_: State) -> dict[str, Any]:
    return {"steps": ["check"]}


def run(saver: Any) -> None:
    """Two threads: one that ended, one that waits before its second step, with a subgraph that has checkpoints too."""
    inner = StateGraph(State)
    inner.add_node("check", check)
    inner.add_edge(START, "check")
    inner.add_edge("check", END)
    outer = StateGraph(State)
    outer.add_node("ask", ask)
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_edge(START, "ask")
    outer.add_edge("ask", "inner")
    outer.add_edge("inner", END)
    first = {"messages": [HumanMessage("What is 1/2 + 1/3?", id="m-1")], "steps": [], "odd": {}}
    outer.compile(checkpointer=saver).invoke(first, {"configurable": {"thread_id": "ended"}})
    waiting = outer.compile(checkpointer=saver, interrupt_before=["inner"])
    waiting.invoke(first, {"configurable": {"thread_id": "waiting"}})


async def dump(url: str) -> str:
    """The tables as plain SQL: their definitions by the saver's own migrations, their rows as inserts."""
    connection = await asyncpg.connect(url)
    parts: list[str] = []
    for table in TABLES:
        sql = """select column_name, udt_name, is_nullable from information_schema.columns
                 where table_name = $1 order by ordinal_position"""
        columns = await connection.fetch(sql, table)
        answer = ", ".join(f"{name} {kind}{'' if null == 'YES' else ' not null'}" for name, kind, null in columns)
        parts.append(f"create table {table} ({answer});")
        literals = [f"coalesce(quote_literal({name}::text), 'null')" for name, _, _ in columns]
        rows = await connection.fetch(f"select {' || chr(44) || '.join(literals)} from {table} order by 1")  # noqa: S608
        parts += [f"insert into {table} values ({row[0]});" for row in rows]  # noqa: S608
    await connection.close()
    return "\n".join(parts) + "\n"


async def talk(path: Path) -> None:
    for name, turns in (("chat-1", 3), ("chat-2", 1)):
        session = SQLiteSession(name, path)
        for n in range(turns):
            await session.add_items(
                [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": f"answer {n}"}]
            )
        session.close()


def main() -> None:
    for path in HERE.glob("*"):
        if path.name != ADK:
            path.unlink()
    with SqliteSaver.from_conn_string(str(HERE / "langgraph.sqlite")) as saver:
        run(saver)
    asyncio.run(talk(HERE / "openai_agents.sqlite"))
    connection = sqlite3.connect(HERE / "openai_agents.sqlite")
    # Their clock ticks in seconds, and the turns above took less.
    connection.execute("update agent_messages set created_at = datetime('2026-01-01', ((id - 1) / 2) || ' minutes')")
    connection.execute("update agent_sessions set created_at = '2026-01-01 00:00:00'")
    connection.commit()
    connection.close()
    for name in ("langgraph.sqlite", "openai_agents.sqlite"):
        connection = sqlite3.connect(HERE / name)
        connection.execute("pragma journal_mode = delete")
        connection.close()
    with Postgres() as server, PostgresSaver.from_conn_string(server.url) as saver:
        saver.setup()
        run(saver)
        (HERE / "langgraph.sql").write_text(asyncio.run(dump(server.url)))
    versions = {"langgraph": "1.2.20", "langgraph-checkpoint": "4.3.1", "openai-agents": "0.24.0"}
    (HERE / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__":
    main()
