"""`saveslot doctor --repair`: indexes are rebuilt, and damaged sessions saved as new ones."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import saveslot
from saveslot import Corrupt, codec
from saveslot.stores.sqlite.file import connect
from tests.harness.damage import Plant, planted

FRAMES = {"sqlite": "checkpoints", "postgres": "checkpoints", "valkey": "entries"}
GARBAGE = b"\x00garbage"


@pytest.fixture(params=["sqlite", "postgres", "valkey"], scope="module")
def kept(request, tmp_path_factory) -> Plant:
    return planted(request, tmp_path_factory)


@pytest.fixture
def plant(kept) -> Plant:
    kept.restore()
    return kept


def findings(answer) -> dict[str, dict]:
    return {finding["what"]: finding for finding in json.loads(answer.out)["findings"]}


def problems(run, plant: Plant, *flags: str) -> set[str]:
    """What `doctor` reports as a problem. The servers of these tests run without fsync, which is one."""
    answer = run("doctor", *flags, "--json", "--store", plant.url)
    by_key = {what for what, finding in findings(answer).items() if finding["state"] == "problem"}
    assert answer.code == int(bool(by_key))
    return by_key - {"settings"}


def ask(plant: Plant, question) -> Any:
    async def asked() -> Any:
        async with saveslot.open(plant.url) as sessions:
            return await question(sessions)

    return asyncio.run(asked())


def test_damaged_state_continues_as_a_new_session(plant, run):
    """The report changes nothing; the repair forks the newest sound state, with context and labels, only once."""
    assert plant.damage(FRAMES[plant.kind], "frame", GARBAGE, 6)
    assert problems(run, plant) == {"recipes"}
    assert "saveslot doctor --repair" in run("doctor", "--store", plant.url).out
    assert "repaired" not in [s.session_id for s in ask(plant, lambda sessions: sessions.find())]
    for _ in range(2):
        assert problems(run, plant, "--repair") == set()
        repaired = run("doctor", "--repair", "--json", "--store", plant.url)
        [saved, *_] = findings(repaired)["recipes"]["details"]
        assert saved.startswith("second saved as second-repaired, as of checkpoint 3")
    session = ask(plant, lambda sessions: sessions.get_session("second-repaired"))
    assert (session.agent_type, session.user_id, session.labels) == ("tutor", "anna", {"team": "red"})
    assert session.context == {"n": 1}
    assert session.metadata["forked_from"] == "second:3"
    assert ask(plant, lambda sessions: sessions.get_data("second-repaired")) == {"messages": ["hello", "there"]}
    assert {s.session_id for s in ask(plant, lambda sessions: sessions.find())} == {
        *("first", "second", "third", "second-repaired")
    }
    with pytest.raises(Corrupt):
        ask(plant, lambda sessions: sessions.get_data("second"))


ROWS = {
    "sqlite": [("sessions", "fence", "x", 0), ("sessions", "state", "x", 0), ("checkpoints", "kind", 77, 3)],
    "postgres": [("sessions", "fence", -5, 0), ("sessions", "state", "x", 0), ("checkpoints", "kind", 77, 3)],
    "valkey": [("sessions", "alive", "x", 0), ("sessions", "state", "x", 0), ("entries", "rest.kind", 77, 3)],
}


@pytest.mark.parametrize("n", range(3))
def test_damaged_row_loses_no_state(plant, run, n):
    """A session that no verb can open any more continues from its newest checkpoint that needs no damaged entry."""
    assert plant.damage(*ROWS[plant.kind][n])
    with pytest.raises(Corrupt):
        ask(plant, lambda sessions: sessions.export("second"))
    assert "recipes" in problems(run, plant)
    assert problems(run, plant, "--repair") == set()
    newest = ["hello"] if ROWS[plant.kind][n][0] in {"checkpoints", "entries"} else []
    assert ask(plant, lambda sessions: sessions.get_data("second-repaired")) == {"messages": newest}


def test_damaged_context_is_taken_from_the_log(plant, run):
    """The row's copy of context, metadata and labels is damaged: the entry that wrote it still has it."""
    assert plant.damage("sessions", "body", GARBAGE, 0)
    assert problems(run, plant, "--repair") == set()
    assert ask(plant, lambda sessions: sessions.get_session("second-repaired")).context == {"n": 1}


def test_older_context_in_its_place_is_reported_and_not_continued(plant, run):
    """A row's context names the entry that wrote it. One of another entry is damage; the log has the right one."""
    older = codec.note({"context": {"n": 0}, "metadata": {}, "labels": {"team": "red"}, "seq": 9}, "session")
    assert plant.damage("sessions", "body", older, 0)
    assert problems(run, plant) == {"recipes"}
    assert problems(run, plant, "--repair") == set()
    assert ask(plant, lambda sessions: sessions.get_session("second-repaired")).context == {"n": 1}


def test_context_damaged_in_the_log_is_reported(plant, run):
    """The session still opens, from its row: a check reads the entry that wrote its context all the same."""
    assert plant.damage(FRAMES[plant.kind], "frame", GARBAGE, 1)
    assert problems(run, plant) == {"recipes"}


def test_context_damaged_in_the_log_is_taken_from_the_row(plant, run):
    """The entry that wrote it is damaged, and so is the row's state: the row still has a copy of the context."""
    assert plant.damage("sessions", "state", "x", 0)
    assert plant.damage(FRAMES[plant.kind], "frame", GARBAGE, 1)
    assert problems(run, plant, "--repair") == set()
    session = ask(plant, lambda sessions: sessions.get_session("second-repaired"))
    assert (session.context, session.labels) == ({"n": 1}, {"team": "red"})


def test_session_without_a_sound_state_is_left_to_a_backup(plant, run):
    """Nothing is created, and the exit code says that something is lost."""
    for seq in (2, 3, 6):
        assert plant.damage(FRAMES[plant.kind], "frame", GARBAGE, seq)
    assert problems(run, plant, "--repair") == {"recipes"}
    assert "restore second from a backup" in run("doctor", "--repair", "--store", plant.url).out
    assert {s.session_id for s in ask(plant, lambda sessions: sessions.find())} == {"first", "second", "third"}


def test_sealed_session_is_saved_sealed(tmp_path, run, monkeypatch):
    """With its key a sealed session is saved, and its copy is sealed too; without it nothing is."""
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", b64encode(b"k" * 32).decode())
    path = tmp_path / "sealed.db"

    async def fill() -> None:
        async with saveslot.open(f"sqlite:///{path}", encryption_key=b"k" * 32) as sessions:
            await sessions.create_session("tutor", context={"secret": "topic"}, session_id="s")
            await sessions.checkpoint("s", "one", {"secret": 1})
            await sessions.checkpoint("s", "two", {"secret": 2})

    asyncio.run(fill())
    with closing(connect(str(path), None)) as connection:
        connection.execute("update checkpoints set frame = x'00' where seq = 3")
    store = ("--store", f"sqlite:///{path}")
    assert run("doctor", "--repair", *store).code == 0
    shown = json.loads(run("show", "s-repaired", "--json", *store).out)
    assert "secret" in json.dumps(shown)
    assert not [file for file in tmp_path.glob("sealed.db*") if b"secret" in file.read_bytes()]


def unlist(plant: Plant) -> None:
    """Take the second session out of an index."""
    if plant.kind == "sqlite":
        with closing(connect(plant.url.removeprefix("sqlite:///"), None)) as connection:
            connection.execute("delete from labels where session = (select key from sessions where id = 'second')")
    elif plant.kind == "postgres":
        asyncio.run(_execute(plant.url))
    else:
        plant.forget("second")


async def _execute(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(
        "delete from saveslot.labels where session = (select key from saveslot.sessions where id = 'second');"
        "insert into saveslot.labels values ('default', 'team', 'blue', 1, 'x')"
    )
    await connection.close()


def test_session_missing_in_an_index_is_listed_again(plant, run):
    """Found neither by label nor, on Valkey, by id: the report says so, the repair lists it again."""
    unlist(plant)
    labelled = lambda sessions: sessions.find(labels={"team": "red"})  # noqa: E731
    assert "second" not in [session.session_id for session in ask(plant, labelled)]
    assert problems(run, plant)
    repaired = findings(run("doctor", "--repair", "--json", "--store", plant.url))["repair"]
    assert repaired["state"] == "ok"
    assert "second" in [session.session_id for session in ask(plant, labelled)]
    assert problems(run, plant) == set()
    assert "repair" not in findings(run("doctor", "--repair", "--json", "--store", plant.url))


def test_damaged_index_of_a_file_is_rebuilt_after_a_copy(run, samples):
    """SQLite's index lacks a row: a search misses it, the report names it, the repair keeps the file as it was."""
    spoil_index(samples.path)
    before = samples.path.read_bytes()
    assert "lesson-1" not in run("ls", "--user", "anna").out
    report = run("doctor")
    assert report.code == 1
    assert samples.path.read_bytes() == before
    assert run("doctor", "--repair").code == 0
    [copy] = samples.path.parent.glob("samples.db.before-repair-*")
    assert "lesson-1" in run("ls", "--user", "anna").out
    assert run("doctor").code == 0
    shutil.copy(copy, samples.path)
    assert run("doctor").code == 1


def spoil_index(path: Path) -> None:
    """Leave another user's name in an index of lesson-1, whose row says anna."""

    def execute(*statements: str) -> list[Any]:
        with closing(connect(str(path), None)) as connection:
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
            connection.pragma("writable_schema", 1)
            rows = [row for statement in statements for row in connection.execute(statement)]
            connection.pragma("wal_checkpoint(truncate)")
            return rows

    execute("update sessions set user_id = 'zoe' where id = 'lesson-1'")
    [row] = execute("select * from sqlite_schema where name = 'sessions_by_user'")
    execute("delete from sqlite_schema where name = 'sessions_by_user'")
    execute("update sessions set user_id = 'anna' where id = 'lesson-1'")
    with closing(connect(str(path), None)) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        connection.pragma("writable_schema", 1)
        connection.execute("insert into sqlite_schema values (?, ?, ?, ?, ?)", row)


def test_foreign_and_missing_stores_are_not_repaired(run, tmp_path):
    """The same refusals as without `--repair`, and nothing is written."""
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"noise" * 1000)
    assert run("doctor", "--repair", "--store", f"sqlite:///{noise}").code in {1, 2}
    assert noise.read_bytes() == b"noise" * 1000
    assert run("doctor", "--repair", "--store", f"sqlite:///{tmp_path / 'none.db'}").code == 5
    assert [path.name for path in tmp_path.glob("*.db*")] == ["noise.db"]


def test_copy_by_another_program_is_diagnosed(run, tmp_path):
    """`VACUUM INTO` of a SQLite without checksums: the store does not open, and doctor says why, and what helps."""
    path, copy = tmp_path / "s.db", tmp_path / "copy.db"
    run("create", "tutor", "--store", str(path))
    with closing(sqlite3.connect(path)) as other:
        other.execute("vacuum into ?", (str(copy),))
    answer = run("doctor", "--json", "--store", str(copy))
    assert answer.code == 1
    by_key = findings(answer)
    assert {what for what, finding in by_key.items() if finding["state"] == "problem"} >= {"checksums", "recipes"}
    assert any("doctor --repair" in advice for advice in by_key["checksums"]["advice"])
