"""Erased content is gone from every file, but the record that it existed remains."""

from __future__ import annotations

import asyncio
import itertools
import os
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import asyncpg
import pytest
import valkey

import saveslot
from saveslot import InvalidInput, LeaseLost, NotFound, Unavailable
from saveslot.stores.sqlite import file as sqlite_file
from saveslot.stores.sqlite.file import connect

KEY = bytes(range(32))
SECRET = "the crown jewels are under the third stair"  # noqa: S105


def raw(file: Path) -> bytes:
    """Return all bytes of a SQLite database, as stored in its folder."""
    return b"".join(path.read_bytes() for path in sorted(file.parent.glob(f"{file.name}*")))


async def fill(sessions, name="s", user="anna", said=SECRET) -> None:
    """Save secrets in every possible place, small and large, some of them replaced or thinned later."""
    session = await sessions.create_session(
        "tutor", user, {"topic": said}, {"m": said}, labels={"env": said}, session_id=name
    )
    large = [f"{n} {said}" for n in range(400)]
    for n in range(4):
        await sessions.checkpoint(name, "asked", {"messages": large[: n * 130], "n": [said] * n}, {"why": said})
    session = await sessions.refresh(session)
    session.context = {"topic": "now " + said * 200}
    await sessions.update_session(session)
    async with sessions.hold(name) as held:
        await held.step("ask", lambda: said * 100)
        await held.update_context(topic="short")


@pytest.mark.parametrize("key", [None, KEY])
async def test_erased_session_is_gone(opened, key):
    """No call finds it, its id is free again, its entries remain without content, and erasing again changes nothing."""
    async with opened(encryption_key=key) as sessions, opened(encryption_key=key) as others:
        await fill(sessions)
        await fill(sessions, "t", "bob")
        before = await others.get_session("t")
        assert (await others.get_session("s")).user_id == "anna"
        answer = await sessions.erase("s", dry_run=True)
        assert answer["sessions"] == ["s"]
        assert answer["entries"] >= 7
        assert await sessions.get_session("s") is not None
        assert await sessions.erase(session_id="s") == answer
        for manager in (sessions, others):
            assert await manager.get_session("s") is None
            with pytest.raises(NotFound):
                await manager.get_data("s")
            with pytest.raises(NotFound):
                await manager.checkpoint("s", "asked", {"n": 1})
        assert await sessions.erase("s", dry_run=True) == {"sessions": ["s"], "entries": 0}
        assert await sessions.erase("s") == {"sessions": ["s"], "entries": 0}
        assert (await others.get_session("t")).to_dict() == before.to_dict()
        await sessions.create_session("tutor", session_id="s")
        assert await sessions.get_data("s") == {}


async def test_erase_ends_a_hold(opened):
    """A held session is erased too; its holder's next call raises and stores nothing."""
    async with opened() as sessions, opened() as others:
        await fill(sessions)
        async with others.hold("s") as held:
            await sessions.erase("s")
            with pytest.raises((NotFound, LeaseLost)):
                await held.checkpoint("asked", {"secret": SECRET})
            assert held.lost.is_set()


async def test_erase_user_includes_forks(opened):
    """Deleted sessions and forks of forks are erased, even under another user; a newer one of the same id is not."""
    async with opened(encryption_key=KEY) as sessions:
        await fill(sessions, "a")
        await fill(sessions, "deleted")
        await sessions.fork("a", session_id="fork")
        await sessions.fork("fork", session_id="fork of fork")
        text = await sessions.export("fork", plain=True)
        await sessions.import_session(text.replace('"anna"', '"bob"'), session_id="bob's fork")
        await sessions.delete_session("deleted")
        await sessions.create_session("tutor", "bob", session_id="deleted")
        await sessions.fork("deleted", session_id="bob's own")
        answer = await sessions.erase(user_id="anna", dry_run=True)
        assert await sessions.erase(user_id="anna") == answer
        assert answer["sessions"] == ["a", "bob's fork", "deleted", "fork", "fork of fork"]
        assert {s.session_id for s in await sessions.find()} == {"deleted", "bob's own"}
        assert await sessions.erase(user_id="anna") == {"sessions": [], "entries": 0}


@pytest.mark.parametrize("how", [{}, {"session_id": "s", "user_id": "anna"}])
async def test_erase_requires_session_id_or_user_id(opened, how):
    """Neither and both are refused; so is a session that never existed."""
    async with opened() as sessions:
        with pytest.raises(InvalidInput):
            await sessions.erase(**how)
        with pytest.raises(NotFound):
            await sessions.erase("nobody")


async def test_interrupted_erase_is_finished_by_the_next(opened, monkeypatch):
    """After a kill at any step, the next call finds the session by session or user id, and finishes."""
    async with opened() as sessions:
        for killed in range(4):
            await fill(sessions, f"s{killed}")
            store, left = sessions.engine.vault, iter(range(killed))

            async def failing(verb, *args, left=left, **how):
                next(left)
                return await verb(*args, **how)

            with monkeypatch.context() as patch:
                for name in ("empty", "swap", "scrub"):
                    patch.setattr(store, name, partial(failing, getattr(store, name)))
                with pytest.raises(RuntimeError):
                    await sessions.erase(f"s{killed}")
            if killed < 3:
                assert (await sessions.erase(user_id="anna"))["sessions"] == [f"s{killed}"]
            entries = await store.stored.entries((await _row(store, f"s{killed}")).key)
            assert {entry.frame for entry in entries} == {None}
            assert (await _row(store, f"s{killed}")).user_id == ""


async def _row(store, session_id):
    from saveslot.manager.erase import of_session

    return (await of_session(store, "default", session_id))[0]


# The bytes of the files


@pytest.mark.parametrize("key", [None, KEY])
async def test_erase_leaves_no_trace_in_sqlite(file, key):
    """No free page and no write-ahead log holds any of it, even while the managers are still open."""
    async with saveslot.open(f"sqlite:///{file}", encryption_key=key) as sessions:
        await fill(sessions, "other", "bob", said="what may stay")
        async with saveslot.open(f"sqlite:///{file}", encryption_key=key) as others:
            for n in range(3):
                await fill(others, f"s{n}")
                await others.get_data(f"s{n}")
            await others.delete_session("s0")
            assert (SECRET.encode() in raw(file)) is True  # in labels, at least, which are never sealed
            assert b"anna" in raw(file)
            await sessions.erase(user_id="anna")
            left = raw(file)
            for trace in (SECRET, SECRET[4:20], "anna"):
                assert trace.encode() not in left
            assert (await sessions.get_session("other")).user_id == "bob"


async def test_erase_reports_a_reader_that_holds_the_wal(file, monkeypatch):
    """The session is erased, but the write-ahead log cannot be emptied during a read: the caller gets an error, and the
    next call empties it.
    """
    monkeypatch.setattr(sqlite_file, "PATIENCE", 0.05)
    async with saveslot.open(f"sqlite:///{file}") as sessions:
        await fill(sessions)
        reader = connect(str(file), None)
        reader.execute("begin")
        reader.execute("select count(*) from checkpoints").fetchall()
        with pytest.raises(Unavailable, match="erase again"):
            await sessions.erase("s")
        assert await sessions.get_session("s") is None
        reader.execute("commit")
        reader.close()
        await sessions.erase(user_id="anna")
        assert SECRET.encode() not in raw(file)


async def test_erase_leaves_no_trace_in_postgresql_if_it_rewrites(database):
    """Otherwise old versions of its rows stay in the server's files; a second call rewrites what a first one left."""
    secret = "the key hangs behind the second clock"  # noqa: S105  (the server has SECRET of other tests)
    url = f"{database.url}&schema=erase_rewrite"
    async with saveslot.open(url) as sessions:
        await fill(sessions, said=secret)
        await fill(sessions, "other", said="nothing")

        async def found() -> bool:
            connection = await asyncpg.connect(database.url)
            await connection.execute("checkpoint")
            await connection.close()
            return any(secret.encode() in path.read_bytes() for path in database.folder.glob("**/base/*/*"))

        await sessions.erase("s")
        assert await found()
        await sessions.erase("s", rewrite=True)
        assert not await found()
        assert (await sessions.get_session("other")).context == {"topic": "short"}


async def test_erase_removes_valkey_copies(database, valkey_url, monkeypatch):
    """Copies in Valkey are removed too; if Valkey does not answer, the caller gets an error, and the next call removes
    them.
    """
    monkeypatch.setattr("saveslot.stores.hot.connection.BUDGET", 30)
    url = f"{database.url}&schema=erase"
    with valkey.Valkey.from_url(valkey_url) as client:
        client.flushall()

        def held() -> bool:
            values = [value for name in client.keys("saveslot:*") for value in client.hvals(name)]
            return any(SECRET.encode() in value for value in values)

        async with saveslot.open(url, hot=valkey_url) as sessions:
            await sessions.create_session("tutor", "anna", session_id="s")
            await sessions.checkpoint("s", "asked", {"secret": SECRET})
            async with asyncio.timeout(60):
                while not held():  # noqa: ASYNC110  (another process's memory)
                    await asyncio.sleep(0.01)

            async def unheard(*_args, **_options):
                return False

            with monkeypatch.context() as patch:
                patch.setattr("saveslot.stores.hot.copies.Copies.drop", unheard)
                with pytest.raises(Unavailable, match="erase it again"):
                    await sessions.erase("s")
            assert await sessions.get_session("s") is None
            await sessions.erase("s")
            assert not held()


@pytest.mark.parametrize("how", ["erase", "purge"])
async def test_reads_beside_an_erasure_raise_not_found(sessions, others, stores, monkeypatch, how):
    """Wherever it comes between two reads of one call: the right answer or `NotFound`, nothing else."""

    async def walked(name):
        return [item.data async for item in sessions.walk(name)]

    reads = {"walk": walked, "export": sessions.export, "history": sessions.history}
    for read, number in itertools.product(reads, range(8)):
        name = f"{how}-{read}-{number}"
        session = await others.create_session("tutor", session_id=name, context={"n": 1})
        for n in range(3):
            await others.checkpoint(name, "turn", {"n": n})
        session = await others.get_session(name)
        session.context["n"] = 2
        await others.update_session(session)
        left = number

        def interrupted(method, name=name):
            async def call(*args, **kwargs):
                nonlocal left
                left -= 1
                if left == -1:
                    if how == "erase":
                        await others.erase(name)
                    else:
                        await others.delete_session(name)
                        await others.gc(grace=timedelta(0))
                return await method(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for method in ("heads", "entries"):
                patch.setattr(stores[0], method, interrupted(getattr(stores[0], method)))
            with suppress(NotFound):
                assert await reads[read](name)


async def test_erases_at_once_on_one_file_all_succeed(file):
    """Each empties the WAL; a second connection doing so makes SQLite answer "busy" at once."""
    async with AsyncExitStack() as stack:
        managers = [await stack.enter_async_context(saveslot.open(f"sqlite:///{file}")) for _ in range(3)]
        for n in range(12):
            ids = [f"{n}-{manager}" for manager in range(3)]
            for one in ids:
                await managers[0].create_session("tutor", session_id=one)
                await managers[0].checkpoint(one, "saved", {"text": os.urandom(300_000).hex()})
            await asyncio.gather(*(manager.erase(one) for manager, one in zip(managers, ids, strict=True)))


async def test_a_namespace_is_erased_as_a_whole(opened):
    """All its sessions, deleted ones too; other namespaces stay, and a second call finds nothing more to destroy."""
    async with opened() as sessions, opened() as others:
        school, other = sessions.of("school-7"), sessions.of("school-8")
        for name in ("s", "t"):
            await fill(school, name)
        await fill(other, "s")
        await school.delete_session("t")
        shown = await others.of("school-7").erase_all(dry_run=True)
        assert (shown.sessions, shown.deleted) == (1, 1)
        assert shown.bytes > len(SECRET) * 100
        assert (await school.get_session("s")).user_id == "anna"
        assert await school.erase_all() == shown
        for name in ("s", "t"):
            assert (await school.audit(name)).state == "erased"
            assert await school.erase(name, dry_run=True) == {"sessions": [name], "entries": 0}
        again = await school.erase_all()
        assert (again.sessions, again.deleted) == (0, 2)
        assert again.bytes < shown.bytes
        assert (await others.of("school-8").get_session("s")).user_id == "anna"
