"""LangGraph's long-term memory: a namespace is a session that rests paused, an item is one key of its state.

    users.anna   {"likes": {"value": {"food": "pizza"}, "created_at": …, "updated_at": …}}

So each change is a durable entry of a log that people read, compare and roll back. One item is read without the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from operator import ge, gt, le, lt
from typing import Any, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from saveslot import blocking
from saveslot.adapters.access import Access
from saveslot.adapters.langgraph.opened import Opened
from saveslot.errors import Conflict, InvalidInput
from saveslot.manager import SessionManager
from saveslot.values.checks import Data

AGENT_TYPE = "langgraph-store"
# Before the labels of a namespace, which are joined by a character that LangGraph allows in none of them.
PREFIX, DOT = "store:", "."
# Writers of one namespace at once, each of which makes the others read it again.
MAX_TRIES = 50

Path = tuple[str, ...]


class SaveslotStore(Opened, BaseStore):
    """Long-term memory on any store, async and sync: `SaveslotStore("agents.db")`, or `sessions=` for an open manager.

    `ttl` is LangGraph's `TTLConfig`, in minutes. Expired items are never returned; `asweep_ttl` removes them. There is
    no vector index: a search's `query` ranks nothing. Several processes may write one namespace: each item is what the
    last of them put.
    """

    __slots__ = ("_access", "ttl_config")

    supports_ttl = True

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: SessionManager | blocking.SessionManager | None = None,
        namespace: str | None = None,
        ttl: TTLConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._access = Access(url, sessions=sessions, namespace=namespace, **options)
        self.ttl_config = ttl

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations in their order; puts of one namespace that follow each other are one entry."""
        return await self._access.call(partial(_batch, list(ops)))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self._access.run(partial(_batch, list(ops)))

    async def asweep_ttl(self) -> int:
        """Remove expired items; return how many."""
        return await self._access.call(_sweep)

    def sweep_ttl(self) -> int:
        return self._access.run(_sweep)


async def _batch(ops: Sequence[Op], sessions: SessionManager) -> list[Result]:
    results: list[Result] = []
    for (is_put, _), group in groupby(ops, lambda op: (isinstance(op, PutOp), getattr(op, "namespace", None))):
        if is_put:
            puts = cast("list[PutOp]", list(group))
            await _put(puts, sessions)
            results += [None] * len(puts)
        else:
            results += [await _read(op, sessions) for op in group]
    return results


async def _read(op: Op, sessions: SessionManager) -> Result:
    match op:
        case GetOp():
            item = await _get(op, sessions)
        case SearchOp():
            item = await _search(op, sessions)
        case ListNamespacesOp():
            item = await _namespaces(op, sessions)
        case _:
            raise InvalidInput("ops", f"has an operation that this version does not know: {type(op).__name__}")
    return item


# Writing


async def _put(ops: Sequence[PutOp], sessions: SessionManager) -> None:
    newest = {op.key: op for op in ops}

    def change(stored: Data) -> tuple[Data, list[str]]:
        put = {key: _item(op, stored.get(key)) for key, op in newest.items() if op.value is not None}
        return put, [key for key, op in newest.items() if op.value is None and key in stored]

    await _change(ops[0].namespace, "put", change, sessions, keys=list(newest))


def _item(op: PutOp, before: Data | None) -> Data:
    now = datetime.now(UTC)
    item: Data = {"value": op.value, "created_at": now if before is None else before["created_at"], "updated_at": now}
    return item if op.ttl is None else {**item, "ttl": op.ttl, "expires_at": now + timedelta(minutes=op.ttl)}


async def _change(
    namespace: Path,
    name: str,
    decide: Callable[[Data], tuple[Data, list[str]]],
    sessions: SessionManager,
    keys: list[str] | None = None,
) -> int:
    """Change the items of a namespace, again if another writer came between; return how many."""
    session_id = _session_id(namespace)
    for tries in range(1, MAX_TRIES + 1):
        head = await sessions.head(session_id)
        stored = {} if head is None else await sessions.get_data(session_id, head.seq, keys=keys)
        put, drop = decide(stored)
        if not put and not drop:
            return 0
        try:
            if head is None:
                about = {"namespace": list(namespace)}
                session = await sessions.create_session(
                    AGENT_TYPE, session_id=session_id, metadata=about, data=put, name=name
                )
                await sessions.pause(session_id, seen=session.version)
            else:
                await sessions.checkpoint(session_id, name, put=put, drop=drop, seen=head.version)
        except Conflict:
            if tries == MAX_TRIES:
                raise
        else:
            return len(put) + len(drop)
    return 0


async def _sweep(sessions: SessionManager) -> int:
    count = 0
    for namespace in await _all((), sessions):

        def expired(stored: Data) -> tuple[Data, list[str]]:
            return {}, [key for key, item in stored.items() if not _lives(item)]

        count += await _change(namespace, "expire", expired, sessions)
    return count


# Reading


async def _get(op: GetOp, sessions: SessionManager) -> Item | None:
    stored = (await _stored(op.namespace, sessions, keys=[op.key])).get(op.key)
    if stored is None:
        return None
    if op.refresh_ttl:
        await _refresh(op.namespace, [op.key], sessions)
    return Item(
        value=stored["value"],
        key=op.key,
        namespace=op.namespace,
        created_at=stored["created_at"],
        updated_at=stored["updated_at"],
    )


async def _search(op: SearchOp, sessions: SessionManager) -> list[SearchItem]:
    matches: list[SearchItem] = []
    for namespace in await _all(op.namespace_prefix, sessions):
        for key, item in (await _stored(namespace, sessions)).items():
            if all(_equals(item["value"].get(name), wanted) for name, wanted in (op.filter or {}).items()):
                matches.append(SearchItem(namespace, key, item["value"], item["created_at"], item["updated_at"]))
        if len(matches) >= op.offset + op.limit:
            break
    page = matches[op.offset : op.offset + op.limit]
    if op.refresh_ttl:
        for namespace in dict.fromkeys(item.namespace for item in page):
            await _refresh(namespace, [item.key for item in page if item.namespace == namespace], sessions)
    return page


async def _namespaces(op: ListNamespacesOp, sessions: SessionManager) -> list[Path]:
    conditions = op.match_conditions or ()
    matching = [path for path in await _all((), sessions) if all(_fits(path, one) for one in conditions)]
    there = [path for path in matching if await _stored(path, sessions)]
    cut = sorted({path[: op.max_depth] for path in there})
    return cut[op.offset : op.offset + op.limit]


async def _refresh(namespace: Path, keys: list[str], sessions: SessionManager) -> None:
    """Let these items live as long again as when they were put."""

    def later(stored: Data) -> tuple[Data, list[str]]:
        now = datetime.now(UTC)
        return {
            key: {**item, "expires_at": now + timedelta(minutes=item["ttl"])}
            for key, item in stored.items()
            if item.get("ttl") is not None and _lives(item)
        }, []

    await _change(namespace, "refresh", later, sessions, keys)


async def _stored(namespace: Path, sessions: SessionManager, keys: list[str] | None = None) -> Data:
    """The items that have not expired, by key."""
    session_id = _session_id(namespace)
    if await sessions.head(session_id) is None:
        return {}
    stored = await sessions.get_data(session_id, keys=keys)
    return {key: item for key, item in stored.items() if _lives(item)}


def _lives(item: Data) -> bool:
    return item.get("expires_at") is None or item["expires_at"] > datetime.now(UTC)


async def _all(prefix: Path, sessions: SessionManager) -> list[Path]:
    """The namespaces that begin with these labels, sorted."""
    paths: list[Path] = []
    after: str | None = None
    while True:
        page = await sessions.find(agent_type=AGENT_TYPE, prefix=_session_id(prefix), after=after)
        paths += [tuple(session.metadata["namespace"]) for session in page]
        after = page.next
        if after is None:
            return sorted(path for path in paths if path[: len(prefix)] == prefix)


def _session_id(namespace: Path) -> str:
    return PREFIX + DOT.join(namespace)


def _fits(path: Path, condition: MatchCondition) -> bool:
    wanted = tuple(condition.path)
    if len(path) < len(wanted):
        return False
    part = path[: len(wanted)] if condition.match_type == "prefix" else path[len(path) - len(wanted) :]
    return all(label in {"*", there} for label, there in zip(wanted, part, strict=True))


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}


def _equals(value: Any, wanted: Any) -> bool:
    """Compare as a filter does: nested, with $eq, $ne, $gt, $gte, $lt and $lte. What has no order does not match."""
    if not isinstance(wanted, dict):
        return bool(value == wanted)
    conditions = cast("Data", wanted)
    if any(name.startswith("$") for name in conditions):
        return all(_holds(value, name, than) for name, than in conditions.items())
    return isinstance(value, dict) and all(
        _equals(cast("Data", value).get(name), inner) for name, inner in conditions.items()
    )


def _holds(value: Any, comparison: str, than: Any) -> bool:
    if comparison in {"$eq", "$ne"}:
        return bool(value == than) == (comparison == "$eq")
    if comparison not in _COMPARISONS:
        raise InvalidInput("filter", f"{comparison!r} is not one of $eq, $ne, {', '.join(_COMPARISONS)}")
    try:
        return _COMPARISONS[comparison](value, than)
    except TypeError:
        return False
