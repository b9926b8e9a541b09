"""`export --all` and back: a folder of JSON Lines, streamed, resumed, verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.codec.another_zstd import zstd

from saveslot import InvalidInput, SessionManager, Unavailable
from saveslot.codec import Keyring
from saveslot.moving import lines
from saveslot.moving.landing import Landing, Report
from saveslot.sealing import SealedStore
from saveslot.stores import Store
from saveslot.stores.chained import ChainedStore
from saveslot.stores.memory import MemoryStore

from .conftest import BACKENDS, lived, told


async def exported(store: Store, folder: Path, **options) -> lines.Exported:
    return await lines.Export(store, "default", folder, **options).run(lambda _: None)


async def imported(store: Store, folder: Path) -> Report:
    report = Report()
    await Landing(store, report).take(lines.parcels(folder, "default"))
    return report


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_out_and_back_is_equal(fresh, tmp_path, backend, compress):
    """Every session with its whole history; a second import adds nothing."""
    origin, other = await fresh(backend), await fresh(backend)
    await lived(origin)
    done = await exported(origin, tmp_path / "out", compress=compress)
    assert (done.sessions, done.files, done.problems) == (23, 1, [])
    report = await imported(other, tmp_path / "out")
    assert (len(report.landed), report.problems) == (23, [])
    assert await told(origin) == await told(other)
    again = await imported(other, tmp_path / "out")
    assert (again.landed, again.already, again.entries, again.problems) == ([], 23, 0, [])


async def test_a_line_is_an_export_of_its_session(fresh, tmp_path):
    """Other tools read it line by line, and so does `import_session`."""
    origin, other = await fresh("memory"), await fresh("memory")
    await lived(origin)
    await exported(origin, tmp_path / "out")
    texts = (tmp_path / "out" / "sessions-00001.jsonl").read_text().splitlines()
    assert {json.loads(text)["session"]["session_id"] for text in texts} == (await told(origin)).keys()
    await SessionManager(store=other).import_session(texts[-1])
    assert len(await told(other)) == 1


class Breaking:
    """A store that goes away after so many reads."""

    def __init__(self, store: Store, reads: int) -> None:
        self._store, self._left = store, reads

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def entries(self, *args, **options):
        self._left -= 1
        if self._left < 0:
            raise ConnectionResetError
        return await self._store.entries(*args, **options)


async def test_an_export_that_was_interrupted_goes_on(fresh, tmp_path, monkeypatch):
    """What is whole is not written again, and in the end each session is there once."""
    monkeypatch.setattr(lines, "SESSIONS", 4)
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
    assert (sorted(report.landed), report.problems) == (sorted(await told(origin)), [])
    assert await told(origin) == await told(other)
    with pytest.raises(InvalidInput, match="whole export already"):
        await exported(origin, folder)


async def test_damage_is_told_and_the_rest_comes_in(fresh, tmp_path, monkeypatch):
    """A file that is not as it was written is named and left out, as is one that is missing; a line by its number."""
    monkeypatch.setattr(lines, "SESSIONS", 6)
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
    third["sha256"] = lines._digest(forged)  # noqa: SLF001  (a forger knows how)
    third["file"] = f"../{folder.name}/{forged.name}"
    manifest[3] = json.dumps(third)
    (folder / "manifest.jsonl").write_text("\n".join(manifest))
    report = await imported(other, folder)
    assert [problem.what for problem in report.problems] == [str(damaged), str(missing), f"{forged} line 1"]
    assert len(report.landed) == 23 - 12


FORGED = {
    "cut": (lambda file: file[: len(file) // 2], "ends after 0 of its 23 sessions"),
    "empty": (lambda _: b"", "ends after 0 of its 23 sessions"),
    "no zstd": (lambda _: b"no zstd at all", "cannot be read"),
    "more behind it": (lambda file: file + b"more", "cannot be read"),
    "no text": (lambda _: zstd.compress(b"\xff\n"), "cannot be read"),
}


@pytest.mark.parametrize("how", FORGED)
async def test_a_compressed_file_that_is_none_is_told(fresh, tmp_path, how):
    """Even one whose digest was made to match: what is missing is told, and no other error comes out."""
    origin, other = await fresh("memory"), await fresh("memory")
    await lived(origin)
    folder = tmp_path / "out"
    await exported(origin, folder, compress=True)
    change, reason = FORGED[how]
    file = folder / "sessions-00001.jsonl.zst"
    file.write_bytes(change(file.read_bytes()))
    told = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    told[1]["sha256"] = lines._digest(file)  # noqa: SLF001  (a forger knows how)
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, told)))
    report = await imported(other, folder)
    assert [(problem.what, reason in problem.reason) for problem in report.problems] == [(str(file), True)]


async def test_a_session_that_cannot_be_rebuilt_is_told_and_left_out(fresh, tmp_path):
    """No part of a line stands in a file."""
    origin, other = await fresh("memory"), await fresh("memory")
    await lived(origin)
    row = next(iter(origin._rows.values()))  # noqa: SLF001  (damage is done where nobody looks)
    log = origin._logs[row.key]  # noqa: SLF001
    log[50].frame = log[50].frame[:-1] + b"?"
    done = await exported(origin, tmp_path / "out")
    assert (done.sessions, [problem.what for problem in done.problems]) == (22, [f"session {row.session_id}"])
    assert len((await imported(other, tmp_path / "out")).landed) == 22


async def test_folders_that_are_not_for_it(fresh, tmp_path):
    """A folder with other things, or another namespace's export, is left alone."""
    store = await fresh("memory")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("")
    with pytest.raises(InvalidInput, match="not empty"):
        await exported(store, tmp_path / "other")
    await exported(store, tmp_path / "out")
    with pytest.raises(InvalidInput, match="'default'"):
        lines.Export(store, "another", tmp_path / "out")
    assert (await imported(store, tmp_path / "out")).landed == []


async def test_an_import_that_was_interrupted_is_finished_by_the_next(fresh, tmp_path):
    """Whole sessions only, and none twice."""
    origin, other = await fresh("memory"), await fresh("sqlite")
    await lived(origin)
    await exported(origin, tmp_path / "out")

    async def broken():
        n = 0
        async for item in lines.parcels(tmp_path / "out", "default"):
            n += 1
            if n == 10:
                raise Unavailable("gone")
            yield item

    landing = Landing(other, Report())
    with pytest.raises(Unavailable):
        await landing.take(broken())
    report = await imported(other, tmp_path / "out")
    assert (report.problems, len(report.landed) + report.already) == ([], 23)
    assert await told(origin) == await told(other)


async def test_sealed_sessions_stay_sealed_in_the_folder(tmp_path):
    """With the key they are exported sealed, and read back with it; without it each is told, and nothing else lost."""
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
    await Landing(SealedStore(ChainedStore(other), key), report).take(lines.parcels(tmp_path / "out", "default", key))
    assert (sorted(report.landed), report.problems) == (["plain", "sealed"], [])
    there = SessionManager(store=other, encryption_key=bytes(range(32)))
    assert await there.get_data("sealed") == {"secret": secret}
    assert (await there.audit("sealed")).unlinked == 0
    assert (await exported(store, tmp_path / "open", keyring=key, plain=True)).problems == []
    assert secret.encode() in b"".join(path.read_bytes() for path in (tmp_path / "open").iterdir())
