"""What may be wrong with a Valkey that keeps sessions itself, and what to do about it. Nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from saveslot.cli.findings import Finding, Progress, problem, warning
from saveslot.cli.recipes import recipes
from saveslot.cli.words import many, size
from saveslot.errors import InvalidInput, SaveslotError
from saveslot.stores import shown
from saveslot.stores.valkey import ValkeyStore
from saveslot.stores.valkey_server import FORMAT, PREFIX, connect

# Scripts with flags came with Redis 7; nobody tests older ones.
OLDEST = {"Valkey": (7, 2), "Redis": (7, 0)}
# Seconds that a server has to answer here.
PATIENCE = 10.0
# More of its memory than this may be gone before anyone looks again.
NEARLY = 0.9
# Sessions that are rebuilt, and entries after which no other one is begun.
SAMPLE, MOST = 200, 20_000

DURABLE = "config set appendonly yes; config set appendfsync always; config rewrite"
ROOM = "config set maxmemory 4gb; config set maxmemory-policy noeviction"


class Known(NamedTuple):
    """What the server says of itself. `settings` lacks what it does not tell, as managed ones do."""

    info: dict[str, Any]
    settings: dict[str, str]
    format: bytes | None
    sessions: int
    entries: int
    sample: list[tuple[bytes, str, str, bytes]]


async def check(url: str, progress: Progress) -> AsyncGenerator[Finding]:
    """Everything, from the outside in; what a broken layer makes meaningless is left out."""
    try:
        known = await _asked(url)
    except InvalidInput as exc:
        yield problem("server", *str(exc).split("; ", 1))
        return
    except Exception as exc:  # noqa: BLE001  (each client has errors of its own)
        told = f"{shown(url)} does not answer ({shown(str(exc)) or type(exc).__name__})"
        yield problem("server", told, "start it, or correct its URL, user and password")
        return
    yield _version(known.info, url)
    if known.info.get("role") == "slave":
        yield problem("role", "is a replica, which takes no writes", "name the primary in the URL")
        return
    yield _persistence(known.info, known.settings)
    if found := _replicas(known.info):
        yield found
    yield _memory(known.info)
    told = _format(known.format)
    yield told
    if told.state != "ok":
        return
    try:
        await (await ValkeyStore.open(url)).close()
    except SaveslotError as exc:
        yield problem("script", *str(exc).split("; ", 1))
        return
    yield Finding("content", f"{many(known.sessions, 'session')}, {many(known.entries, 'entry')}")
    yield await recipes(url, known.sample, known.entries, progress, most=MOST)


async def _asked(url: str) -> Known:
    client = connect(url)
    try:
        async with asyncio.timeout(PATIENCE):
            info: dict[str, Any] = await client.info()
            settings = {name: await _setting(client, name) for name in ("appendfsync", "save")}
            found = await client.execute_command("HGET", PREFIX + b":counters", "format", NEVER_DECODE=True)
            sessions: int = await client.execute_command("ZCARD", PREFIX + b":expiry")
            entries: int = await client.execute_command("ZCARD", PREFIX + b":feed")
            sample: list[tuple[bytes, str, str, bytes]] = []
            drawn = await client.execute_command("ZRANDMEMBER", PREFIX + b":expiry", SAMPLE, NEVER_DECODE=True)
            for key in drawn:
                asked = ("HMGET", PREFIX + b":session:" + key, "ns", "id", "body")
                namespace, name, body = await client.execute_command(*asked, NEVER_DECODE=True)
                if body is not None:
                    sample.append((bytes.fromhex(key.decode()), namespace.decode(), name.decode(), body))
    finally:
        await client.aclose()
    return Known(info, {k: v for k, v in settings.items() if v is not None}, found, sessions, entries, sample)


async def _setting(client: Any, name: str) -> str | None:
    try:
        return (await client.config_get(name)).get(name)
    except Exception:  # noqa: BLE001  (as above)
        return None


def _version(info: dict[str, Any], url: str) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "0.0"))
    told = f"{name} {version} at {shown(url)}"
    oldest = OLDEST[name]
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        return problem("server", told, f"upgrade it: {name} {oldest[0]}.{oldest[1]} is the oldest that can be used")
    return Finding("server", told)


def _persistence(info: dict[str, Any], settings: dict[str, str]) -> Finding:
    """What a crash or a restart leaves of what was acknowledged."""
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        told = "it cannot write its append-only file, and takes no writes"
        return problem("persistence", told, "give its disk room; its log says more")
    if info.get("aof_enabled"):
        sync = settings.get("appendfsync")
        if sync == "always":
            return Finding("persistence", "append-only file, synced always: acknowledged is durable")
        told = {
            "everysec": "append-only file, synced every second: a crash loses up to the last second",
            "no": "append-only file, never synced by itself: a power cut loses what the system had not written",
        }.get(sync or "", "append-only file; how often it is synced, it does not tell")
        return warning("persistence", told, "config set appendfsync always; config rewrite")
    if settings.get("save"):
        told = f"snapshots ({settings['save']}): a crash loses everything since the last one"
        return warning("persistence", told, DURABLE)
    told = "none: with a restart everything is gone"
    if "save" not in settings:
        told = "no append-only file; whether it writes snapshots, it does not tell: a restart loses some or all"
    return warning("persistence", told, DURABLE, "or keep sessions in a database, with Valkey in front (hot=)")


def _replicas(info: dict[str, Any]) -> Finding | None:
    count = int(info.get("connected_slaves", 0))
    if not count:
        return None
    told = f"{many(count, 'replica')}, written behind: a failover loses what had not arrived there"
    return warning("replicas", told, "after one, owners of what was lost are told so (HistoryLost)")


def _memory(info: dict[str, Any]) -> Finding:
    policy, used, most = str(info.get("maxmemory_policy", "unknown")), info["used_memory"], info.get("maxmemory", 0)
    if policy != "noeviction":
        told = f"{policy}: once it is full, it drops sessions that are in use, without a word"
        make = problem if most else warning
        return make("memory", told, "config set maxmemory-policy noeviction; config rewrite")
    if not most:
        return warning("memory", f"no limit, {size(used)} used: it grows until the machine has none left", ROOM)
    told = f"{size(used)} of {size(most)} used; when full it refuses new entries, and drops nothing"
    if used > NEARLY * most:
        return warning("memory", told, "give it more (config set maxmemory), or let sessions end sooner")
    return Finding("memory", told)


def _format(found: bytes | None) -> Finding:
    if found is None:
        return Finding("format", "no sessions yet")
    if int(found) > FORMAT:
        told = f"{int(found)}, of a newer Saveslot (this one knows {FORMAT})"
        return problem("format", told, "pip install --upgrade saveslot")
    return Finding("format", f"{int(found)}, the newest")
