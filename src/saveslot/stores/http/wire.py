"""The requests and answers of `/store`, as msgpack of the log's own values: what a client sends, a server decodes.

    POST /store/heads   82 a4 refs 91 c4 10 …      {"refs": [key], "state": false}

A refusal of a whole request is problem+json, as everywhere on the server. Of appended groups, each has its own verdict
or refusal, since they come from callers that do not know each other.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from saveslot.errors import SaveslotError, from_dict
from saveslot.values.log import (
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
)

T = TypeVar("T")

MSGPACK = "application/msgpack"
# Part of every path. It changes with the wire, so that client and server of different versions refuse each other.
VERSION = "1"
# Bytes of a request. A batch carries 1 MB of frames, unless one group alone has more.
LARGEST = 64 << 20
# Seconds that a watch waits at most in one request.
WATCH = 20.0
# Rows, events or entries that one request may ask for, and bytes of the entries' frames.
PAGE = 10_000
ROOM = 64 << 20
# Items of a list in a request that is not an append: sessions, entries, signs.
LIST = 50_000


class Append(msgspec.Struct):
    groups: list[Group]
    together: bool = False


class Appended(msgspec.Struct):
    verdicts: list[Verdict | None]
    refusals: dict[int, dict[str, Any]] = {}  # by place: the errors of groups without a verdict


class Heads(msgspec.Struct):
    refs: list[Ref]
    state: bool = False


class Entries(msgspec.Struct):
    key: bytes
    wanted: Wanted


class Find(msgspec.Struct):
    query: Query
    after: Place | None
    limit: int


class Count(msgspec.Struct):
    query: Query
    totals: Totals = "store"


class Beat(msgspec.Struct):
    signs: list[Sign]
    worker: Worker | None = None


class Events(msgspec.Struct):
    namespace: str
    after: str | None
    key: bytes | None
    limit: int
    wait: float


class Empty(msgspec.Struct):
    key: bytes
    seqs: list[int]
    notes: bool


class Swap(msgspec.Struct):
    key: bytes
    before: bytes
    after: bytes
    labels: Labels = {}


class Purge(msgspec.Struct):
    keys: list[bytes]
    seen: list[bytes] | None


class Scrub(msgspec.Struct):
    rewrite: bool


class Namespaces(msgspec.Struct):
    after: str
    limit: int


class Tokens(msgspec.Struct):
    stamps: list[bytes]


class Hello(msgspec.Struct):
    """What a client learns when it opens the store."""

    serial: bool
    crew: bytes = b""  # how the ids of this token's workers begin; no others are taken
    stamp: bytes = b""  # how the ids of what it writes end


Request = Append | Heads | Entries | Find | Count | Beat | Events | Empty | Swap | Purge | Scrub | Namespaces | Tokens

ANSWERS: dict[str, Any] = {
    "append": Appended,
    "heads": list[Head | None],
    "entries": list[Entry],
    "find": list[Row],
    "count": Counts,
    "beat": list[int],
    "events": tuple[list[Event], str],
    "empty": int,
    "swap": bool,
    "purge": list[int],
    "namespaces": list[str],
    "tokens": dict[bytes, str],
    "tend": None,
    "scrub": None,
    "hello": Hello,
}


def frame_size(entry: Entry) -> int:
    """Bytes of the entry's frame as stored, also if it was not read."""
    return entry.size - len(entry.note or b"")


def left_out(entry: Entry) -> bool:
    """True if the entry has a frame that was not read, for want of room."""
    return entry.frame is None and frame_size(entry) > 0


def _plain(value: Any) -> Any:
    if isinstance(value, SaveslotError):  # why a row is locked
        return value.to_dict()
    raise NotImplementedError(type(value).__name__)


def _revived(kind: type, value: Any) -> Any:
    if issubclass(kind, SaveslotError):
        return from_dict(value)
    raise NotImplementedError(kind.__name__)


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_revived)
