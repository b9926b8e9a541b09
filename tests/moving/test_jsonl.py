"""`export --all` and back: a folder of JSON Lines, streamed, resumed, verified."""

from __future__ import annotations

import json
import os
import tracemalloc
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard

from saveslot import InvalidInput, SessionManager, Unavailable
from saveslot.codec import Keyring
from saveslot.moving import jsonl
from saveslot.moving.loader import Loader, Report
from saveslot.session.vault import Vault
from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore
from tests.codec.another_zstd import zstd

from .conftest import BACKENDS, exports, lived


async def exported(store: Store, folder: Path, **options) -> jsonl.Exported:
    return await jsonl.Export(store, "default", folder, **options).run(lambda _: None)


async def imported(store: Store, folder: Path) -> Report:
    report = Report()
    await Loader(store, report).load(jsonl.parcels(folder, "default"))
    return report


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_export_all_round_trips(fresh, tmp_path, backend, compress):
    """Every session has its whole history; a second import adds nothing."""
    origin, other = await fresh(backend), await fresh(backend)
    await lived(origin)
    done = await exported(origin, tmp_path / "out", compress=compress)
    assert (done.sessions, done.files, done.problems) == (23, 1, [])
    report = await imported(other, tmp_path / "out")
    assert (len(report.landed), report.problems) == (23, [])
    assert await exports(origin) == await exports(other)
    again = await imported(other, tmp_path / "out")
    assert (again.landed, again.already, again.entries, again.problems) == ([], 23, 0, [])


async def test_each_line_is_a_session_export(fresh, tmp_path):
    """Other tools can read it line by line, and so can `import_session`."""
    origin, other = await fresh("memory"), await fresh("memory")
    await lived(origin)
    await exported(origin, tmp_path / "out")
    texts = (tmp_path / "out" / "sessions-00001.jsonl").read_text().splitlines()
    assert {json.loads(text)["session"]["session_id"] for text in texts} == (await exports(origin)).keys()
    await SessionManager(store=other).import_session(texts[-1])
    assert len(await exports(other)) == 1


class Breaking:
    """A store that becomes unavailable after that many reads."""

    def __init__(self, store: Store, reads: int) -> None:
        self._store, self._left = store, reads

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def entries(self, *args, **options):
        self._left -= 1
        if self._left < 0:
            raise ConnectionResetError
        return await self._store.entries(*args, **options)


async def test_interrupted_export_can_be_resumed(fresh, tmp_path, monkeypatch):
    """Complete files are not written again, and in the end each session is exported once."""
    monkeypatch.setattr(jsonl, "SESSIONS", 4)
    origin, other = await fresh("memory"), await fresh("memory")
    await lived(origin)
    folder = tmp_path / "out"
    runs = 0
    while runs < 50:
        runs += 1
        try:
            done = await exported(Breaking(origin, 18), folder)
            break
        except ConnectionResetError:
            kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("sessions-*")}
            if kept:
                report = await imported(await fresh("memory"), folder)
                assert [problem.what for problem in report.problems] == [str(folder)]
                assert len(report.landed) == 4 * len(kept)
    assert runs > 2
    assert (done.sessions, done.files) == (23, 6)
    assert not list(folder.glob(".*"))
    report = await imported(other, folder)
    assert (sorted(report.landed), report.problems) == (sorted(await exports(origin)), [])
    assert await exports(origin) == await exports(other)
    with pytest.raises(InvalidInput, match="complete export"):
        await exported(origin, folder)


async def test_damaged_files_are_named_and_the_rest_imported(fresh, tmp_path, monkeypatch):
    """A changed or missing file is named and skipped, and a bad line is named by its number."""
    monkeypatch.setattr(jsonl, "SESSIONS", 6)
    origin, other = await fresh("memory"), await fresh("memory")
    await lived(origin)
    folder = tmp_path / "out"
    await exported(origin, folder)
    damaged, missing = folder / "sessions-00001.jsonl", folder / "sessions-00002.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b"crowd", b"cloud", 1))
    missing.unlink()
    forged = folder / "sessions-00003.jsonl"
    forged.write_text("no JSON\n" + forged.read_text())
    manifest = (folder / "manifest.jsonl").read_text().splitlines()
    third = json.loads(manifest[3])
    third["sha256"] = jsonl._digest(forged)  # noqa: SLF001  (a forger knows how)
    third["sessions"] += 1
    manifest[3] = json.dumps(third)
    (folder / "manifest.jsonl").write_text("\n".join(manifest))
    report = await imported(other, folder)
    assert [problem.what for problem in report.problems] == [str(damaged), str(missing), f"{forged} line 1"]
    assert len(report.landed) == 23 - 12


FORGED = {
    "cut": (lambda file: file[: len(file) // 2], "ends after 0 of its 23 sessions"),
    "empty": (lambda _: b"", "ends after 0 of its 23 sessions"),
    "no zstd": (lambda _: b"no zstd at all", "cannot be read"),
    "bytes after its end": (lambda file: file + b"more", "cannot be read"),
    "no text": (lambda _: zstd.compress(b"\xff\n"), "cannot be read"),
}


@pytest.mark.parametrize("how", FORGED)
async def test_invalid_compressed_file_is_named(fresh, tmp_path, how):
    """Even one whose digest was made to match is reported, and no other error is raised."""
    origin, other = await fresh("memory"), await fresh("memory")
    await lived(origin)
    folder = tmp_path / "out"
    await exported(origin, folder, compress=True)
    change, reason = FORGED[how]
    file = folder / "sessions-00001.jsonl.zst"
    file.write_bytes(change(file.read_bytes()))
    manifest = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    manifest[1]["sha256"] = jsonl._digest(file)  # noqa: SLF001  (a forger knows how)
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, manifest)))
    report = await imported(other, folder)
    assert [(problem.what, reason in problem.reason) for problem in report.problems] == [(str(file), True)]


async def test_unreadable_session_is_named_and_skipped(fresh, tmp_path):
    """No partial line is left in a file."""
    origin, other = await fresh("memory"), await fresh("memory")
    await lived(origin)
    row = next(iter(origin._rows.values()))  # noqa: SLF001  (damages the stored row itself)
    log = origin._logs[row.key]  # noqa: SLF001
    log[50].frame = log[50].frame[:-1] + b"?"
    done = await exported(origin, tmp_path / "out")
    assert (done.sessions, [problem.what for problem in done.problems]) == (22, [f"session {row.session_id}"])
    assert len((await imported(other, tmp_path / "out")).landed) == 22


async def test_unrelated_folders_are_refused(fresh, tmp_path):
    """A folder with other files, or another namespace's export, is left alone."""
    store = await fresh("memory")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("")
    with pytest.raises(InvalidInput, match="not empty"):
        await exported(store, tmp_path / "other")
    await exported(store, tmp_path / "out")
    with pytest.raises(InvalidInput, match="'default'"):
        jsonl.Export(store, "another", tmp_path / "out")
    assert (await imported(store, tmp_path / "out")).landed == []


async def test_interrupted_import_is_finished_by_the_next(fresh, tmp_path):
    """Only whole sessions are imported, and none twice."""
    origin, other = await fresh("memory"), await fresh("sqlite")
    await lived(origin)
    await exported(origin, tmp_path / "out")

    async def broken():
        n = 0
        async for item in jsonl.parcels(tmp_path / "out", "default"):
            n += 1
            if n == 10:
                raise Unavailable("gone")
            yield item

    loader = Loader(other, Report())
    with pytest.raises(Unavailable):
        await loader.load(broken())
    report = await imported(other, tmp_path / "out")
    assert (report.problems, len(report.landed) + report.already) == ([], 23)
    assert await exports(origin) == await exports(other)


async def test_sealed_sessions_are_exported_sealed(tmp_path):
    """With the key they are exported sealed, and imported with it; without it each is named, and the
    rest is exported.
    """
    key, secret = Keyring.of(bytes(range(32))), "under the third stair"
    store, other = MemoryStore(), MemoryStore()
    sessions = SessionManager(store=store, encryption_key=bytes(range(32)))
    await sessions.create_session("tutor", session_id="sealed")
    await sessions.checkpoint("sealed", "asked", {"secret": secret})
    await SessionManager(store=store).create_session("tutor", session_id="plain")
    done = await exported(store, tmp_path / "keyless")
    assert (done.sessions, [problem.what for problem in done.problems]) == (1, ["session sealed"])
    assert (await exported(store, tmp_path / "out", keyring=key)).sessions == 2
    assert secret.encode() not in b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    report = Report()
    await Loader(Vault(other, key), report).load(jsonl.parcels(tmp_path / "out", "default", key))
    assert (sorted(report.landed), report.problems) == (["plain", "sealed"], [])
    there = SessionManager(store=other, encryption_key=bytes(range(32)))
    assert await there.get_data("sealed") == {"secret": secret}
    assert (await there.audit("sealed")).unlinked == 0
    assert (await exported(store, tmp_path / "open", keyring=key, plain=True)).problems == []
    assert secret.encode() in b"".join(path.read_bytes() for path in (tmp_path / "open").iterdir())


def entries(export: str) -> object:
    return json.loads(export)["entries"]


def forged(folder: Path, lines: list[str]) -> None:
    """A folder with these lines as its sessions, and a manifest to match."""
    folder.mkdir()
    file = folder / "sessions-00001.jsonl"
    file.write_text("".join(line.replace("\n", "") + "\n" for line in lines))
    entry = {"file": file.name, "sessions": len(lines), "sha256": jsonl._digest(file)}  # noqa: SLF001
    manifest = ({"saveslot": 1, "namespace": "default"}, entry, {"complete": True, "sessions": len(lines)})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in manifest))


@pytest.mark.parametrize("backend", BACKENDS)
async def test_session_twice_in_a_folder_is_continued(fresh, tmp_path, backend):
    """An older and a newer export of a session: the newer entries are imported, and counted once."""
    sessions, other = SessionManager(store=await fresh("memory")), await fresh(backend)
    await sessions.create_session("tutor", session_id="lesson")
    await sessions.checkpoint("lesson", "asked", {"n": 1})
    older = await sessions.export("lesson")
    for n in range(2, 5):
        await sessions.checkpoint("lesson", "asked", {"n": n})
    newer = await sessions.export("lesson")
    forged(tmp_path / "out", [older, newer, newer])
    report = await imported(other, tmp_path / "out")
    assert (report.landed, report.entries, report.already, report.problems) == (["lesson"] * 2, 5, 1, [])
    again = await imported(other, tmp_path / "out")
    assert (again.landed, again.entries, again.already, again.problems) == ([], 0, 3, [])
    assert entries(await SessionManager(store=other).export("lesson")) == entries(newer)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_other_content_under_the_same_id_is_named(fresh, tmp_path, backend):
    """Two sessions with one id and one creation time: the first is imported, the second is named."""
    sessions, other = SessionManager(store=await fresh("memory")), await fresh(backend)
    await sessions.create_session("tutor", session_id="lesson")
    await sessions.checkpoint("lesson", "asked", {"n": 1})
    first = await sessions.export("lesson")
    forged(tmp_path / "out", [first, first.replace('"asked"', '"answered"')])
    report = await imported(other, tmp_path / "out")
    assert (report.landed, report.entries) == (["lesson"], 2)
    assert [problem.what for problem in report.problems] == ["session lesson"]
    assert "another history" in report.problems[0].reason


class Overtaking:
    """A store in which another import finishes just before the first append."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder = store, folder

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def append(self, groups, **how):
        folder, self._folder = self._folder, None
        if folder is not None:
            await imported(self._store, folder)
        return await self._store.append(groups, **how)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("begun", [False, True])
async def test_imports_of_one_session_at_once(fresh, tmp_path, backend, begun):
    """An import that another one overtakes continues after it, and counts only what it stored."""
    sessions, other = SessionManager(store=await fresh("memory")), await fresh(backend)
    await sessions.create_session("tutor", session_id="lesson")
    forged(tmp_path / "begun", [await sessions.export("lesson")])
    await sessions.checkpoint("lesson", "asked", {"n": 1})
    forged(tmp_path / "older", [await sessions.export("lesson")])
    await sessions.checkpoint("lesson", "asked", {"n": 2})
    newer = await sessions.export("lesson")
    forged(tmp_path / "newer", [newer])
    if begun:
        await imported(other, tmp_path / "begun")
    report = await imported(Overtaking(other, tmp_path / "older"), tmp_path / "newer")
    assert (report.landed, report.entries, report.problems) == (["lesson"], 1, [])
    assert entries(await SessionManager(store=other).export("lesson")) == entries(newer)


LINES = {
    "a list": "[1]",
    "a number": "7",
    "null": "null",
    "no JSON": "{",
    "an empty line": "",
    "no sessions": '{"file": "sessions-00001.jsonl", "sha256": "x"}',
    "no digest": '{"file": "sessions-00001.jsonl", "sessions": 1}',
    "a digest that is a list": '{"file": "sessions-00001.jsonl", "sessions": 1, "sha256": []}',
    "a negative number": '{"file": "sessions-00001.jsonl", "sessions": -1, "sha256": "x"}',
    "too many sessions": '{"file": "sessions-00001.jsonl", "sessions": 1000000000, "sha256": "x"}',
    "a long number": '{"file": "sessions-00001.jsonl", "sessions": %s, "sha256": "x"}' % ("9" * 5000),
    "a name with NUL": '{"file": "sessions-\\u0000.jsonl", "sessions": 1, "sha256": "x"}',
    "half a surrogate pair": '{"file": "\\ud800", "sessions": 1, "sha256": "x"}',
    "a path": '{"file": "../out/sessions-00001.jsonl", "sessions": 1, "sha256": "x"}',
    "an absolute path": '{"file": "/etc/passwd", "sessions": 1, "sha256": "x"}',
    "a place that is none": '{"file": "sessions-00001.jsonl", "sessions": 1, "sha256": "x", "next": "here"}',
    "nested too deep": "[" * 100_000,
    "another format": '{"saveslot": 1, "namespace": "default"}',
}


@pytest.mark.parametrize("what", LINES)
async def test_invalid_manifest_lines_are_named(fresh, tmp_path, what):
    """On import the line is named and the other files are read; an export does not continue there."""
    origin = await fresh("memory")
    await lived(origin)
    await exported(origin, tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.jsonl"
    head, file, end = manifest.read_text().splitlines()
    manifest.write_text("\n".join((head, LINES[what], file, end, "")))
    report = await imported(await fresh("memory"), tmp_path / "out")
    assert [problem.what for problem in report.problems] == [f"{manifest} line 2"]
    assert len(report.landed) == jsonl.count(tmp_path / "out") == 23
    manifest.write_text("\n".join((head, LINES[what], file, "")))
    with pytest.raises(InvalidInput, match=f"{manifest} line 2") as refused:
        await exported(origin, tmp_path / "out")
    assert "name another folder" in str(refused.value)


@pytest.mark.parametrize("torn", ['{"file": "sess', '{"complete": tr'])
async def test_resumed_export_drops_a_torn_line(fresh, tmp_path, torn):
    """The rest is appended to whole lines."""
    origin = await fresh("memory")
    await lived(origin)
    await exported(origin, tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.jsonl"
    head, file, _ = manifest.read_text().splitlines()
    manifest.write_text(f"{head}\n{file}\n{torn}")
    assert (await exported(origin, tmp_path / "out")).sessions == 23
    assert len((await imported(await fresh("memory"), tmp_path / "out")).landed) == 23


async def test_file_listed_twice_is_read_once(fresh, tmp_path):
    origin = await fresh("memory")
    await lived(origin)
    await exported(origin, tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.jsonl"
    head, file, end = manifest.read_text().splitlines()
    manifest.write_text(f"{head}\n{file}\n{file}\n{end}\n")
    report = await imported(await fresh("memory"), tmp_path / "out")
    assert (len(report.landed), report.already, named(report)) == (23, 0, [str(manifest)])


def named(report: Report) -> list[str]:
    return [problem.what for problem in report.problems]


@pytest.mark.parametrize(
    "bomb", [b" " * (1 << 20), b'{"saveslot": 1, "session": "' + b"a" * (1 << 20), b"\n" * (1 << 20)]
)
async def test_compressed_bomb_is_refused_in_little_memory(fresh, tmp_path, monkeypatch, bomb):
    """A file of kilobytes that decompresses to 3 GB is named; at most one line of it is in memory."""
    monkeypatch.setattr(jsonl, "LONGEST", 16 << 20)
    folder = tmp_path / "out"
    forged(folder, [])
    file = folder / "sessions-00001.jsonl.zst"
    with zstandard.open(file, "wb") as out:
        out.write(bomb)
        for _ in range(3 << 10):
            out.write(bomb[-1:] * (1 << 20))
    digest = sha256(file.read_bytes()).hexdigest()
    entry = {"file": file.name, "sessions": 12, "sha256": digest}
    manifest = folder / "manifest.jsonl"
    manifest.write_text(
        manifest.read_text().replace("sessions-00001.jsonl", "sessions-00009.jsonl") + json.dumps(entry)
    )
    tracemalloc.start()
    report = await imported(await fresh("memory"), folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(file) in named(report)
    assert peak < 100 << 20


async def test_pipe_in_an_export_is_not_read(fresh, tmp_path):
    """A named pipe, or a link to a device, would never end."""
    folder = tmp_path / "out"
    forged(folder, [])
    (folder / "sessions-00001.jsonl").unlink()
    os.mkfifo(folder / "sessions-00001.jsonl")
    report = await imported(await fresh("memory"), folder)
    assert named(report) == [str(folder / "sessions-00001.jsonl")]


async def test_session_longer_than_a_line_is_named(fresh, tmp_path, monkeypatch):
    """What `export --all` writes can be imported; a session that is too long for it is named."""
    monkeypatch.setattr(jsonl, "LONGEST", 4000)
    origin = await fresh("memory")
    await lived(origin)
    done = await exported(origin, tmp_path / "out")
    assert "session lesson" in [problem.what for problem in done.problems]
    report = await imported(await fresh("memory"), tmp_path / "out")
    assert (len(report.landed), report.problems) == (done.sessions, [])
