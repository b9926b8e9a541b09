"""doctor, migrate, bench, completion."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
from base64 import b64encode

import pytest

import saveslot
from saveslot.cli import benchmark
from saveslot.stores.sqlite import checkup
from saveslot.stores.sqlite.file import connect


def findings(answer) -> dict[str, dict]:
    return {finding["what"]: finding for finding in json.loads(answer.out)["findings"]}


async def fill_and_erase(url: str) -> None:
    async with saveslot.open(url) as sessions:
        for name in ("kept", "live", "deleted", "failed"):
            session = await sessions.create_session("tutor", "anna", {"topic": "x"}, session_id=name)
            await sessions.checkpoint(session, name, {"messages": ["1/2 + 1/3?"]}, {"model": "small"})
            await sessions.checkpoint(session, "more", append={"messages": ["5/6"]})
            async with sessions.hold(name) as held:
                await held.step("ask", lambda: "5/6")
                await held.update_context({"topic": "y"})
                if name == "failed":
                    await held.fail("no model")
        await sessions.rollback("live", 2)
        await sessions.delete_session("deleted")
        for name in ("live", "deleted", "failed"):
            await sessions.erase(name)


def spoil(path, sql: str, *values: object) -> None:
    connection = connect(str(path), None)
    connection.execute(sql, values)
    assert connection.changes()
    connection.close()


def test_doctor_reports_a_sound_store(run, samples):
    """Every check has its line, every entry is rebuilt, exit 0, and the file is not touched."""
    before = samples.path.read_bytes()
    answer = run("doctor", "--json")
    findings_by_name = findings(answer)
    assert answer.code == 0
    assert json.loads(answer.out)["ok"]
    assert set(findings_by_name) >= {
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
    assert {finding["state"] for finding in findings_by_name.values()} == {"ok"}
    assert findings_by_name["recipes"]["text"].startswith("14 entries verified")
    assert "4 sessions in 1 namespace" in findings_by_name["content"]["text"]
    assert "ok      journal       wal\n" in run("doctor").out
    assert samples.path.read_bytes() == before


def test_doctor_finds_a_damaged_frame_and_its_fix_works(run, samples):
    """It names the unreadable entries, and a command that rolls the session back to its newest sound checkpoint."""
    assert run("rollback", "lesson-1", "--to", "4").code == 0
    spoil(samples.path, "update checkpoints set frame = cast(frame || x'00' as blob) where name = 'answered'")
    answer = run("doctor", "--json")
    recipes = findings(answer)["recipes"]
    assert answer.code == 1
    assert recipes["state"] == "problem"
    assert [line.partition(": ")[0] for line in recipes["details"]] == ["lesson-1:4", "lesson-1:8"]
    assert run("show", "lesson-1").code == 1
    cure, saves = recipes["advice"]
    assert saves.startswith("saveslot doctor --repair")
    assert cure.startswith("saveslot rollback lesson-1 --to 7")
    assert run(*cure.split()[1:5]).code == 0
    assert run("show", "lesson-1").code == 0
    assert "can continue" in findings(run("doctor", "--json"))["recipes"]["advice"][0]


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
    """A lost frame, a damaged note, a gap, a damaged body, a wrong digest or recipe: exit 1, and where it is."""
    spoil(samples.path, sql)
    answer = run("doctor")
    assert answer.code == 1
    assert said in answer.out
    assert "→ " in answer.out


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["plain", "sealed"])
def test_erased_session_is_not_damage(run, tmp_path, monkeypatch, key):
    """Erased live, deleted and forked sessions leave doctor green; damage elsewhere is still found."""
    path = tmp_path / "erased.db"
    monkeypatch.setenv("SAVESLOT_URL", f"sqlite:///{path}")
    if key is not None:
        monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", b64encode(key).decode())
    asyncio.run(fill_and_erase(f"sqlite:///{path}"))
    answer = run("doctor")
    assert (answer.code, "problem" in answer.out) == (0, False)
    spoil(path, "update checkpoints set frame = null where name = 'kept'")
    assert "kept:2" in run("doctor").out
    spoil(path, "update checkpoints set name = 'other' where name = 'session_erased'")
    assert run("doctor").code == 1


def test_deleted_session_with_a_lost_frame_is_damage(run, samples):
    """Only erasing explains missing content."""
    assert run("rm", "lesson-1", "--yes").code == 0
    assert run("doctor").code == 0
    spoil(samples.path, "update checkpoints set frame = null where name = 'answered'")
    assert "lesson-1:4" in run("doctor").out


def test_damaged_page_is_found(run, samples):
    """The check includes SQLite's own integrity check."""
    data = bytearray(samples.path.read_bytes())
    size = 4096
    for at in range(2 * size, len(data), size):
        data[at : at + 64] = b"\xff" * 64
    samples.path.write_bytes(bytes(data))
    answer = run("doctor")
    assert answer.code == 1
    assert "problem " in answer.out
    assert "backup" in answer.out


def test_foreign_files_are_not_touched(run, samples, tmp_path):
    """Noise, another program's database or a newer Saveslot's: doctor exits 1, migrate 2, and nothing is written."""
    noise, other, newer = tmp_path / "noise.db", tmp_path / "other.db", tmp_path / "newer.db"
    noise.write_bytes(b"noise" * 1000)
    connection = sqlite3.connect(other)
    connection.execute("create table x (y)")
    connection.close()
    shutil.copy(samples.path, newer)
    spoil_version = connect(str(newer), None)
    spoil_version.pragma("user_version", 99)
    spoil_version.close()
    for path, said in ((noise, "not a SQLite database"), (other, "another program"), (newer, "reads only up to")):
        before = path.read_bytes()
        store = ("--store", f"sqlite:///{path}")
        examined = run("doctor", *store)
        assert examined.code == 1
        assert said in examined.out
        assert run("migrate", *store).code == 2
        assert said in run("migrate", *store).err
        assert run("migrate", "--apply", *store).code == 2
        assert path.read_bytes() == before


def test_full_disk_and_wrong_journal_mode_are_problems(run, samples, monkeypatch):
    """Each finding says what to do."""
    usage = shutil.disk_usage(samples.path)._replace(free=1000)
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda _: usage)
    connection = connect(str(samples.path), None)
    connection.pragma("journal_mode", "delete")
    connection.close()
    answer = run("doctor", "--json")
    assert answer.code == 1
    findings_by_name = findings(answer)
    assert {what for what, finding in findings_by_name.items() if finding["state"] == "problem"} == {
        "free space",
        "journal",
    }
    assert all(findings_by_name[what]["advice"] for what in ("free space", "journal"))


def test_missing_file_exits_5(run, tmp_path):
    """No file is created."""
    path = tmp_path / "none.db"
    for command in ("doctor", "migrate"):
        answer = run(command, "--store", f"sqlite:///{path}")
        assert (answer.code, answer.out) == (5, "")
        assert str(path) in answer.err
    assert not path.exists()


def test_migrate_shows_and_applies(run, tmp_path):
    """It shows the schema version; --apply brings a new file to the newest."""
    store = ("--store", f"sqlite:///{tmp_path / 'new.db'}")
    assert "up to date" in run("migrate", "--apply", *store).out
    answer = json.loads(run("migrate", "--json", *store).out)
    assert (answer["format"], answer["pending"]) == (answer["known"], 0)


def test_bench_leaves_the_store_unchanged(run, samples, monkeypatch):
    """Every workload has its figures, and no session of the benchmark stays."""
    monkeypatch.setattr(benchmark, "QUICK", benchmark.Sizes(turns=6, small=6, sessions=4, each=2, resumes=2))
    answer = json.loads(run("bench", "--quick", "--json").out)
    assert [shape["shape"] for shape in answer] == ["whole", "append", "single", "crowd", "resume"]
    assert all(shape["per_second"] > 0 and shape["p50_ms"] <= shape["p99_ms"] for shape in answer)
    assert answer[0]["bytes_each"] > 0
    out = run("bench", "--quick").out
    assert "long session, append=" in out
    assert "█" in out
    assert "4 sessions in 1 namespace" in run("doctor").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_commands(run, shell):
    """The shell, if installed, accepts it."""
    script = run("completion", shell).out
    assert all(name in script for name in ("rollback", "doctor", "--namespace"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
