"""A database of every format so far opens, is brought up to date and reads back equal; no death on the way hurts it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import apsw
import asyncpg
import pytest

import saveslot
from saveslot import InvalidInput, SessionManager
from saveslot.stack import Postgres
from saveslot.stores import open_store, postgres_server, sqlite_file

from .make_format import told
from .migrator import POSTGRES, inject

HERE = Path(__file__).parent
FORMATS = sorted(int(path.stem.partition("_")[2]) for path in HERE.glob("format_*.sqlite"))
BACKENDS = ("sqlite", "postgres")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def old(request, tmp_path) -> Callable[[str, int], str]:
    """The URL of a database as an older version left it; each call makes one."""
    made: list[str] = []

    def url(backend: str, number: int) -> str:
        made.append(f"old_{len(made)}_{request.node.name.partition('[')[0][-20:]}")
        if backend == "sqlite":
            path = tmp_path / f"{made[-1]}.db"
            shutil.copy(HERE / f"format_{number}.sqlite", path)
            return f"sqlite:///{path}"
        server = request.getfixturevalue("server")
        asyncio.run(_restore(server.url, made[-1], (HERE / f"format_{number}.sql").read_text()))
        return f"{server.url}&schema={made[-1]}"

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
    found = await told(store)
    await sessions.checkpoint("lesson", "upgraded", {"messages": ["still here"]})
    assert (await sessions.get_checkpoint("lesson")).data == {"messages": ["still here"]}
    async with sessions.hold("forked") as held:
        assert await held.step("charge", lambda: pytest.fail("it ran again"), key="k-1") == {"paid": True}
    await sessions.create_session("tutor", session_id="gone")
    await sessions.close()
    return found


def version(url: str) -> int:
    if url.startswith("sqlite:"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        found = connection.pragma("user_version")
        connection.close()
        return found
    return asyncio.run(_fetch(url, "select version from format"))


async def _fetch(url: str, sql: str):
    dsn, _, schema = url.partition("&schema=")
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    found = await connection.fetchval(sql)
    await connection.close()
    return found


@pytest.fixture
def later(tmp_path, monkeypatch) -> None:
    """As a later version would be: it knows of one migration more."""
    monkeypatch.setattr(sqlite_file, "migrations", sqlite_file.migrations)
    monkeypatch.setattr(postgres_server, "migrations", postgres_server.migrations)
    monkeypatch.setattr(apsw, "connection_hooks", list(apsw.connection_hooks))
    monkeypatch.setattr(asyncpg.Connection, "execute", asyncpg.Connection.execute)
    inject(tmp_path, 0)


@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_format_so_far_is_read_as_it_was_written(old, backend, number):
    """By this version."""
    assert asyncio.run(_read(old(backend, number))) == expected(number)


@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_migration_changes_nothing_that_was_saved(old, backend, number, later):
    """By a later version, which migrates it; every session reads back equal."""
    url = old(backend, number)
    assert asyncio.run(_read(url)) == expected(number)
    assert version(url) == number + (1 if backend == "sqlite" else len(POSTGRES))


def run(url: str, place: int, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(saveslot.__file__).parents[1])}
    command = [sys.executable, str(HERE / "migrator.py"), url, str(place), str(folder)]
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)


@pytest.mark.faults
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_migration_killed_on_the_way_is_finished_by_the_next_start(old, backend, tmp_path):
    """Whatever the point: all of it or nothing of it is there, and the next to open the database does the rest."""
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
        with pytest.raises(InvalidInput, match="newer Saveslot"):
            asyncio.run(_read_only(url))
    assert place > len(POSTGRES)
    assert version(url) > number


async def _read_only(url: str) -> dict[str, str]:
    store = await open_store(url)
    found = await told(store)
    await store.close()
    return found


@pytest.mark.faults
@pytest.mark.parametrize("backend", BACKENDS)
def test_eight_processes_migrate_once(old, backend, tmp_path):
    """All of them start at once, and all of them open it."""
    url = old(backend, FORMATS[-1])
    started = [run(url, 0, tmp_path) for _ in range(8)]
    assert [process.wait(120) for process in started] == [0] * 8, [process.communicate() for process in started]
    for process in started:
        process.communicate()
    assert version(url) > FORMATS[-1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_code_older_than_the_database_refuses(old, backend, later, monkeypatch):
    """One clear error that says what to do, and nothing is changed."""
    url = old(backend, FORMATS[-1])
    asyncio.run(_read_only(url))
    newer = version(url)
    monkeypatch.undo()
    with pytest.raises(InvalidInput, match=r"newer Saveslot .*upgrade saveslot"):
        asyncio.run(_read_only(url))
    assert version(url) == newer


def test_a_backup_is_as_good_as_the_file(old):
    """A copy by VACUUM INTO has no write-ahead log: opening it gives it one, so that readers wait for no writer."""
    url = old("sqlite", FORMATS[-1])
    asyncio.run(_read_only(url))
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


def test_the_newest_format_has_its_fixture():
    """Whoever adds a migration keeps a database of the format before, and one of the new: `make_format.py`."""
    assert len(sqlite_file.migrations()) == FORMATS[-1]
    assert list(range(1, FORMATS[-1] + 1)) == FORMATS
    for number in FORMATS:
        assert (HERE / f"format_{number}.sql").exists()
        assert len(expected(number)) > 2
