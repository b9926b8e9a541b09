"""Digests: what happened in a namespace since the last one, however much that was.

event: digest
data: {"counts_by_kind": {"checkpoint": 412}, "by_state": {"active": 214, …}, "orphaned": 1, "late": 0,
       "touched": [{"id": "lesson-1", "seq": 7, …}], "more": 212}
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from saveslot.errors import InvalidInput
from saveslot.manager.activity import HELD, held
from saveslot.manager.outlook import is_late
from saveslot.server.call import encoded
from saveslot.stores.wire.loops import running
from saveslot.values.answers import Answer
from saveslot.values.checks import Data
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import Query, Row, moment

if TYPE_CHECKING:
    from saveslot.manager import SessionManager
    from saveslot.server.feeds import News

# Sessions that a digest names, those that changed last.
TOUCHED = 200
# Seconds between two digests: at least, and at most.
SHORTEST, LONGEST = 0.5, 60.0
# Seconds that the counts by state may be old: counting takes 60 ms with 100,000 sessions.
FRESH = 2.0


def as_interval(text: str) -> float:
    """Parse `1s` or `2.5`."""
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not SHORTEST <= seconds <= LONGEST:
        raise InvalidInput("digest", f"must be {SHORTEST:g}s to {LONGEST:g}s, not {text!r}")
    return seconds


class Standing(Answer, frozen=True):
    """Where the sessions of a namespace stand."""

    by_state: dict[str, int]
    orphaned: int
    late: int


class Owners:
    """Which held sessions are late or orphaned; remembers what it was, to tell what is new."""

    def __init__(self) -> None:
        self._before: dict[bytes, tuple[str, Row]] | None = None  # what each session was, by its key

    async def look(self, sessions: SessionManager) -> tuple[list[tuple[str, Data]], int]:
        """Return what is new since the last look, as events and their data, and how many are late."""
        rows = await sessions.engine.vault.find(held(sessions.namespace), None, HELD)
        now = {row.key: (_word(row), row) for row in rows}
        before = now if self._before is None else self._before
        self._before = now
        news: list[tuple[str, Data]] = []
        for key in {**before, **now}:
            old, was = before.get(key, ("", None))
            new, row = now.get(key, ("", was))  # without an owner now, if it is not there
            if old != new and row is not None:
                news.append((new, _data(row, on=True)) if new else (old, _data(row, on=False)))
        return news, sum(word == "late" for word, _ in now.values())


def _word(row: Row) -> str:
    return "orphaned" if not row.left else "late" if is_late(row) else ""


def _data(row: Row, *, on: bool) -> Data:
    silent = moment(row.beaten).isoformat() if row.beaten else None
    known = {"session_id": row.session_id, "agent_type": row.agent_type, "state": row.state}
    return {**known, "owner": row.worker, "silent_since": silent, "on": on}


async def standing(sessions: SessionManager, late: int) -> Standing:
    counts = await sessions.engine.answers.at("cached", FRESH).count(Query(namespace=sessions.namespace))
    states = {state.value: counts.states.get(state.value, 0) for state in SessionState}
    return Standing(states, counts.orphaned, late)


class Digest:
    """Collects news, and gives one digest an interval: at once, then whenever something is new."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due = running().time()
        self._counts: Counter[str] = Counter()
        self._touched: dict[str, News] = {}  # the newest of each session, in order of change
        self._cursor = ""
        self._shown: Standing | None = None

    def add(self, news: list[News]) -> None:
        for item in news:
            self._counts[item.event.kind] += 1
            self._cursor = item.event.cursor or self._cursor
            self._touched.pop(item.event.session_id, None)
            self._touched[item.event.session_id] = item

    def text(self, standing: Standing | None) -> list[bytes]:
        """Return the digest that is due, if there is something to say."""
        now = running().time()
        if now < self._due or standing is None or not (self._counts or standing != self._shown):
            return []
        touched = list(self._touched.values())[-TOUCHED:]
        data = {
            "counts_by_kind": dict(self._counts),
            **standing.to_dict(),
            "touched": [item.touched() for item in touched],
            "more": len(self._touched) - len(touched),
        }
        head = b"id: %b\n" % self._cursor.encode() if self._cursor else b""
        self._due, self._shown = now + self._seconds, standing
        self._counts, self._touched = Counter(), {}
        return [b"%bevent: digest\ndata: %b\n\n" % (head, encoded(data))]

    def next(self) -> float:
        """Seconds until the next one may be due."""
        return max(0.05, self._due - running().time()) if self._counts else self._seconds
