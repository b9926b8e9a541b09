"""The benchmark of many sessions writes rows by hand, and breaks unseen when the tables change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_many_sessions_are_built_and_read(store: str) -> None:
    """A store built for `bench.many` answers its lists, analytics and sweeps."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.many", store, "5000"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sweep, others beat"] > 0
