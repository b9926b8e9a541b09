"""A folder of checkpoint files, one `<session_id>.yaml` each: the document becomes one checkpoint of its session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from saveslot.errors import SaveslotError
from saveslot.files.document import Document, loaded
from saveslot.files.folder import MAX_READ, SUFFIX, session_of
from saveslot.lifecycle import SessionState
from saveslot.log import moment
from saveslot.model import AgentSession
from saveslot.moving.drafting import Making, canonical, key_of, stamp
from saveslot.moving.growing import Growing, told_id
from saveslot.moving.parcel import Kept, Problem

# What such documents say about their session rather than about its work.
ABOUT = ("task", "parent_session_id")


def names(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX) and path.name[0] != ".")


def parcels(folder: Path, namespace: str) -> Iterator[Kept | Problem]:
    for path in names(folder):
        try:
            yield _parcel(path, namespace)
        except SaveslotError as exc:
            yield Problem(str(path), getattr(exc, "reason", None) or str(exc))
        except OSError as exc:
            yield Problem(str(path), f"cannot be read ({exc.strerror})")


def _parcel(path: Path, namespace: str) -> Kept:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as opened:
        document, written = loaded(opened.read(MAX_READ)), os.fstat(file).st_mtime
    told = document.get("session_id")
    session_id = session_of(path.name) or (told if isinstance(told, str) else path.name.removesuffix(SUFFIX))
    created, updated = _time(document, "created", written), _time(document, "updated", written)
    context = {key: document[key] for key in ABOUT if document.get(key) is not None}
    state = SessionState.COMPLETED if document.get("status") == SessionState.COMPLETED else None
    made = Making(namespace, AgentSession(session_id=session_id, created_at=created, context=context))
    made.created(at=created)
    if state is None:
        made.rest(created)
    made.checkpoint("imported", document, None, updated)

    def go_on(more: Making, _: int) -> None:
        if canonical(more.data) != canonical(document):
            more.checkpoint("imported", document, None, updated)
        more.settle({"context": context}, state, updated)

    # The file's name is all that stays: not each document says when it was begun.
    first = told_id(b"", "file", namespace, session_id)
    return Growing(made.parcel(state, updated), [first], go_on, key=key_of(1, first))


def _time(document: Document, key: str, written: float) -> datetime:
    """What the document says, or when the file was written."""
    try:
        return moment(stamp(document[key]))
    except (KeyError, SaveslotError):
        return moment(stamp(written))
