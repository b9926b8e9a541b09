"""A database of every format opens, is migrated and reads back equal; a kill during migration does no harm."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from itertools import count
from pathlib import Path

import apsw
import asyncpg
import pytest

import saveslot
from saveslot import InvalidInput, SessionManager
from saveslot.session.verify import Damage, Verifier
from saveslot.stores import open_store
from saveslot.stores.postgres import schema as postgres_schema
from saveslot.stores.sqlite import file as sqlite_file
from saveslot.stores.sqlite.file import connect
from saveslot.values.log import Wanted
from tests.harness.servers import Database

from .make_format import exports
from .migrator import POSTGRES, inject

HERE = Path(__file__).parent
FORMATS = sorted(int(path.stem.partition("_")[2]) for path in HERE.glob("format_*.sqlite"))
BACKENDS = ("sqlite", "postgres")


@pytest.fixture(scope="module")
def server(database: Database) -> Database:
    return database


@pytest.fixture
def old(request, tmp_path) -> Callable[[str, int], str]:
    """The URL of a database as an older version left it; each call makes one."""
    items: list[str] = []

    def url(backend: str, number: int) -> str:
        items.append(f"old_{len(items)}_{zlib.crc32(request.node.name.encode())}")
        if backend == "sqlite":
            path = tmp_path / f"{items[-1]}.db"
            shutil.copy(HERE / f"format_{number}.sqlite", path)
            return f"sqlite:///{path}"
        server = request.getfixturevalue("server")
        asyncio.run(_restore(server.url, items[-1], (HERE / f"format_{number}.sql").read_text()))
        return f"{server.url}&schema={items[-1]}"

    return url


async def _restore(dsn: str, schema: str, text: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"create schema {schema}; set search_path to {schema}; {text}")
    await connection.close()


def expected(number: int) -> dict[str, str]:
    return json.loads((HERE / f"format_{number}.json").read_text())


async def _read(url: str) -> dict[str, str]:
    """Everything in it; and it can be gone on with."""
    store = await open_store(url)
    sessions = SessionManager(store=store)
    result = await exports(store)
    await sessions.checkpoint("lesson", "upgraded", {"messages": ["still here"]})
    assert (await sessions.get_checkpoint("lesson")).data == {"messages": ["still here"]}
    async with sessions.hold("forked") as held:
        assert await held.step("charge", lambda: pytest.fail("it ran again"), key="k-1") == {"paid": True}
    await sessions.create_session("tutor", session_id="gone")
    await sessions.close()
    return result


def version(url: str) -> int:
    if url.startswith("sqlite:"):
        connection = connect(url.removeprefix("sqlite:///"), None)
        value = connection.pragma("user_version")
        connection.close()
        return value
    return asyncio.run(_fetch(url, "select version from format"))


async def _fetch(url: str, sql: str):
    dsn, _, schema = url.partition("&schema=")
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    value = await connection.fetchval(sql)
    await connection.close()
    return value


@pytest.fixture
def later(tmp_path, monkeypatch) -> None:
    """As a later version would be: it knows of one migration more."""
    monkeypatch.setattr(sqlite_file, "migrations", sqlite_file.migrations)
    monkeypatch.setattr(postgres_schema, "migrations", postgres_schema.migrations)
    monkeypatch.setattr(apsw, "connection_hooks", list(apsw.connection_hooks))
    monkeypatch.setattr(asyncpg.Connection, "execute", asyncpg.Connection.execute)
    inject(tmp_path, 0)


@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_format_is_readable(old, backend, number):
    """The current version reads each back equal."""
    assert asyncio.run(_read(old(backend, number))) == expected(number)


@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_migration_changes_no_saved_data(old, backend, number, later):
    """A later version migrates it, and every session reads back equal."""
    url = old(backend, number)
    assert asyncio.run(_read(url)) == expected(number)
    assert version(url) == FORMATS[-1] + (1 if backend == "sqlite" else len(POSTGRES))


def run(url: str, place: int, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(saveslot.__file__).parents[1])}
    command = [sys.executable, str(HERE / "migrator.py"), url, str(place), str(folder)]
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)


@pytest.mark.faults
@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_migration_is_finished_by_the_next_open(old, backend, tmp_path):
    """Wherever it is killed, all or nothing of it is applied, and the next process to open the database finishes it."""
    number = FORMATS[-1]
    for place in count(1):
        url = old(backend, number)
        with run(url, place, tmp_path) as killed:
            if killed.wait(60) == 0:  # beyond the last point: it lived
                break
            assert killed.returncode == -signal.SIGKILL, killed.communicate()
        assert version(url) == number
        assert asyncio.run(_read_only(url)) == expected(number)
        with run(url, 0, tmp_path) as finished:
            assert finished.wait(60) == 0, finished.communicate()
        assert version(url) > number
        with pytest.raises(InvalidInput, match="this Saveslot reads only up to"):
            asyncio.run(_read_only(url))
    assert place > len(POSTGRES)
    assert version(url) > number


async def _read_only(url: str) -> dict[str, str]:
    store = await open_store(url)
    result = await exports(store)
    await store.close()
    return result


@pytest.mark.faults
@pytest.mark.parametrize("backend", BACKENDS)
def test_eight_processes_migrate_once(old, backend, tmp_path):
    """All of them start at once, and all open it."""
    url = old(backend, FORMATS[-1])
    started = [run(url, 0, tmp_path) for _ in range(8)]
    assert [process.wait(120) for process in started] == [0] * 8, [process.communicate() for process in started]
    for process in started:
        process.communicate()
    assert version(url) > FORMATS[-1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_older_code_refuses_a_newer_database(old, backend, later, monkeypatch):
    """One clear error says what to do, and nothing is changed."""
    url = old(backend, FORMATS[-1])
    asyncio.run(_read_only(url))
    newer = version(url)
    monkeypatch.undo()
    with pytest.raises(InvalidInput, match=r"this Saveslot reads only up to .*upgrade it"):
        asyncio.run(_read_only(url))
    assert version(url) == newer


def test_vacuum_into_backup_can_be_opened(old):
    """It has no write-ahead log: opening it adds one, so that readers wait for no writer."""
    url = old("sqlite", FORMATS[-1])
    asyncio.run(_read_only(url))
    connection = connect(url.removeprefix("sqlite:///"), None)
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


def test_newest_format_has_a_fixture():
    """A new migration needs a database of the format before, and one of the new: `make_format.py`."""
    assert len(sqlite_file.migrations()) == FORMATS[-1]
    assert list(range(1, FORMATS[-1] + 1)) == FORMATS
    for number in FORMATS:
        assert (HERE / f"format_{number}.sql").exists()
        assert len(expected(number)) > 2


@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_old_sessions_are_written_on_in_place(old, backend, number):
    """Frames of format 1 stay as they are, and are read beside new ones: states, rollbacks to them, links, checks."""
    url = old(backend, number)

    async def live() -> None:
        async with saveslot.open(url) as sessions:
            before = [(one.id, one.name, one.data) for one in await sessions.history("lesson")]
            for n in range(40):
                await sessions.checkpoint("lesson", "more", append={"messages": [{"role": "user", "content": f"{n}"}]})
            await sessions.rollback("lesson", 12)
            assert await sessions.get_data("lesson", last={"messages": 2}) == cut(before[11][2], 2)
            await sessions.checkpoint("lesson", "on an old state", append={"messages": ["on"]})
        async with saveslot.open(url) as sessions:
            after = [(one.id, one.name, one.data) for one in await sessions.history("lesson")]
            assert after[: len(before)] == before
            assert after[-1][2] == {**before[11][2], "messages": [*before[11][2]["messages"], "on"]}
            assert await sessions.get_data("lesson", last={"messages": 2}) == cut(after[-1][2], 2)
            assert (await sessions.audit("lesson")).misfit is None
            json = await sessions.export("lesson")
            assert await damage(sessions, "lesson") == []
            await sessions.import_session(json, session_id="again")
            assert [one.data for one in await sessions.history("again")] == [data for _, _, data in after]
            await sessions.thin("lesson", saveslot.Retention(keep_first=0, keep_last=3, compress_after=1), grace=0)
            kept = [one.data for one in await sessions.history("lesson")]
            assert kept[-1] == after[-1][2]
            assert await damage(sessions, "lesson") == []

    asyncio.run(live())


def cut(data, count: int):
    return {**data, "messages": data["messages"][-count:]}


async def damage(sessions: SessionManager, session_id: str) -> list[Damage]:
    """What a check of the whole log finds."""
    vault = sessions.engine.vault
    [head] = await vault.heads([(sessions.namespace, session_id)])
    headers = Wanted(frames=False)
    stored = await vault.stored.stored.entries(head.row.key, headers)
    entries = await vault.entries(head.row.key, headers)
    verifier = Verifier(head.row, stored, entries)
    found = verifier.headers()
    frames = await vault.entries(head.row.key, Wanted(verifier.needs(entries)))
    found += [one for entry in frames if (one := verifier.frame(entry)) is not None]
    return [*found, *verifier.states(entries, frames)]
