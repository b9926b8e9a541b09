"""The newest entry of each session that this process's callers have read or written.

A write by id follows that entry, so a caller that has not read what another process wrote gets a `Conflict`, however
often it repeats the write, until it reads the session. A caller that has neither read nor written it follows the newest
entry.
"""

from __future__ import annotations

from saveslot.session.log import Known
from saveslot.session.retries import Scope
from saveslot.values.log import Head

# Sessions remembered, about 250 bytes each. The next write by id to one that was forgotten follows its newest entry.
REMEMBERED = 100_000


class KnownEntries:
    def __init__(self) -> None:
        self._known: dict[Scope, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, scope: Scope) -> Known:
        known = self._known.get(scope)
        if known is None:
            known = self._known[scope] = Known()
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        return known

    def stamp(self, scope: Scope) -> bytes:
        """Return what is known before a read; pass it to `read`."""
        known = self._known.get(scope)
        return b"" if known is None else known.append_id

    def read(self, head: Head, before: bytes, *, newest: bool = True) -> None:
        """A caller has read this head. If a write landed meanwhile, or the head may be old (not `newest`), it moves
        forward only.
        """
        known, last = self.of((head.row.namespace, head.row.session_id)), head.last
        same = known.append_id == before
        if not known.key or (newest and same) or (known.key == head.row.key and known.seq < last.seq):
            known.move(head.row.key, last.seq, last.append_id)

    def clear(self) -> None:
        self._known.clear()
