"""Export a namespace to a folder of JSON Lines, and read it back. A line is one session as `saveslot export` writes it.

    manifest.jsonl        {"saveslot": 1, "namespace": "default"}
                          {"file": "sessions-00001.jsonl", "sessions": 5000, "sha256": "…", "next": "…"}
                          {"complete": true, "sessions": 7312}
    sessions-00001.jsonl  {"saveslot": 1, "session": {…}, "entries": […]}

A file is added to the manifest once it is complete and synced, together with the place where the next one begins; an
interrupted export resumes there.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any, cast

import msgspec
import zstandard

from saveslot import codec
from saveslot.checkpoints.files.folder import sync, sync_folder
from saveslot.errors import InvalidInput, NotFound, SaveslotError
from saveslot.manager import export
from saveslot.moving.builder import draft_of, parcel_of
from saveslot.moving.loader import Step
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.session.engine import Engine, Space
from saveslot.stores import Store
from saveslot.values import refs
from saveslot.values.checks import Data
from saveslot.values.log import Place, Query, micros

MANIFEST, VERSION = "manifest.jsonl", 1
# Limits of one file, in sessions and in bytes before compression: the most that is written again after an interruption.
SESSIONS, BYTES = 5000, 64 * 1024 * 1024
# Bytes of one session kept in memory while it is written; a larger one goes to a temporary file first.
SPOOL = 8 * 1024 * 1024
# Bytes of a line. A session that takes more is exported on its own: reading it back takes several times the memory.
LONGEST = 256 * 1024 * 1024
# Bytes of a line that does not begin like a session.
NOISE = 64 * 1024
# Sessions that a manifest may claim for one file.
MOST = 100_000
# Bytes of a manifest. A line takes 200, so this is enough for 80,000 files.
MANIFEST_BYTES = 16 * 1024 * 1024
# Bytes that zstd may look back, and so allocates, whatever a file says; an export needs 2 MB.
WINDOW = 8 * 1024 * 1024
_FILE = re.compile(r"sessions-[0-9]{5,9}\.jsonl(\.zst)?")


class Line(msgspec.Struct):
    """A line of a manifest: the first, one per file, or the last."""

    saveslot: int | None = None
    namespace: str | None = None
    file: str | None = None
    sessions: Annotated[int, msgspec.Meta(ge=0, le=10**12)] | None = None
    sha256: str | None = None
    next: str | None = None
    complete: bool = False


class Exported(msgspec.Struct):
    sessions: int = 0  # in the folder, including earlier runs
    files: int = 0
    problems: list[Problem] = []


class Export:
    """One export, or the rest of an interrupted one."""

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
        """Sealed sessions stay sealed in the folder unless `plain`; those whose key is missing are reported."""
        self._store = store
        self._plain = plain
        self._namespace = namespace
        self._folder = folder
        self._compress = compress
        self._space = Space(Engine(store, keyring), namespace)
        self.done = Exported(problems=[])
        self._after: Place | None = None
        self._resume()

    def _resume(self) -> None:
        if not is_export(self._folder):
            return
        written = list(manifest(self._folder))
        for n, line in enumerate(written, 1):
            if isinstance(line, Problem):
                raise InvalidInput(line.what, f"{line.reason}; name another folder")
            if n == 1 and line.namespace != self._namespace:
                raise InvalidInput(str(self._folder), f"contains an export of the namespace {line.namespace!r}")
            if line.complete:
                raise InvalidInput(str(self._folder), "already contains a complete export; name another folder")
            if line.file is not None:
                self.done.files += 1
                self.done.sessions += line.sessions or 0
                self._after = refs.place(line.next)

    async def run(self, step: Step) -> Exported:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_export(self._folder):
            _drop_torn_line(self._folder / MANIFEST)
        else:
            if any(self._folder.iterdir()):
                raise InvalidInput(str(self._folder), "is not empty; name a new folder")
            self._note({"saveslot": VERSION, "namespace": self._namespace})
        step(self.done.sessions)
        while await self._file(step):
            pass
        self._note({"complete": True, "sessions": self.done.sessions})
        return self.done

    async def _file(self, step: Step) -> bool:
        """Write the next file; False if nothing was left to write."""
        name = f"sessions-{self.done.files + 1:05}.jsonl" + (".zst" if self._compress else "")
        draft, after, count, size = self._folder / f".{name}", self._after, 0, 0
        with _writing(draft, compress=self._compress) as file:
            while count < SESSIONS and size < BYTES:
                rows = await self._store.find(Query(namespace=self._namespace), after, min(200, SESSIONS - count))
                for row in rows:
                    after = (row.created_at, row.key)
                    if length := await self._line(row.session_id, file):
                        count, size = count + 1, size + length
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
        """Write one session, whole or not at all, and return its bytes."""
        with SpooledTemporaryFile(SPOOL, dir=str(self._folder)) as line:  # never write part of a session
            try:
                async for part in export.export_parts(self._space, session_id, plain=self._plain):
                    line.write(part.replace("\n", "").encode())
            except NotFound:
                return 0  # deleted meanwhile
            except SaveslotError as exc:
                self.done.problems.append(Problem(f"session {session_id}", str(exc)))
                return 0
            line.write(b"\n")
            size = line.tell()
            if size > LONGEST:
                reason = f"takes {size:,} bytes, more than {LONGEST:,}; export it on its own (saveslot export ID)"
                self.done.problems.append(Problem(f"session {session_id}", reason))
                return 0
            line.seek(0)
            while part := line.read(1 << 20):
                file.write(part)
            return size

    def _note(self, line: Data) -> None:
        with (self._folder / MANIFEST).open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            sync(file.fileno())
        sync_folder(self._folder)


def is_export(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def manifest(folder: Path) -> Iterator[Line | Problem]:
    """Its lines, up to one that a crash truncated; a line that no export writes is a problem."""
    path = folder / MANIFEST
    with path.open("rb") as file:
        text = file.read(MANIFEST_BYTES + 1)
    if len(text) > MANIFEST_BYTES:
        raise InvalidInput(str(path), f"is longer than {MANIFEST_BYTES:,} bytes, so it is not a manifest")
    lines = text.split(b"\n")
    for n, line in enumerate(lines, 1):
        if n == len(lines) and not _is_json(line):
            return
        try:
            yield _checked(msgspec.json.decode(line, type=Line), first=n == 1)
        except (ValueError, RecursionError, InvalidInput) as exc:
            yield Problem(f"{path} line {n}", f"is not a line of a manifest ({exc})")


def _checked(line: Line, *, first: bool) -> Line:
    if first != (line.saveslot is not None) or (line.file is None and not first and not line.complete):
        raise InvalidInput("line", "must be the format first, then one per file, then `complete`")
    if line.file is not None:
        if not _FILE.fullmatch(line.file):
            raise InvalidInput("file", f"{line.file!r:.80} is not the name of a file in this folder")
        if line.sessions is None or line.sessions > MOST or line.sha256 is None:
            raise InvalidInput("file", f"must have its digest (sha256) and at most {MOST:,} sessions")
        refs.place(line.next)
    return line


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return False
    return True


def _drop_torn_line(path: Path) -> None:
    """Remove the end of a manifest that a crash truncated: the next line must not be appended to it."""
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if _is_json(text[whole:]):
        with path.open("ab") as file:
            file.write(b"\n")
    else:
        os.truncate(path, whole)


def count(folder: Path) -> int:
    return sum(line.sessions or 0 for line in manifest(folder) if isinstance(line, Line) and line.file)


async def parcels(
    folder: Path, namespace: str, keyring: codec.Keyring | None = None
) -> AsyncIterator[MemoryParcel | Problem]:
    """The sessions of every intact file; every other file is a problem."""
    written = list(manifest(folder))
    if not written or not isinstance(written[0], Line) or written[0].saveslot != VERSION:
        raise InvalidInput(str(folder), f"is not an export in a format that this Saveslot reads ({VERSION})")
    if not any(isinstance(line, Line) and line.complete for line in written):
        yield Problem(str(folder), "contains an interrupted export; run the export again to complete it")
    read: set[str] = set()
    for line in written:
        if isinstance(line, Problem):
            yield line
        elif line.file in read:
            yield Problem(str(folder / MANIFEST), f"lists {line.file} twice; it was read once")
        elif line.file is not None:
            read.add(line.file)
            for item in _file(folder / line.file, line, namespace, keyring):
                yield item


def _file(path: Path, line: Line, namespace: str, keyring: codec.Keyring | None) -> Iterator[MemoryParcel | Problem]:
    """The sessions of one file. Its size, kind and digest are checked before it is read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > BYTES + LONGEST:
            yield Problem(str(path), f"is not a file of at most {BYTES + LONGEST:,} bytes; its sessions were left out")
            return
        if _digest(path) != line.sha256:
            yield Problem(str(path), "does not match its digest; its sessions were left out")
            return
        n, sessions = 0, line.sessions or 0
        for n, text in enumerate(_lines(path), 1):
            if n > sessions:
                yield Problem(str(path), f"has more than its {sessions:,} sessions; the rest was left out")
                return
            try:
                yield parcel(text.decode(), namespace, keyring=keyring)
            except SaveslotError as exc:
                yield Problem(f"{path} line {n}", str(exc))
        if n < sessions:
            yield Problem(str(path), f"ends after {n:,} of its {sessions:,} sessions")
    except OSError as exc:
        yield Problem(str(path), f"cannot be read ({exc.strerror})")
    except (UnicodeDecodeError, zstandard.ZstdError, InvalidInput) as exc:
        yield Problem(str(path), f"cannot be read ({exc})")


def parcel(
    text: str, namespace: str, new_id: str | None = None, *, keyring: codec.Keyring | None = None
) -> MemoryParcel:
    """An exported session as a parcel."""
    session, entries = export.parsed(text, keyring)
    session.session_id = new_id or session.session_id
    draft = draft_of(namespace, session)
    for _ in export.fill(draft, session, entries):
        pass
    return parcel_of(draft, session, namespace, session.state, micros(session.last_heartbeat))


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed. Holds one line at a time, and stops before a line or a file is too long."""
    left = BYTES + LONGEST
    with _opened(path) as file:
        while start := file.peek(1)[:1]:
            longest = min(LONGEST, left) if start == b"{" else NOISE
            line = file.readline(longest + 1)
            left -= len(line)
            if len(line) > longest:
                raise InvalidInput("line", f"is longer than the {longest:,} bytes that it may have here")
            yield line


def _opened(path: Path) -> io.BufferedReader:
    if path.suffix != ".zst":
        return path.open("rb")
    reader = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    return io.BufferedReader(cast("Any", zstandard.open(path, dctx=reader)), 1 << 20)


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
            sync(self._raw.fileno())


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
