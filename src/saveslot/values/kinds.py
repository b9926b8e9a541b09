"""The kinds of log entries, and sets of kinds that rules refer to."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The kind of a log entry. The numbers are stored: never change or reuse one."""

    CREATED = 0
    CHECKPOINT = 1
    ROLLBACK = 2
    PAUSED = 3
    RESUMED = 4
    COMPLETED = 5
    FAILED = 6
    RECOVERED = 7
    UPDATED = 8  # context, metadata or labels changed
    TOMBSTONE = 9
    CLEARED = 10  # hides older checkpoints: its note names them
    THINNED = 11  # a checkpoint that hides older ones by retention
    SKIPPED = 12  # empty: an import kept a later seq
    TAKEN = 13  # a worker holds the session from here on: fence + 1, a new lease
    CLAIMED = 14  # the same, from a worker that died
    RELEASED = 15
    STEP_STARTED = 16
    STEP_FINISHED = 17
    STEP_FAILED = 18
    MARKED = 19  # hides checkpoints dropped by retention: its note names them, its frame stays until theirs are gone
    PINNED = 20  # exempts the checkpoint that its note names from retention …
    UNPINNED = 21  # … until here
    CANCELLED = 22  # tells the session's holder to stop
    RECORD = 23  # a value of its own beside the state: its note has it

    @property
    def label(self) -> str:
        """The name shown to people: a checkpoint is one, whether it hides others or not."""
        return "checkpoint" if self is Kind.THINNED else self.name.lower()


# Entries with the agent's data.
DATA_KINDS = frozenset({Kind.CHECKPOINT, Kind.ROLLBACK, Kind.THINNED})

# Entries that hide earlier checkpoints.
HIDING_KINDS = frozenset({Kind.CLEARED, Kind.THINNED, Kind.MARKED})

TAKING_KINDS = frozenset({Kind.TAKEN, Kind.CLAIMED})

OWNER_KINDS = TAKING_KINDS | {Kind.RELEASED}

STEP_KINDS = frozenset({Kind.STEP_STARTED, Kind.STEP_FINISHED, Kind.STEP_FAILED})

# Entries about retention.
KEEPING_KINDS = frozenset({Kind.MARKED, Kind.PINNED, Kind.UNPINNED})

# Entries that no writer's work builds on: they never make another writer's entry a conflict.
SIDE_KINDS = KEEPING_KINDS | {Kind.RECORD}

# All the others: entries that move a session's version.
MAIN_KINDS = frozenset(Kind) - SIDE_KINDS

UNSHOWN_KINDS = OWNER_KINDS | STEP_KINDS | SIDE_KINDS | {Kind.CANCELLED}

# What a history shows unless all entries are requested.
SHOWN_KINDS = frozenset(Kind) - {Kind.UPDATED, Kind.TOMBSTONE, Kind.CLEARED, Kind.SKIPPED} - UNSHOWN_KINDS

# Entries that leave the session's row unchanged: one row written instead of two.
PLAIN_KINDS = STEP_KINDS | SIDE_KINDS | {Kind.CHECKPOINT, Kind.CANCELLED}

VERBS = {
    Kind.CHECKPOINT: "checkpoint",
    Kind.PAUSED: "pause",
    Kind.RESUMED: "resume",
    Kind.COMPLETED: "complete",
    Kind.FAILED: "fail",
    Kind.RECOVERED: "recover",
}

# Verbs that the session's state must allow. All other kinds are written in any state and do not change it.
FOLLOWED: dict[int, str] = {**VERBS, Kind.ROLLBACK: "rollback", Kind.THINNED: "checkpoint"}

# Entries with context, metadata and labels.
ABOUT_KINDS = frozenset({Kind.CREATED, Kind.UPDATED})

# Entries that end a session or its agent's work: no worker holds it after them.
ENDING_KINDS = frozenset({Kind.COMPLETED, Kind.FAILED, Kind.TOMBSTONE})
