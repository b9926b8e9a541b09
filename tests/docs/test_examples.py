"""The small examples do what their first lines say."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import saveslot

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def start(tmp_path):
    """Start an example in an empty folder; whatever still runs is killed at the end."""
    running: list[subprocess.Popen[str]] = []

    def popen(name: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        running.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield popen
    for process in running:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.splitlines()


def test_webhook_stores_each_event_once(start):
    """Repeated and simultaneous deliveries of an event store it once, also after a restart."""
    for new in (3, 0):
        assert said(start("webhook.py")) == [f"{new} of 4 deliveries were new", "events: ['e1', 'e2', 'e3']"]


def test_encrypted_content_needs_its_key(start):
    """The disk shows nothing, reading takes the key, and after a rotation the new key alone."""
    assert said(start("encrypted.py")) == [
        "with the key: {'note': 'Anna’s diagnosis'}",
        "on the disk: sealed",
        "without a key: key_missing, it needs 2026",
        "rotated: {'rotated': 1, 'changed_meanwhile': 0, 'locked': {}}",
        "with the new key alone: {'note': 'Anna’s diagnosis'}",
    ]


@pytest.mark.faults
@pytest.mark.parametrize("signal", ["kill", "terminate"])
def test_orders_of_a_dead_worker_are_finished_by_others(start, tmp_path, signal):
    """A worker dies in the middle of its second order; two others finish all orders, and no picture is made twice."""
    first = start("blocking_worker.py", "--orders", "4", "--pace", "0.05")
    assert first.stdout.readline().endswith("is done: front-64x64.png, side-64x64.png, back-64x64.png\n")
    getattr(first, signal)()
    others = [start("blocking_worker.py", "--pace", "0.02") for _ in range(2)]
    assert [said(other)[-1] for other in others] == ["no orders left", "no orders left"]

    with saveslot.blocking.open(f"sqlite:///{tmp_path / 'orders.db'}") as sessions:
        orders = list(sessions.find(agent_type="thumbnails"))
        assert Counter(order.state for order in orders) == {"completed": 4}
        for order in orders:
            steps = [entry for entry in sessions.history(order.session_id, all=True) if entry.name == "thumbnail"]
            assert len(steps) == 3
