"""Readers of foreign bytes, fed with mutations of valid samples: only `SaveslotError` is raised, within seconds.

`SAVESLOT_FUZZ_SEED=n` repeats a run: a failure names its seed, its reader and what was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard

from saveslot import CheckpointManager, CheckpointStore, SaveslotError, SessionManager
from saveslot.codec import Keyring
from saveslot.moving import jsonl, records
from saveslot.moving.loader import Loader, Report
from saveslot.moving.sources import Ask, opened
from saveslot.moving.valkey_source import _record
from saveslot.session.vault import Vault
from saveslot.stores.memory import MemoryStore

from .conftest import lived

KEY = bytes(range(32))
KEYRING = Keyring.of(KEY)
FOREIGN = Path(__file__).with_name("foreign")
# Seconds of CPU for one reading; a reader that has no bound takes longer.
PATIENCE = 5
DEEP = "nested too deep"  # becomes 5,000 lists
NASTY: list[Any] = [
    None, True, 0, -1, 1, 2**63, -(2**63) - 1, 10**400, 1.5, 1e308, float("nan"), float("inf"), "", "\0", "\ud800",
    "a" * 5000, "../../etc/passwd", "\u202e\x1b[2J", [], [[]], [1], {}, {"$saveslot": 1}, {"$saveslot": ["bytes", "?"]},
    {"$saveslot": ["datetime", "x"]}, {"": ""}, [[1, 10**15]], [[10**15, 1]], "0001-01-01T00:00:00", "2026-01-01",
    "9999-12-31T23:59:59.999999-23:59", [{"op": "add", "path": "/a/b/c", "value": 1}], DEEP,
    [{"op": "copy", "from": "", "path": "/a"}], [{"op": "move", "from": "", "path": "/-"}],
]  # fmt: skip


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def with_nasty_leaf(chance: random.Random, text: str) -> str:
    """The JSON text with another value, or none, in the place of one of its values; sometimes with a repeated key."""
    document = json.loads(text)
    *way, last = chance.choice(list(leaves(document)))
    parent = document
    for key in way:
        parent = parent[key]
    if chance.random() < 0.1:
        del parent[last]
    else:
        parent[last] = chance.choice(NASTY)
    changed = json.dumps(document).replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000)
    return changed.replace('"name"', '"at"', 1) if chance.random() < 0.02 else changed


def mutated(chance: random.Random, data: bytes) -> bytes:
    """The bytes with flipped bits, a cut, a splice, or a part repeated."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        at, end = sorted(chance.randrange(len(changed) + 1) for _ in range(2))
        match chance.randrange(6):
            case 0 | 1 if changed:
                changed[at % len(changed)] ^= 1 << chance.randrange(8)
            case 2:
                del changed[at:]
            case 3:
                del changed[at : min(end, at + 40)]
            case 4:
                changed[at:at] = chance.choice(
                    (b"\0", b"\xff" * 4, b"9" * 5000, b"[" * 200_000, b'{"a":' * 5000, b"\n", b"&a *a")
                )
            case _:
                changed[at:at] = changed[at : min(end, at + 200)]
    return bytes(changed)


def either(chance: random.Random, text: str) -> bytes:
    if chance.random() < 0.6:
        return with_nasty_leaf(chance, text).encode(errors="surrogatepass")
    return mutated(chance, text.encode())


async def bring(source: Path) -> Report:
    report = Report()
    async with opened(str(source), Ask("default", keyring=KEYRING)) as result:
        for one in result:
            await Loader(Vault(MemoryStore(), KEYRING), report).load(one.parcels)
    return report


class Samples:
    """A valid sample of everything that is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.export = self.sealed = ""

    async def fill(self) -> None:
        store, sealing = MemoryStore(), MemoryStore()
        await lived(store)
        self.export = await SessionManager(store=store).export("forked")
        secret = SessionManager(store=sealing, encryption_key=KEY)
        await secret.create_session("tutor", session_id="sealed")
        await secret.checkpoint("sealed", "asked", {"n": 1})
        self.sealed = await secret.export("sealed")
        for compress in (False, True):
            export = jsonl.Export(store, "default", self.folder / f"all-{compress}", compress=compress)
            await export.run(lambda _: None)
        manager = CheckpointManager("lesson")
        for n in range(3):
            manager.create(f"step-{n}", {"n": n, "bytes": "x"}, {"m": n})
        self.list = manager.export()
        files = CheckpointStore(self.folder / "files")
        files.write("parser", {"task": "parse", "status": "in_progress", "list": [1, {"a": "b\nc"}], "at": 1.5})
        self.yaml = (self.folder / "files" / "parser.yaml").read_bytes()
        self.record = json.dumps(
            {
                "id": "s",
                "agent_type": "tutor",
                "user_id": "anna",
                "state": "paused",
                "context": {"a": 1},
                "metadata": {},
                "labels": {"env": "prod"},
                "created_at": "2026-01-01T00:00:00+00:00",
                "last_heartbeat": None,
                "checkpoints": [
                    {"name": "a", "timestamp": "2026-01-01T00:00:00+00:00", "data": {"n": 1}, "metadata": {}}
                ],
            }
        )

    async def json_export(self, chance: random.Random, _: Path) -> None:
        data = either(chance, self.export)
        sessions = SessionManager(store=MemoryStore())
        await sessions.import_session(data.decode(errors="surrogateescape" if chance.random() < 0.5 else "replace"))

    async def sealed_export(self, chance: random.Random, _: Path) -> None:
        sessions = SessionManager(store=MemoryStore(), encryption_key=KEY)
        await sessions.import_session(either(chance, self.sealed).decode(errors="replace"))

    async def manifest(self, chance: random.Random, folder: Path) -> None:
        shutil.copytree(self.folder / "all-False", folder / "out")
        path = folder / "out" / "manifest.jsonl"
        lines = path.read_text().splitlines()
        if chance.random() < 0.6:
            n = chance.randrange(len(lines))
            lines[n] = with_nasty_leaf(chance, lines[n])
            path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
        else:
            path.write_bytes(mutated(chance, path.read_bytes()))
        await bring(folder / "out")
        await jsonl.Export(MemoryStore(), "default", folder / "out").run(lambda _: None)

    async def lines(self, chance: random.Random, folder: Path) -> None:
        await self._file(chance, folder, compress=False)

    async def compressed(self, chance: random.Random, folder: Path) -> None:
        await self._file(chance, folder, compress=True)

    async def _file(self, chance: random.Random, folder: Path, *, compress: bool) -> None:
        """A changed file under a digest that matches it."""
        shutil.copytree(self.folder / f"all-{compress}", folder / "out")
        [path] = (folder / "out").glob("sessions-*")
        before = path.read_bytes()
        plain = zstandard.ZstdDecompressor().decompressobj().decompress(before) if compress else before
        if chance.random() < 0.5:
            changed = mutated(chance, plain)
            path.write_bytes(zstandard.compress(changed) if compress else changed)
        else:
            path.write_bytes(mutated(chance, before))
        manifest = folder / "out" / "manifest.jsonl"
        digests = [sha256(data).hexdigest() for data in (before, path.read_bytes())]
        manifest.write_text(manifest.read_text().replace(*digests))
        await bring(folder / "out")

    async def checkpoint_list(self, chance: random.Random, folder: Path) -> None:
        path = folder / "list.json"
        path.write_bytes(either(chance, self.list))
        await bring(path)

    async def checkpoint_manager(self, chance: random.Random, _: Path) -> None:
        CheckpointManager("lesson").import_checkpoints(either(chance, self.list).decode(errors="surrogateescape"))

    async def yaml_files(self, chance: random.Random, folder: Path) -> None:
        (folder / "parser.yaml").write_bytes(mutated(chance, self.yaml))
        await bring(folder)
        files = CheckpointStore(folder)
        files.find_unfinished("parser")
        files.read("parser")

    async def langgraph(self, chance: random.Random, folder: Path) -> None:
        await self._database(chance, folder, "langgraph.sqlite", "checkpoints", "writes")

    async def openai_agents(self, chance: random.Random, folder: Path) -> None:
        await self._database(chance, folder, "openai_agents.sqlite", "agent_messages", "agent_sessions")

    async def adk(self, chance: random.Random, folder: Path) -> None:
        await self._database(chance, folder, "adk.sqlite", "sessions", "events", "app_states", "user_states")

    async def _database(self, chance: random.Random, folder: Path, name: str, *tables: str) -> None:
        path = folder / name
        shutil.copy(FOREIGN / name, path)
        if chance.random() < 0.4:
            data = path.read_bytes()
            path.write_bytes(
                mutated(chance, data[100:]) if chance.random() < 0.1 else data[:100] + mutated(chance, data[100:])
            )
        else:
            connection = sqlite3.connect(path)
            table = chance.choice(tables)
            columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
            column = chance.choice(columns)
            [[value]] = connection.execute(f"select {column} from {table} limit 1").fetchall()  # noqa: S608
            kept = value if isinstance(value, bytes) else str(value).encode()
            values = (mutated(chance, kept), mutated(chance, kept).decode(errors="replace"), chance.choice(NASTY[:17]))
            new = chance.choice(values)
            if isinstance(new, bytes | str | None) or (isinstance(new, int) and abs(new) < 2**62):
                try:
                    connection.execute(f"update or ignore {table} set {column} = ?", (new,))  # noqa: S608
                except (sqlite3.Error, UnicodeEncodeError):
                    connection.rollback()
            connection.commit()
            connection.close()
        await bring(path)

    async def agent_sessions(self, chance: random.Random, _: Path) -> None:
        text = either(chance, self.record).decode(errors="surrogateescape" if chance.random() < 0.5 else "replace")
        record = _record("s", "default:session:s", text)
        if isinstance(record, dict):

            async def found() -> Any:
                for item in records.session(record, "default"):
                    yield item

            await Loader(MemoryStore(), Report()).load(found())

    async def cursors_and_refs(self, chance: random.Random, _: Path) -> None:
        sessions = SessionManager(store=MemoryStore())
        await sessions.create_session("tutor", session_id="lesson")
        await sessions.checkpoint("lesson", "asked", {"n": 1})
        ref = chance.choice(("lesson:2", "~1", "latest", "5e2b1f0a3c4d5.01980000000000000000000000000000", "2"))
        text: Any = (
            mutated(chance, ref.encode()).decode(errors="surrogateescape")
            if chance.random() < 0.7
            else chance.choice(NASTY)
        )
        for call in (
            lambda: sessions.get_checkpoint("lesson", text),
            lambda: sessions.find(after=text),
            lambda: sessions.rollback("lesson", text),
            lambda: sessions.fork("lesson", text),
        ):
            with contextlib.suppress(SaveslotError):
                await call()


READERS = [name for name, value in vars(Samples).items() if name[0] != "_" and name != "fill" and callable(value)]


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Samples:
    result = Samples(tmp_path_factory.mktemp("samples"))
    asyncio.run(result.fill())
    return result


async def fuzz(samples: Samples, reader: str, folder: Path, seconds: float, least: int) -> None:
    first = int(os.environ.get("SAVESLOT_FUZZ_SEED") or random.SystemRandom().randrange(2**32))
    until = time.monotonic() + seconds
    for n in range(1_000_000):
        if n >= least and time.monotonic() > until:
            return
        chance, place, began = random.Random(first + n), folder / str(n), time.process_time()
        place.mkdir()
        try:
            with contextlib.suppress(SaveslotError):
                await getattr(samples, reader)(chance, place)
        except Exception as exc:
            raise AssertionError(f"{reader}: {exc!r:.300}; SAVESLOT_FUZZ_SEED={first + n}") from exc
        assert time.process_time() - began < PATIENCE, f"{reader} is slow; SAVESLOT_FUZZ_SEED={first + n}"
        shutil.rmtree(place)


@pytest.mark.parametrize("reader", READERS)
async def test_foreign_bytes_raise_only_saveslot_errors(samples, tmp_path, reader):
    await fuzz(samples, reader, tmp_path, 0.4, 5)


@pytest.mark.long
@pytest.mark.parametrize("reader", READERS)
async def test_foreign_bytes_raise_only_saveslot_errors_for_long(samples, tmp_path, reader):
    await fuzz(samples, reader, tmp_path, 30, 100)
