"""A writer killed with -9, again and again: what was acknowledged is there, once, with its bytes."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time

import apsw
import pytest

import saveslot
from saveslot.testing.killing import digest, received, save_until_killed

KILLS = 100
IDS = [f"s{n}" for n in range(5)]  # several agents in one process, so that groups of commits are torn too
SPAWN = multiprocessing.get_context("forkserver")


@pytest.mark.faults
def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path):
    """After 100 kills at random moments every acknowledged checkpoint is there with its bytes, none doubled, no gap."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    SPAWN.set_forkserver_preload(["saveslot.testing.killing", "saveslot.stores.sqlite"])
    told: dict[tuple[str, int], str] = {}
    checked = dict.fromkeys(IDS, 1)
    choice = random.Random(7)
    asyncio.run(begin(url))
    for run in range(KILLS):
        acknowledged, acknowledge = SPAWN.Pipe(duplex=False)
        writer = SPAWN.Process(target=save_until_killed, args=(url, IDS, run, acknowledge))
        writer.start()
        acknowledge.close()
        end = time.monotonic() + choice.uniform(0.03, 0.25)
        while (left := end - time.monotonic()) > 0:
            if acknowledged.poll(left):
                told.update(received(acknowledged))
        writer.kill()
        writer.join()
        told.update(received(acknowledged))
        acknowledged.close()
        if run % 10 == 9:
            asyncio.run(check(url, told, checked))
    assert len(told) > KILLS * 10
    connection = apsw.Connection(str(tmp_path / "s.db"))
    assert connection.pragma("integrity_check") == "ok"
    doubled = "select count(*) from (select 1 from checkpoints group by append_id having count(*) > 1)"
    assert connection.execute(doubled).get == 0
    connection.close()


async def begin(url: str) -> None:
    async with saveslot.open(url) as sessions:
        for session_id in IDS:
            await sessions.create_session("agent", session_id=session_id)


async def check(url: str, told: dict[tuple[str, int], str], checked: dict[str, int]) -> None:
    """Every entry since the last look: numbered without a gap, and as it was acknowledged where it was."""
    async with saveslot.open(url) as sessions:
        for session_id in IDS:
            history = await sessions.history(session_id)
            assert [c.seq for c in history] == list(range(1, len(history) + 1))
            for checkpoint in history[checked[session_id] :]:
                found = digest(checkpoint.data["messages"])
                assert told.get((session_id, checkpoint.seq)) in {None, found}, checkpoint
            assert len(history) >= max((seq for owner, seq in told if owner == session_id), default=0)
            checked[session_id] = len(history)
