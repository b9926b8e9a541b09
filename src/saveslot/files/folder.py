"""A folder of small files: names that are safe and readable, writes that are whole or absent, one writer at a time.

A new version is written beside the old one, synced, and takes its name in one step; then the folder is synced. Whoever
is killed in between leaves the old document or the new one, and `.new`, which the next writer overwrites.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
import unicodedata
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from saveslot.errors import InvalidInput, Unavailable
from saveslot.files.document import MAX_BYTES
from saveslot.model import as_name

SUFFIX = ".yaml"
DRAFT, LOCK, QUARANTINE = ".new", ".lock", "quarantine"
# How long a writer waits for another one, which holds the lock for two syncs.
PATIENCE = 10.0
# One byte more than is allowed tells that there are more.
MAX_READ = MAX_BYTES + 1
# Longer names are cut, and told apart by a digest: file systems take 255 bytes.
LONGEST = 200
_KEPT = frozenset("-_.@+,=:#()[] ")
# Names that Windows keeps for devices.
_DEVICE = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def file_name(session_id: str) -> str:
    """`<session_id>.yaml`, with what a path must not hold written as %2F; two ids never share a name.

    Where a is A to the file system, two names may still be one file: see `Folder.taken`.
    """
    as_name(session_id, "session_id")
    ascii_only = unicodedata.normalize("NFC", session_id) != session_id  # some file systems would change its letters
    made = "".join(_escaped(char, ascii_only=ascii_only) for char in session_id)
    if made[0] in "-. " or _DEVICE.fullmatch(made):
        made = f"%{ord(made[0]):02X}{made[1:]}"
    if len(made.encode()) > LONGEST:
        short = made.encode()[: LONGEST - 40].decode(errors="ignore").rpartition("%")[0] or "long"
        made = f"{short}~{sha256(session_id.encode()).hexdigest()[:32]}"
    return made + SUFFIX


def session_of(name: str) -> str | None:
    """The session that a file is named for; None when the name does not tell."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or "~" in stem:
        return None
    try:
        session_id = unquote(stem, errors="strict")
        return session_id if file_name(session_id) == name else None
    except (UnicodeDecodeError, InvalidInput):
        return None


def twin(name: str, there: Iterable[str]) -> str | None:
    """The one of these that a file system which knows no case takes for that name; None if that is none, or itself."""
    mine, found = _folded(name), set(there)
    return None if name in found else next((other for other in found if _folded(other) == mine), None)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def _escaped(char: str, *, ascii_only: bool) -> str:
    if char in _KEPT or (char.isalnum() and not (ascii_only and not char.isascii())):
        return char
    return "".join(f"%{byte:02X}" for byte in char.encode())


class Mark(NamedTuple):
    """Which version of a file this is: a write makes another."""

    name: str
    inode: int
    nanoseconds: int

    @property
    def written(self) -> datetime:
        return datetime.fromtimestamp(self.nanoseconds / 1e9, UTC)


class Folder:
    def __init__(self, path: Path) -> None:
        if sys.platform == "win32":
            raise InvalidInput("CheckpointStore", "needs the file locks of Linux or macOS; use sqlite:///file.db here")
        self.path = path
        self._folds: bool | None = None  # a is A here; None: not asked yet

    @contextmanager
    def opened(self, *, make: bool = False) -> Generator[int | None]:
        """The folder's descriptor, under which all its files are named; None when it is not there."""
        try:
            if make and not self.path.is_dir():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.mkdir(mode=0o700, exist_ok=True)
                sync_folder(self.path.parent)
            at = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if make:
                raise Unavailable(f"{self.path} cannot be made; choose another folder") from None
            yield None
            return
        except OSError as exc:
            raise self._failed(exc) from exc
        try:
            yield at
        finally:
            os.close(at)

    @contextmanager
    def locked(self, *, make: bool = False) -> Generator[int | None]:
        """The same, with nobody else writing here. The lock goes with the process that holds it."""
        with self.opened(make=make) as at:
            if at is None:
                yield None
                return
            try:
                lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at)
            except OSError as exc:
                raise self._failed(exc, LOCK) from exc
            try:
                self._wait(lock)
                yield at
            finally:
                os.close(lock)

    def _wait(self, lock: int) -> None:
        import fcntl  # not on Windows, where no folder gets this far

        end = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Unavailable(f"{self.path}: another process keeps writing there; retry") from None
                time.sleep(0.002)
            else:
                return

    def names(self, at: int) -> Iterator[str]:
        """The YAML files; what is hidden, a folder, a symbolic link or of another kind is none."""
        try:
            with os.scandir(at) as found:
                for entry in found:
                    name = entry.name
                    if name.endswith(SUFFIX) and name[0] != "." and entry.is_file(follow_symlinks=False):
                        yield name
        except OSError as exc:
            raise self._failed(exc) from exc

    def read(self, at: int, name: str) -> bytes | None:
        """A file's bytes (one more than the limit at most), or None when it is not there."""
        found = self.version(at, name)
        return None if found is None else found[0]

    def version(self, at: int, name: str) -> tuple[bytes, Mark] | None:
        """The same, and which version of the file they are."""
        if self.taken(at, name):
            return None
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._failed(exc, name) from exc
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidInput(str(self.path / name), "is no plain file; remove it, or choose another id")
            parts: list[bytes] = []
            left = MAX_READ
            wanted = min(left, found.st_size + 1)
            while left and (part := os.read(file, wanted)):
                parts.append(part)
                left -= len(part)
                if len(part) < wanted:  # the end
                    break
            return b"".join(parts), Mark(name, found.st_ino, found.st_mtime_ns)
        except OSError as exc:
            raise self._failed(exc, name) from exc
        finally:
            os.close(file)

    def mark(self, at: int, name: str) -> Mark | None:
        try:
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return Mark(name, found.st_ino, found.st_mtime_ns)

    def replace(self, at: int, name: str, data: bytes) -> None:
        """Durable when this returns. Until then, and whenever it fails, the version before is there."""
        if other := self.taken(at, name):
            reason = f"{name} and {other}, which is there, are one file in {self.path}: it does not tell a from A"
            raise InvalidInput("session_id", f"{reason}; choose another id, or another folder")
        try:
            self._refuse_link(at, name)
            self._discard(at, DRAFT)  # of a writer that was killed
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(DRAFT, flags, 0o600, dir_fd=at)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
                os.fsync(file)
            finally:
                os.close(file)
            os.rename(DRAFT, name, src_dir_fd=at, dst_dir_fd=at)
            os.fsync(at)
        except OSError as exc:
            with suppress(OSError):  # on a full disk it would keep what is left
                self._discard(at, DRAFT)
            raise self._failed(exc, name) from exc

    def remove(self, at: int, names: list[str]) -> None:
        """Gone for good when this returns; one that is not there is fine."""
        for name in names:
            try:
                self._refuse_link(at, name)
                if not self.taken(at, name):
                    self._discard(at, name)
            except OSError as exc:
                raise self._failed(exc, name) from exc
        try:
            if names:
                os.fsync(at)
        except OSError as exc:
            raise self._failed(exc) from exc

    def set_aside(self, at: int, name: str) -> Path:
        """Move a file into `quarantine/`, under a name that is free there."""
        there = self._quarantine(at)
        try:
            try:
                taken, free, n = set(os.listdir(there)), name, 1  # noqa: PTH208  (by descriptor)
                while free in taken:
                    n += 1
                    free = f"{name.removesuffix(SUFFIX)}~{n}{SUFFIX}"
                os.rename(name, free, src_dir_fd=at, dst_dir_fd=there)
                os.fsync(there)
            finally:
                os.close(there)
            os.fsync(at)
        except OSError as exc:
            raise self._failed(exc, name) from exc
        return self.path / QUARANTINE / free

    def _quarantine(self, at: int) -> int:
        try:
            (self.path / QUARANTINE).mkdir(mode=0o700, exist_ok=True)
            return os.open(QUARANTINE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        except OSError as exc:
            if exc.errno in {errno.ELOOP, errno.ENOTDIR, errno.EEXIST}:
                where, reason = self.path / QUARANTINE, "is a symbolic link or no folder; it is not followed, remove it"
                raise InvalidInput(str(where), reason) from exc
            raise self._failed(exc, QUARANTINE) from exc

    def taken(self, at: int, name: str) -> str | None:
        """The file of another session that this folder takes for the one of that name; None where a is not A.

        Asked of the folder itself: does it know its lock by another name?
        """
        try:
            if self._folds is None:
                lock = self.mark(at, LOCK)
                if lock is None:
                    return None  # nobody has written here yet
                other = self.mark(at, LOCK.upper())
                self._folds = other is not None and other.inode == lock.inode
            return twin(name, os.listdir(at)) if self._folds else None
        except OSError as exc:
            raise self._failed(exc) from exc

    def _refuse_link(self, at: int, name: str) -> None:
        try:
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ELOOP, "is no plain file")

    def _discard(self, at: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=at)
        except FileNotFoundError:
            return

    def _failed(self, exc: OSError, name: str = "") -> InvalidInput | Unavailable:
        where = self.path / name
        match exc.errno:
            case errno.ELOOP:
                return InvalidInput(str(where), "is a symbolic link or no plain file; it is not followed, remove it")
            case errno.ENOTDIR | errno.EEXIST:
                return InvalidInput(str(where), "is no folder; name another one")
            case errno.ENOSPC | errno.EDQUOT:
                return Unavailable(f"{where}: the disk is full; the version before is kept; free some space and retry")
            case _:
                return Unavailable(f"{where} cannot be read or written ({exc.strerror}); the version before is kept")


def sync_folder(path: Path) -> None:
    if sys.platform == "win32":  # which has no such thing
        return
    at = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(at)
    finally:
        os.close(at)
