"""examples/tutor.py can be killed at any time and continues where it was."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import saveslot

TUTOR = Path(__file__).parents[2] / "examples" / "tutor.py"
EXERCISES = {"1/2 + 1/3": "5/6", "3/4 + 1/6": "11/12", "2/5 + 1/4": "13/20"}
TURNS = [
    turn
    for exercise, result in EXERCISES.items()
    for turn in (
        ("user", exercise),
        ("assistant", "Let me see."),
        ("tool", result),
        ("assistant", f"{exercise} = {result}: same bottom first, then add."),
    )
]
PACE = 0.05
KILLS = 8


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(TUTOR), "--pace", str(PACE), *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def rest(tutor: subprocess.Popen[str]) -> list[tuple[str, str]]:
    """What it says until its end."""
    patience = threading.Timer(30, tutor.terminate)
    patience.start()
    lines = tutor.stdout.readlines()
    patience.cancel()
    items = [re.fullmatch(r" *(user|assistant|tool)  (.*)\n", line) for line in lines]
    return [(match[1], match[2]) for match in items if match]


async def saved(folder: Path) -> tuple[saveslot.AgentSession, list[tuple[str, str]]]:
    async with saveslot.open(f"sqlite:///{folder / 'tutor.db'}") as sessions:
        session = await sessions.get_session("lesson-1")
        data = await sessions.get_data("lesson-1")
    assert session is not None
    return session, [(message["role"], message["content"]) for message in data["messages"]]


@pytest.mark.faults
def test_tutor_killed_at_random_says_every_turn_once(tmp_path):
    """After kills with -9 at random moments the lesson ends, and each turn was said once, in order."""
    chance = random.Random(11)
    answer = kills = 0  # how many turns a process could tell of
    while True:
        with start(tmp_path) as tutor:
            if early := kills < KILLS and chance.random() < 0.3:
                time.sleep(chance.uniform(0, 0.4))  # while it starts
                tutor.kill()
            first = tutor.stdout.readline()
            if not early and kills < KILLS:
                time.sleep(chance.uniform(0, 1.5 * PACE))
                tutor.kill()
            turns = rest(tutor)
        assert tutor.returncode in {0, -9}
        kills += tutor.returncode == -9
        if match := re.search(r"(\d+) messages", first):
            # One more may have been saved than the process before could tell of.
            assert int(match[1]) in {answer, answer + 1}
            answer = int(match[1]) + len(turns)
            assert turns == TURNS[int(match[1]) : answer]
        if tutor.returncode == 0:
            break
    assert kills > 2
    session, turns = asyncio.run(saved(tmp_path))
    assert session.state == "completed"
    assert turns == TURNS
    assert [c.name for c in session.checkpoints] == [
        "session_created",
        *(role for role, _ in TURNS),
        "session_completed",
    ]


def test_second_run_has_nothing_to_do(tmp_path):
    """Without a kill the lesson is given once; a second run says nothing more."""
    for turns in (TURNS, []):
        with start(tmp_path, "--pace", "0") as tutor:
            assert rest(tutor) == turns
        assert tutor.returncode == 0
    session, turns = asyncio.run(saved(tmp_path))
    assert turns == TURNS
    assert len(session.checkpoints) == len(TURNS) + 2
