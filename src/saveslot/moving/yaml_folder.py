"""A folder of checkpoint files `<session_id>.yaml`: each document becomes one checkpoint of its session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from saveslot.checkpoints.files.document import Document, loaded
from saveslot.checkpoints.files.folder import MAX_READ, SUFFIX, session_of
from saveslot.errors import SaveslotError
from saveslot.moving.builder import Builder, canonical, key_of, stamp
from saveslot.moving.ongoing import OngoingParcel, history_id
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.session.model import AgentSession
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import moment

# Keys that belong to the session's context, not to its state.
ABOUT = ("task", "parent_session_id")
# Follow no link, and do not wait for the writer of a pipe. Only Windows has O_BINARY, and it has none of the others.
FLAGS = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))


def names(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX) and path.name[0] != ".")


def parcels(folder: Path, namespace: str) -> Iterator[MemoryParcel | Problem]:
    for path in names(folder):
        try:
            yield _parcel(path, namespace)
        except SaveslotError as exc:
            yield Problem(str(path), getattr(exc, "reason", None) or str(exc))
        except OSError as exc:
            yield Problem(str(path), f"cannot be read ({exc.strerror})")


def _parcel(path: Path, namespace: str) -> MemoryParcel:
    file = os.open(path, FLAGS)
    with os.fdopen(file, "rb") as opened:
        document, written = loaded(opened.read(MAX_READ)), os.fstat(file).st_mtime
    named = document.get("session_id")
    session_id = session_of(path.name) or (named if isinstance(named, str) else path.name.removesuffix(SUFFIX))
    created, updated = _time(document, "created", written), _time(document, "updated", written)
    context = {key: document[key] for key in ABOUT if document.get(key) is not None}
    state = SessionState.COMPLETED if document.get("status") == SessionState.COMPLETED else None
    # The file's name is all that is fixed: not every document has its creation time.
    first = history_id(b"", "file", namespace, session_id)
    session = AgentSession(session_id=session_id, created_at=created, context=context)
    builder = Builder(namespace, session, key_of(1, first))
    builder.created(at=created)
    if state is None:
        builder.rest(created)
    builder.checkpoint("imported", document, None, updated)

    def go_on(more: Builder, _: int) -> None:
        if canonical(more.data) != canonical(document):
            more.checkpoint("imported", document, None, updated)
        more.settle({"context": context}, state, updated)

    return OngoingParcel(builder.parcel(state, updated), [first], go_on)


def _time(document: Document, key: str, written: float) -> datetime:
    """The time in the document, or when the file was written."""
    try:
        return moment(stamp(document[key]))
    except (KeyError, SaveslotError):
        return moment(stamp(written))
