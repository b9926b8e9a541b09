"""Unique keys and random ids, and the stamp in an append_id that tells which token wrote the entry."""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from functools import partial
from hashlib import sha256
from uuid import UUID

from saveslot.values.checks import MAX_NAME

# Bytes at the end of an append_id that tell which token of a server wrote the entry; random ones if none did.
STAMP = 6
# The stamp of what is written on behalf of a request that a server answers.
stamping: ContextVar[bytes] = ContextVar("stamping", default=b"")


def fresh_key() -> bytes:
    """Return a UUIDv7: 48 bits of milliseconds, then random ones, so that later keys sort later."""
    tail = bytearray(os.urandom(10))
    tail[0] = 0x70 | (tail[0] & 0x0F)
    tail[2] = 0x80 | (tail[2] & 0x3F)
    return (time.time_ns() // 1_000_000).to_bytes(6, "big") + bytes(tail)


# 16 random bytes. An entry carries them, so that a retry recognises an entry that landed as its own.
fresh_append_id = partial(os.urandom, 16)


def stamped(append_id: bytes, stamp: bytes) -> bytes:
    """The same id with a token's stamp; without one, as it is."""
    return append_id[:-STAMP] + stamp if stamp else append_id


def stamp_of(token: str, created_at: int) -> bytes:
    """The stamp of a token: the same after it was rotated, and another one for its name once it is created anew."""
    return sha256(f"{token}@{created_at}".encode()).digest()[:STAMP]


def fresh_id() -> str:
    return str(UUID(bytes=fresh_key()))


def fit(text: str) -> str:
    """Fit a key of another program into an id or a label: a long one is cut, and made unique by a digest."""
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 33]}~{sha256(text.encode()).hexdigest()[:32]}"


def joined(*keys: str) -> str:
    """Make one text of several keys, whatever characters they have: `a/b` and `c` become `a%2Fb/c`."""
    return "/".join(key.replace("%", "%25").replace("/", "%2F") for key in keys)
