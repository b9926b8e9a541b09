"""`CheckpointStore`: one YAML file per session, for tools that one person runs, and that people read."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

from saveslot.errors import InvalidInput, SaveslotError
from saveslot.files.document import Document, dumped, loaded, parser
from saveslot.files.folder import Folder, Mark, file_name, session_of
from saveslot.files.summary import LIMIT, summarized
from saveslot.settings import data_folder

__all__ = ["CheckpointStore", "Quarantined"]

LOG = logging.getLogger("saveslot")
# How far up the chain of parents a resumed session looks.
HOPS = 5
COMPLETED = "completed"
# What is completed is kept for so long, if that is less than everything else.
COMPLETED_DAYS = 1
MOST_DAYS = timedelta.max.days
# A file whose name was cut says here whose it is.
_OWNER = re.compile(rb"# session: (.*)\n")
# Two keys of a document, where they stand alone on a line: only what looks old is read as a whole.
_UPDATED = re.compile(rb"^updated: *['\"]?([^'\"\n]*)", re.MULTILINE)
_DONE = re.compile(rb"^status: *['\"]?completed\b", re.MULTILINE)


class Quarantined(NamedTuple):
    """A file that nobody could read: moved, never deleted."""

    session_id: str
    path: Path
    reason: str


class CheckpointStore:
    """The newest checkpoint of each session as `<session_id>.yaml` in one folder. Several processes may share it.

    A write is durable when it returns; a process killed in the middle of one leaves the version before. What cannot be
    read is moved to `quarantine/` and told by `quarantined`.
    """

    def __init__(self, checkpoints_dir: str | os.PathLike[str] | None = None) -> None:
        parser()  # missing? better said now than at the first read
        self.checkpoints_dir = data_folder() / "checkpoints" if checkpoints_dir is None else _path(checkpoints_dir)
        self.quarantined: list[Quarantined] = []
        self._folder = Folder(self.checkpoints_dir)
        with self._folder.opened(make=True):
            pass

    def write(self, session_id: str, data: Mapping[str, Any]) -> None:
        """Take the place of what was there; `updated` is stamped in the file, never in the caller's dict."""
        if not isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("data", f"must be a dict, not {type(data).__name__}")
        name = file_name(session_id)
        text = dumped({**data, "updated": datetime.now(UTC).isoformat()})
        if session_of(name) is None:
            text = f"# session: {session_id}\n".encode() + text
        with self._folder.locked(make=True) as at:
            if at is not None:
                self._folder.replace(at, name, text)

    def read(self, session_id: str) -> Document | None:
        """What was written last; None when there is nothing, or nothing that can be read."""
        name = file_name(session_id)
        with self._folder.opened() as at:
            data = None if at is None else self._folder.read(at, name)
        if data is None:
            return None
        try:
            return loaded(data)
        except InvalidInput as exc:
            self._set_aside(session_id, name, exc.reason)
            return None

    def delete(self, session_id: str) -> None:
        """Gone when this returns; one that is not there is fine."""
        name = file_name(session_id)
        with self._folder.locked() as at:
            if at is not None:
                self._folder.remove(at, [name])

    def list_sessions(self) -> list[str]:
        """Whose checkpoints are here, sorted."""
        with self._folder.opened() as at:
            found = [] if at is None else [self._owner(at, name) for name in self._folder.names(at)]
        return sorted(session_id for session_id in found if session_id is not None)

    def garbage_collect(self, max_age_days: float = 7) -> list[str]:
        """Remove what was not updated for so long, and what is completed after a day; the ids of what went.

        A file that cannot be read is never removed: it goes to `quarantine/`. One whose `updated` is missing or makes
        no sense stays, unless it is completed; then the file's own time counts.
        """
        now = datetime.now(UTC)
        longest = _days(max_age_days)
        shortest = min(longest, timedelta(days=COMPLETED_DAYS))
        due: dict[str, Mark] = {}
        with self._folder.opened() as at:
            if at is None:
                return []
            for name in list(self._folder.names(at)):
                found = self._folder.version(at, name)
                if found is None or not _looks_due(found[0], now, longest, shortest):
                    continue
                data, mark = found
                session_id = self._owner(at, name)
                if session_id is None:
                    continue
                try:
                    document = loaded(data)
                except InvalidInput as exc:
                    self._set_aside(session_id, name, exc.reason)
                    continue
                done, updated = document.get("status") == COMPLETED, _time(document.get("updated"))
                if updated is None and not done:
                    continue
                if now - (updated or mark.written) > (shortest if done else longest):
                    due[session_id] = mark
        return self._remove(due)

    def find_unfinished(self, session_id: str) -> tuple[str, Document] | None:
        """The nearest checkpoint to go on from: the session's own, or that of an ancestor by `parent_session_id`.

        Looks five hops up, never at a session that is not in that chain, and passes over what is completed.
        """
        seen: set[str] = set()
        while len(seen) <= HOPS and session_id not in seen:
            seen.add(session_id)
            document = self.read(session_id)
            if document is None:
                return None
            if document.get("status") != COMPLETED:
                return session_id, document
            parent = document.get("parent_session_id")
            try:
                file_name(parent)  # pyright: ignore[reportArgumentType]  # whatever stands there, it is no path
            except InvalidInput:
                return None
            session_id = str(parent)
        return None

    def summary(self, session_id: str, limit: int = LIMIT) -> str:
        """What a resumed agent should know, as text for its prompt, of at most 4,000 characters; "" without any."""
        found = self.find_unfinished(session_id)
        return "" if found is None else summarized(*found, limit)

    def _owner(self, at: int, name: str) -> str | None:
        session_id = session_of(name)
        if session_id is not None:
            return session_id
        told = _OWNER.match(self._folder.read(at, name) or b"")
        try:
            session_id = None if told is None else told[1].decode()
            return session_id if session_id and file_name(session_id) == name else None
        except (UnicodeDecodeError, InvalidInput):
            return None

    def _remove(self, due: dict[str, Mark]) -> list[str]:
        """Those that are still as they were when they were found due."""
        if not due:
            return []
        with self._folder.locked() as at:
            if at is None:
                return []
            gone = {session: mark.name for session, mark in due.items() if self._folder.mark(at, mark.name) == mark}
            self._folder.remove(at, list(gone.values()))
        return sorted(gone)

    def _set_aside(self, session_id: str, name: str, reason: str) -> None:
        with self._folder.locked() as at:
            data = None if at is None else self._folder.read(at, name)
            if at is None or data is None or _readable(data):
                return  # another process has repaired or removed it
            moved = self._folder.set_aside(at, name)
        self.quarantined.append(Quarantined(session_id, moved, reason))
        LOG.warning("the checkpoint of session %s %s; moved to %s", session_id, reason, moved)


def _path(value: Any) -> Path:
    told: object = value
    if isinstance(value, os.PathLike):
        told = os.fspath(cast("os.PathLike[Any]", value))
    if not isinstance(told, str) or not told or "\0" in told:
        raise InvalidInput(
            "checkpoints_dir", f"must be the path of a folder, not {value!r}; use None for the user's own"
        )
    try:
        return Path(told).expanduser()
    except RuntimeError as exc:
        raise InvalidInput("checkpoints_dir", f"{told!r}: {exc}") from None


def _days(value: Any) -> timedelta:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MOST_DAYS:
        raise InvalidInput("max_age_days", f"must be a number from 0 to {MOST_DAYS:,}, not {value!r}")
    return timedelta(days=value)


def _readable(data: bytes) -> bool:
    try:
        loaded(data)
    except SaveslotError:
        return False
    return True


def _looks_due(data: bytes, now: datetime, longest: timedelta, shortest: timedelta) -> bool:
    """False for what is young at first sight, which most files are; the others are read."""
    told = _UPDATED.findall(data)
    at = _time(told[0].decode(errors="replace").strip()) if len(told) == 1 else None
    return at is None or now - at > (shortest if _DONE.search(data) else longest)


def _time(value: Any) -> datetime | None:
    """An ISO time; one without a zone is this machine's, as older tools wrote it."""
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
