"""Durable sessions and checkpoints for AI agents.

    import asyncio
    import saveslot

    async def main():
        async with saveslot.open("agents.db") as sessions:  # a SQLite file; or postgresql://…, valkey://…, memory:
            session = await sessions.create_session("tutor", user_id="anna")
            async with sessions.hold(session) as held:  # ours until the block ends or the process dies
                await held.checkpoint("asked", {"question": "1/2 + 1/3?"})  # durable when it returns
                print(held, held.data)

    asyncio.run(main())

`saveslot.blocking` has the same names for synchronous callers. `help(saveslot.SessionManager)` lists every verb.
The public API is `saveslot`, `saveslot.blocking`, `saveslot.types`, `saveslot.otel`, `saveslot.testing` and
`saveslot.stack`. Any other module may change in any release.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from saveslot.errors import (
    AlreadyExists,
    Cancelled,
    Conflict,
    Corrupt,
    Forbidden,
    HistoryLost,
    InvalidInput,
    InvalidTransition,
    KeyMissing,
    LeaseHeld,
    LeaseLost,
    NotFound,
    QuotaExceeded,
    SaveslotError,
    StepFailed,
    StepUnknown,
    TooLarge,
    Unauthorized,
    Unavailable,
    WrongKey,
)

if TYPE_CHECKING:
    from saveslot import blocking as blocking, otel as otel, types as types
    from saveslot.checkpoints.files import CheckpointStore
    from saveslot.checkpoints.manager import CheckpointManager
    from saveslot.manager import SessionManager
    from saveslot.manager.audit import Audit, AuditLine
    from saveslot.manager.gc import Garbage
    from saveslot.manager.log_lines import LogLine
    from saveslot.manager.reading import Page
    from saveslot.manager.thin import Thinned
    from saveslot.opening import open  # noqa: A004  (saveslot.open reads well)
    from saveslot.session.headers import EntryHeader, Head
    from saveslot.session.held import Held
    from saveslot.session.model import AgentSession, Checkpoint, Owner, SessionCheckpoint
    from saveslot.session.records import Record
    from saveslot.session.retention import Retention
    from saveslot.session.step_calls import step
    from saveslot.session.steps import Step
    from saveslot.values.lifecycle import SessionState
    from saveslot.values.log import Event

__version__ = "0.1.0"

__all__ = [
    "AgentSession",
    "AlreadyExists",
    "Audit",
    "AuditLine",
    "Cancelled",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointStore",
    "Conflict",
    "Corrupt",
    "EntryHeader",
    "Event",
    "Forbidden",
    "Garbage",
    "Head",
    "Held",
    "HistoryLost",
    "InvalidInput",
    "InvalidTransition",
    "KeyMissing",
    "LeaseHeld",
    "LeaseLost",
    "LogLine",
    "NotFound",
    "Owner",
    "Page",
    "QuotaExceeded",
    "Record",
    "Retention",
    "SaveslotError",
    "SessionCheckpoint",
    "SessionManager",
    "SessionState",
    "Step",
    "StepFailed",
    "StepUnknown",
    "Thinned",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "WrongKey",
    "open",
    "step",
]


# The module of each name, imported on first use: asyncio alone takes longer to import than all of Saveslot, and a
# program that only catches its errors, or prints its own help, needs neither.
_HOMES = {
    "AgentSession": "session.model",
    "Audit": "manager.audit",
    "AuditLine": "manager.audit",
    "Checkpoint": "session.model",
    "CheckpointManager": "checkpoints.manager",
    "CheckpointStore": "checkpoints.files",
    "EntryHeader": "session.headers",
    "Event": "values.log",
    "Garbage": "manager.gc",
    "Head": "session.headers",
    "Held": "session.held",
    "LogLine": "manager.log_lines",
    "Owner": "session.model",
    "Page": "manager.reading",
    "Record": "session.records",
    "Retention": "session.retention",
    "SessionCheckpoint": "session.model",
    "SessionManager": "manager",
    "SessionState": "values.lifecycle",
    "Step": "session.steps",
    "Thinned": "manager.thin",
    "open": "opening",
    "step": "session.step_calls",
}
_MODULES = ("blocking", "otel", "types")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(f"saveslot.{_HOMES[name]}"), name)
        return value
    if name in _MODULES:
        return import_module(f"saveslot.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
