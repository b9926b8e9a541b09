"""How an adapter reaches its sessions; no framework is needed here."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import saveslot
from saveslot import InvalidInput
from saveslot.adapters.access import Access, require


async def count(sessions) -> int:
    return await sessions.count()


async def create(sessions) -> str:
    return (await sessions.create_session("tutor")).session_id


async def itself(sessions):
    return sessions


async def test_one_manager_per_url_and_loop(file):
    """Adapters of one URL share a manager in a loop, and the last one to close it closes it."""
    first, second = Access(file), Access(str(file))
    assert await first.call(itself) is await second.call(itself)
    await first.close()
    assert await second.call(count) == 0
    await second.close()
    await first.call(create)
    assert await first.call(count) == 1
    await first.close()


async def test_options_and_memory_are_not_shared(file):
    """Adapters with other options have a manager of their own, and each one in memory has its own sessions."""
    plain, patient = Access(file), Access(file, worker_ttl=30)
    assert await plain.call(itself) is not await patient.call(itself)
    one, other = Access("memory:"), Access("memory:")
    await one.call(create)
    assert (await one.call(count), await other.call(count)) == (1, 0)
    for access in (plain, patient, one, other):
        await access.close()


async def test_callers_manager(file):
    """A manager that the caller passes is used as it is, in its namespace or another, and stays open."""
    async with saveslot.open(file, namespace="school-1") as sessions:
        same, other = Access(sessions=sessions), Access(sessions=sessions, namespace="school-2")
        assert await same.call(itself) is sessions
        await other.call(create)
        await same.close()
        await other.close()
        assert (await sessions.count(), await sessions.of("school-2").count()) == (0, 1)


def test_blocking_manager_serves_both_kinds(file):
    """A manager of saveslot.blocking serves calls with and without an event loop."""
    with saveslot.blocking.open(file) as sessions:
        access = Access(sessions=sessions)
        access.run(create)
        assert asyncio.run(access.call(count)) == 1
        access.close_now()
        assert sessions.count() == 1
        assert access.run(count) == 1


@pytest.mark.parametrize("url", ["memory:", "file"])
def test_a_later_loop_is_served_too(url, file):
    """One adapter serves `asyncio.run` after `asyncio.run`, then a caller without a loop, on the same sessions."""
    access = Access(file if url == "file" else url)
    for _ in range(2):
        asyncio.run(access.call(create))
    assert access.run(count) == 2
    assert asyncio.run(access.call(count)) == 2
    access.close_now()


async def test_threads_are_carried_to_the_loop(file):
    """A synchronous call in a thread runs in the loop of the first use; in the loop itself it is refused."""
    access = Access(file)
    await access.call(create)
    assert await asyncio.to_thread(access.run, count) == 1
    for call in (partial(access.run, count), access.close_now):
        with pytest.raises(InvalidInput, match="await the asynchronous one"):
            call()
    await access.close()


def test_two_loops_at_once(file):
    """A second loop is carried to the first one while that runs."""
    access = Access(file)

    async def both() -> None:
        await access.call(create)
        with ThreadPoolExecutor(1) as pool:
            assert await asyncio.wrap_future(
                pool.submit(lambda: asyncio.run(access.call(itself)))
            ) is await access.call(itself)
        await access.close()

    asyncio.run(both())


async def test_failed_opening_is_tried_again(tmp_path):
    """A store that could not be opened is opened by the next call."""
    folder = tmp_path / "later"
    folder.write_text("")  # a file where a folder must be
    access = Access(folder / "s.db")
    with pytest.raises(saveslot.SaveslotError):
        await access.call(create)
    folder.unlink()
    folder.mkdir()
    await access.call(create)
    await access.close()


async def test_wrong_arguments_are_refused_at_once(file):
    """A manager and a URL, or what is no manager, are refused when the adapter is made."""
    async with saveslot.open(file) as sessions:
        with pytest.raises(InvalidInput, match="not both"):
            Access(file, sessions=sessions)
    with pytest.raises(InvalidInput, match="not str"):
        Access(sessions="agents.db")
    with pytest.raises(InvalidInput):
        Access(file, namespace="")
    with pytest.raises(InvalidInput, match="hot"):
        Access(file, hot="nonsense")


def test_process_ends_without_close(file):
    """A program that never closes its adapter ends, and what it saved is there."""
    program = f"""
        import asyncio
        from saveslot.adapters.access import Access
        access = Access({str(file)!r})
        async def main():
            await access.call(lambda sessions: sessions.create_session("tutor"))
        asyncio.run(main())
        Access({str(file)!r}).run(lambda sessions: sessions.create_session("tutor"))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
    with saveslot.blocking.open(file) as sessions:
        assert sessions.count() == 2


def test_versions_outside_of_the_range():
    """A framework that is missing, too old or too new is named, with the range that works and how to install it."""
    require("testing", "pytest", "8", "1000")
    with pytest.raises(ImportError, match=r"needs nothing-of-the-kind: pip install 'saveslot\[openai\]'"):
        require("openai", "nothing-of-the-kind", "1", "2")
    for lowest, below in (("1000", "1001"), ("1", "2")):
        with pytest.raises(ImportError, match=rf"works with pytest {lowest} up to, but not including, {below}; \d"):
            require("testing", "pytest", lowest, below)
