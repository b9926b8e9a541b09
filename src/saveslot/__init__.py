"""Durable sessions and checkpoints for AI agents."""

from __future__ import annotations

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
    StepUnknown,
    TooLarge,
    Unavailable,
)
from saveslot.lifecycle import SessionState
from saveslot.log import Event
from saveslot.manager import SessionManager
from saveslot.model import AgentSession, Checkpoint, SessionCheckpoint
from saveslot.opening import open  # noqa: A004  (saveslot.open reads well)
from saveslot.reading import Page

__version__ = "0.1.0"

__all__ = [
    "AgentSession",
    "AlreadyExists",
    "Checkpoint",
    "Conflict",
    "Corrupt",
    "Event",
    "HistoryLost",
    "InvalidInput",
    "InvalidTransition",
    "LeaseHeld",
    "LeaseLost",
    "NotFound",
    "Page",
    "SaveslotError",
    "SessionCheckpoint",
    "SessionManager",
    "SessionState",
    "StepUnknown",
    "TooLarge",
    "Unavailable",
    "open",
]
