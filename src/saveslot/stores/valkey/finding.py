"""Listing and counting sessions: pages of the script's indexes, put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from saveslot.stores.stored import shown_text
from saveslot.stores.valkey.connection import ALWAYS, READS, Server
from saveslot.stores.valkey.landing import as_string
from saveslot.stores.valkey.rows import to_found_row
from saveslot.values.log import Counts, Place, Query, Row, Totals, order

# Sessions that have ended and are cleared from the indexes per call.
TIDIED = 200

Run = Callable[[str, str, Any], Awaitable[Any]]  # flags, verb and argument of the script


class Finding:
    def __init__(self, server: Server, run: Run) -> None:
        self._server, self._run = server, run

    async def find(self, query: Query, after: Place | None, limit: int) -> list[Row]:
        if order(query)[0] == "changed_at":
            return await self._by_change(query, after, limit)
        merged: list[Row] = []
        weighed = query.ended_for is not None or query.deleted_for is not None
        column, newest_first = order(query)
        for index in await self._indexes(query):
            rows: list[Row] = []
            place = None if after is None else (after[0], after[1].hex().encode())
            while len(rows) < limit:
                request = index | {"limit": limit - len(rows), "weighed": weighed}
                if place is not None:
                    request |= {"score": place[0], "place": as_string(place[1])}
                stopped, answers = await self._run(READS, "find", request)
                with self._server.decoding():
                    rows += [to_found_row(answer, column, weighed=weighed) for answer in answers]
                    place = (stopped[0].decode(), stopped[1]) if stopped else None
                if place is None:
                    break
            merged += rows
        merged.sort(key=lambda row: (getattr(row, column), row.key), reverse=newest_first)
        return merged[:limit]

    async def _by_change(self, query: Query, after: Place | None, limit: int) -> list[Row]:
        """Read all that match and sort them: no index has the time of the newest entry."""
        rows: list[Row] = []
        for index in await self._indexes(msgspec.structs.replace(query, changed=False)):
            place: dict[str, Any] = {}
            while True:
                request = index | {"limit": TIDIED, "weighed": False, "changed": True} | place
                stopped, answers = await self._run(READS, "find", request)
                with self._server.decoding():
                    rows += [to_found_row(answer, "created_at", weighed=False) for answer in answers]
                    if not stopped:
                        break
                    place = {"score": stopped[0].decode(), "place": as_string(stopped[1])}
        places = sorted(((row.changed_at, row.key) for row in rows), reverse=True)
        chosen = [place for place in places if after is None or place < after][:limit]
        by_key = {row.key: row for row in rows}
        return [by_key[key] for _, key in chosen]

    async def tidy(self) -> None:
        """Clear sessions that have ended from the indexes."""
        while await self._run(ALWAYS, "tidy", TIDIED) == TIDIED:
            pass

    async def count(self, query: Query, totals: Totals) -> Counts:
        await self.tidy()
        counts = Counts()
        [index, *_] = await self._indexes(msgspec.structs.replace(query, owner=None, orphan_for=None))
        index["query"] = _request(query)
        place: dict[str, Any] = {}
        while True:
            stopped, cells, entries, stored_bytes = await self._run(READS, "count", index | place)
            if totals == "store":
                counts.entries, counts.stored_bytes = entries, stored_bytes
            with self._server.decoding():
                for state, agent_type, many, held, orphaned, entries, stored_bytes in cells:
                    if totals == "matching":
                        counts.entries += entries
                        counts.stored_bytes += stored_bytes
                    _add(counts.states, shown_text(state), many)
                    _add(counts.agent_types, shown_text(agent_type), many)
                    counts.held += held
                    counts.orphaned += orphaned
                if not stopped:
                    return counts
                place = {"score": stopped[0].decode(), "place": as_string(stopped[1])}

    async def _indexes(self, query: Query) -> list[dict[str, Any]]:
        """The indexes to walk: few sessions are held by any one worker, and few workers are dead."""
        column, newest_first = order(query)
        request: dict[str, Any] = {"query": _request(query), "down": newest_first}
        if column != "created_at" or (query.owner is None and query.orphan_for is None):
            return [request]
        if query.owner is not None:
            return [request | {"worker": query.owner.hex()}]
        dead = await self._run(READS, "gone", query.orphan_for)
        return [request | {"worker": as_string(worker)} for worker in dead]


def _request(query: Query) -> dict[str, Any]:
    request = {name: value for name, value in msgspec.structs.asdict(query).items() if value is not None}
    return request | {name: value.hex() for name, value in request.items() if isinstance(value, bytes)}


def _add(counts: dict[str, int], name: str, many: int) -> None:
    counts[name] = counts.get(name, 0) + many
