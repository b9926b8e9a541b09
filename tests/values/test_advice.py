"""Advice in errors, for callers at each door."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import saveslot
from saveslot.values import advice

CALL = re.compile(r"\b[a-z]+_[a-z]+\b\(?|\b[a-z]+\(|\bheld\b|=True")


@pytest.mark.parametrize("one", advice.ALL, ids=lambda one: one.python[:40])
def test_other_doors_name_no_python(one):
    """Callers over HTTP, models and users of the command read no calls and keyword arguments of Python."""
    allowed = {"lease_id", "session_id", "exist_ok", "session_completed", "session_failed"}
    for text in (one.request, one.tool, one.command):
        assert set(CALL.findall(text)) <= allowed
    assert f"x; {one}. y" == f"x; {one.python}. y"
    assert advice.reworded(f"x; {one}. y", "tool") == f"x; {one.tool}. y"
    assert advice.reworded(f"x; {one}. y", "request") == f"x; {one.request}. y"
    assert advice.reworded(f"x; {one}. y", "command") == f"x; {one.command}. y"


def test_advice_stands_once():
    """No message repeats a piece of advice by hand: it would reach other doors as it is."""
    source = Path(saveslot.__file__).parent
    rooms = [path for path in source.rglob("*.py") if path.name != "advice.py" and "cli" not in path.parts]
    texts = [path.read_text() for path in rooms]
    assert [one.python for one in advice.ALL if any(one.python in text for text in texts)] == []
