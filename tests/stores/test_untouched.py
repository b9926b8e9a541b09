"""Reading leaves an empty place as it is: no file, folder or table before the first write."""

from __future__ import annotations

import os
import stat

import asyncpg
import pytest

import saveslot
from saveslot import CheckpointManager, NotFound, SessionManager


async def found_nothing(sessions: SessionManager) -> None:
    """Every read of an empty store answers, and finds nothing."""
    assert list(await sessions.find()) == []
    assert await sessions.find(orphaned=True) == []
    assert await sessions.count() == 0
    assert await sessions.get_session("s") is None
    assert await sessions.get_active_sessions() == []
    assert (await sessions.stats())["entries"] == 0
    assert (await sessions.stats())["stored_bytes"] == 0
    assert (await sessions.analytics())["sessions"] == 0
    assert await sessions.key_ids() == {}
    assert (await sessions.gc(dry_run=True)).count == 0
    for dry_run in (True, False):
        assert await sessions.erase(user_id="anna", dry_run=dry_run) == {"sessions": [], "entries": 0}
    with pytest.raises(NotFound):
        await sessions.erase("s")
    with pytest.raises(NotFound):
        await sessions.history("s")
    with pytest.raises(NotFound):
        await sessions.get_checkpoint("s")


async def test_reading_a_missing_file_makes_nothing(tmp_path):
    """Opening and reading a SQLite file that does not exist finds nothing, and creates neither it nor its folder."""
    async with saveslot.open(f"sqlite:///{tmp_path}/deep/er.db") as sessions:
        await found_nothing(sessions)
    with CheckpointManager("s", url=f"sqlite:///{tmp_path}/deep/er.db") as checkpoints:
        assert len(checkpoints) == 0
    assert list(tmp_path.iterdir()) == []


async def test_first_write_makes_the_file(tmp_path):
    """The first write creates folder, file and tables, and readers that opened the missing file see it."""
    url = f"sqlite:///{tmp_path}/deep/er.db"
    async with saveslot.open(url) as reader, saveslot.open(url) as writer:
        await found_nothing(reader)
        assert [sessions.session_id for sessions in await writer.find()] == []
        await writer.create_session("tutor", session_id="s")
        assert await reader.count() == 1
        assert (await reader.get_session("s")).agent_type == "tutor"
        await reader.checkpoint("s", "theirs", {"n": 1})
        assert await writer.get_data("s") == {"n": 1}


async def test_a_watcher_of_a_missing_file_sees_its_first_session(tmp_path):
    """`watch` of a file that does not exist yields what another process writes there later."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with saveslot.open(url) as reader, saveslot.open(url) as writer:
        watching = reader.watch(after=0)
        await writer.create_session("tutor", session_id="s")
        assert (await anext(watching)).session_id == "s"
        await watching.aclose()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
async def test_new_files_are_private(tmp_path, umask):
    """A new SQLite file, its WAL and its index can be read by their owner alone."""
    before = os.umask(umask)
    try:
        async with saveslot.open(f"sqlite:///{tmp_path}/s.db") as sessions:
            await sessions.create_session("tutor")
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600}


async def test_link_to_a_missing_file_is_followed(tmp_path):
    """The first write through a link creates the file that the link names."""
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "real.db")
    async with saveslot.open(f"sqlite:///{tmp_path}/link.db") as sessions:
        await found_nothing(sessions)
        await sessions.create_session("tutor")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["real.db"]


@pytest.fixture
def database_url(servers) -> str:
    """A PostgreSQL database without a table."""
    return servers.database().url


async def test_reading_an_empty_database_makes_no_tables(database_url):
    """Reads of a PostgreSQL database without tables find nothing and run no DDL; the first write makes the tables."""
    url = database_url
    async with saveslot.open(url) as sessions, saveslot.open(url) as others:
        await found_nothing(sessions)
        watching = sessions.watch(after=0)
        assert await schemas(url) == []
        await others.create_session("tutor", session_id="s")
        assert await schemas(url) == ["saveslot"]
        assert (await anext(watching)).session_id == "s"
        await watching.aclose()
        assert await sessions.count() == 1
        await sessions.checkpoint("s", "mine", {"n": 1})
        assert await others.get_data("s") == {"n": 1}


async def test_a_callers_pool_makes_no_tables_for_readers(database_url):
    """The same with the caller's own pool, in a schema of its choice."""
    url = database_url
    async with asyncpg.create_pool(url, min_size=1) as pool:
        sessions = SessionManager(db_pool=pool, schema="mine")
        await found_nothing(sessions)
        assert await schemas(url) == []
        await sessions.create_session("tutor", session_id="s")
        assert await schemas(url) == ["mine"]
        assert await sessions.count() == 1
        await sessions.close()


async def schemas(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        names = await connection.fetch("select nspname from pg_namespace where nspname !~ '^(pg_|information_|public)'")
        return [name for (name,) in names]
    finally:
        await connection.close()
