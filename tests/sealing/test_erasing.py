"""What was erased is nowhere any more, and that it was there can still be told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest
import valkey

import saveslot
from saveslot import InvalidInput, LeaseLost, NotFound, Unavailable
from saveslot.stores import sqlite_file

KEY = bytes(range(32))
SECRET = "the crown jewels are under the third stair"  # noqa: S105


def raw(file: Path) -> bytes:
    """All bytes of a SQLite database, as they lie in its folder."""
    return b"".join(path.read_bytes() for path in sorted(file.parent.glob(f"{file.name}*")))


async def fill(sessions, name="s", user="anna", said=SECRET) -> None:
    """Secrets wherever something can be saved, small and large, some of them replaced or thinned since."""
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
async def test_an_erased_session_is_gone(opened, key):
    """No verb finds it, its id is free again, its entries remain without content, and a second time changes nothing."""
    async with opened(encryption_key=key) as sessions, opened(encryption_key=key) as others:
        await fill(sessions)
        await fill(sessions, "t", "bob")
        before = await others.get_session("t")
        assert (await others.get_session("s")).user_id == "anna"
        told = await sessions.erase("s", dry_run=True)
        assert told["sessions"] == ["s"]
        assert told["entries"] >= 7
        assert await sessions.get_session("s") is not None
        assert await sessions.erase(session_id="s") == told
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


async def test_whoever_holds_it_is_told(opened):
    """A held session is erased too; its holder's next verb raises, and nothing of it lands."""
    async with opened() as sessions, opened() as others:
        await fill(sessions)
        async with others.hold("s") as held:
            await sessions.erase("s")
            with pytest.raises((NotFound, LeaseLost)):
                await held.checkpoint("asked", {"secret": SECRET})
            assert held.lost.is_set()


async def test_a_user_is_erased_with_all_forks(opened):
    """Deleted sessions and forks of forks too, also under another user; whoever has the same id since is left alone."""
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
        told = await sessions.erase(user_id="anna", dry_run=True)
        assert await sessions.erase(user_id="anna") == told
        assert told["sessions"] == ["a", "bob's fork", "deleted", "fork", "fork of fork"]
        assert {s.session_id for s in await sessions.find()} == {"deleted", "bob's own"}
        assert await sessions.erase(user_id="anna") == {"sessions": [], "entries": 0}


@pytest.mark.parametrize("how", [{}, {"session_id": "s", "user_id": "anna"}])
async def test_a_session_or_a_user_is_named(opened, how):
    """Neither and both are refused; so is a session that never was."""
    async with opened() as sessions:
        with pytest.raises(InvalidInput):
            await sessions.erase(**how)
        with pytest.raises(NotFound):
            await sessions.erase("nobody")


async def test_an_interrupted_erasure_is_finished_by_the_next(opened, monkeypatch):
    """Killed after any of its steps, the next call finds it by session or user, and finishes."""
    async with opened() as sessions:
        for killed in range(4):
            await fill(sessions, f"s{killed}")
            store, left = sessions._store, iter(range(killed))  # noqa: SLF001
            empty = store.empty

            async def failing(*args, left=left, empty=empty, **how):
                next(left)
                return await empty(*args, **how)

            with monkeypatch.context() as patch:
                patch.setattr(store, "empty", failing)
                with pytest.raises(RuntimeError):
                    await sessions.erase(f"s{killed}")
            if killed < 3:
                assert (await sessions.erase(user_id="anna"))["sessions"] == [f"s{killed}"]
            entries = await store.stored.entries((await _row(store, f"s{killed}")).key)
            assert {entry.frame for entry in entries} == {None}
            assert (await _row(store, f"s{killed}")).user_id == ""


async def _row(store, session_id):
    from saveslot.erasing import of_session

    return (await of_session(store, "default", session_id))[0]


# What lies in the files


@pytest.mark.parametrize("key", [None, KEY])
async def test_sqlite_keeps_no_trace(file, key):
    """Neither a free page nor the log of the file holds anything of it, though the managers are still open."""
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


async def test_a_reader_that_holds_the_log_is_told_of(file, monkeypatch):
    """Erased all the same; the log of the file cannot be emptied while somebody reads, so the caller is told, and
    the next call does it.
    """
    monkeypatch.setattr(sqlite_file, "PATIENCE", 0.05)
    async with saveslot.open(f"sqlite:///{file}") as sessions:
        await fill(sessions)
        reader = apsw.Connection(str(file))
        reader.execute("begin")
        reader.execute("select count(*) from checkpoints").fetchall()
        with pytest.raises(Unavailable, match="erase again"):
            await sessions.erase("s")
        assert await sessions.get_session("s") is None
        reader.execute("commit")
        reader.close()
        await sessions.erase(user_id="anna")
        assert SECRET.encode() not in raw(file)


async def test_valkey_keeps_no_copy(database, valkey_server, monkeypatch):
    """Copies go with what they copy; if Valkey does not answer the caller is told, and the next call does it."""
    monkeypatch.setattr("saveslot.stores.tiered.SMALL", 0)  # all frames are lent
    monkeypatch.setattr("saveslot.stores.hot.BUDGET", 30)
    url = f"{database.url}&schema=erase"
    with valkey.Valkey.from_url(valkey_server.url) as client:
        client.flushall()

        def held() -> bool:
            values = [client.get(name) for name in client.keys("saveslot:*")]
            return any(SECRET.encode() in (value or b"") for value in values)

        async with saveslot.open(url, hot=valkey_server.url) as sessions:
            await sessions.create_session("tutor", "anna", session_id="s")
            await sessions.checkpoint("s", "asked", {"secret": SECRET})
            async with asyncio.timeout(60):
                while not held():  # noqa: ASYNC110  (another process's memory)
                    await asyncio.sleep(0.01)

            async def unheard(tier, _key, seqs):
                tier.counts.left += len(seqs)

            with monkeypatch.context() as patch:
                patch.setattr("saveslot.stores.hot.HotTier.bury", unheard)
                with pytest.raises(Unavailable, match="erase again"):
                    await sessions.erase("s")
            assert await sessions.get_session("s") is None
            await sessions.erase("s")
            assert not held()
