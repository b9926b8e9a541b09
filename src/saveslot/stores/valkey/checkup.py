"""Checks of a Valkey store, with advice. Read-only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from saveslot.errors import Corrupt, InvalidInput, SaveslotError
from saveslot.stores import shown
from saveslot.stores.findings import Finding, Logs, Progress, problem, warning
from saveslot.stores.valkey import ValkeyStore
from saveslot.stores.valkey.connection import FORMAT, PREFIX, connect
from saveslot.values.log import Row
from saveslot.values.words import many, size

# Scripts with flags came with Redis 7; older versions are not tested.
OLDEST = {"Valkey": (7, 2), "Redis": (7, 0)}
# Seconds for the server to answer.
PATIENCE = 10.0
# Share of its memory in use that is a warning.
NEARLY = 0.9
# Sessions in the sample, and entries after which no further session is checked.
SAMPLE, MOST = 200, 20_000

TABLES = False
DURABLE = "config set appendonly yes; config set appendfsync always; config rewrite"
ROOM = "config set maxmemory 4gb; config set maxmemory-policy noeviction"


class Known(NamedTuple):
    """What the server reports. `settings` lacks those that managed servers hide."""

    info: dict[str, Any]
    settings: dict[str, str]
    format: bytes | None
    sessions: int
    entries: int
    sample: list[bytes]  # keys of sessions


async def check(url: str, progress: Progress, *, every: bool = False) -> AsyncGenerator[Finding | Logs]:
    """All findings, from the outside in; a broken layer ends the check. `every`: look at all sessions, not a sample."""
    progress("server", 0, 0)
    try:
        known = await _reported(url)
    except InvalidInput as exc:
        yield problem("server", *str(exc).split("; ", 1))
        return
    except Exception as exc:  # noqa: BLE001  (each client has errors of its own)
        text = f"{shown(url)} does not answer ({shown(str(exc)) or type(exc).__name__})"
        yield problem("server", text, "start it, or correct its URL, user and password")
        return
    yield _version(known.info, url)
    if known.info.get("role") == "slave":
        yield problem("role", "this server is a replica, which accepts no writes", "name the primary in the URL")
        return
    yield _persistence(known.info, known.settings)
    if finding := _replicas(known.info):
        yield finding
    yield _memory(known.info)
    text = _format(known.format)
    yield text
    if text.state != "ok":
        return
    try:
        rows, unlisted = await _rows(url, known.sample, every=every)
    except SaveslotError as exc:
        yield problem("script", *str(exc).split("; ", 1))
        return
    yield Finding("content", f"{many(known.sessions, 'session')}, {many(known.entries, 'entry')}")
    if unlisted:
        text = f"{many(unlisted, 'session')} of {many(len(rows), 'session')} missing in an index: lists may lack them"
        yield problem("indexes", text, "saveslot doctor --repair  lists them again")
    yield Logs(url, rows, known.entries, None if every else MOST)


async def formats(url: str) -> tuple[int, int]:
    stored = (await _reported(url)).format or b"0"
    if not stored.isdigit():
        raise Corrupt(shown(url), f"its format is {stored!r}")
    return int(stored), FORMAT


async def _reported(url: str) -> Known:
    client = connect(url)
    try:
        async with asyncio.timeout(PATIENCE):
            info: dict[str, Any] = await client.info()
            settings = {name: await _setting(client, name) for name in ("appendfsync", "save")}
            stored = await client.execute_command("HGET", PREFIX + b":counters", "format", NEVER_DECODE=True)
            sessions: int = await client.execute_command("ZCARD", PREFIX + b":expiry")
            entries: int = await client.execute_command("ZCARD", PREFIX + b":feed")
            sample = await client.execute_command("ZRANDMEMBER", PREFIX + b":expiry", SAMPLE, NEVER_DECODE=True)
    finally:
        await client.aclose()
    return Known(info, {k: v for k, v in settings.items() if v is not None}, stored, sessions, entries, sample)


async def _rows(url: str, sample: list[bytes], *, every: bool) -> tuple[list[Row], int]:
    """Rows of sessions, and how many of them an index lacks."""
    store = await ValkeyStore.open(url)
    try:
        keys = await store.keys() if every else sample
        rows = [row for n in range(0, len(keys), SAMPLE) for row in await store.rows(keys[n : n + SAMPLE])]
        return rows, await store.relist(keys, apply=False)
    finally:
        await store.close()


async def _setting(client: Any, name: str) -> str | None:
    try:
        return (await client.config_get(name)).get(name)
    except Exception:  # noqa: BLE001  (as above)
        return None


def _version(info: dict[str, Any], url: str) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "0.0"))
    text = f"{name} {version} at {shown(url)}"
    oldest = OLDEST[name]
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        return problem("server", text, f"upgrade it: {name} {oldest[0]}.{oldest[1]} is the oldest that can be used")
    return Finding("server", text)


def _persistence(info: dict[str, Any], settings: dict[str, str]) -> Finding:
    """Which acknowledged writes survive a crash or a restart."""
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        text = "it cannot write its append-only file, and accepts no writes"
        return problem("persistence", text, "free some disk space; see the server's log")
    if info.get("aof_enabled"):
        sync = settings.get("appendfsync")
        if sync == "always":
            return Finding("persistence", "append-only file, synced always: acknowledged is durable")
        text = {
            "everysec": "append-only file, synced every second: a crash loses up to the last second",
            "no": "append-only file, never synced: a power cut loses what the system had not written",
        }.get(sync or "", "append-only file, synced at an unknown interval")
        return warning("persistence", text, "config set appendfsync always; config rewrite")
    if settings.get("save"):
        text = f"snapshots ({settings['save']}): a crash loses everything since the last one"
        return warning("persistence", text, DURABLE)
    text = "none: a restart loses everything"
    if "save" not in settings:
        text = "no append-only file, snapshots unknown: a restart loses some or all"
    return warning("persistence", text, DURABLE, "or keep sessions in a database, with Valkey in front (hot=)")


def _replicas(info: dict[str, Any]) -> Finding | None:
    count = int(info.get("connected_slaves", 0))
    if not count:
        return None
    text = f"{many(count, 'replica')}, asynchronous: a failover loses what had not arrived there"
    return warning("replicas", text, "after one, owners of lost entries get HistoryLost")


def _memory(info: dict[str, Any]) -> Finding:
    policy, used, most = str(info.get("maxmemory_policy", "unknown")), info["used_memory"], info.get("maxmemory", 0)
    if policy != "noeviction":
        text = f"{policy}: once full, it silently drops sessions in use"
        make = problem if most else warning
        return make("memory", text, "config set maxmemory-policy noeviction; config rewrite")
    if not most:
        return warning("memory", f"no limit, {size(used)} used: it grows until the machine runs out of memory", ROOM)
    text = f"{size(used)} of {size(most)} used; when full it refuses new entries and drops nothing"
    if used > NEARLY * most:
        return warning("memory", text, "raise maxmemory (config set maxmemory), or end sessions sooner")
    return Finding("memory", text)


def _format(stored: bytes | None) -> Finding:
    if stored is None:
        return Finding("format", "no sessions yet")
    if not stored.isdigit():
        return problem(
            "format",
            f"{stored!r} is not one",
            f"restore the server's data, or: hset {PREFIX.decode()}:counters format {FORMAT}",
        )
    if int(stored) > FORMAT:
        text = f"{int(stored)}, but this Saveslot reads only up to {FORMAT}"
        return problem("format", text, "pip install --upgrade saveslot")
    return Finding("format", f"{int(stored)}, the newest")
