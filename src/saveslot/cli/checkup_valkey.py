"""What may be wrong with a Valkey in front of a store. It holds copies only: nothing here endangers what was saved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from saveslot.cli.findings import Finding, problem, warning
from saveslot.cli.words import size
from saveslot.stores import shown
from saveslot.stores.hot import BUDGET, connect

# Older ones are not tested; what we ask of them, SET with PX and NX, they know for longer.
OLDEST = {"Valkey": (7, 2), "Redis": (6, 2)}
# Seconds that it has to answer here.
PATIENCE = 5.0
# A part of the budget that the network alone may take, before copies come too late too often.
SHARE = 0.2


async def check(url: str) -> AsyncGenerator[Finding]:
    client = connect(url)
    try:
        async with asyncio.timeout(PATIENCE):
            info: dict[str, Any] = await client.info()
            took, saves = await _round_trip(client), await _saves(client)
    except Exception as exc:  # noqa: BLE001  (each client has errors of its own)
        told = f"{shown(url)} does not answer ({shown(str(exc)) or type(exc).__name__})"
        yield problem("hot tier", told, "start it, or correct its URL; until then every read asks the database")
        return
    finally:
        await client.aclose()
    yield _version(info, url)
    yield _near(took)
    if info.get("role") == "slave":
        yield problem("hot role", "is a replica, which takes no copies", "name the primary in the hot tier's URL")
    yield _eviction(info)
    yield _persistence(written=bool(info.get("aof_enabled") or saves))


async def _round_trip(client: Any) -> float:
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        await client.ping()
        times.append(time.perf_counter() - began)
    return sorted(times)[2]


async def _saves(client: Any) -> bool:
    """True if it writes snapshots; False also where it does not tell, as managed ones do."""
    try:
        return bool((await client.config_get("save")).get("save"))
    except Exception:  # noqa: BLE001  (as above)
        return False


def _version(info: dict[str, Any], url: str) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "0.0"))
    told = f"{name} {version} at {shown(url)}"
    oldest = OLDEST[name]
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        return warning(
            "hot tier", told, f"upgrade it: {name} {oldest[0]}.{oldest[1]} is the oldest that should be used"
        )
    return Finding("hot tier", told)


def _near(took: float) -> Finding:
    told = f"{took * 1000:.2g} ms of the {BUDGET * 1000:.0f} ms after which the database is asked instead"
    if took > SHARE * BUDGET:
        return warning("hot trip", told, "run it closer to the agents, or leave it out: it does not help from there")
    return Finding("hot trip", told)


def _eviction(info: dict[str, Any]) -> Finding:
    policy, used, most = str(info.get("maxmemory_policy", "unknown")), info["used_memory"], info.get("maxmemory", 0)
    if not most:
        told = f"no limit, {size(used)} used: it grows until the machine has no memory left"
        return warning("eviction", told, "config set maxmemory 1gb; config set maxmemory-policy allkeys-lru")
    told = f"{policy}, {size(used)} of {size(most)} used"
    if policy == "noeviction":
        told += ": once it is full, no new copies are made"
        return warning("eviction", told, "config set maxmemory-policy allkeys-lru (what was evicted, the database has)")
    return Finding("eviction", told)


def _persistence(*, written: bool) -> Finding:
    """Its meaning is the same either way: the database is the only truth."""
    if written:
        told = (
            "it writes copies to disk, which nobody needs; what was erased stays in those files until they are renewed"
        )
        return Finding("persistence", told)
    return Finding("persistence", "none, and none is needed: after a restart it fills itself from the database")
