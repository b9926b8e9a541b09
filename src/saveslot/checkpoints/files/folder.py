"""A folder of small files: safe and readable names, atomic writes, one writer at a time.

A new version is written beside the old one, synced, and renamed over it; then the folder is synced. A writer that is
killed in between leaves the old document or the new one, and perhaps `.new`, which the next writer removes.
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

from saveslot.checkpoints.files.document import MAX_BYTES
from saveslot.errors import InvalidInput, Unavailable
from saveslot.values.checks import as_name

SUFFIX = ".yaml"
DRAFT, LOCK, QUARANTINE = ".new", ".lock", "quarantine"
# Seconds that a writer waits for another one, which holds the lock for two syncs.
PATIENCE = 10.0
# Bytes. One more than allowed shows that a file is too long.
MAX_READ = MAX_BYTES + 1
# Bytes. Longer names are cut and made unique by a digest: file systems take 255 bytes.
LONGEST = 200
_KEPT = frozenset("-_.@+,=:#()[] ")
# Names that Windows reserves for devices.
_DEVICE = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def file_name(session_id: str) -> str:
    """Return `<session_id>.yaml`, with characters unfit for a path written as %2F. Two ids never share a name.

    On a case-insensitive file system two names may still be one file: see `Folder.taken`.
    """
    as_name(session_id, "session_id")
    ascii_only = unicodedata.normalize("NFC", session_id) != session_id  # some file systems would normalize it
    name = "".join(_escaped(char, ascii_only=ascii_only) for char in session_id)
    if name[0] in "-. " or _DEVICE.fullmatch(name):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name.encode()) > LONGEST:
        short = name.encode()[: LONGEST - 40].decode(errors="ignore").rpartition("%")[0] or "long"
        name = f"{short}~{sha256(session_id.encode()).hexdigest()[:32]}"
    return name + SUFFIX


def session_of(name: str) -> str | None:
    """Return the session that a file is named after; None if the name does not show it."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or "~" in stem:
        return None
    try:
        session_id = unquote(stem, errors="strict")
        return session_id if file_name(session_id) == name else None
    except (UnicodeDecodeError, InvalidInput):
        return None


def twin(name: str, existing: Iterable[str]) -> str | None:
    """Return the existing name that a case-insensitive file system takes for this one; None if it exists itself."""
    folded, names = _folded(name), set(existing)
    return None if name in names else next((other for other in names if _folded(other) == folded), None)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def _escaped(char: str, *, ascii_only: bool) -> str:
    if char in _KEPT or (char.isalnum() and not (ascii_only and not char.isascii())):
        return char
    return "".join(f"%{byte:02X}" for byte in char.encode())


class Mark(NamedTuple):
    """A version of a file: each write creates another."""

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
        self._folds: bool | None = None  # whether the file system is case-insensitive; None: not known yet

    @contextmanager
    def opened(self, *, make: bool = False) -> Generator[int | None]:
        """Yield the folder's descriptor, relative to which its files are opened; None if it does not exist."""
        try:
            if make and not self.path.is_dir():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.mkdir(mode=0o700, exist_ok=True)
                sync_folder(self.path.parent)
            at = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if make:
                raise Unavailable(f"{self.path} cannot be created; choose another folder") from None
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
        """Do the same while no other process writes here. The lock ends with the process that holds it."""
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
        import fcntl  # not available on Windows, which the constructor refuses

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
        """Yield the YAML files, without hidden ones, folders, symbolic links and special files."""
        try:
            with os.scandir(at) as entries:
                for entry in entries:
                    name = entry.name
                    if name.endswith(SUFFIX) and name[0] != "." and entry.is_file(follow_symlinks=False):
                        yield name
        except OSError as exc:
            raise self._failed(exc) from exc

    def read(self, at: int, name: str) -> bytes | None:
        """Return a file's bytes (at most one more than the limit), or None if it does not exist."""
        version = self.version(at, name)
        return None if version is None else version[0]

    def version(self, at: int, name: str) -> tuple[bytes, Mark] | None:
        """Return the bytes, and which version of the file they are."""
        if self.taken(at, name):
            return None
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._failed(exc, name) from exc
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidInput(str(self.path / name), "is not a regular file; remove it, or choose another id")
            parts: list[bytes] = []
            left = MAX_READ
            wanted = min(left, status.st_size + 1)
            while left and (part := os.read(file, wanted)):
                parts.append(part)
                left -= len(part)
                if len(part) < wanted:  # the end
                    break
            return b"".join(parts), Mark(name, status.st_ino, status.st_mtime_ns)
        except OSError as exc:
            raise self._failed(exc, name) from exc
        finally:
            os.close(file)

    def mark(self, at: int, name: str) -> Mark | None:
        try:
            status = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return Mark(name, status.st_ino, status.st_mtime_ns)

    def replace(self, at: int, name: str, data: bytes) -> None:
        """Write a new version, durable when this returns. Until then, and if it fails, the previous version stays."""
        if other := self.taken(at, name):
            reason = f"{name} and the existing {other} are the same file in {self.path}, which ignores case"
            raise InvalidInput("session_id", f"{reason}; choose another id, or another folder")
        try:
            self._refuse_link(at, name)
            self._discard(at, DRAFT)  # left by a writer that was killed
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(DRAFT, flags, 0o600, dir_fd=at)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
                sync(file)
            finally:
                os.close(file)
            os.rename(DRAFT, name, src_dir_fd=at, dst_dir_fd=at)
            sync(at)
        except OSError as exc:
            with suppress(OSError):  # it would keep filling a full disk
                self._discard(at, DRAFT)
            raise self._failed(exc, name) from exc

    def remove(self, at: int, names: list[str]) -> None:
        """Delete durably. A missing file is not an error."""
        for name in names:
            try:
                self._refuse_link(at, name)
                if not self.taken(at, name):
                    self._discard(at, name)
            except OSError as exc:
                raise self._failed(exc, name) from exc
        try:
            if names:
                sync(at)
        except OSError as exc:
            raise self._failed(exc) from exc

    def set_aside(self, at: int, name: str) -> Path:
        """Move a file into `quarantine/`, under an unused name."""
        there = self._quarantine(at)
        try:
            try:
                taken, free, n = set(os.listdir(there)), name, 1  # noqa: PTH208  (by descriptor)
                while free in taken:
                    n += 1
                    free = f"{name.removesuffix(SUFFIX)}~{n}{SUFFIX}"
                os.rename(name, free, src_dir_fd=at, dst_dir_fd=there)
                sync(there)
            finally:
                os.close(there)
            sync(at)
        except OSError as exc:
            raise self._failed(exc, name) from exc
        return self.path / QUARANTINE / free

    def _quarantine(self, at: int) -> int:
        try:
            (self.path / QUARANTINE).mkdir(mode=0o700, exist_ok=True)
            return os.open(QUARANTINE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        except OSError as exc:
            if exc.errno in {errno.ELOOP, errno.ENOTDIR, errno.EEXIST}:
                where, reason = (
                    self.path / QUARANTINE,
                    "is a symbolic link or not a folder; links are not followed, remove it",
                )
                raise InvalidInput(str(where), reason) from exc
            raise self._failed(exc, QUARANTINE) from exc

    def taken(self, at: int, name: str) -> str | None:
        """Return another session's file that a case-insensitive folder takes for this name; None if there is none.

        Whether the folder ignores case is tested on its lock file, under a name in capitals.
        """
        try:
            if self._folds is None:
                lock = self.mark(at, LOCK)
                if lock is None:
                    return None  # no process has written here yet
                other = self.mark(at, LOCK.upper())
                self._folds = other is not None and other.inode == lock.inode
            return twin(name, os.listdir(at)) if self._folds else None
        except OSError as exc:
            raise self._failed(exc) from exc

    def _refuse_link(self, at: int, name: str) -> None:
        try:
            status = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ELOOP, "is not a regular file")

    def _discard(self, at: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=at)
        except FileNotFoundError:
            return

    def _failed(self, exc: OSError, name: str = "") -> InvalidInput | Unavailable:
        where = self.path / name
        match exc.errno:
            case errno.ELOOP:
                return InvalidInput(
                    str(where), "is a symbolic link or not a regular file; links are not followed, remove it"
                )
            case errno.ENOTDIR | errno.EEXIST:
                return InvalidInput(str(where), "is not a folder; choose another path")
            case errno.ENOSPC | errno.EDQUOT:
                return Unavailable(
                    f"{where}: the disk is full and the previous version is kept; free some space and retry"
                )
            case _:
                return Unavailable(f"{where} cannot be read or written ({exc.strerror}); the previous version is kept")


def sync(file: int) -> None:
    """Wait until the drive holds the file or folder. On macOS, fsync leaves the bytes in the drive's cache."""
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):  # the file system cannot do that; if it is an error, fsync raises it
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
    os.fsync(file)


def sync_folder(path: Path) -> None:
    if sys.platform == "win32":  # has no such thing
        return
    at = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(at)
    finally:
        os.close(at)
