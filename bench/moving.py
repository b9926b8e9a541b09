"""What files and moving in cost: a checkpoint file beside its bytes alone, ten thousand files, a hundred thousand rows.

python -m bench.moving [--quick]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import asyncpg

from bench.fresh import peak_mb
from saveslot import CheckpointStore
from saveslot.checkpoints.files.document import dumped
from saveslot.moving.loader import Loader, Report
from saveslot.moving.sources import Ask, opened
from saveslot.stack import Postgres
from saveslot.stores import open_store

DOCUMENT = {
    "session_id": "s",
    "task": "Add a parser for the new format",
    "status": "in_progress",
    "created": "2026-01-01T00:00:00+00:00",
    "progress": [
        {"step": f"step {n} of the plan", "status": "done", "result": "All tests pass.\nNothing is left."}
        for n in range(20)
    ],
    "state": {"branch": "main", "files_changed": [f"src/part_{n}.py" for n in range(20)], "tests": {"passed": 12}},
    "decisions": ["keep it simple, because nobody asked for more"] * 5,
}


def bare(folder: int, data: bytes) -> None:
    """Do what the disk must do for one file, and nothing else."""
    file = os.open("bare.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
    os.write(file, data)
    os.fsync(file)
    os.close(file)
    os.rename("bare.new", "bare", src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def writing(folder: Path, times: int) -> dict[str, float]:
    store = CheckpointStore(folder / "files")
    at = os.open(folder, os.O_RDONLY)
    data = dumped(DOCUMENT)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(times):  # in turns, so that noise hits both
        start = perf_counter()
        store.write("s", DOCUMENT)
        middle = perf_counter()
        bare(at, data)
        ours.append(middle - start)
        theirs.append(perf_counter() - middle)
    os.close(at)
    return {
        "file_bytes": len(data),
        "write_ms": median(ours) * 1000,
        "bare_ms": median(theirs) * 1000,
        "times": median(ours) / median(theirs),
    }


def many(folder: Path, count: int) -> dict[str, float]:
    """Create files of which a tenth are due."""
    store = CheckpointStore(folder / "many")
    now = datetime.now(UTC)
    for n in range(count):
        at = now - timedelta(days=9 if n % 10 == 0 else 1)
        path = store.checkpoints_dir / f"session-{n}.yaml"
        path.write_bytes(dumped({**DOCUMENT, "updated": at.isoformat()}))
    start = perf_counter()
    listed = len(store.list_sessions())
    middle = perf_counter()
    gone = len(store.garbage_collect())
    return {"files": listed, "list_s": middle - start, "collected": gone, "collect_s": perf_counter() - middle}


async def rows(url: str, count: int) -> None:
    checkpoints = [
        {"name": f"turn-{n}", "timestamp": f"2026-01-01T00:0{n}:00+00:00", "data": {"messages": ["word " * 20] * n}}
        for n in range(5)
    ]
    connection = await asyncpg.connect(url)
    await connection.execute("""
        create table agent_sessions (
          id uuid primary key, agent_type text, user_id text, state text, context jsonb, checkpoints jsonb,
          created_at timestamptz, updated_at timestamptz, last_heartbeat timestamptz)""")
    sql = """
        insert into agent_sessions
        select gen_random_uuid(), 'tutor', 'user-' || n, 'active', '{"topic": "fractions"}', $2::jsonb,
          now() - n * interval '1 second', now(), now()
        from generate_series(1, $1) n"""
    await connection.execute(sql, count, json.dumps(checkpoints))
    await connection.close()


async def moved_in(folder: Path, url: str) -> dict[str, float]:
    before = peak_mb()
    store = await open_store(f"sqlite:///{folder / 'in.db'}")
    report = Report()
    start = perf_counter()
    async with opened(url, Ask("default")) as [source]:
        await Loader(store, report).load(source.found)
    seconds = perf_counter() - start
    await store.close()
    answer = {"rows": len(report.landed), "entries": report.entries, "problems": len(report.problems)}
    return {**answer, "import_s": seconds, "peak_mb": peak_mb(), "before_mb": before}


def main() -> None:
    small = "--quick" in sys.argv
    # Beside this file: the system's temporary folder may be in memory.
    with TemporaryDirectory(suffix=".tmp", dir=Path(__file__).parent) as temporary:
        folder = Path(temporary)
        with Postgres() as server:
            asyncio.run(rows(server.url, 2_000 if small else 100_000))
            result = asyncio.run(moved_in(folder, server.url))
        result |= writing(folder, 100 if small else 500)
        result |= many(folder, 1_000 if small else 10_000)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
