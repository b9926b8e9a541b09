"""One-line summaries of changes."""

from __future__ import annotations

import msgspec
import pytest

from saveslot.manager.log_lines import glance


def texts(value: dict) -> dict[str, bytes]:
    return {key: msgspec.json.encode(item) for key, item in value.items()}


@pytest.mark.parametrize(
    ("before", "after", "summary"),
    [
        ({}, {"a": 1, "b": []}, ["+a", "+b"]),
        ({"a": 1, "b": 2}, {"b": 2}, ["-a"]),
        ({"n": 3}, {"n": 4}, ["n 3→4"]),
        ({"s": "x"}, {"s": ""}, ['s x→""']),
        ({"s": None}, {"s": True}, ["s null→true"]),
        ({"s": "x" * 50}, {"s": "y" * 50}, ["~s"]),
        ({"m": []}, {"m": [1, 2]}, ["m +2"]),
        ({"m": [1]}, {"m": [1, {"x": [2, 3]}, 4]}, ["m +2"]),
        ({"m": [1, 2, 3]}, {"m": [1]}, ["m -2"]),
        ({"m": [1, 2]}, {"m": [1, 3]}, ["~m"]),
        ({"m": [1]}, {"m": [12]}, ["~m"]),
        ({"p": {"step": 1, "x": 1}}, {"p": {"step": 2, "x": 1}}, ["p.step 1→2"]),
        ({"p": {"a": 1, "b": 1, "c": 1, "d": 1}}, {"p": {"a": 2, "b": 2, "c": 2, "d": 2}}, ["~p"]),
        ({"p": {"q": {"r": [1]}}}, {"p": {"q": {"r": [1, 2]}}}, ["p.q.r +1"]),
        ({"p": {"a": 1, "b": 2}}, {"p": {"b": 2, "a": 1}}, ["~p"]),
        ({"p": {"a": 1}}, {"p": [1]}, ["~p"]),
        ({"p": 1}, {"p": {}}, ["~p"]),
        ({"a": 1}, {"a": 1}, []),
    ],
)
def test_change_summary(before, after, summary):
    """Lists show how much they grew, short values old and new, objects what changed inside."""
    assert glance(texts(before), texts(after)) == summary
