"""export and import: everything goes over, or nothing does."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import time

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


def test_what_was_exported_is_imported_whole(run, exported, elsewhere):
    """Same id, same history, same states; a second export is the same text."""
    assert run("import", str(exported), *elsewhere).out == "lesson-1\n"
    assert run("export", "lesson-1", *elsewhere).out == exported.read_text()
    assert json.loads(run("log", "lesson-1", "--json", *elsewhere).out)[3]["name"] == "answered"


def test_an_export_goes_to_a_file_when_it_is_complete(run, exported, tmp_path):
    """-o writes the same text, and leaves nothing else in the folder."""
    path = tmp_path / "out" / "copy.json"
    path.parent.mkdir()
    answer = run("export", "lesson-1", "-o", str(path))
    assert (answer.code, answer.out) == (0, "")
    assert path.read_text() == exported.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["copy.json"]
    assert run("export", "lesson-1", "-o", str(tmp_path / "no" / "folder.json")).code == 2


def test_an_export_is_private_unless_the_file_was_not(run, samples, tmp_path):
    """A new file is its owner's; one that is replaced stays as readable as it was."""
    path = tmp_path / "copy.json"
    assert run("export", "lesson-1", "-o", str(path)).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    for mode in (0o640, 0o644, 0o400):
        path.chmod(mode)
        assert run("export", "lesson-10", "-o", str(path)).code == 0
        assert path.stat().st_mode & 0o777 == mode
    assert json.loads(path.read_text())["session"]["session_id"] == "lesson-10"


@pytest.mark.parametrize("there", [True, False])
def test_an_export_follows_links(run, exported, tmp_path, there):
    """What a link points at is written, or made; the link stays one."""
    (tmp_path / "far").mkdir()
    path, link = tmp_path / "far" / "copy.json", tmp_path / "link.json"
    if there:
        path.write_text("old")
    link.symlink_to("far/copy.json")
    assert run("export", "lesson-1", "-o", str(link)).code == 0
    assert link.is_symlink()
    assert path.read_text() == exported.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["copy.json"]


def test_an_export_into_a_named_pipe(spawn, run, exported, tmp_path):
    """The pipe stays one, and its reader gets everything."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = spawn("export", "lesson-1", "-o", str(pipe), "--json")
    text = pipe.read_text()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert text == exported.read_text()
    assert json.loads(out)["bytes"] == len(text.encode())
    assert pipe.is_fifo()


def test_a_reader_of_a_named_pipe_that_goes_away_is_no_error(spawn, samples, tmp_path):
    """It ends as at any other pipe."""

    async def grow() -> None:
        async with saveslot.open(samples.url) as sessions:
            await sessions.checkpoint("lesson-1", "long", {"text": [str(n) for n in range(100_000)]})

    asyncio.run(grow())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = spawn("export", "lesson-1", "-o", str(pipe))
    with pipe.open("rb") as reader:
        assert reader.read(1) == b"{"
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (141, "")
    assert pipe.is_fifo()


def test_ctrl_c_while_nobody_reads_the_pipe(spawn, samples, tmp_path):
    """Once is enough."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = spawn("export", "lesson-1", "-o", str(pipe))
    time.sleep(2)  # it says nothing before it waits
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "")


def test_stdin_and_another_id(run, exported, elsewhere, monkeypatch):
    """`-` reads stdin, --as stores under another id."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(exported.read_bytes())))
    assert run("import", "-", "--as", "copy", *elsewhere).out == "copy\n"
    assert json.loads(run("show", "copy", "--json", *elsewhere).out)["user_id"] == "anna"


def test_an_id_that_is_taken_is_left_alone(run, exported):
    """Exit 3, and the way out is named."""
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
        (_newer, "upgrade saveslot"),
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: text.replace('"seq":3', '"seq":4'), "seq"),
        (
            lambda text: text.replace('"op":"replace"', '"op":"remove"', 1).replace("/plan/step", "/no/where"),
            "entries[",
        ),
        (lambda _: "", "is not JSON"),
    ],
)
def test_a_file_that_is_no_export_changes_nothing(run, exported, elsewhere, spoil, said):
    """One clear line that names the file, exit 2, and no session where none was."""
    exported.write_text(spoil(exported.read_text()))
    answer = run("import", str(exported), *elsewhere)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"saveslot: {exported}: ")
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert json.loads(run("ls", "--json", *elsewhere).out) == []


def test_files_that_cannot_be_read(run, elsewhere, tmp_path):
    """Missing, a folder, or not text: named, and exit 2."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "bytes"):
        answer = run("import", str(path), *elsewhere)
        assert answer.code == 2
        assert str(path) in answer.err


def test_one_bad_file_does_not_stop_the_others(run, exported, elsewhere, tmp_path):
    """What is good is stored and printed, what is not is named, and the exit code tells that something was wrong."""
    bad, good = tmp_path / "bad.json", tmp_path / "good.json"
    bad.write_text("{}")
    good.write_text(run("export", "lesson-10").out)
    answer = run("import", str(exported), str(bad), str(good), *elsewhere)
    assert (answer.code, answer.out) == (2, "lesson-1\nlesson-10\n")
    assert str(bad) in answer.err
    assert run("import", str(exported), str(good), "--as", "x", *elsewhere).code == 2


def test_ctrl_c_in_the_middle_of_an_import_leaves_nothing_half_done(run, spawn, elsewhere, tmp_path):
    """The file before it is stored whole, the one under way not at all, and the command says so and ends with 130."""
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
    until = time.monotonic() + 20
    while "small" not in run("ls", *elsewhere).out and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "large.json was not stored" in err
    assert "Traceback" not in err
    assert [session["session_id"] for session in json.loads(run("ls", "--json", *elsewhere).out)] == ["small"]
    assert run("doctor", *elsewhere).code == 0
