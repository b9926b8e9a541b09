"""Durable sessions and checkpoints for AI agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saveslot.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    HistoryLost,
    InvalidInput,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    NotFound,
    SaveslotError,
    StepFailed,
    StepUnknown,
    TooLarge,
    Unavailable,
)
from saveslot.glance import LogLine
from saveslot.held import Held
from saveslot.lifecycle import SessionState
from saveslot.log import Event
from saveslot.manager import SessionManager
from saveslot.model import AgentSession, Checkpoint, Owner, SessionCheckpoint
from saveslot.opening import open  # noqa: A004  (saveslot.open reads well)
from saveslot.reading import Page
from saveslot.steps import Step

if TYPE_CHECKING:
    from saveslot import blocking as blocking
    from saveslot.checkpoints import CheckpointManager

__version__ = "0.1.0"

__all__ = [
    "AgentSession",
    "AlreadyExists",
    "Checkpoint",
    "CheckpointManager",
    "Conflict",
    "Corrupt",
    "Event",
    "Held",
    "HistoryLost",
    "InvalidInput",
    "InvalidTransition",
    "LeaseHeld",
    "LeaseLost",
    "LogLine",
    "NotFound",
    "Owner",
    "Page",
    "SaveslotError",
    "SessionCheckpoint",
    "SessionManager",
    "SessionState",
    "Step",
    "StepFailed",
    "StepUnknown",
    "TooLarge",
    "Unavailable",
    "open",
]


def __getattr__(name: str) -> Any:
    """What synchronous callers use is imported with its first use: it takes a tenth as long as all the rest."""
    if name == "CheckpointManager":
        from saveslot.checkpoints import CheckpointManager

        return CheckpointManager
    if name == "blocking":
        from importlib import import_module

        return import_module("saveslot.blocking")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
