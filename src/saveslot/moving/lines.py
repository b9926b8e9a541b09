"""A whole namespace as a folder of JSON Lines, and back. Each line is one session, as `saveslot export` writes it.

    manifest.jsonl        {"saveslot": 1, "namespace": "default"}
                          {"file": "sessions-00001.jsonl", "sessions": 5000, "sha256": "…", "next": "…"}
                          {"complete": true, "sessions": 7312}
    sessions-00001.jsonl  {"saveslot": 1, "session": {…}, "entries": […]}

A file is named in the manifest once it is whole and synced, with the place where the next one begins: an export that
was interrupted goes on from there.
"""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

import msgspec
import zstandard

from saveslot import codec, refs, transfer
from saveslot.errors import InvalidInput, NotFound, SaveslotError
from saveslot.files.folder import sync_folder
from saveslot.log import Place, Query, micros
from saveslot.model import Data
from saveslot.moving.drafting import sealed
from saveslot.moving.landing import Step
from saveslot.moving.parcel import Kept, Problem
from saveslot.reading import SessionReader
from saveslot.sealing import SealedStore
from saveslot.slot import Draft, beginning
from saveslot.stores import Store
from saveslot.stores.chained import ChainedStore

MANIFEST, VERSION = "manifest.jsonl", 1
# A file holds so many sessions, or so many bytes before they are compressed; so much is written again at most.
SESSIONS, BYTES = 5000, 64 * 1024 * 1024
# What of one session stands in memory while it is written; more goes to a file of its own first.
SPOOL = 8 * 1024 * 1024
# A longer line is no session that a state limit of 16 MB lets come about.
LONGEST = 1 << 30


class Exported(msgspec.Struct):
    sessions: int = 0  # in the folder, earlier runs counted
    files: int = 0
    problems: list[Problem] = []


class Export:
    """One run, or the rest of one that was interrupted."""

    def __init__(
        self,
        store: Store,
        namespace: str,
        folder: Path,
        *,
        compress: bool = False,
        keyring: codec.Keyring | None = None,
        plain: bool = False,
    ) -> None:
        """Sealed sessions are sealed in the folder too, unless `plain`; those whose keys are not given are told."""
        self._store = store
        self._plain = plain
        self._namespace = namespace
        self._folder = folder
        self._compress = compress
        self._reader = SessionReader(SealedStore(ChainedStore(store), keyring), namespace)
        self.done = Exported(problems=[])
        self._after: Place | None = None
        self._resume()

    def _resume(self) -> None:
        told = list(manifest(self._folder)) if (self._folder / MANIFEST).exists() else []
        if told and told[0].get("namespace") != self._namespace:
            raise InvalidInput(str(self._folder), f"holds an export of the namespace {told[0].get('namespace')!r}")
        if told and told[-1].get("complete"):
            raise InvalidInput(str(self._folder), "holds a whole export already; name another folder")
        for line in told[1:]:
            self.done.files += 1
            self.done.sessions += int(line["sessions"])
            self._after = refs.place(line["next"])

    async def run(self, step: Step) -> Exported:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self._folder / MANIFEST).exists():
            if any(self._folder.iterdir()):
                raise InvalidInput(str(self._folder), "is not empty; name a new folder")
            self._note({"saveslot": VERSION, "namespace": self._namespace})
        step(self.done.sessions)
        while await self._file(step):
            pass
        self._note({"complete": True, "sessions": self.done.sessions})
        return self.done

    async def _file(self, step: Step) -> bool:
        """Write the next file; False when there was nothing left to write."""
        name = f"sessions-{self.done.files + 1:05}.jsonl" + (".zst" if self._compress else "")
        draft, after, count, size = self._folder / f".{name}", self._after, 0, 0
        with _writing(draft, compress=self._compress) as file:
            while count < SESSIONS and size < BYTES:
                rows = await self._store.find(Query(namespace=self._namespace), after, min(200, SESSIONS - count))
                for row in rows:
                    after = (row.created_at, row.key)
                    if written := await self._line(row.session_id, file):
                        count, size = count + 1, size + written
                    step(1)
                    if size >= BYTES:
                        break
                if not rows:
                    break
        if after == self._after or after is None:
            draft.unlink()
            return False
        digest = _digest(draft)
        draft.replace(self._folder / name)
        sync_folder(self._folder)
        self._after = after
        self.done.files, self.done.sessions = self.done.files + 1, self.done.sessions + count
        self._note({"file": name, "sessions": count, "sha256": digest, "next": refs.cursor(after)})
        return True

    async def _line(self, session_id: str, file: IO[bytes]) -> int:
        """One session, whole or not at all; the bytes."""
        with SpooledTemporaryFile(SPOOL, dir=str(self._folder)) as line:  # a part of one must not stand in the file
            try:
                async for part in self._reader.export_parts(session_id, plain=self._plain):
                    line.write(part.replace("\n", "").encode())
            except NotFound:
                return 0  # deleted meanwhile
            except SaveslotError as exc:
                self.done.problems.append(Problem(f"session {session_id}", str(exc)))
                return 0
            line.write(b"\n")
            size = line.tell()
            line.seek(0)
            while part := line.read(1 << 20):
                file.write(part)
            return size

    def _note(self, told: Data) -> None:
        with (self._folder / MANIFEST).open("ab") as file:
            file.write(msgspec.json.encode(told) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)


def is_export(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def manifest(folder: Path) -> Iterator[Data]:
    """Its lines, up to one that a crash cut short."""
    for line in (folder / MANIFEST).read_bytes().splitlines():
        try:
            yield cast("Data", msgspec.json.decode(line))
        except msgspec.DecodeError:
            return


def count(folder: Path) -> int:
    return sum(int(line["sessions"]) for line in manifest(folder) if "file" in line)


async def parcels(folder: Path, namespace: str, keyring: codec.Keyring | None = None) -> AsyncIterator[Kept | Problem]:
    """The sessions of every file that is as it was written; what is not is told by name."""
    told = list(manifest(folder))
    if not told or told[0].get("saveslot") != VERSION:
        raise InvalidInput(str(folder), f"is no export of a format that this Saveslot reads ({VERSION})")
    if not told[-1].get("complete"):
        yield Problem(str(folder), "holds an export that was interrupted; export it again to complete it")
    for line in told:
        if "file" not in line:
            continue
        path = folder / Path(str(line["file"])).name
        try:
            if _digest(path) != line["sha256"]:
                yield Problem(str(path), "does not match its digest; its sessions were left out")
                continue
            n = 0
            for n, text in enumerate(_lines(path), 1):
                try:
                    yield parcel(text, namespace, keyring=keyring)
                except SaveslotError as exc:
                    yield Problem(f"{path} line {n}", str(exc))
            if n < line["sessions"]:
                yield Problem(str(path), f"ends after {n:,} of its {line['sessions']:,} sessions")
        except OSError as exc:
            yield Problem(str(path), f"cannot be read ({exc.strerror})")
        except (UnicodeDecodeError, zstandard.ZstdError) as exc:
            yield Problem(str(path), f"cannot be read ({exc})")


def parcel(text: str, namespace: str, new_id: str | None = None, *, keyring: codec.Keyring | None = None) -> Kept:
    """An exported session as a parcel."""
    session, entries = transfer.parsed(text, keyring)
    session.session_id = new_id or session.session_id
    draft = Draft(b"", beginning(), codec.MAX_STATE)
    for _ in transfer.fill(draft, session, entries):
        pass
    return sealed(draft, session, namespace, session.state, micros(session.last_heartbeat))


def _lines(path: Path) -> Iterator[str]:
    zipped = path.suffix == ".zst"
    with io.BufferedReader(cast("Any", zstandard.open(path)), 1 << 20) if zipped else path.open("rb") as file:
        while line := file.readline(LONGEST):
            yield line.decode()


class _writing:  # noqa: N801  (reads as a verb)
    """A file that is synced when it is closed."""

    def __init__(self, path: Path, *, compress: bool) -> None:
        self._raw = path.open("wb")
        self._file: IO[bytes] = cast("IO[bytes]", zstandard.open(self._raw, "wb")) if compress else self._raw

    def __enter__(self) -> IO[bytes]:
        return self._file

    def __exit__(self, *_: object) -> None:
        with self._raw:
            if self._file is not self._raw:
                self._file.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
