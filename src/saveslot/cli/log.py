"""`saveslot log`: a session's entries, one line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Flag, Limit, SessionArg
from saveslot.cli.screen import Cell, Column, Part, Screen, Table, line
from saveslot.cli.sessions import brief, when
from saveslot.cli.state import DIM
from saveslot.cli.words import age, flat
from saveslot.manager import SessionManager
from saveslot.manager.log_lines import LogLine
from saveslot.session.model import Checkpoint
from saveslot.values.checks import Data
from saveslot.values.words import size

# Entries on a terminal unless --limit says otherwise; a pipe gets all.
SHOWN = 50
# The kinds of entries that give a session an owner, and those that end the ownership.
TAKING, LETTING_GO = {"taken", "claimed"}, {"released", "completed", "failed"}
KINDS = {
    "checkpoint": "",
    "rollback": "magenta",
    "created": "blue",
    "paused": "yellow",
    "resumed": "green",
    "completed": "blue",
    "failed": "red",
    "cancelled": "red",
    "recovered": "green",
    "claimed": "bold green",
    "step_finished": "cyan",
    "step_failed": "red",
}


async def log(
    what: SessionArg,
    /,
    *,
    limit: Limit = None,
    all: Annotated[bool, Flag("All entries, including owners, steps and changes of context.")] = False,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    if limit is None:
        limit = SHOWN if screen.terminal else 0
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what)
        lines = await sessions.log(session.session_id, limit=limit or None, all=all)
        before = await owned(sessions, session.session_id, lines[0].seq) if all and lines else None
    workers = dict(owners(lines, "" if before is None else before.data["worker"])) if all else None
    screen.answer([_as_data(entry, workers) for entry in lines], _shown(lines, workers, screen, limit))


def _shown(lines: list[LogLine], workers: dict[int, str] | None, screen: Screen, limit: int) -> Iterator[Part]:
    yield history(lines, screen, workers)
    if screen.terminal and limit and len(lines) == limit and lines[0].seq > 1:
        yield line((f"… {lines[0].seq - 1:,} earlier; --limit 0 shows all", DIM))


async def owned(sessions: SessionManager, id: str, before: int = 1 << 62) -> Checkpoint | None:
    """The entry by which the owner as of entry `before` took the session; None if it had no owner."""
    endings: list[Checkpoint] = []
    for kind in sorted(TAKING | LETTING_GO):
        endings += await sessions.history(id, name=f"session_{kind}", all=True)
    last = max((c for c in endings if c.seq < before), key=lambda c: c.seq, default=None)
    return last if last is not None and "worker" in last.data else None


def owners(lines: Iterable[LogLine], before: str = "") -> Iterator[tuple[int, str]]:
    """Each entry's seq and the worker that holds the session as of it; `before` is the owner before the first."""
    worker = before
    for entry in lines:
        worker = entry.metadata.get("worker", "") if entry.kind in TAKING else worker
        yield entry.seq, worker if entry.kind != "released" else ""
        worker = "" if entry.kind in LETTING_GO else worker


def _as_data(entry: LogLine, workers: dict[int, str] | None) -> Data:
    return entry.to_dict() | ({} if workers is None else {"owner": workers[entry.seq] or None})


def history(lines: Sequence[LogLine], screen: Screen, workers: Mapping[int, str] | None = None) -> Table:
    """A log, one row per entry; with the owners, if `workers` has them by seq."""
    held = any((workers or {}).values())
    columns = [
        Column("SEQ", right=True),
        Column("AGE", right=True, spare=1) if screen.terminal else Column("TIME"),
        Column("KIND"),
        Column("NAME", name=True),
        *([Column("OWNER", name=True, spare=2)] * held),
        Column("BYTES", right=True, spare=3),
        Column("CHANGED", wide=True),
    ]
    rows: list[list[Cell]] = []
    for entry in lines:
        style = KINDS.get(entry.kind, DIM)
        name = str(entry.metadata.get("name", entry.name)) if entry.kind == "rollback" else entry.name
        stored = size(entry.bytes) if screen.terminal else str(entry.bytes)
        rows.append(
            [
                (str(entry.seq), "bold"),
                when(entry.timestamp, screen),
                (entry.kind, style),
                (name, style),
                *([((workers or {}).get(entry.seq, ""), DIM)] * held),
                (stored, DIM),
                (summary(entry), "" if entry.kind != "rollback" else style),
            ]
        )
    return Table(columns, rows)


def _former(line: LogLine) -> str:
    """Whose session it was, and how long that worker had been silent."""
    silent = line.metadata.get("silent_since")
    if not isinstance(silent, str):  # claimed by an older Saveslot, or from a worker that never sent a heartbeat
        return f"from {line.metadata['from']}"
    return f"from {line.metadata['from']}, silent for {age(datetime.fromisoformat(silent), line.timestamp)}"


def summary(line: LogLine) -> str:
    """What an entry changed or says: the reason of a failure or release, a result, the former owner."""
    match line.kind:
        case "checkpoint":
            return flat(", ".join(line.changed), 200)
        case "rollback":
            return flat(f"↩ to {line.metadata.get('to', '').rpartition(':')[2]} {', '.join(line.changed)}", 200)
        case "completed" | "failed" | "released" | "cancelled" | "step_started" | "step_finished" | "step_failed":
            return brief({key: value for key, value in line.metadata.items() if value not in ("", {}, None)})
        case "claimed":
            return _former(line) if "from" in line.metadata else "after an error"
        case _:
            return ""
