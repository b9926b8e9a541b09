"""What errors advise, for each kind of caller: a Python call, a request to `/v1`, a tool of `saveslot mcp`, or a
command.

Messages are built with the Python form. A door to other callers exchanges it for theirs:

    no session s1 in namespace default; find() and `saveslot ls` list the sessions
    no session s1 in namespace default; GET /v1/sessions lists the sessions
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Advice(NamedTuple):
    python: str
    request: str
    tool: str
    command: str

    def __str__(self) -> str:
        return self.python


RELOAD = Advice(
    "reload the session (refresh or get_session)",
    "read the session again (GET /v1/sessions/{id})",
    "read the session again (resume)",
    "look at the session again (`saveslot show`)",
)
CREATE_AGAIN = Advice(
    "create it again, or load the new one with get_session",
    "create it again (POST /v1/sessions), or read the new one (GET /v1/sessions/{id})",
    "begin it again (save), or read the new one (resume)",
    "look at the new one with `saveslot show`",
)
RECREATED = Advice(
    "reload it with get_session",
    "read it again (GET /v1/sessions/{id})",
    "read it again (resume)",
    "look at it again (`saveslot show`)",
)
OTHER_ID = Advice(
    "load it with get_session, or choose another id",
    "read it (GET /v1/sessions/{id}), pass exist_ok, or choose another session_id",
    "read it (resume), or choose another session_id",
    "look at it with `saveslot show`, or choose another id",
)
SESSIONS = Advice(
    "find() and `saveslot ls` list the sessions",
    "GET /v1/sessions lists the sessions",
    "list shows the sessions, and save begins one",
    "`saveslot ls` lists the sessions",
)
CHECKPOINTS = Advice(
    "history() and `saveslot log` list what it has",
    "GET /v1/sessions/{id}/checkpoints lists what it has",
    "pass latest, ~1, a number, or a name that you saved under",
    "`saveslot log` lists what it has",
)
WHAT_IS_LEFT = Advice(
    "history() lists what is left",
    "GET /v1/sessions/{id}/checkpoints lists what is left",
    "pass latest, or a later checkpoint",
    "`saveslot log` lists what is left",
)
STEPS = Advice(
    "`saveslot steps` lists its steps",
    "GET /v1/sessions/{id}/steps lists its steps",
    "saveslot steps lists its steps",
    "`saveslot steps` lists its steps",
)
RESULT = Advice(
    "read its result with get_checkpoint(id, 'session_completed').data and its state with get_data(id), or fork(id) to "
    "continue from there",
    "read its result (GET /v1/sessions/{id}/checkpoints/session_completed) and its state (GET /v1/sessions/{id}/data), "
    "or fork it (POST /v1/sessions/{id}/fork) to continue from there",
    "save under another session_id to go on",
    "`saveslot show ID@session_completed` has its result; `saveslot fork` continues from there",
)
COMPLETED = Advice(
    "a completed session stays as it is; fork it to continue from there",
    "a completed session stays as it is; fork it (POST /v1/sessions/{id}/fork) to continue from there",
    "a completed session stays as it is; save under another session_id to go on",
    "a completed session stays as it is; `saveslot fork` continues from there",
)
WHY_FAILED = Advice(
    "get_checkpoint(id, 'session_failed').data says why; rollback(id, 'latest') or recover() reopens it, fork(id) "
    "continues in a new session",
    "GET /v1/sessions/{id}/checkpoints/session_failed says why; POST /v1/sessions/{id}/recover reopens it, POST "
    "/v1/sessions/{id}/fork continues in a new session",
    "rollback to latest reopens it",
    "`saveslot log` says why; `saveslot resume --failed` reopens it, `saveslot fork` continues in a new session",
)
FAILED = Advice(
    "recover a failed session, or roll it back",
    "recover it (POST /v1/sessions/{id}/recover), or roll it back (POST /v1/sessions/{id}/rollback)",
    "rollback to latest reopens it",
    "`saveslot resume --failed` reopens it, and `saveslot rollback` too",
)
PAUSED = Advice(
    "it is paused; resume it first",
    "it is paused; resume it first (POST /v1/sessions/{id}/resume)",
    "it is paused by another program; tell the user",
    "it is paused; `saveslot resume` makes it active",
)
STOP = Advice(
    "save what is needed with checkpoint(), then leave, complete() or fail()",
    "save what is needed (POST /v1/sessions/{id}/checkpoints), then end its lease, complete or fail it",
    "save what is needed, then complete it",
    "its worker has to end it; `saveslot release` takes it away",
)
FIND_OUT = Advice(
    "find out, then pass on_unknown: skip, retry, or a function that returns its result",
    "find out, then settle it (POST /v1/sessions/{id}/steps/{name}/{key}) with its result, or with retry",
    "tell the user, who can settle it with saveslot steps",
    "find out, then settle it with `saveslot steps`",
)
RETRY = Advice(
    "retry=True runs it again",
    "POST /v1/sessions/{id}/steps/{name}/{key} with retry lets it run again",
    "saveslot steps can let it run again",
    "`saveslot steps --retry` lets it run again",
)
OWN_HOLD = Advice(
    "use that `held`, or release it first (a `hold` block releases when it ends)",
    "write under its lease, or wait until that has ended",
    "wait until it is let go",
    "wait until it is let go, or take it away with `saveslot release`",
)

ALL = [value for value in globals().values() if isinstance(value, Advice)]
# Longer ones first: one may stand inside another.
_BY_LENGTH = sorted(ALL, key=lambda advice: -len(advice.python))


def reworded(message: str, door: Literal["request", "tool", "command"]) -> str:
    """Return the message with all advice as callers at this door can follow it."""
    for advice in _BY_LENGTH:
        message = message.replace(advice.python, getattr(advice, door))
    return message
