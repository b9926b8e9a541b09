"""A writer killed repeatedly with -9: every acknowledged checkpoint is stored once, with its bytes."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import subprocess
import sys
import time

import pytest

import saveslot
from saveslot.stores.sqlite.file import connect
from tests.harness.killing import digest, received, save_until_killed

KILLS = 100
IDS = [f"s{n}" for n in range(5)]  # several agents in one process, so that groups of commits are torn too
SPAWN = multiprocessing.get_context("forkserver")


@pytest.mark.faults
def test_kill_9_loses_nothing_acknowledged(tmp_path):
    """After 100 kills at random moments every acknowledged checkpoint is stored with its bytes, none
    doubled, no gap.
    """
    url = f"sqlite:///{tmp_path / 's.db'}"
    SPAWN.set_forkserver_preload(["tests.harness.killing", "saveslot.stores.sqlite"])
    by_key: dict[tuple[str, int], str] = {}
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
                by_key.update(received(acknowledged))
        writer.kill()
        writer.join()
        by_key.update(received(acknowledged))
        acknowledged.close()
        if run % 10 == 9:
            asyncio.run(check(url, by_key, checked))
    assert len(by_key) > KILLS * 10
    connection = connect(str(tmp_path / "s.db"), None)
    assert connection.pragma("integrity_check") == "ok"
    doubled = "select count(*) from (select 1 from checkpoints group by append_id having count(*) > 1)"
    assert connection.execute(doubled).get == 0
    connection.close()


async def begin(url: str) -> None:
    async with saveslot.open(url) as sessions:
        for session_id in IDS:
            await sessions.create_session("agent", session_id=session_id)


async def check(url: str, answers: dict[tuple[str, int], str], checked: dict[str, int]) -> None:
    """Every entry since the last look: numbered without a gap, and as it was acknowledged where it was."""
    async with saveslot.open(url) as sessions:
        for session_id in IDS:
            history = await sessions.history(session_id)
            assert [c.seq for c in history] == list(range(1, len(history) + 1))
            for checkpoint in history[checked[session_id] :]:
                result = digest(checkpoint.data["messages"])
                assert answers.get((session_id, checkpoint.seq)) in {None, result}, checkpoint
            assert len(history) >= max((seq for owner, seq in answers if owner == session_id), default=0)
            checked[session_id] = len(history)


# An agent whose model fails at its first attempt in each process, and hangs at the next one.
STRUGGLING = """
import asyncio, sys, saveslot

async def main(url):
    failed = []

    async def ask():
        if failed:
            print("hangs", flush=True)
            await asyncio.Event().wait()
        failed.append(1)
        raise OSError("no answer")

    async with saveslot.open(url, worker_beat=0.05, worker_ttl=0.2) as sessions:
        async with sessions.hold("s0", wait=60) as held:
            await held.step("ask", ask, retries=2, backoff=0)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.faults
async def test_attempts_go_on_counting_after_kill_9(place, tmp_path):
    """Each process fails once and is killed during its next attempt: the third one makes the last attempt."""
    url = place if place != "memory:" else f"sqlite:///{tmp_path / 'other.db'}"
    await begin(url)
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", STRUGGLING, url, stdout=subprocess.PIPE)
        assert await process.stdout.readline() == b"hangs\n"
        process.kill()
        await process.wait()
    items = []

    async def ask():
        items.append(1)
        raise OSError("still no answer")

    async with saveslot.open(url, worker_beat=0.05, worker_ttl=0.2) as sessions:
        async with sessions.hold("s0", wait=60) as held:
            [step] = await held.steps()
            assert (step.state, step.attempts) == ("retrying", 2)
            with pytest.raises(OSError, match="still no answer"):
                await held.step("ask", ask, retries=2, backoff=0)
            [step] = await held.steps()
            assert (step.state, step.attempts) == ("failed", 3)
        lines = await sessions.log("s0", all=True)
    assert items == [1]
    assert [line.metadata.get("attempt", 1) for line in lines if line.kind == "step_failed"] == [1, 2, 3]
