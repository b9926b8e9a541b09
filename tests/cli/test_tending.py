"""doctor, migrate, bench, completion."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess

import apsw
import pytest

from saveslot import benchmark
from saveslot.cli import checkup


def findings(answer) -> dict[str, dict]:
    return {finding["what"]: finding for finding in json.loads(answer.out)["findings"]}


def spoil(path, sql: str, *values: object) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(sql, values)
    assert connection.changes()
    connection.close()


def test_a_sound_store_is_told_to_be_sound(run, samples):
    """Every check has its line, every entry is rebuilt, exit 0, and the file is not touched."""
    before = samples.path.read_bytes()
    answer = run("doctor", "--json")
    told = findings(answer)
    assert answer.code == 0
    assert json.loads(answer.out)["ok"]
    assert set(told) >= {
        "file",
        "free space",
        "SQLite",
        "format",
        "journal",
        "synchronous",
        "integrity",
        "content",
        "recipes",
    }
    assert {finding["state"] for finding in told.values()} == {"ok"}
    assert told["recipes"]["told"].startswith("14 entries rebuilt")
    assert "4 sessions in 1 namespace" in told["content"]["told"]
    assert "ok      journal       wal\n" in run("doctor").out
    assert samples.path.read_bytes() == before


def test_a_damaged_frame_is_found_and_the_cure_works(run, samples):
    """Which entries cannot be read, and a command that brings the session to its newest sound checkpoint."""
    assert run("rollback", "lesson-1", "--to", "4").code == 0
    spoil(samples.path, "update checkpoints set frame = cast(frame || x'00' as blob) where name = 'answered'")
    answer = run("doctor", "--json")
    recipes = findings(answer)["recipes"]
    assert answer.code == 1
    assert recipes["state"] == "problem"
    assert [line.partition(": ")[0] for line in recipes["details"]] == ["lesson-1:4", "lesson-1:8"]
    assert run("show", "lesson-1").code == 1
    [cure] = recipes["advice"]
    assert cure.startswith("saveslot rollback lesson-1 --to 7")
    assert run(*cure.split()[1:5]).code == 0
    assert run("show", "lesson-1").code == 0
    assert "can go on" in findings(run("doctor", "--json"))["recipes"]["advice"][0]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("update checkpoints set frame = null where name = 'read'", "lesson-10:2"),
        ("update checkpoints set note = x'00' where name = 'session_completed'", "lesson-10:3"),
        ("delete from checkpoints where name = 'read'", "is missing; entry 3 follows"),
        ("update sessions set body = x'00' where id = 'lesson-10'", "context, metadata and labels"),
        ("update checkpoints set digest = x'00' where name = 'read'", "lesson-10:2"),
        ("update checkpoints set recipe = x'01' where name = 'read'", "lesson-10:2"),
    ],
)
def test_every_kind_of_damage_is_named(run, samples, sql, said):
    """A lost frame, a spoilt note, a gap, a spoilt body, a wrong digest or recipe: exit 1, and where it is."""
    spoil(samples.path, sql)
    answer = run("doctor")
    assert answer.code == 1
    assert said in answer.out
    assert "→ " in answer.out


def test_a_damaged_page_is_found(run, samples):
    """SQLite's own check is part of it."""
    data = bytearray(samples.path.read_bytes())
    size = 4096
    for at in range(2 * size, len(data), size):
        data[at : at + 64] = b"\xff" * 64
    samples.path.write_bytes(bytes(data))
    answer = run("doctor")
    assert answer.code == 1
    assert "problem " in answer.out
    assert "backup" in answer.out


def test_files_that_are_not_ours_are_left_alone(run, samples, tmp_path):
    """Noise, another program's database, a newer Saveslot's: exit 1 by doctor, 2 by migrate, and nothing is written."""
    noise, other, newer = tmp_path / "noise.db", tmp_path / "other.db", tmp_path / "newer.db"
    noise.write_bytes(b"noise" * 1000)
    connection = sqlite3.connect(other)
    connection.execute("create table x (y)")
    connection.close()
    shutil.copy(samples.path, newer)
    spoil_version = apsw.Connection(str(newer))
    spoil_version.pragma("user_version", 99)
    spoil_version.close()
    for path, said in ((noise, "not a SQLite database"), (other, "another program"), (newer, "newer Saveslot")):
        before = path.read_bytes()
        store = ("--store", f"sqlite:///{path}")
        examined = run("doctor", *store)
        assert examined.code == 1
        assert said in examined.out
        assert run("migrate", *store).code == 2
        assert said in run("migrate", *store).err
        assert run("migrate", "--apply", *store).code == 2
        assert path.read_bytes() == before


def test_a_full_disk_and_a_wrong_journal_are_problems(run, samples, monkeypatch):
    """Each names what to do."""
    usage = shutil.disk_usage(samples.path)._replace(free=1000)
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda _: usage)
    connection = apsw.Connection(str(samples.path))
    connection.pragma("journal_mode", "delete")
    connection.close()
    answer = run("doctor", "--json")
    assert answer.code == 1
    told = findings(answer)
    assert {what for what, finding in told.items() if finding["state"] == "problem"} == {"free space", "journal"}
    assert all(told[what]["advice"] for what in ("free space", "journal"))


def test_there_is_nothing_to_examine_where_no_file_is(run, tmp_path):
    """Exit 5, and no file is made."""
    path = tmp_path / "none.db"
    for command in ("doctor", "migrate"):
        answer = run(command, "--store", f"sqlite:///{path}")
        assert (answer.code, answer.out) == (5, "")
        assert str(path) in answer.err
    assert not path.exists()


def test_migrate_shows_and_applies(run, tmp_path):
    """The state of the tables, and on --apply a new file with the newest of them."""
    store = ("--store", f"sqlite:///{tmp_path / 'new.db'}")
    assert "up to date" in run("migrate", "--apply", *store).out
    told = json.loads(run("migrate", "--json", *store).out)
    assert (told["format"], told["pending"]) == (told["known"], 0)


def test_a_store_is_measured_and_left_as_it_was(run, samples, monkeypatch):
    """Every shape has its figures, and no session of the benchmark stays."""
    monkeypatch.setattr(benchmark, "QUICK", benchmark.Sizes(turns=6, small=6, sessions=4, each=2, resumes=2))
    told = json.loads(run("bench", "--quick", "--json").out)
    assert [shape["shape"] for shape in told] == ["A", "A'", "B", "C", "D"]
    assert all(shape["per_second"] > 0 and shape["p50_ms"] <= shape["p99_ms"] for shape in told)
    assert told[0]["bytes_each"] > 0
    out = run("bench", "--quick").out
    assert "long session, append=" in out
    assert "█" in out
    assert "4 sessions in 1 namespace" in run("doctor").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_names_the_commands(run, shell):
    """And the shell, where there is one, accepts it."""
    script = run("completion", shell).out
    assert all(name in script for name in ("rollback", "doctor", "--namespace"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
