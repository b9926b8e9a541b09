"""Durable sessions and checkpoints for AI agents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from saveslot.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    HistoryLost,
    InvalidInput,
    InvalidTransition,
    KeyMissing,
    LeaseHeld,
    LeaseLost,
    NotFound,
    SaveslotError,
    StepFailed,
    StepUnknown,
    TooLarge,
    Unavailable,
    WrongKey,
)

if TYPE_CHECKING:
    from saveslot import blocking as blocking
    from saveslot.auditing import Audit, AuditLine
    from saveslot.checkpoints import CheckpointManager
    from saveslot.files import CheckpointStore
    from saveslot.garbage import Garbage
    from saveslot.glance import LogLine
    from saveslot.held import Held
    from saveslot.lifecycle import SessionState
    from saveslot.log import Event
    from saveslot.manager import SessionManager
    from saveslot.model import AgentSession, Checkpoint, Owner, SessionCheckpoint
    from saveslot.opening import open  # noqa: A004  (saveslot.open reads well)
    from saveslot.reading import Page
    from saveslot.retention import Retention
    from saveslot.steps import Step
    from saveslot.thinning import Thinned

__version__ = "0.1.0"

__all__ = [
    "AgentSession",
    "AlreadyExists",
    "Audit",
    "AuditLine",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointStore",
    "Conflict",
    "Corrupt",
    "Event",
    "Garbage",
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
    "Unavailable",
    "WrongKey",
    "open",
]


# Where each name lives. It is imported with its first use: asyncio alone takes longer than everything of ours, and a
# program that only catches our errors, or prints its help, needs neither.
_HOMES = {
    "AgentSession": "model",
    "Audit": "auditing",
    "AuditLine": "auditing",
    "Checkpoint": "model",
    "CheckpointManager": "checkpoints",
    "CheckpointStore": "files",
    "Event": "log",
    "Garbage": "garbage",
    "Held": "held",
    "LogLine": "glance",
    "Owner": "model",
    "Page": "reading",
    "Retention": "retention",
    "SessionCheckpoint": "model",
    "SessionManager": "manager",
    "SessionState": "lifecycle",
    "Step": "steps",
    "Thinned": "thinning",
    "open": "opening",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(f"saveslot.{_HOMES[name]}"), name)
        return found
    if name == "blocking":
        return import_module("saveslot.blocking")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
