"""`CheckpointStore`: one readable YAML file per session, for tools that one person runs."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

from saveslot.checkpoints.files.document import Document, dumped, loaded, parser
from saveslot.checkpoints.files.folder import Folder, Mark, file_name, session_of
from saveslot.checkpoints.files.summary import LIMIT, summarized
from saveslot.errors import InvalidInput, SaveslotError
from saveslot.settings import data_folder
from saveslot.values.checks import Span

__all__ = ["CheckpointStore", "Quarantined"]

LOG = logging.getLogger("saveslot")
# Parents that `find_unfinished` follows at most.
HOPS = 5
COMPLETED = "completed"
# Completed sessions are kept for one day, or for `max_age_days` if that is shorter.
COMPLETED_DAYS = 1
MOST_DAYS = timedelta.max.days
# The first line of a file whose name was cut: the session's id.
_OWNER = re.compile(rb"# session: (.*)\n")
# Two top-level keys of a document. Only a file that looks old by them is parsed.
_UPDATED = re.compile(rb"^updated: *['\"]?([^'\"\n]*)", re.MULTILINE)
_DONE = re.compile(rb"^status: *['\"]?completed\b", re.MULTILINE)


class Quarantined(NamedTuple):
    """An unreadable file: moved, never deleted."""

    session_id: str
    path: Path
    reason: str

    def to_dict(self) -> dict[str, str]:
        return {"session_id": self.session_id, "path": str(self.path), "reason": self.reason}


class CheckpointStore:
    """The newest checkpoint of each session as `<session_id>.yaml` in one folder. Several processes may share it.

    A write is durable when it returns; a process killed during one leaves the previous version. Unreadable files are
    moved to `quarantine/` and listed in `quarantined`.
    """

    def __init__(self, checkpoints_dir: str | os.PathLike[str] | None = None) -> None:
        parser()  # report a missing package now, not at the first read
        self.checkpoints_dir: Path = (
            data_folder() / "checkpoints" if checkpoints_dir is None else _path(checkpoints_dir)
        )
        self.quarantined: list[Quarantined] = []
        self._folder = Folder(self.checkpoints_dir)
        with self._folder.opened(make=True):
            pass

    def __repr__(self) -> str:
        return f"<CheckpointStore {self.checkpoints_dir}>"

    def path(self, session_id: str) -> Path:
        """Return the file of this session, whether it exists or not: open it in an editor."""
        return self.checkpoints_dir / file_name(session_id)

    def write(self, session_id: str, data: Mapping[str, Any]) -> None:
        """Replace the session's checkpoint. `updated` is set in the file, never in the caller's dict."""
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
        """Return what was written last; None if there is nothing, or nothing readable."""
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

    def change(self, session_id: str, decide: Callable[[Document | None], Mapping[str, Any] | None]) -> Document:
        """Replace the session's checkpoint with what `decide` returns for the one that is there; return the new one.

        No other process writes to the folder meanwhile. `decide` gets None if there is none, or none that can be read;
        if it returns None, nothing is written.
        """
        name = file_name(session_id)
        with self._folder.locked(make=True) as at:
            before = None if at is None else self._folder.read(at, name)
            document = None if before is None else _loaded(before)
            data = decide(document)
            if at is None or data is None:
                return document or {}
            text = dumped({**data, "updated": datetime.now(UTC).isoformat()})
            first = b"" if session_of(name) is not None else f"# session: {session_id}\n".encode()
            self._folder.replace(at, name, first + text)
            return loaded(text)

    def delete(self, session_id: str) -> None:
        """Delete durably. A missing session is not an error."""
        name = file_name(session_id)
        with self._folder.locked() as at:
            if at is not None:
                self._folder.remove(at, [name])

    def list_sessions(self) -> list[str]:
        """Return the ids of the sessions with a checkpoint here, sorted."""
        with self._folder.opened() as at:
            owners = [] if at is None else [self._owner(at, name) for name in self._folder.names(at)]
        return sorted(session_id for session_id in owners if session_id is not None)

    def garbage_collect(self, max_age_days: Span = 7) -> list[str]:
        """Remove checkpoints not updated for `max_age_days`, completed ones after a day; return the removed ids.

        The age may be a timedelta. An unreadable file is never removed: it goes to `quarantine/`. One without a valid
        `updated` stays, unless it is completed; then the file's own time counts.
        """
        now = datetime.now(UTC)
        longest = _days(max_age_days)
        shortest = min(longest, timedelta(days=COMPLETED_DAYS))
        due: dict[str, Mark] = {}
        with self._folder.opened() as at:
            if at is None:
                return []
            for name in list(self._folder.names(at)):
                version = self._folder.version(at, name)
                if version is None or not _looks_due(version[0], now, longest, shortest):
                    continue
                data, mark = version
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
        """Return the nearest checkpoint to continue from: the session's own, or an ancestor's by `parent_session_id`.

        Follows at most five parents, never looks at a session outside that chain, and skips completed ones.
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
                file_name(parent)  # pyright: ignore[reportArgumentType]  # whatever it holds, it is not used as a path
            except InvalidInput:
                return None
            session_id = str(parent)
        return None

    def summary(self, session_id: str, limit: int = LIMIT) -> str:
        """Return what a resumed agent should know, as text for its prompt (at most 4,000 characters); "" if nothing."""
        unfinished = self.find_unfinished(session_id)
        return "" if unfinished is None else summarized(*unfinished, limit)

    def _owner(self, at: int, name: str) -> str | None:
        session_id = session_of(name)
        if session_id is not None:
            return session_id
        match = _OWNER.match(self._folder.read(at, name) or b"")
        try:
            session_id = None if match is None else match[1].decode()
            return session_id if session_id and file_name(session_id) == name else None
        except (UnicodeDecodeError, InvalidInput):
            return None

    def _remove(self, due: dict[str, Mark]) -> list[str]:
        """Remove the files that have not changed since they were found due."""
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
    path: object = value
    if isinstance(value, os.PathLike):
        path = os.fspath(cast("os.PathLike[Any]", value))
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidInput(
            "checkpoints_dir", f"must be the path of a folder, not {value!r}; use None for the user's default folder"
        )
    try:
        return Path(path).expanduser()
    except RuntimeError as exc:
        raise InvalidInput("checkpoints_dir", f"{path!r}: {exc}") from None


def _days(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        value = value / timedelta(days=1)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MOST_DAYS:
        raise InvalidInput("max_age_days", f"must be a timedelta, or a number from 0 to {MOST_DAYS:,}, not {value!r}")
    return timedelta(days=value)


def _loaded(data: bytes) -> Document | None:
    try:
        return loaded(data)
    except InvalidInput:
        return None


def _readable(data: bytes) -> bool:
    try:
        loaded(data)
    except SaveslotError:
        return False
    return True


def _looks_due(data: bytes, now: datetime, longest: timedelta, shortest: timedelta) -> bool:
    """Return False for a file that is clearly young, as most are; the others are parsed."""
    times = _UPDATED.findall(data)
    at = _time(times[0].decode(errors="replace").strip()) if len(times) == 1 else None
    return at is None or now - at > (shortest if _DONE.search(data) else longest)


def _time(value: Any) -> datetime | None:
    """Parse an ISO time; without a zone it is local time, as older tools wrote it."""
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
