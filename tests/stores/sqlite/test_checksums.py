"""Page checksums: a changed byte of the file is an error, never a wrong answer."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import saveslot
from saveslot import Corrupt, InvalidInput, SaveslotError, SessionManager
from saveslot.stores.sqlite import checksums
from saveslot.stores.sqlite.checkup import check
from saveslot.stores.sqlite.file import connect
from saveslot.stores.sqlite.repair import repair

OLD = Path(__file__).parents[2] / "upgrades" / "format_1.sqlite"
SESSIONS = 12


async def fill(path: Path) -> None:
    """Sessions of several sizes, so that the file has every type of page: inner, leaf, overflow, map and free ones."""
    async with saveslot.open(path) as sessions:
        for n in range(SESSIONS):
            name = f"s{n}"
            await sessions.create_session("tutor", f"user-{n % 3}", {"topic": n}, labels={"n": str(n)}, session_id=name)
            for turn in range(20):
                size = 6000 if turn == n else 40 * n
                await sessions.checkpoint(name, f"turn-{turn}", append={"messages": [random.randbytes(size).hex()]})
        await sessions.create_session("tutor", session_id="gone")
        await sessions.checkpoint("gone", "large", {"text": random.randbytes(60_000).hex()})
        await sessions.delete_session("gone")
        await sessions.gc(grace=0)


def answers(sessions: SessionManager, of: Iterable[int]) -> dict[str, Callable[[], Awaitable[Any]]]:
    """What a caller may ask, by name."""
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "find": lambda: sessions.find(limit=100),
        "stats": sessions.stats,
        "labels": lambda: sessions.find(labels={"n": "3"}),
        "user": lambda: sessions.find(user_id="user-1"),
        "text": lambda: sessions.find(text="s1"),
        "count": lambda: sessions.count(state="active"),
    }
    for n in of:
        asked[f"data {n}"] = lambda n=n: sessions.get_data(f"s{n}")
        asked[f"session {n}"] = lambda n=n: sessions.get_session(f"s{n}")
        asked[f"history {n}"] = lambda n=n: sessions.history(f"s{n}", all=True)
    return asked


def shown(answer: Any) -> str:
    if isinstance(answer, list):
        return str([shown(part) for part in answer])
    return str(answer.to_dict() if hasattr(answer, "to_dict") else answer)


async def everything(path: Path, of: Iterable[int] = range(SESSIONS)) -> dict[str, str | SaveslotError]:
    """The answers, also about the sessions of these numbers."""
    try:
        async with saveslot.open(path) as sessions:
            read: dict[str, str | SaveslotError] = {}
            for name, ask in answers(sessions, of).items():
                try:
                    read[name] = shown(await ask())
                except SaveslotError as exc:
                    read[name] = exc
            return read
    except SaveslotError as exc:
        return {"open": exc}


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        [byte] = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


PAGE = 4096
KINDS = {2: "inner of an index", 5: "inner of a table", 10: "leaf of an index", 13: "leaf of a table"}


def page_kinds(path: Path) -> dict[str, list[int]]:
    """The numbers of the pages of each kind, from 0."""
    content = path.read_bytes()

    def number(page: int, at: int) -> int:
        return int.from_bytes(content[page * PAGE + at : page * PAGE + at + 4])

    kinds, free = {"map": set(range(1, len(content) // PAGE, (PAGE - 8) // 5 + 1))}, set[int]()
    trunk = number(0, 32)
    while trunk:
        leaves = {number(trunk - 1, 8 + 4 * n) - 1 for n in range(number(trunk - 1, 4))}
        free, trunk = free | leaves | {trunk - 1}, number(trunk - 1, 0)
    kinds["free"] = free
    for page in {*range(len(content) // PAGE)} - free - kinds["map"]:
        kind = KINDS.get(content[page * PAGE + (0 if page else 100)], "overflow")
        kinds.setdefault(kind, set()).add(page)
    return {kind: sorted(pages) for kind, pages in kinds.items()}


@pytest.mark.parametrize("flips", [300, pytest.param(10_000, marks=pytest.mark.long)])
async def test_no_flipped_bit_gives_a_wrong_answer(tmp_path, flips):
    """Each answer is the right one or `Corrupt`; a checkpoint that is accepted follows the newest one. Half of the bits
    are anywhere in the file, the others in pages of each kind in turn, and in the header.
    """
    sound, path = tmp_path / "sound.db", tmp_path / "s.db"
    await fill(sound)
    right = await everything(sound)
    size, dice = sound.stat().st_size * 8, random.Random(flips)
    kinds = page_kinds(sound)
    assert kinds.keys() == {*KINDS.values(), "map", "free", "overflow"}
    header = range(16 * 8, 28 * 8)  # page size, versions, reserved bytes, limits
    refused = 0
    for n in range(flips):
        shutil.copy(sound, path)
        if n % 4 == 0 and n // 4 < len(header):
            flip(path, header[n // 4])
        elif n % 2:
            pages = kinds[sorted(kinds)[n // 2 % len(kinds)]]
            flip(path, dice.choice(pages) * PAGE * 8 + dice.randrange(PAGE * 8))
        else:
            flip(path, dice.randrange(size))
        for name, answer in (await everything(path, dice.sample(range(SESSIONS), 3))).items():
            refused += isinstance(answer, SaveslotError)
            assert isinstance(answer, Corrupt | InvalidInput) or answer == right[name], (n, name)
        name = f"s{n % SESSIONS}"
        with suppress(Corrupt, InvalidInput):
            async with saveslot.open(path) as sessions:
                assert (await sessions.checkpoint(name, "next", append={"messages": ["more"]})).seq == 22
                assert len((await sessions.get_data(name))["messages"]) == 21
        for left in tmp_path.glob("s.db*"):
            left.unlink()
    assert refused > flips // 4


async def test_sessions_on_sound_pages_stay_readable(tmp_path):
    """A page that does not fit its checksum is `Corrupt` for the session that needs it, and for no other."""
    path = tmp_path / "s.db"
    await fill(path)
    frame = b"large frame of one session " * 400
    async with saveslot.open(path) as sessions:
        await sessions.checkpoint("s3", "large", {"bytes": random.randbytes(9000)})
    with closing(connect(str(path), None)) as file:
        large = "(select feed from checkpoints order by length(frame) desc limit 1)"
        file.execute(f"update checkpoints set frame = ? where feed = {large}", (frame,))  # noqa: S608
    flip(path, path.read_bytes().index(frame[1000:1100]) * 8)
    read = await everything(path)
    assert isinstance(read.pop("data 3"), Corrupt)
    assert isinstance(read["history 3"], Corrupt)
    assert "does not fit its checksum" in str(read["history 3"])
    assert not [name for name, answer in read.items() if isinstance(answer, Exception) and not name.endswith(" 3")]


def test_default_vfs_of_the_process_stays(tmp_path):
    """Other connections of the process go on as before: by its own VFS, without checksums."""
    script = """
        import apsw, asyncio, saveslot, sys
        before = apsw.vfs_names()[0]
        async def main():
            async with saveslot.open(sys.argv[1]) as sessions:
                await sessions.create_session("tutor")
        asyncio.run(main())
        other = apsw.Connection(sys.argv[2])
        other.execute("create table t (x)")
        print(before == apsw.vfs_names()[0] == other.open_vfs, other.reserve_bytes(), "cksmvfs" in apsw.vfs_names())
    """
    script = "\n".join(line[8:] for line in script.splitlines())
    command = [sys.executable, "-c", script, str(tmp_path / "s.db"), str(tmp_path / "other.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True 0 True\n", "")


async def state(path: Path) -> str:
    findings = {f.what: f async for f in check(f"sqlite:///{path}", lambda *_: None) if hasattr(f, "what")}
    return findings["checksums"].state


async def test_file_made_before_goes_on_as_it_is_until_it_is_repaired(tmp_path):
    """It keeps having no checksums, doctor says so, and a repair adds them: after a copy, and if nobody has it open."""
    path = tmp_path / "old.db"
    shutil.copy(OLD, path)
    async with saveslot.open(path) as sessions:
        await sessions.checkpoint("lesson", "more", {"n": 1})
        assert checksums.bad_pages(str(path)) is None
        assert await state(path) == "warning"
        refused = await repair(f"sqlite:///{path}")
        assert refused is not None
        assert (refused.state, refused.advice) == (
            "problem",
            ["stop everything that uses the file, then: saveslot doctor --repair"],
        )
        before = await sessions.export("lesson")
        await sessions.checkpoint("lesson", "after", {"n": 2})
    for copy in tmp_path.glob("old.db.before-repair-*"):
        copy.unlink()
    content = path.read_bytes()
    repaired = await repair(f"sqlite:///{path}")
    assert repaired is not None
    assert repaired.state == "ok"
    [copy] = tmp_path.glob("old.db.before-repair-*")
    assert copy.read_bytes() == content
    assert checksums.bad_pages(str(path)) == ([], path.stat().st_size // 4096)
    assert await state(path) == "ok"
    assert await repair(f"sqlite:///{path}") is None
    async with saveslot.open(path) as sessions:
        assert await sessions.get_data("lesson") == {"n": 2}
        assert before[:-2] in await sessions.export("lesson") or "after" in await sessions.export("lesson")
        await sessions.checkpoint("lesson", "last", {"n": 3})
    assert checksums.bad_pages(str(path))[0] == []


async def test_page_written_by_another_program_is_corrupt_until_it_is_repaired(tmp_path):
    """SQLite without the checksums changes one row: what needs its page is `Corrupt`, and a repair says what it did."""
    path = tmp_path / "s.db"
    await fill(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("update sessions set agent_type = 'grader' where id = 's5'")
        other.commit()
    read = await everything(path)
    assert isinstance(read["session 5"], Corrupt)
    assert await state(path) == "problem"
    before = path.read_bytes()
    repaired = await repair(f"sqlite:///{path}")
    assert repaired is not None
    assert repaired.state == "warning"
    assert "did not fit" in repaired.text
    [copy] = tmp_path.glob("s.db.before-repair-*")
    assert copy.read_bytes() == before
    assert await state(path) == "ok"
    async with saveslot.open(path) as sessions:
        session = await sessions.get_session("s5")
        assert session is not None
        assert session.agent_type == "grader"
        assert len(await sessions.history("s5")) == 21


async def test_copy_by_another_program_gets_its_checksums_by_a_repair(tmp_path):
    """VACUUM INTO and dumps of a SQLite without checksums: refused until repaired, then equal."""
    path, copy, dump = tmp_path / "s.db", tmp_path / "copy.db", tmp_path / "dump.db"
    await fill(path)
    right = await everything(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("vacuum into ?", (str(copy),))
        with closing(sqlite3.connect(dump)) as target:
            target.executescript("\n".join(other.iterdump()))
            for pragma in ("application_id", "user_version"):
                [value] = other.execute(f"pragma {pragma}").fetchone()
                target.execute(f"pragma {pragma} = {value}")
    for file in (copy, dump):
        [refused] = (await everything(file)).values()
        assert isinstance(refused, Corrupt)
        assert "saveslot doctor" in str(refused)
        assert await repair(f"sqlite:///{file}") is not None
        read = await everything(file)
        read["stats"] = right["stats"]  # its bytes differ
        assert read == right
        assert checksums.bad_pages(str(file))[0] == []


async def test_program_that_closes_the_file_last_spoils_no_checksum(tmp_path):
    """What is in the WAL gets its checksums when Saveslot closes the file, even if another program keeps it open."""
    path = tmp_path / "s.db"
    async with saveslot.open(path) as sessions:
        await sessions.create_session("tutor", session_id="s")
        other = apsw.Connection(str(path))
        assert other.execute("select count(*) from sessions").get == 1
        await sessions.checkpoint("s", "one", {"n": 1})
    other.close()
    assert checksums.bad_pages(str(path))[0] == []


async def test_apsw_without_the_checksum_vfs(tmp_path, monkeypatch):
    """New files have no checksums, and doctor says why; a file with checksums is refused, and stays as it is."""
    path, plain = tmp_path / "s.db", tmp_path / "plain.db"
    await fill(path)
    before = path.read_bytes()
    for module in ("checksums", "file", "checkup", "resealing"):
        monkeypatch.setattr(f"saveslot.stores.sqlite.{module}.checksum_vfs", lambda: None)
    with pytest.raises(InvalidInput, match="page checksums, which this apsw cannot write"):
        await saveslot.open(path)
    assert path.read_bytes() == before
    await fill(plain)
    assert await state(plain) == "warning"
    assert plain.read_bytes()[20] == 0


async def test_many_processes_that_create_a_file_write_checksums(tmp_path):
    """None of them goes on without, whichever wrote the first page."""
    path = tmp_path / "s.db"
    script = """
import asyncio, saveslot, sys
async def main():
    async with saveslot.open(sys.argv[1]) as sessions:
        for n in range(40):
            await sessions.create_session("tutor", context={"text": "x" * 3000})
asyncio.run(main())
"""
    command = [sys.executable, "-c", script, str(path)]
    processes = [await asyncio.create_subprocess_exec(*command) for _ in range(4)]
    assert [await process.wait() for process in processes] == [0] * 4
    found = checksums.bad_pages(str(path))
    assert found is not None
    assert found[0] == []
