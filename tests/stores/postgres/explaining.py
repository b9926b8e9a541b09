"""A pool whose connections say how PostgreSQL executes each statement, as the prepared one that asyncpg makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MODES = ("force_custom_plan", "force_generic_plan")


@dataclass
class Explained:
    """How one statement was executed."""

    statement: str
    mode: str
    plan: dict[str, Any]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """What was executed, from the top; parts that were pruned away are left out."""
        return [node for node in _below(self.plan) if node["Actual Loops"]]

    @property
    def buffers(self) -> int:
        """Pages looked at."""
        return self.plan["Shared Hit Blocks"] + self.plan["Shared Read Blocks"]

    @property
    def partitions(self) -> set[str]:
        """Those of the log that were looked into."""
        by_key = {node.get("Relation Name", "") for node in self.nodes if node["Node Type"] != "ModifyTable"}
        return {name for name in by_key if name.startswith("checkpoints_")}

    @property
    def scanned(self) -> set[str]:
        """Tables that were read from end to end."""
        return {node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan"}

    @property
    def outline(self) -> str:
        """For people."""
        return "\n".join(
            f"{node['Node Type']} {node.get('Relation Name', '')} {node.get('Index Name', '')}"
            f" rows {node['Actual Rows']} times {node['Actual Loops']} pages {node['Shared Hit Blocks']}"
            for node in self.nodes
        )


class Explaining:
    """A wrapper around a caller's pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.statements: list[Explained] = []

    async def acquire(self) -> _Connection:
        return _Connection(await self._pool.acquire(), self.statements)

    async def release(self, connection: _Connection, **how: Any) -> None:
        await self._pool.release(connection.real, **how)


class _Connection:
    def __init__(self, connection: Any, statements: list[Explained]) -> None:
        self.real = self._connection = connection
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        if ".checkpoints" in statement or ".sessions" in statement or ".workers" in statement:
            for mode in MODES:
                self._statements.append(Explained(statement, mode, await self._explained(statement, mode, values)))
        return await self._connection.fetch(statement, *values)

    async def _explained(self, statement: str, mode: str, values: tuple[Any, ...]) -> dict[str, Any]:
        """It is executed for that, and undone."""
        connection = self._connection
        types = [
            await connection.fetchval("select format_type($1, null)", each.oid)
            for each in (await connection.prepare(statement)).get_parameters()
        ]
        quoted = ", ".join(f"quote_nullable(${n}::{name}::text)" for n, name in enumerate(types, 1))
        given = await connection.fetchrow(f"select {quoted}", *values) if types else []
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(f"set local plan_cache_mode = {mode}")
            await connection.execute(f"prepare plan {'(' + ', '.join(types) + ')' if types else ''} as {statement}")
            literals = ", ".join(f"{value}::{name}" for value, name in zip(given, types, strict=True))
            execute = f"execute plan {'(' + literals + ')' if types else ''}"
            [answer] = json.loads(await connection.fetchval(f"explain (analyze, buffers, format json) {execute}"))
        finally:
            await transaction.rollback()
            await connection.execute("deallocate all")
            await connection.reload_schema_state()
        return answer["Plan"]


def _below(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _below(child)
