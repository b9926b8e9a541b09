"""The `Store` protocol: a log in a database. A store knows rows, not policy: features build on its ten primitives.

To add one: implement `Store`, add its URL scheme to `BACKENDS` and `open_store`, run `saveslot.testing.conformance`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from typing import Any, Protocol
from urllib.parse import quote, unquote

import msgspec

from saveslot.errors import InvalidInput
from saveslot.stores.wire.metrics import Calls, Counters
from saveslot.values.checks import RESERVED, TOKENS, as_text
from saveslot.values.ids import stamp_of
from saveslot.values.log import (
    ALL,
    EVER_DELETED,
    Counts,
    Entry,
    Event,
    Group,
    Head,
    Labels,
    Place,
    Query,
    Ref,
    Row,
    Sign,
    Totals,
    Verdict,
    Wanted,
    Worker,
    order,
)


class Traits(msgspec.Struct, frozen=True):
    """Properties of a store, for callers that pace themselves."""

    serial: bool = False  # one writer at a time for all sessions: long purges pause for other writers
    local: bool = False  # its workers share one machine: it cannot be out of reach for all of them and come back
    crew: bytes = b""  # how the ids of this process's workers must begin, so that others cannot speak for them
    stamp: bytes = b""  # how the ids of what it writes must end: they tell which token wrote it


class Store(Protocol):
    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        """Append each group, or return why not. A group that landed is durable. Cancelling abandons the answer only.

        `together`: all of them, or none; if one is refused, those that could have landed are `SKIPPED`.
        """
        ...

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        """Return each session's row and newest entry, including all acknowledged writes; None if unknown or deleted.

        With `state`, also return `data`: the header of the entry with the agent's newest data, from the same snapshot.
        A store that has the frames at hand adds them as `frames`; if that is None, read them with `entries` (ranges and
        chain of `data.recipe`, kinds `DATA_KINDS`). `frames` are the ones that the recipe names, unless an entry
        appended after `last` made some of them superfluous and they have been emptied.
        """
        ...

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        """Return the wanted entries of a log, ordered by seq."""
        ...

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        """Return a page of sessions after `after`, newest first (stale, ended and deleted ones: oldest first)."""
        ...

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        """Count the sessions that match, exactly, and the entries and bytes of the whole store or of those sessions.

        Totals of the whole store, and of sessions that match, take longer the more entries there are.
        """
        ...

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        """Mark sessions, and the worker, as alive now; return the times, the worker's last.

        The time is 0 for a session that is unknown, deleted, ended or held under another lease, and for a worker that
        was declared dead. May be called from another event loop than the rest: a worker sends heartbeats from a thread.
        """
        ...

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        """Return the events after the cursor (None: from now on; "0": all), in commit order, and the next cursor.

        If there are none, wait up to `wait` seconds for one. No gap, no repeat: an event is returned only once nothing
        can commit before it. A cursor whose entry is gone, though it was not purged, is `HistoryLost`. With a key, read
        that session's events by its key, at a cost that depends on nothing else; `@n` is the cursor after its entry n.
        """
        ...

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        """Drop the frames of these entries; return how many entries lost something.

        Their rows stay, so that seq-1 always exists. With `notes` drop the notes too, except for their first 16 bytes
        (the checksum).
        """
        ...

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        """Replace a session's body if it is still `before`, also a deleted session's. No entry is written.

        With the body, and in the same transaction, `labels` replace those of entries that have some, by seq. Only a
        deleted session's body can become b"", and then its user and labels go too.
        """
        ...

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        """Remove deleted sessions with all their rows; return how many entries each had. Others stay, and count 0.

        With `seen`, the append_id of each session's newest entry: remove the sessions that still end there, deleted or
        not, and no others. Nothing lands after that entry any more.
        """
        ...

    async def close(self) -> None: ...

    # Beside the ten primitives: what an operator asks, and a store's traits, counters and upkeep. By default it has no
    # traits, counts nothing and needs no upkeep.

    async def namespaces(self, after: str = "", limit: int = 1000) -> list[str]:
        """Return the namespaces that have sessions, up to `limit` after `after`, in an order of the store's own.

        Databases find each by an index: as fast with a million sessions as with one. Valkey looks at all its keys.
        """
        ...

    kind: str = "custom"  # the backend's name, for metrics and traces
    traits: Traits = Traits()
    counters: Counters | None = None  # events that only the store itself sees, such as its own retries

    def metrics(self) -> dict[str, Any]:
        """Metrics by tier; {} if the store does not count."""
        return {}

    def calls(self) -> dict[tuple[str, str], Calls]:
        """The same counts of calls, by store and verb, as they are kept."""
        return {}

    async def token_names(self, stamps: Collection[bytes]) -> dict[bytes, str]:
        """Return the tokens with these stamps, by stamp, as far as the store knows them: revoked ones too."""
        names: dict[bytes, str] = {}
        for deleted_for in (None, EVER_DELETED):
            query, after = Query(namespace=RESERVED, agent_type=TOKENS, deleted_for=deleted_for), None
            while rows := await self.find(query, after, 500):
                names |= {stamp_of(row.session_id, row.created_at): row.session_id for row in rows}
                after = (getattr(rows[-1], order(query)[0]), rows[-1].key)
        return {stamp: names[stamp] for stamp in stamps if stamp in names}

    async def tend(self) -> None:
        """Do the upkeep that is due, and create missing tables. The keeper calls this hourly; a store that is never
        tended loses nothing.
        """
        return

    async def scrub(self, *, rewrite: bool = False) -> None:  # noqa: ARG002  (some stores need it)
        """Overwrite dropped and replaced bytes that are still in the store's own files.

        A store that cannot do that in place leaves them, unless `rewrite` is set: then it writes its files again.
        """
        return


VALKEY = ("valkey", "valkeys", "redis", "rediss", "unix")
DAY = 24 * 3600.0
# The module below `saveslot.stores` that serves each URL scheme. Each is imported when it is used.
BACKENDS = {
    "memory": "memory",
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    **dict.fromkeys(VALKEY, "valkey"),
    "http": "http",
    "https": "http",
}


KNOWN = "memory:, sqlite:///file.db, postgresql://user@host/database, valkey://host, http://host"
# Two characters at least: C: is a drive of Windows.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_HOST = re.compile(r"[A-Za-z0-9.-]+:[0-9]+")


def store_url(place: str | os.PathLike[str]) -> str:
    """The URL of a store: `place` itself, or that of a SQLite file if it is a path.

    Text is a path if it has a folder or a suffix: agents.db, ./agents, /var/lib/agents.
    """
    text = as_text(os.fspath(place) if isinstance(place, os.PathLike) else place, "url")
    if not isinstance(place, os.PathLike):
        if _HOST.fullmatch(text):
            raise InvalidInput(
                "url", f"{text!r} is a host and a port: for a server write http://{text}, for a file ./{text}"
            )
        if _SCHEME.match(text) or text in BACKENDS:
            return text
        if not (os.path.splitext(text)[1] or os.path.dirname(text)):  # noqa: PTH120, PTH122  (as typed, not normalized)
            raise InvalidInput("url", f"{text!r} names no store: for a file write ./{text} or {text}.db, else {KNOWN}")
    return sqlite_url(os.path.expanduser(text))  # noqa: PTH111  (pathlib raises without a home)


def backend(url: str) -> str:
    """The module from `BACKENDS` for a URL."""
    scheme, _, rest = url.partition(":")
    name = BACKENDS.get(scheme)
    if name is None or (name in {"valkey", "http"} and not rest.startswith("//")):
        raise InvalidInput("url", f"{scheme if rest else url!r} names no store known to this version; use {KNOWN}")
    return name


async def open_store(
    place: str | os.PathLike[str], ttl: float = DAY, *, token: str | None = None, patient: bool = True
) -> Store:
    """Open a store by its URL or path. `ttl`: seconds that sessions created here live unused (Valkey only); `token`:
    for a server, if its URL begins with http.

    Unless `patient`, give up within 2 s on a host that is unknown or refuses connections.
    """
    url = store_url(place)
    match backend(url):
        case "sqlite":
            from saveslot.stores.sqlite import SqliteStore

            return await SqliteStore.open(sqlite_path(url))
        case "postgres":
            try:
                from saveslot.stores.postgres import PostgresStore
            except ModuleNotFoundError:
                raise InvalidInput("url", "PostgreSQL needs a driver: pip install 'saveslot[postgres]'") from None

            return await PostgresStore.open(url, patient=patient)
        case "http":
            try:
                from saveslot.stores.http import HttpStore
            except ModuleNotFoundError:
                raise InvalidInput("url", "a server needs a client: pip install 'saveslot[http]'") from None

            return await HttpStore.open(url, token, patient=patient)
        case "valkey":
            from saveslot.stores.valkey import ValkeyStore

            return await ValkeyStore.open(url, ttl, patient=patient)
        case _:
            from saveslot.stores.memory import MemoryStore

            return MemoryStore()


# User and password before a host, whichever unescaped characters they contain; and a password among the options.
_PASSWORD = re.compile(r"(?<=://)([^:/?#\s]*):(?:[^?\s]*|\S*)@|(?<=[?&])(\w*password=)[^&\s]*")


def shown(text: str) -> str:
    """A URL, or a message that contains URLs, without passwords."""
    return _PASSWORD.sub(lambda match: f"{match[2]}…" if match[2] else f"{match[1]}@" if match[1] else "", text)


def sqlite_url(path: str | os.PathLike[str]) -> str:
    """The URL of a file, with special characters in its path quoted."""
    return f"sqlite:///{quote(str(path))}"


def sqlite_path(url: str) -> str:
    """The path of `sqlite:///relative.db` or `sqlite:////absolute.db`, as elsewhere in Python."""
    scheme, _, quoted = url.partition("///")  # not by urlsplit, which drops tabs and line breaks
    path = unquote(quoted)
    if scheme != "sqlite:" or not path or "?" in quoted or "#" in quoted or "\0" in path:
        forms = "sqlite:///file.db (or sqlite:////folder/file.db, or just the path)"
        raise InvalidInput("url", f"{url!r} is not of the form {forms}")
    if path == ":memory:":
        raise InvalidInput("url", "SQLite without a file cannot serve several connections; use memory:")
    return path
