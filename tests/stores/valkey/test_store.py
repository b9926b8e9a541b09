"""Valkey alone behaves like every other store, on a real server."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest
import valkey

import saveslot
from saveslot.stack import Valkey
from saveslot.stores import Store
from saveslot.stores.valkey import ValkeyStore
from saveslot.stores.valkey.connection import READS, scripts
from saveslot.testing import Clock, StoreConformance, behaves_like_memory
from saveslot.values.log import Query


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture(autouse=True)
def reached(server: Valkey) -> None:
    TestValkey.url = server.url


class TestValkey(StoreConformance):
    erases = False  # its sessions end by themselves
    url: ClassVar[str]

    async def open(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002  (a server has no folder)
        return await ValkeyStore.open(self.url, 3600, clock, clock.uptime)


def test_script_knows_every_filter() -> None:
    """A filter added to queries later cannot be silently ignored."""
    script, _ = scripts()[READS]
    for name in {*Query.__struct_fields__} - {"changed"}:  # an order, made by the caller
        assert f"q.{name} ".encode() in script or f"q.{name})".encode() in script, name


def test_valkey_behaves_like_memory(server: Valkey) -> None:
    """Two handles on one server answer every sequence of steps as memory does."""

    async def open_two(clock: Clock) -> tuple[Store, Store]:
        return (
            await ValkeyStore.open(server.url, 3600, clock, clock.uptime),
            await ValkeyStore.open(server.url, 3600, clock, clock.uptime),
        )

    behaves_like_memory(open_two, examples=30, steps=40)


async def test_sealed_sessions_in_valkey(server: Valkey) -> None:
    """With a key the server holds no plaintext of the agent's data, and only the key reads it; thinning works too."""
    url, key, secret = f"{server.url}/7", bytes(range(32)), "the secret of anna"
    async with saveslot.open(url, encryption_key=key) as sessions:
        await sessions.create_session("tutor", context={"topic": secret}, session_id="s")
        for n in range(9):
            await sessions.checkpoint("s", "asked", {"secret": f"{secret} {n} " * 200}, {"why": secret})
        rule = saveslot.Retention(keep_last=1, keep_latest_per_name=False)
        thinned = await sessions.thin("s", rule, grace=timedelta(0))
        assert (thinned.marked, thinned.emptied > 0) == (7, True)
    with valkey.Valkey.from_url(url) as client:
        stored = [client.dump(name) for name in client.scan_iter()]
    assert stored
    assert not any(secret.encode() in (value or b"") for value in stored)
    async with saveslot.open(url) as sessions:
        assert [session.locked for session in await sessions.find()] == [True]
        with pytest.raises(saveslot.KeyMissing):
            await sessions.get_data("s")
    async with saveslot.open(url, encryption_key=key) as sessions:
        assert await sessions.get_data("s") == {"secret": f"{secret} 8 " * 200}
        assert (await sessions.audit("s")).misfit is None
        with pytest.raises(saveslot.InvalidInput, match="cannot erase"):
            await sessions.erase("s")
        assert await sessions.get_session("s") is not None
        assert len(await sessions.key_ids()) == 1


@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["plain", "sealed"])
async def test_entry_in_anothers_place_is_corrupt(server: Valkey, key: bytes | None) -> None:
    """An older entry in the newest one's field is never returned as the newest, and no call spins."""
    url = f"{server.url}/9"
    with valkey.from_url(url) as client:
        client.flushdb()
        async with saveslot.open(url, encryption_key=key) as sessions:
            await sessions.create_session("tutor", session_id="s")
            for n in range(5):
                await sessions.checkpoint("s", "turn", {"n": n})
        [name] = [name for name in client.scan_iter() if client.type(name) == b"hash" and client.hexists(name, "e6")]
        for place in ("e6", "e3"):
            whole = client.hget(name, place)
            client.hset(name, place, client.hget(name, "e4"))
            async with saveslot.open(url, encryption_key=key) as sessions:
                calls = [sessions.history("s", all=True)]
                if place == "e6":
                    calls += [sessions.get_data("s"), sessions.checkpoint("s", "x", {}), sessions.take("s")]
                for call in calls:
                    with pytest.raises(saveslot.Corrupt):
                        await asyncio.wait_for(call, 60)
            client.hset(name, place, whole)
