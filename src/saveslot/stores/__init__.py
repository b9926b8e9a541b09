"""Log entries <-> a database. A store knows rows, never policy: ten primitives; every feature is written above them.

To add one: implement `Store`, name its URL scheme in `open_store`, run `saveslot.testing.conformance` on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from saveslot.errors import InvalidInput
from saveslot.log import Counts, Entry, Event, Group, Head, Place, Query, Ref, Row, Sign, Verdict, Worker


class Store(Protocol):
    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        """Land each group or say why not. What landed is durable. Cancelling abandons the answer, never the write."""
        ...

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        """Row and newest entry of each, never older than what anyone was acknowledged; None if unknown or deleted."""
        ...

    async def entries(
        self,
        key: bytes,
        ranges: Sequence[tuple[int, int]] = ((1, 2**62),),
        *,
        kinds: frozenset[int] | None = None,
        name: str | None = None,
        newest: int | None = None,
        frames: bool = True,
        largest: int | None = None,
    ) -> list[Entry]:
        """Entries in the order of their seqs, `newest` the last n of them. Without frames `size` still tells theirs.

        `largest` leaves out the frames of more bytes than that.
        """
        ...

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        """A page of sessions, newest first (stale, ended and deleted ones: oldest first), behind `after`."""
        ...

    async def count(self, query: Query, sample: int = 0) -> Counts:
        """How many there are of what, and the entries of the newest so many of these sessions, without what they hold.

        Counts are exact; a sample ends with `TRACED` entries a session.
        """
        ...

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        """Mark sessions as alive now, and the worker; the times, the worker's last.

        0 for a session that is unknown, deleted, ended or held under another lease, and for a worker that others have
        declared dead. May be called from another event loop than everything else: a worker beats from a thread.
        """
        ...

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        """What was appended behind the cursor (None: from now on), in commit order, and the next cursor.

        Waits that many seconds for something to come. No gap, no repeat: an event is shown only once nothing can be
        committed before it any more.
        """
        ...

    async def empty(
        self, key: bytes, seqs: Sequence[int], *, notes: bool = False, body: tuple[bytes, bytes] | None = None
    ) -> int:
        """Drop the frames of these entries, with `notes` also their notes, of which the first 16 bytes stay (the seal).

        Their rows stay, so that seq-1 always exists. `body`: what the session's row has, and what it shall have; it is
        replaced if it is still that one, without an entry, also of a deleted session. A deleted session's body that
        becomes b"" takes user and labels with it, and whatever a store keeps of dropped bytes in its own files is
        overwritten. The number of entries emptied, and 1 if the body was replaced.
        """
        ...

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        """Remove deleted sessions, rows and all; the number of entries of each. A live one is left alone: 0.

        With `seen`, the append_id of each one's newest entry, sessions that still end there, deleted or not, and no
        others: nothing lands behind that entry any more.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Tended(Protocol):
    """What a store has besides if it needs upkeep now and then. A keeper sees to it; nothing is wrong without."""

    async def tend(self) -> None: ...


VALKEY = ("valkey", "valkeys", "redis", "rediss", "unix")
DAY = 24 * 3600.0


async def open_store(url: str, ttl: float = DAY) -> Store:
    """The store that a URL names. `ttl`: seconds that sessions created here live on unused, where the store forgets."""
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        from saveslot.stores.memory import MemoryStore  # each backend is imported when it is used

        return MemoryStore()
    if scheme == "sqlite":
        from saveslot.stores.sqlite import SqliteStore

        return await SqliteStore.open(sqlite_path(url))
    if scheme in {"postgresql", "postgres"}:
        try:
            from saveslot.stores.postgres import PostgresStore
        except ModuleNotFoundError:
            raise InvalidInput("url", "PostgreSQL needs a driver: pip install 'saveslot[postgres]'") from None

        return await PostgresStore.open(url)
    if scheme in VALKEY and rest.startswith("//"):
        from saveslot.stores.valkey import ValkeyStore

        return await ValkeyStore.open(url, ttl)
    known = "memory:, sqlite:///file.db, postgresql://user@host/database, valkey://host"
    raise InvalidInput("url", f"{scheme if rest else url!r} names no store that this version knows; use {known}")


# User and password in front of a host, whatever characters stand there unescaped; and a password among the options.
_PASSWORD = re.compile(r"(?<=://)([^:/?#\s]*):(?:[^?\s]*|\S*)@|(?<=[?&])(\w*password=)[^&\s]*")


def shown(text: str) -> str:
    """A URL, or a message with URLs in it, as it may be shown: without passwords."""
    return _PASSWORD.sub(lambda found: f"{found[2]}…" if found[2] else f"{found[1]}@" if found[1] else "", text)


def sqlite_path(url: str) -> str:
    """`sqlite:///relative.db` and `sqlite:////absolute.db`, as elsewhere in Python."""
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.netloc or not path or parts.query or parts.fragment or "\0" in path:
        raise InvalidInput("url", f"{url!r} is not of the form sqlite:///file.db (or sqlite:////folder/file.db)")
    if path == ":memory:":
        raise InvalidInput("url", "a SQLite file is shared by several connections; use memory: for one without a file")
    return path
