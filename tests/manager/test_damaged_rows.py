"""Whatever bytes are in one session's rows: every verb raises a typed error or works, and the other sessions stay."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import saveslot
from saveslot import Corrupt, LeaseHeld, SaveslotError, SessionManager
from saveslot.cli import main
from tests.harness.damage import NASTY, Plant, planted

# On a server a case costs more, and the cases are fewer: every n-th of all.
SPARSE = {"sqlite": 11, "postgres": 23, "valkey": 23}


@pytest.fixture(params=["sqlite", "postgres", "valkey"], scope="module")
def plant(request, tmp_path_factory) -> Plant:
    return planted(request, tmp_path_factory)


async def walked(sessions: SessionManager, name: str) -> list[Any]:
    return [checkpoint.data async for checkpoint in sessions.walk(name)]


async def seen(sessions: SessionManager) -> None:
    async for _ in sessions.watch(after="0"):
        break


def verbs(sessions: SessionManager, name: str) -> Iterator[tuple[str, Callable[[], Awaitable[Any]]]]:
    for level in ("strong", "cached"):
        yield f"find {level}", lambda level=level: sessions.find(level=level)
    yield "find by label", lambda: sessions.find(labels={"team": "red"})
    yield "find by text", lambda: sessions.find(text="secon")
    yield "find by user", lambda: sessions.find(user_id="anna", state="active")
    yield "find orphans", lambda: sessions.find(orphaned=True)
    yield "get_active_sessions", sessions.get_active_sessions
    yield "count", sessions.count
    yield "stats", sessions.stats
    yield "analytics", lambda: sessions.analytics(between=("asked", "answered"), bucket=timedelta(days=36500))
    yield "get_session", lambda: sessions.get_session(name, history="all")
    yield "get_checkpoint", lambda: sessions.get_checkpoint(name, "answered")
    yield "get_data", lambda: sessions.get_data(name)
    yield "older data", lambda: sessions.get_data(name, 2)
    yield "history", lambda: sessions.history(name)
    yield "history all", lambda: sessions.history(name, all=True)
    yield "walk", lambda: walked(sessions, name)
    yield "log", lambda: sessions.log(name)
    yield "summary", lambda: sessions.summary(name)
    yield "diff", lambda: sessions.diff(name, 2, 3)
    yield "pins", lambda: sessions.pins(name)
    yield "export", lambda: sessions.export(name)
    yield "audit", lambda: sessions.audit(name)
    yield "key_ids", sessions.key_ids
    yield "watch", lambda: asyncio.wait_for(seen(sessions), 60)
    yield "thin dry", lambda: sessions.thin(name, dry_run=True)
    yield "gc dry", lambda: sessions.gc(timedelta(0), grace=timedelta(0), dry_run=True)
    yield "erase dry", lambda: sessions.erase(name, dry_run=True)
    yield "erase user dry", lambda: sessions.erase(user_id="anna", dry_run=True)
    yield "thin_all", lambda: sessions.thin_all(grace=timedelta(0))
    yield "sweep", lambda: sessions.cleanup_stale_sessions(timedelta(days=1))
    yield "checkpoint", lambda: sessions.checkpoint(name, "more", {"messages": [1]})
    yield "pin", lambda: sessions.pin(name, 2)
    yield "rollback", lambda: sessions.rollback(name, 2)
    yield "fork", lambda: sessions.fork(name, 2)
    yield "claim", lambda: claimed(sessions)
    yield "take", lambda: taken(sessions, name)
    yield "gc", lambda: sessions.gc(timedelta(0), grace=timedelta(0))
    yield "delete", lambda: sessions.delete_session(name)


# Verbs over all sessions: damage to one of them must not stop these.
ALL = {
    *("find strong", "find cached", "find by label", "find by user", "find by text", "get_active_sessions", "count"),
    *("stats", "gc dry", "thin_all", "sweep", "key_ids", "claim", "gc", "find orphans"),
}


async def claimed(sessions: SessionManager) -> list[str]:
    return [await _released(held) for held in await sessions.claim(released=True)]


async def taken(sessions: SessionManager, name: str) -> str:
    return await _released(await sessions.take(name))


async def _released(held: Any) -> str:
    await held.release()
    return held.session.session_id


async def ask_all(url: str) -> list[str]:
    """Ask every verb about the damaged session; return what went wrong."""
    wrong: list[str] = []
    # A short TTL: on a server, `take` waits that long for a silent owner.
    async with saveslot.open(url, worker_beat=0.5, worker_ttl=2) as sessions:
        for verb, call in verbs(sessions, "second"):
            try:
                answer = await asyncio.wait_for(call(), 60)
            except SaveslotError as exc:
                if verb in ALL:
                    wrong.append(f"{verb}: {exc}")
                continue
            except Exception as exc:  # noqa: BLE001  (this is what the test looks for)
                wrong.append(f"{verb}: {type(exc).__name__}: {str(exc)[:200]}")
                continue
            if verb in {"find strong", "find cached"}:
                missing = {"first", "third"} - {session.session_id for session in answer}
                wrong += [f"{verb} does not list {name}" for name in missing]
                for session in answer:
                    _read(session, wrong)
    return wrong


def _read(session: Any, wrong: list[str]) -> None:
    try:
        session.to_dict()
    except Corrupt:
        return
    except Exception as exc:  # noqa: BLE001  (as above)
        wrong.append(f"to_dict: {type(exc).__name__}: {exc}")


COMMANDS = (
    *(
        "ls",
        "ls --json",
        "show second",
        "log second",
        "stats",
        "export second",
        "audit second",
        "gc",
        "diff second 2 3",
    ),
    *("doctor", "doctor --json"),
)


def run_all(url: str, capsys) -> list[str]:
    """Run the commands; return those that end in anything but an exit."""
    wrong: list[str] = []
    for command in COMMANDS:
        try:
            main([*command.split(), "--store", url])
        except SystemExit:
            pass
        except BaseException as exc:  # noqa: BLE001  (as above)
            wrong.append(f"saveslot {command}: {type(exc).__name__}: {str(exc)[:200]}")
        printed = capsys.readouterr()
        if "Traceback" in printed.err:
            wrong.append(f"saveslot {command}: {printed.err[-300:]}")
        if command == "ls" and not ("first" in printed.out and "third" in printed.out):
            wrong.append(f"saveslot ls: {printed.out[-300:]} {printed.err[-300:]}")
    return wrong


def test_damaged_column_is_a_typed_error_and_hides_nothing(plant, capsys, request):
    """Each column gets one or two of the values that damage can leave there."""
    wrong: list[str] = []
    every = SPARSE[request.node.callspec.params["plant"]]
    for table, columns in plant.tables.items():
        for n, column in enumerate(columns):
            for m, (what, value) in enumerate(NASTY.items()):
                if (4 * n + m) % every:
                    continue
                plant.restore()
                seq = 6 if n % 2 else 2
                if plant.damage(table, column, value, seq):
                    damage = asyncio.run(ask_all(plant.url))
                    if not n % 3:
                        damage += run_all(plant.url, capsys)
                    wrong += [f"{table}.{column} of entry {seq} = {what}: {one}" for one in damage]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("table", "column", "what"),
    [
        ("sessions", "created_at", "smallest"),
        ("sessions", "created_at", "fraction"),
        ("workers", "beaten", "not UTF-8"),
    ],
)
def test_damage_that_once_hung_or_raised_something_else(plant, table, column, what):
    """No verb reads the same page again and again, and a worker's row is checked too."""
    plant.restore()
    if plant.damage(table, column, NASTY[what], 2):
        assert asyncio.run(ask_all(plant.url)) == []


def test_lease_without_an_end_is_refused_as_any_other(plant):
    """A damaged worker row can seem to be alive beyond the year 9999; writes to its session are `LeaseHeld`."""
    plant.restore()
    if plant.kind == "valkey":
        assert plant.damage("workers", "worker", f"{1 << 62} 1 0 0 w", 0)
    else:
        assert plant.damage("workers", "expires", 1 << 62, 0)
        plant.damage("workers", "dead", 0 if plant.kind == "sqlite" else False, 0)

    async def write() -> None:
        async with saveslot.open(plant.url) as sessions:
            await sessions.checkpoint("second", "more", {})

    with pytest.raises(LeaseHeld):
        asyncio.run(write())


@pytest.mark.long
def test_random_damage_is_a_typed_error_and_hides_nothing(plant, capsys):
    """Up to three columns of random rows with random values, 2,000 times."""
    wrong: list[str] = []
    draw = random.Random(7)
    for n in range(2000):
        plant.restore()
        done: list[str] = []
        for _ in range(draw.randint(1, 3)):
            table = draw.choice([*plant.tables, "sessions"])
            column, what, seq = draw.choice(plant.tables[table]), draw.choice([*NASTY]), draw.randint(1, 6)
            value = draw.choice([NASTY[what], draw.randbytes(draw.randint(0, 64)), draw.getrandbits(62)])
            if column not in {"id", "key"} and plant.damage(table, column, value, seq):
                done.append(f"{table}.{column} of entry {seq} = {value!r:.60}")
        damage = asyncio.run(ask_all(plant.url)) if done else []
        damage += run_all(plant.url, capsys) if done and not n % 5 else []
        wrong += [f"{n}: {done}: {one}" for one in damage]
    assert not wrong, "\n".join(wrong)
