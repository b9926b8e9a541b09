"""examples/langgraph_trip.py is killed in the middle of a tool call, and another process goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import saveslot

TRIP = Path(__file__).parents[2] / "examples" / "langgraph_trip.py"


def test_a_killed_agent_books_each_hotel_once(tmp_path):
    """Killed with -9 in its second booking, the agent is continued by another process; each hotel is booked once."""
    command = [sys.executable, str(TRIP), "600"]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert [first.stdout.readline() for _ in range(2)] == [
        "asked for a hotel in Paris\n",
        "asked for a hotel in Rome\n",
    ]
    first.kill()
    first.communicate()
    second = subprocess.run(command[:-1], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert second.stdout.splitlines() == ["asked for a hotel in Rome", "Both hotels are booked."]
    assert (tmp_path / "bookings.txt").read_text().splitlines() == ["call-0 Paris", "call-1 Rome"]
    with saveslot.blocking.open(tmp_path / "trips.db") as sessions:
        data = sessions.get_data("trip-1")
        assert [message["content"] for message in data["messages"] if message["type"] == "tool"] == [
            "booked in Paris",
            "booked in Rome",
        ]
