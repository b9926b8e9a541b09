"""The commands that keep, change and destroy secrets, and show the trail."""

from __future__ import annotations

import asyncio
import json

import apsw
import pytest

import saveslot
from saveslot.cli import main

KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


@pytest.fixture
def store(file, monkeypatch):
    """A file with one plain session and one that is sealed."""

    async def fill() -> None:
        for name, key in (("plain", None), ("sealed", KEY)):
            async with saveslot.open(f"sqlite:///{file}", encryption_key=key) as sessions:
                await sessions.create_session("tutor", "anna", {"topic": "a secret"}, session_id=name)
                await sessions.checkpoint(name, "asked", {"said": "a secret"})

    asyncio.run(fill())
    monkeypatch.setenv("SAVESLOT_URL", f"sqlite:///{file}")
    return file


def told(capsys, *words: str):
    code = main(words)
    return code, capsys.readouterr()


def test_without_a_key_sealed_sessions_are_listed(store, capsys):
    """`ls` shows that they are sealed; whatever opens one ends with the exit code for a missing right, and says why."""
    code, shown = told(capsys, "ls")
    assert code == 0
    assert "(sealed)" in shown.out
    code, shown = told(capsys, "show", "sealed")
    assert (code, shown.out) == (4, "")
    assert "SAVESLOT_ENCRYPTION_KEY" in shown.err
    code, shown = told(capsys, "doctor")
    assert "not looked into" in shown.out + shown.err


def test_keys_are_made_listed_and_rotated(store, capsys, monkeypatch):
    """A new key in front, rotate, and the old one is not needed any more; what lacks its key is named."""
    code, shown = told(capsys, "key", "new", "--json")
    made = json.loads(shown.out)
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", f"2027:{made['key']}")
    code, shown = told(capsys, "key", "rotate")
    assert code == 1
    assert "not given" in shown.err
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", f"2027:{made['key']},{KEY}")
    assert told(capsys, "key", "rotate")[0] == 0
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", f"2027:{made['key']}")
    code, shown = told(capsys, "key", "list", "--json")
    listed = json.loads(shown.out)
    assert listed == {"keys": [{"id": "2027", "sessions": 1, "given": True, "newest": True}], "not_sealed": 1}
    assert told(capsys, "show", "sealed")[0] == 0
    assert told(capsys, "doctor")[0] == 0


def test_erase_says_what_it_would_do_first(store, capsys):
    """Nothing is lost without --apply; with it, and without any key, both sessions are."""
    assert told(capsys, "erase")[0] == 2
    _, shown = told(capsys, "erase", "--user", "anna", "--json")
    assert json.loads(shown.out) == {"sessions": ["plain", "sealed"], "entries": 4, "applied": False}
    assert b"a secret" in store.read_bytes()
    _, shown = told(capsys, "erase", "--user", "anna", "--apply", "--json")
    assert json.loads(shown.out) == {"sessions": ["plain", "sealed"], "entries": 4, "applied": True}
    assert b"a secret" not in store.read_bytes()
    assert json.loads(told(capsys, "ls", "--json")[1].out) == []


def test_audit_verifies(store, capsys):
    """The trail of a session, also of an erased one; a changed entry is named, and --verify fails."""
    told(capsys, "erase", "plain", "--apply")
    code, shown = told(capsys, "audit", "plain", "--verify")
    assert code == 0
    assert "session_erased" in shown.out
    code, shown = told(capsys, "audit", "sealed", "--json")
    trail = json.loads(shown.out)
    assert [line["name"] for line in trail["lines"]] == ["session_created", "asked"]
    assert told(capsys, "audit", "sealed", "--link", trail["head"])[0] == 0
    connection = apsw.Connection(str(store))
    connection.execute("update checkpoints set name = 'told' where name = 'asked'")
    connection.close()
    code, shown = told(capsys, "audit", "sealed", "--verify")
    assert code == 1
    assert "entry 2 does not fit" in shown.err
    assert told(capsys, "audit", "nobody")[0] == 5
