"""Examples are killed in the middle of a tool call, and another process goes on: each effect happens once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("example", "answer"),
    [
        ("agent_framework_trip.py", "booked in Paris, booked in Rome"),
        ("pydantic_ai_trip.py", "Both hotels are booked."),
    ],
)
def test_a_killed_agent_books_each_hotel_once(example, answer, tmp_path):
    """Killed with -9 in its second booking, the agent is continued by another process; each hotel is booked once."""
    command = [sys.executable, str(EXAMPLES / example)]
    with subprocess.Popen([*command, "600"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        heard = [first.stdout.readline() for _ in range(2)]
        first.kill()
    assert heard == ["asked for a hotel in Paris\n", "asked for a hotel in Rome\n"]
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines() == ["asked for a hotel in Rome", answer]
    bookings = [line.split()[1] for line in (tmp_path / "bookings.txt").read_text().splitlines()]
    assert bookings == ["Paris", "Rome"]
