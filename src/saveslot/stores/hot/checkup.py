"""Checks of a Valkey in front of a store, with advice. It holds copies only, so no finding endangers saved data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from saveslot.stores import shown
from saveslot.stores.findings import Finding, problem, warning
from saveslot.stores.hot.connection import BUDGET, connect
from saveslot.values.words import size

# Older versions are not tested, although they know SET with PX and NX.
OLDEST = {"Valkey": (7, 2), "Redis": (6, 2)}
# Seconds for the server to answer.
PATIENCE = 5.0
# Share of the budget that the network may take before copies often come too late.
SHARE = 0.2


async def check(url: str) -> AsyncGenerator[Finding]:
    client = connect(url)
    try:
        async with asyncio.timeout(PATIENCE):
            info: dict[str, Any] = await client.info()
            took, saves = await _round_trip(client), await _saves(client)
    except Exception as exc:  # noqa: BLE001  (each client has errors of its own)
        text = f"{shown(url)} does not answer ({shown(str(exc)) or type(exc).__name__})"
        yield problem("hot tier", text, "start it, or correct its URL; until then every read goes to the database")
        return
    finally:
        await client.aclose()
    yield _version(info, url)
    yield _near(took)
    if info.get("role") == "slave":
        yield problem(
            "hot role", "this server is a replica, which accepts no copies", "name the primary in the hot tier's URL"
        )
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
    """True if it writes snapshots; False also if that is unknown, as on managed servers."""
    try:
        return bool((await client.config_get("save")).get("save"))
    except Exception:  # noqa: BLE001  (as above)
        return False


def _version(info: dict[str, Any], url: str) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "0.0"))
    text = f"{name} {version} at {shown(url)}"
    oldest = OLDEST[name]
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        return warning(
            "hot tier", text, f"upgrade it: {name} {oldest[0]}.{oldest[1]} is the oldest that should be used"
        )
    return Finding("hot tier", text)


def _near(took: float) -> Finding:
    text = f"{took * 1000:.2g} ms of the {BUDGET * 1000:.0f} ms after which the database is read instead"
    if took > SHARE * BUDGET:
        return warning("hot trip", text, "run it closer to the agents, or remove it: at this distance it does not help")
    return Finding("hot trip", text)


def _eviction(info: dict[str, Any]) -> Finding:
    policy, used, most = str(info.get("maxmemory_policy", "unknown")), info["used_memory"], info.get("maxmemory", 0)
    if not most:
        text = f"no limit, {size(used)} used: it grows until the machine runs out of memory"
        return warning("eviction", text, "config set maxmemory 1gb; config set maxmemory-policy allkeys-lru")
    text = f"{policy}, {size(used)} of {size(most)} used"
    if policy == "noeviction":
        text += ": once full, it accepts no new copies"
        return warning("eviction", text, "config set maxmemory-policy allkeys-lru (the database has what is evicted)")
    return Finding("eviction", text)


def _persistence(*, written: bool) -> Finding:
    """Persistence changes nothing: the database is the source of truth."""
    if written:
        text = (
            "it writes copies to disk, which is not needed; erased data stays in those files until they are rewritten"
        )
        return Finding("persistence", text)
    return Finding("persistence", "none, and none is needed: after a restart it refills from the database")
