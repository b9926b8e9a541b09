"""Limits under load: how many requests and bytes the server takes on at a time, and for how long.

What does not fit is answered with 503 and Retry-After at once, before its body is read: waiting requests would pile up
until all of them are late. A request whose body is still arriving is not counted, so slow clients keep nobody out.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from threading import get_ident
from typing import ParamSpec, TypeVar

import zstandard

from saveslot.codec.weight import Limits
from saveslot.errors import InvalidInput, TooLarge, Unavailable
from saveslot.server.problem import Problem

P = ParamSpec("P")
R = TypeVar("R")

# Requests that are worked on at a time, and streams of events that are open.
CALLS, STREAMS = 512, 4000
# One token gets at most a half of them.
SHARE = 2
# Bytes in memory of all requests together, and of one: bodies, what was read from the store, and answers. They take two
# to four times as much while they are encoded. One token gets at most a half of them, too.
BYTES, READ = 512 << 20, 128 << 20
# Seconds that a request may take once its body has arrived, unless its route is a long job.
WITHIN = 10.0
# Seconds that a client may take to send a body, and the head of a request.
SENDING, HEADING = 60.0, 20.0
# Seconds that a client may take for a part of an answer, bytes of a part, and bytes per second on the average.
TAKING, PART, PACE = 30.0, 256 << 10, 1 << 20
# Milliseconds after which a connection is cut whose client takes none of what was sent.
UNREAD = 30_000
# Bytes that zstd needs beside the data: larger windows than any client of ours uses are refused.
WINDOW = 8 << 20
# A compressed body may become so many times as long, once it is longer than FREE bytes.
RATIO, FREE = 200, 1 << 20
# Bytes of a body that is read in a thread, so that other requests go on meanwhile.
APART = 256 << 10
# The weight of JSON (`codec.weight`) that one request may bring, or have decoded, at once and in all: about a quarter
# of a second of work. An import has a whole history, and is worked on in a thread.
HEAVIEST, DECODED, IMPORTED = 400_000, 1_000_000, 1_200_000
# Imports that are worked on at a time; the others wait. Parsed, one takes seven times the bytes of its text.
IMPORTS = 2


class Room:
    def __init__(self, calls: int = CALLS, streams: int = STREAMS, most: int = BYTES) -> None:
        self.most = {False: calls, True: streams}  # by whether they are streams
        self._bytes = most
        self.open = {False: 0, True: 0}
        self._of = Counter[tuple[bool, str]]()  # the same of each token
        self.held = 0  # bytes in memory
        self._held_of = Counter[str]()
        self.refused = 0
        self.importing = asyncio.Semaphore(IMPORTS)
        self.draining = asyncio.Event()  # the process is told to end: streams end, and their clients go elsewhere

    def enter(self, token: str, *, stream: bool) -> None:
        """Count a request or stream. `token`: the caller's; "" without one, and then there is no share."""
        most, what = self.most[stream], "streams" if stream else "requests"
        share = max(1, most // SHARE)
        if self.open[stream] >= most:
            self.refused += 1
            raise Unavailable(f"the server has {most:,} {what} under way, its limit; retry")
        if token and self._of[stream, token] >= share:
            self.refused += 1
            raise Unavailable(f"this token has {share:,} {what} under way, its share of the server; retry")
        self.open[stream] += 1
        self._of[stream, token] += 1

    def leave(self, token: str, *, stream: bool) -> None:
        self.open[stream] -= 1
        self._of[stream, token] -= 1
        if not self._of[stream, token]:
            del self._of[stream, token]

    def take(self, token: str, size: int) -> None:
        """Count bytes in memory."""
        if self.held + size > self._bytes:
            self.refused += 1
            raise Unavailable(f"the server has {self._bytes >> 20} MB of requests in memory, its limit; retry")
        if token and self._held_of[token] + size > self._bytes // SHARE:
            self.refused += 1
            share = self._bytes // SHARE >> 20
            raise Unavailable(f"this token has {share} MB of requests in memory, its share of the server; retry")
        self.held += size
        self._held_of[token] += size

    def give(self, token: str, size: int) -> None:
        self.held -= size
        self._held_of[token] -= size
        if not self._held_of[token]:
            del self._held_of[token]


class Load:
    """The bytes of one request in memory."""

    def __init__(self, room: Room, *, keeps: bool) -> None:
        self.token = ""
        self._room = room
        self._keeps = keeps  # False: what it reads is gone before it reads again, as in a stream
        self._body = self._read = 0
        self._ended = False
        self._thread = get_ident()
        self.limits = Limits(HEAVIEST, DECODED if keeps else None, self.decode)

    def decode(self, size: int) -> None:
        """Count bytes of objects."""
        self.take(size, "ask for less at a time")

    def bring(self, size: int) -> None:
        """Count bytes of the body."""
        self._room.take(self.token, size)
        self._body += size

    def take(self, size: int, hint: str) -> None:
        """Count what was read, or is the answer; `TooLarge` if that is too much for one request."""
        if self._ended or get_ident() != self._thread:  # work that it left behind, or that counts beforehand
            return
        if not self._keeps:
            self._give()
        if self._read + size > READ:
            raise TooLarge("what this request reads", limit=READ, size=self._read + size, hint=hint)
        self._room.take(self.token, size)
        self._read += size

    def _give(self) -> None:
        self._room.give(self.token, self._read)
        self._read = 0

    def end(self) -> None:
        self._ended = True
        self.limits.left = None
        self._room.give(self.token, self._body + self._read)
        self._body = self._read = 0


# The load of the request that is worked on.
LOAD: ContextVar[Load | None] = ContextVar("load", default=None)


async def apart(size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Work on a body of that size: in a thread if it is large."""
    return work(*args, **kwargs) if size <= APART else await asyncio.to_thread(work, *args, **kwargs)


# Bytes of msgpack that may be of any shape: decoded, they take some 20 MB. Values that a longer request may have: it is
# 64 MB at most and mostly frames; decoded, a value takes up to 250 bytes.
SMALL, TOKENS = 1 << 20, 500_000
# Of the first byte of a value in msgpack: how many bytes say its length, and how many bytes it has besides.
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_SIZES = {
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1, 0xDC, 0xDE, 0xD4), 3),
    **dict.fromkeys((0xCA, 0xCE, 0xD2, 0xDD, 0xDF), 5),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
    0xD5: 4,
    0xD6: 6,
    0xD7: 10,
    0xD8: 18,
    **{0xA0 + length: 1 + length for length in range(32)},
}
_HEADS = [_SIZES.get(kind, 2 if kind in {0xC7, 0xC8, 0xC9} else 1) for kind in range(256)]
_LENGTH = [_LENGTHS.get(kind, 0) for kind in range(256)]


def check_tokens(body: bytes) -> None:
    """Raise `TooLarge` for msgpack with so many values that it would take much more memory than its bytes."""
    if len(body) <= SMALL:
        return
    at, count, size = 0, 0, len(body)
    while at < size:
        kind = body[at]
        count += 1
        if count > TOKENS:
            raise TooLarge("the request", limit=TOKENS, size=count, unit="values")
        if length := _LENGTH[kind]:
            at += int.from_bytes(body[at + 1 : at + 1 + length], "big") + length
        at += _HEADS[kind]


def decompressed(body: bytes, encoding: str, largest: int) -> bytes:
    """Return the body without its `Content-Encoding`; `TooLarge` before more than `largest` bytes are in memory."""
    largest = min(largest, max(FREE, RATIO * len(body)))
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip":
            return _gunzipped(body, largest)
        case "zstd":
            return _unzstd(body, largest)
        case other:
            raise Problem(415, InvalidInput("content-encoding", f"must be gzip or zstd, not {other!r}"))


def _gunzipped(body: bytes, largest: int) -> bytes:
    stream = zlib.decompressobj(31)
    try:
        plain = stream.decompress(body, largest + 1)
    except zlib.error:
        raise Problem(400, InvalidInput("body", "is not gzip")) from None
    if len(plain) > largest:
        raise TooLarge("the request", limit=largest, size=len(plain))
    if not stream.eof or stream.unused_data:
        raise Problem(400, InvalidInput("body", "is not one whole gzip stream"))
    return plain


def _unzstd(body: bytes, largest: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor(max_window_size=WINDOW).stream_reader(body, read_across_frames=False) as reader:
            plain = reader.read(largest + 1)
            ended = len(plain) > largest or not reader.read(1)
    except zstandard.ZstdError:
        raise Problem(400, InvalidInput("body", "is not zstd, or has a window of more than 8 MB")) from None
    if len(plain) > largest:
        raise TooLarge("the request", limit=largest, size=len(plain))
    if not ended or (body and not plain and len(body) > 20):  # noqa: PLR2004  (a frame of nothing is shorter)
        raise Problem(400, InvalidInput("body", "is not one whole zstd frame"))
    return plain
