"""A forked child cannot use what its parent opened, and what it opens itself is safe."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from uuid import uuid4

import pytest

BEGIN = """
import asyncio, os, sys, threading, time, warnings
import saveslot
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads

async def refused(verb, *kinds):
    try:
        await asyncio.wait_for(verb, 60)
    except kinds as exc:
        assert "fork" in str(exc), exc
    else:
        raise AssertionError("it was done")

def forked(child):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with asyncio.Runner() as runner:
                runner.run(asyncio.wait_for(child(), 60))
            code = 0
        except BaseException as exc:
            print(repr(exc), flush=True)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid

def ended(pid):
    assert os.waitpid(pid, 0)[1] == 0

runner = asyncio.Runner()
run = runner.run
"""


def script(text: str, url: str) -> str:
    """What a script in an interpreter of its own prints; a hang is a failure."""
    lines = f"{BEGIN}\nURL = {url!r}\n{textwrap.dedent(text)}"
    apart = {**os.environ, "SAVESLOT_NAMESPACE": str(uuid4())}
    result = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False, env=apart
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def sqlite(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, sqlite) -> str:
    return sqlite if request.param == "sqlite" else request.getfixturevalue("database").url


def test_memory_store_is_refused_in_the_child():
    """Like every other store, so that what a child may do does not depend on the store."""
    script(
        """
        sessions = run(saveslot.open(URL).__aenter__())
        run(sessions.create_session("t", session_id="s"))
        held = run(sessions.take("s"))

        async def child():
            await refused(held.checkpoint("stolen", {}), saveslot.LeaseLost)
            await refused(sessions.get_session("s"), saveslot.Unavailable)
            await sessions.close()

        ended(forked(child))
        run(held.checkpoint("one", {"n": 1}))
        run(sessions.close())
        """,
        "memory:",
    )


def test_what_the_parent_opened_is_refused_in_the_child(url):
    """No verb of a manager or a held session does anything in the child, `close` and `release` are quick and harmless,
    the child opens its own; the parent continues, also with the sessions it holds.
    """
    result = script(
        """
        sessions = run(saveslot.open(URL, session_ttl_hours=1).__aenter__())
        run(sessions.create_session("t", session_id="g"))
        run(sessions.create_session("t", session_id="free"))
        held = run(sessions.take("g"))
        run(held.checkpoint("one", {"n": 1}))
        run(sessions.checkpoint("free", "one", {"n": 1}))
        run(sessions.find(level="cached"))
        run(sessions.keeper.start(thin=True))

        async def child():
            lost = (saveslot.LeaseLost, saveslot.Unavailable)
            await refused(held.checkpoint("stolen", {"n": 2}), *lost)
            await refused(held.checkpoint("stolen", {"n": 2}), *lost)
            for verb in (held.heartbeat, held.pause, held.resume, held.complete, held.refresh, held.steps):
                await refused(verb(), *lost)
            await refused(held.update_context(a=1), *lost)
            await refused(held.rollback("one"), *lost)
            await refused(held.step("s", dict), *lost)
            assert held.lost.is_set()
            await held.release()
            for verb in (
                sessions.create_session("t"), sessions.get_session("free"), sessions.checkpoint("free", "x", {}),
                sessions.find(level="cached"), sessions.take("free"), sessions.claim(), sessions.stats(),
                sessions.delete_session("free"), sessions.keeper.tend(), sessions.thin("free"),
            ):
                await refused(verb, saveslot.Unavailable)
            await sessions.close()
            async with saveslot.open(URL) as mine:
                await mine.checkpoint("free", "child", {"n": 2})
                try:
                    await mine.take("g")
                except saveslot.LeaseHeld:
                    print("held by the parent", flush=True)

        ended(forked(child))
        run(held.checkpoint("two", {"n": 2}))
        run(sessions.checkpoint(run(sessions.get_session("free")), "two", {"n": 3}))
        print([made.name for made in run(sessions.history("g"))], run(sessions.get_data("free")))
        run(held.release())
        run(sessions.close())
        """,
        url,
    )
    assert result == "held by the parent\n['session_created', 'one', 'two'] {'n': 3}\n"


def test_fork_during_writes_leaves_no_waiter(url):
    """The parent's running tasks do not exist in the child, and nothing in the child waits for them."""
    script(
        """
        sessions = run(saveslot.open(URL).__aenter__())
        run(sessions.create_session("t", session_id="g"))
        held = run(sessions.take("g"))
        run(sessions.create_session("t", session_id="free"))

        async def busy():
            async def child():
                await refused(held.checkpoint("stolen", {}), saveslot.LeaseLost)
                await refused(sessions.checkpoint("free", "stolen", {}), saveslot.Unavailable)
                await refused(sessions.delete_session("free"), saveslot.Unavailable)
                await refused(sessions.claim(), saveslot.Unavailable)
                await held.release()
                await sessions.close()

            writes = [held.checkpoint("a", {"x": "y" * 300_000}), sessions.checkpoint("free", "a", {"n": 1})]
            tasks = [asyncio.ensure_future(write) for write in writes]
            await asyncio.sleep(0)
            pid = await asyncio.get_running_loop().run_in_executor(None, forked, child)
            await asyncio.gather(*tasks)
            await asyncio.to_thread(ended, pid)

        run(busy())
        assert [made.name for made in run(sessions.history("free"))] == ["session_created", "a"]
        run(held.checkpoint("b", {}))
        run(sessions.close())
        """,
        url,
    )


def test_childs_writes_survive_the_parents_close(sqlite):
    """The child locks the file too, so the parent's close does not treat itself as the last user."""
    result = script(
        """
        sessions = run(saveslot.open(URL).__aenter__())
        run(sessions.create_session("t", session_id="s"))
        run(sessions.checkpoint("s", "one", {"n": 1}))
        opened, closed = os.pipe(), os.pipe()

        async def child():
            async with saveslot.open(URL) as mine:
                await mine.checkpoint("s", "two", {"n": 2})
                os.write(opened[1], b"x")
                os.read(closed[0], 1)
                await mine.checkpoint("s", "three", {"n": 3})

        pid = forked(child)
        os.read(opened[0], 1)
        run(sessions.close())
        os.write(closed[1], b"x")
        ended(pid)
        print(run(run(saveslot.open(URL).__aenter__()).get_data("s")))
        """,
        sqlite,
    )
    assert result == "{'n': 3}\n"


def test_file_in_use_at_the_fork_is_refused_in_the_child(sqlite):
    """Where SQLite cannot be left consistent, the child gets an error, and the parent continues."""
    script(
        """
        from saveslot.stores.sqlite import forking
        forking.PATIENCE = 0.05
        sessions = run(saveslot.open(URL).__aenter__())
        run(sessions.create_session("t", session_id="s"))
        connection = next(iter(forking._connections))
        connection.execute("begin")

        async def child():
            await refused(sessions.get_session("s"), saveslot.Unavailable)
            await refused(saveslot.open(URL).__aenter__(), saveslot.Unavailable)
            await sessions.close()

        ended(forked(child))
        connection.execute("rollback")
        run(sessions.checkpoint("s", "one", {"n": 1}))
        run(sessions.close())
        """,
        sqlite,
    )
