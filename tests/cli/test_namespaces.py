"""`saveslot namespace`: what there is, and a whole namespace erased."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def school(run, samples) -> None:
    for n in range(2):
        assert run("create", "tutor", "--id", f"s{n}", "--namespace", "school-7").code == 0
    assert run("rm", "s1", "--yes", "--namespace", "school-7").code == 0


def test_namespaces_are_listed_with_their_sessions(run, school):
    """Each with the number of its sessions; the server's own is not among them."""
    assert run("token", "create", "ada", "--scope", "read").code == 0
    listed = json.loads(run("namespace", "ls", "--json").out)
    assert {item["name"]: item["sessions"] for item in listed}.keys() == {"default", "school-7"}
    assert {"name": "school-7", "sessions": 1} in listed
    assert "school-7" in run("namespace", "ls").out


def test_a_namespace_is_erased_once_it_was_shown(run, school):
    """Without --apply it says what would go and changes nothing; with it the trail stays, and other namespaces do."""
    before = json.loads(run("namespace", "rm", "school-7", "--json").out)
    assert (before["sessions"], before["deleted"], before["applied"]) == (1, 1, False)
    assert before["bytes"] > 0
    assert "nothing was erased" in run("namespace", "rm", "school-7").err
    assert run("show", "s0", "--namespace", "school-7").code == 0
    assert "erased" in run("namespace", "rm", "school-7", "--apply").out
    assert run("show", "s0", "--namespace", "school-7").code == 5
    for name in ("s0", "s1"):
        assert json.loads(run("audit", name, "--namespace", "school-7", "--json").out)["state"] == "erased"
    assert [item["name"] for item in json.loads(run("namespace", "ls", "--json").out)] == ["default"]
    assert run("show", "lesson-1").code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["rm"], 2),
        (["rm", "$saveslot", "--apply"], 2),
        (["rm", "nowhere"], 5),
        (["ls", "school-7"], 2),
        (["ls", "--apply"], 2),
    ],
)
def test_what_cannot_be_done_is_said(run, samples, words, code):
    """A namespace has to be named and to exist, and is not the server's own."""
    assert run("namespace", *words).code == code
