"""Commands for keys, erasure and the audit trail."""

from __future__ import annotations

import asyncio
import json

import pytest

import saveslot
from saveslot.cli import main
from saveslot.stores.sqlite.file import connect

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


def run_cli(capsys, *words: str):
    code = main(words)
    return code, capsys.readouterr()


def test_without_a_key_sealed_sessions_are_listed(store, capsys):
    """`ls` shows that they are sealed; commands that open one exit with the permission code, and say why."""
    code, shown = run_cli(capsys, "ls")
    assert code == 0
    assert "(sealed)" in shown.out
    code, shown = run_cli(capsys, "show", "sealed")
    assert (code, shown.out) == (4, "")
    assert "SAVESLOT_ENCRYPTION_KEY" in shown.err
    code, shown = run_cli(capsys, "doctor")
    assert "not checked" in shown.out + shown.err


def test_keys_are_created_listed_and_rotated(store, capsys, monkeypatch):
    """After a new first key and rotate, the old key is no longer needed; sessions without their key are named."""
    code, shown = run_cli(capsys, "key", "new", "--json")
    answer = json.loads(shown.out)
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", f"2027:{answer['key']}")
    code, shown = run_cli(capsys, "key", "rotate")
    assert code == 1
    assert "not given" in shown.err
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", f"2027:{answer['key']},{KEY}")
    assert run_cli(capsys, "key", "rotate")[0] == 0
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", f"2027:{answer['key']}")
    code, shown = run_cli(capsys, "key", "list", "--json")
    listed = json.loads(shown.out)
    assert listed == {"keys": [{"id": "2027", "sessions": 1, "given": True, "newest": True}], "not_sealed": 1}
    assert run_cli(capsys, "show", "sealed")[0] == 0
    assert run_cli(capsys, "doctor")[0] == 0


def test_erase_is_a_dry_run_by_default(store, capsys):
    """Nothing is erased without --apply; with it, and without any key, both sessions are."""
    assert run_cli(capsys, "erase")[0] == 2
    _, shown = run_cli(capsys, "erase", "--user", "anna", "--json")
    assert json.loads(shown.out) == {"sessions": ["plain", "sealed"], "entries": 4, "applied": False}
    assert b"a secret" in store.read_bytes()
    _, shown = run_cli(capsys, "erase", "--user", "anna", "--apply", "--json")
    assert json.loads(shown.out) == {"sessions": ["plain", "sealed"], "entries": 4, "applied": True}
    assert b"a secret" not in store.read_bytes()
    assert json.loads(run_cli(capsys, "ls", "--json")[1].out) == []


def test_audit_verify_fails_on_a_changed_entry(store, capsys):
    """It shows the trail of a session, even an erased one; a changed entry is named, and --verify fails."""
    run_cli(capsys, "erase", "plain", "--apply")
    code, shown = run_cli(capsys, "audit", "plain", "--verify")
    assert code == 0
    assert "session_erased" in shown.out
    code, shown = run_cli(capsys, "audit", "sealed", "--json")
    trail = json.loads(shown.out)
    assert [line["name"] for line in trail["lines"]] == ["session_created", "asked"]
    assert run_cli(capsys, "audit", "sealed", "--link", trail["head"])[0] == 0
    connection = connect(str(store), None)
    connection.execute("update checkpoints set name = 'told' where name = 'asked'")
    connection.close()
    code, shown = run_cli(capsys, "audit", "sealed", "--verify")
    assert code == 1
    assert "entry 2 does not match its link" in shown.err
    assert run_cli(capsys, "audit", "nobody")[0] == 5
