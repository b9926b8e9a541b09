"""LangGraph's long-term memory on every store, beside its own store in memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from langgraph.store.base import GetOp, PutOp
from langgraph.store.memory import InMemoryStore

import saveslot
from saveslot import InvalidInput
from saveslot.adapters.langgraph import SaveslotStore, store as module
from saveslot.values.lifecycle import SessionState

ANNA, BEN = ("users", "anna"), ("users", "ben", "notes")


@pytest.fixture
async def store(url):
    async with SaveslotStore.from_conn_string(url) as store:
        yield store


async def fill(store) -> None:
    await store.aput(ANNA, "likes", {"food": "pizza", "rating": 3, "at": {"home": True, "times": [1, 2]}})
    await store.aput(ANNA, "job", {"food": None, "rating": 5})
    await store.aput(BEN, "likes", {"food": "pasta", "rating": 4})
    await store.aput(("userspace",), "likes", {"food": "pizza"})
    await store.aput(ANNA, "gone", {"food": "pizza"})
    await store.adelete(ANNA, "gone")


async def test_the_same_as_langgraphs_own(store):
    """Gets, searches with filters and lists of namespaces answer as InMemoryStore does."""
    own = InMemoryStore()
    for one in (own, store):
        await fill(one)
    await store.adelete(("nobody",), "gone")

    async def answers(one) -> list:
        ways = ({}, {"prefix": ("users",)}, {"suffix": ("notes",)}, {"prefix": ("*", "anna")}, {"max_depth": 1})
        found: list = [await one.alist_namespaces(**how) for how in (*ways, {"limit": 1, "offset": 1})]
        found += [await one.aget(ANNA, "likes"), await one.aget(ANNA, "gone"), await one.aget(("nobody",), "x")]
        filters = [
            *(None, {"food": "pizza"}, {"food": None}, {"rating": {"$gte": 3, "$lt": 5}}, {"rating": {"$ne": 3}}),
            *({"at": {"home": True}}, {"at": {"times": [1, 2]}}, {"rating": {"$eq": 5}}),
        ]
        for prefix in ((), ("users",), ANNA, ("nobody",)):
            for wanted in filters:
                if prefix or "rating" not in (wanted or {}):
                    found += sorted(await one.asearch(prefix, filter=wanted), key=lambda item: str(item.dict()))
        found.append(len(await one.asearch((), limit=2)))
        found.append(len(await one.asearch((), limit=10, offset=3)))
        return found

    def plain(item):
        return (item.namespace, item.key, item.value) if hasattr(item, "key") else item

    theirs, ours = await answers(own), await answers(store)
    assert [plain(item) for item in ours] == [plain(item) for item in theirs]


async def test_items_are_data_of_a_session(file):
    """A namespace is a paused session whose log has each change; created_at stays, updated_at moves."""
    async with SaveslotStore.from_conn_string(file) as store:
        await store.aput(ANNA, "likes", {"food": "pizza"})
        first = await store.aget(ANNA, "likes")
        await store.aput(ANNA, "likes", {"food": "pasta"})
        second = await store.aget(ANNA, "likes")
        assert (second.created_at, second.value) == (first.created_at, {"food": "pasta"})
        assert second.updated_at > first.updated_at
    async with saveslot.open(file) as sessions:
        session = await sessions.get_session("store:users.anna")
        assert (session.agent_type, session.state) == ("langgraph-store", SessionState.PAUSED)
        changed = await sessions.diff("store:users.anna", "~1", "latest")
        assert {"op": "replace", "path": "/likes/value/food", "value": "pasta"} in changed


async def test_writers_at_once_lose_nothing(url):
    """Items that two managers put into one namespace at the same time are all there."""
    async with saveslot.open(url) as sessions:
        one = SaveslotStore(sessions=sessions)
        other = one if url == "memory:" else SaveslotStore(url)
        await asyncio.gather(
            *[(one, other)[number % 2].aput(ANNA, f"item {number}", {"number": number}) for number in range(12)]
        )
        assert len(await one.asearch(ANNA, limit=100)) == 12
        await other.close()


async def test_a_batch(store):
    """Operations run in their order; what a batch puts is there for the gets after it."""
    put = PutOp(ANNA, "a", {"n": 1})
    results = await store.abatch([put, GetOp(ANNA, "a"), PutOp(ANNA, "a", None), PutOp(ANNA, "b", {"n": 2})])
    assert [result and result.value for result in results] == [None, {"n": 1}, None, None]
    assert [item.key for item in await store.asearch(ANNA)] == ["b"]


def test_synchronous_calls(url):
    """`with`, `put`, `get`, `search` and `delete` without an event loop."""
    with SaveslotStore.from_conn_string(url) as store:
        store.put(ANNA, "likes", {"food": "pizza"})
        assert store.get(ANNA, "likes").value == {"food": "pizza"}
        assert [item.key for item in store.search(("users",))] == ["likes"]
        store.delete(ANNA, "likes")
        assert (store.get(ANNA, "likes"), store.list_namespaces()) == (None, [])


async def test_items_expire(url, monkeypatch):
    """An expired item is in no answer, a read puts its end off unless told otherwise, and a sweep removes it."""

    class Later(datetime):
        ahead = timedelta()

        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + cls.ahead

    monkeypatch.setattr(module, "datetime", Later)
    async with SaveslotStore.from_conn_string(url, ttl={"default_ttl": 10, "refresh_on_read": True}) as store:
        await store.aput(ANNA, "short", {"n": 1})
        await store.aput(ANNA, "long", {"n": 2}, ttl=60)
        await store.aput(ANNA, "ever", {"n": 3}, ttl=None)
        Later.ahead = timedelta(minutes=9)
        assert await store.aget(ANNA, "short") is not None
        Later.ahead = timedelta(minutes=18)
        assert await store.aget(ANNA, "short", refresh_ttl=False) is not None
        Later.ahead = timedelta(minutes=20)
        assert await store.aget(ANNA, "short") is None
        assert {item.key for item in await store.asearch(ANNA, refresh_ttl=False)} == {"long", "ever"}
        assert (await store.asweep_ttl(), await store.asweep_ttl()) == (1, 0)
        Later.ahead = timedelta(days=1)
        assert {item.key for item in await store.asearch(ANNA)} == {"ever"}
        assert (await store.aget(ANNA, "ever")).created_at < Later.now(UTC)


async def test_what_is_refused(store):
    """Values that are not JSON, and comparisons that are not known, are refused with their place."""
    with pytest.raises(InvalidInput, match="value"):
        await store.aput(ANNA, "a", {"n": {1, 2}})
    await store.aput(ANNA, "a", {"n": 1})
    with pytest.raises(InvalidInput, match=r"\$gt"):
        await store.asearch(ANNA, filter={"n": {"$near": 1}})
