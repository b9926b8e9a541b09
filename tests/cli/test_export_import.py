"""export and import: all or nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

import saveslot


@pytest.fixture
def elsewhere(tmp_path) -> list[str]:
    return ["--store", f"sqlite:///{tmp_path / 'elsewhere.db'}"]


@pytest.fixture
def exported(run, samples, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(run("export", "lesson-1").out)
    return path


def test_export_and_import_round_trip(run, exported, elsewhere):
    """The id, history and states are the same; a second export is the same text."""
    assert run("import", str(exported), *elsewhere).out == "lesson-1\n"
    assert run("export", "lesson-1", *elsewhere).out == exported.read_text()
    assert json.loads(run("log", "lesson-1", "--json", *elsewhere).out)[3]["name"] == "answered"


def test_export_file_appears_only_when_complete(run, exported, tmp_path):
    """-o writes the same text, and leaves nothing else in the folder."""
    path = tmp_path / "out" / "copy.json"
    path.parent.mkdir()
    answer = run("export", "lesson-1", "-o", str(path))
    assert (answer.code, answer.out) == (0, "")
    assert path.read_text() == exported.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["copy.json"]
    assert run("export", "lesson-1", "-o", str(tmp_path / "no" / "folder.json")).code == 2


def test_export_file_permissions(run, samples, tmp_path):
    """A new file is readable only by its owner; a replaced file keeps its mode."""
    path = tmp_path / "copy.json"
    assert run("export", "lesson-1", "-o", str(path)).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    for mode in (0o640, 0o644, 0o400):
        path.chmod(mode)
        assert run("export", "lesson-10", "-o", str(path)).code == 0
        assert path.stat().st_mode & 0o777 == mode
    assert json.loads(path.read_text())["session"]["session_id"] == "lesson-10"


@pytest.mark.parametrize("there", [True, False])
def test_export_follows_symlinks(run, exported, tmp_path, there):
    """The link's target is written or created; the link stays a link."""
    (tmp_path / "far").mkdir()
    path, link = tmp_path / "far" / "copy.json", tmp_path / "link.json"
    if there:
        path.write_text("old")
    link.symlink_to("far/copy.json")
    assert run("export", "lesson-1", "-o", str(link)).code == 0
    assert link.is_symlink()
    assert path.read_text() == exported.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["copy.json"]


def test_export_to_a_named_pipe(spawn, run, exported, tmp_path):
    """The pipe stays a pipe, and its reader gets everything."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = spawn("export", "lesson-1", "-o", str(pipe), "--json")
    text = pipe.read_text()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert text == exported.read_text()
    assert json.loads(out)["bytes"] == len(text.encode())
    assert pipe.is_fifo()


def test_named_pipe_closed_by_its_reader_is_not_an_error(spawn, samples, tmp_path):
    """The command ends as with any other closed pipe."""

    async def grow() -> None:
        async with saveslot.open(samples.url) as sessions:
            await sessions.checkpoint("lesson-1", "long", {"text": [str(n) for n in range(100_000)]})

    asyncio.run(grow())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = spawn("export", "lesson-1", "-o", str(pipe))
    with pipe.open("rb") as reader:
        assert reader.read(1) == b"{"
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")
    assert pipe.is_fifo()


def waits(pid: int) -> None:
    """Return once the process has slept for a second: it says nothing before it waits."""

    def used() -> tuple[str, ...]:
        columns = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return columns[0], *columns[11:13]  # state, user and system time

    since, before = time.monotonic(), used()
    while time.monotonic() < since + 1:
        time.sleep(0.02)
        if (now := used()) != before or now[0] != "S":
            since, before = time.monotonic(), now


def test_ctrl_c_while_a_pipe_has_no_reader(spawn, samples, tmp_path):
    """One Ctrl-C is enough."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = spawn("export", "lesson-1", "-o", str(pipe))
    waits(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_stdin_and_another_id(run, exported, elsewhere, monkeypatch):
    """`-` reads stdin, --as stores under another id."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(exported.read_bytes())))
    assert run("import", "-", "--as", "copy", *elsewhere).out == "copy\n"
    assert json.loads(run("show", "copy", "--json", *elsewhere).out)["user_id"] == "anna"


def test_import_to_an_existing_id_exits_3(run, exported):
    """The session is unchanged, and the message says what to do."""
    answer = run("import", str(exported))
    assert answer.code == 3
    assert "--as" in answer.err
    assert len(json.loads(run("log", "lesson-1", "--json").out)) == 7


def _newer(text: str) -> str:
    return text.replace('{"saveslot": 1', '{"saveslot": 2', 1)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda _: "#!/bin/sh", "is not JSON"),
        (lambda _: '{"hello": 1}', "is not an export of a session"),
        (lambda _: "[1, 2]", "is not an export of a session"),
        (_newer, "upgrade it"),
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: text.replace('"seq":3', '"seq":4'), "seq"),
        (
            lambda text: text.replace('"op":"replace"', '"op":"remove"', 1).replace("/plan/step", "/no/where"),
            "entries[",
        ),
        (lambda _: "", "is not JSON"),
    ],
)
def test_invalid_export_file_changes_nothing(run, exported, elsewhere, spoil, said):
    """One clear line names the file, exit 2, and no session is created."""
    exported.write_text(spoil(exported.read_text()))
    answer = run("import", str(exported), *elsewhere)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"saveslot: {exported}: ")
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert json.loads(run("ls", "--json", *elsewhere).out) == []


def test_unreadable_files_exit_2(run, elsewhere, tmp_path):
    """A missing file, a folder and a binary file are each named."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "bytes"):
        answer = run("import", str(path), *elsewhere)
        assert answer.code == 2
        assert str(path) in answer.err


def test_files_are_read_up_to_a_limit(run, exported, elsewhere, tmp_path, monkeypatch):
    """A file that is too long is refused before it is parsed, also one that never ends."""
    monkeypatch.setattr("saveslot.moving.sources.MAX_FILE", 100)
    (tmp_path / "list.json").write_text("[{" + " " * 100)
    for name in (str(exported), str(tmp_path / "list.json"), "/dev/zero"):
        answer = run("import", name, *elsewhere)
        assert (answer.code, "is longer than 100 bytes" in answer.err) == (2, True)


def test_one_bad_file_does_not_stop_the_others(run, exported, elsewhere, tmp_path):
    """Good files are stored and printed, bad ones are named, and the exit code reports the failure."""
    bad, good = tmp_path / "bad.json", tmp_path / "good.json"
    bad.write_text("{}")
    good.write_text(run("export", "lesson-10").out)
    answer = run("import", str(exported), str(bad), str(good), *elsewhere)
    assert (answer.code, answer.out) == (2, "lesson-1\nlesson-10\n")
    assert str(bad) in answer.err
    assert run("import", str(exported), str(good), "--as", "x", *elsewhere).code == 2


@pytest.mark.parametrize("source", ["one", "list"])
def test_ctrl_c_leaves_one_line(run, spawn, samples, elsewhere, tmp_path, source):
    """Whenever it comes, the command exits with 130 and at most one line, and without a traceback."""
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    item = {"name": "t", "timestamp": "2026-01-01T00:00:00+00:00", "data": {"messages": ["word " * 50]}}
    many.write_text(json.dumps([{"id": f"s{n // 5}:{n % 5 + 1}", **item} for n in range(20_000)]))
    states = (
        {"seq": n, "kind": "checkpoint", **_at("t"), "state": {"n": n, "text": "word " * 50}} for n in range(2, 20_000)
    )
    created = {
        "seq": 1,
        "kind": "created",
        **_at("session_created"),
        "about": {"context": {}, "metadata": {}, "labels": {}},
    }
    one.write_text(json.dumps({"saveslot": 1, "session": {"session_id": "one"}, "entries": [created, *states]}))
    codes = set()
    for delay in (0, 0.3, 1.0):
        options = ("--as", f"one-{delay}") if source == "one" else ()
        for path in tmp_path.glob("elsewhere.db*"):
            path.unlink()
        process = spawn("import", str(one if source == "one" else many), *options, *elsewhere)
        while not (tmp_path / "elsewhere.db").exists():
            time.sleep(0.02)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        codes.add(process.returncode)
        # While Python ends, a signal kills it as any other program; a shell shows that as 130, too.
        assert process.returncode in {0, 130, -signal.SIGINT}, err
        assert "Traceback" not in err
        assert "never retrieved" not in err
        assert len(err.splitlines()) <= 1 + (process.returncode == 0), err
    assert 130 in codes


def _at(name: str) -> dict[str, str]:
    return {"name": name, "at": "2026-01-01T00:00:00+00:00"}


def test_ctrl_c_during_import_leaves_whole_sessions(run, spawn, elsewhere, tmp_path):
    """The file before is stored whole, the current one not at all; the command says so and exits 130."""
    turns = [{"seq": 1, "kind": "created", "name": "session_created", "at": "2026-01-01T00:00:00+00:00",
              "about": {"context": {}, "metadata": {}, "labels": {}}}]  # fmt: skip
    patch = [{"op": "add", "path": "/messages/-", "value": "word " * 200}]
    for seq in range(2, 20_002):
        change = {"state": {"messages": []}} if seq == 2 else {"patch": patch}
        turns.append({"seq": seq, "kind": "checkpoint", "name": "t", "at": "2026-01-01T00:00:00+00:00", **change})

    def written(name: str, count: int) -> str:
        head = f'{{"saveslot": 1, "session": {json.dumps({"session_id": name})},\n "entries": '
        path = tmp_path / f"{name}.json"
        path.write_text(head + json.dumps(turns[:count]) + "}")
        return str(path)

    process = spawn("import", written("small", 3), written("large", 20_001), *elsewhere)
    until = time.monotonic() + 60
    while "small" not in run("ls", *elsewhere).out and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert "large.json was not stored" in err
    assert "Traceback" not in err
    assert [session["session_id"] for session in json.loads(run("ls", "--json", *elsewhere).out)] == ["small"]
    assert run("doctor", *elsewhere).code == 0
