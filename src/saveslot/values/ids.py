"""Unique keys and random ids."""

from __future__ import annotations

import os
import time
from functools import partial
from hashlib import sha256
from uuid import UUID

from saveslot.values.checks import MAX_NAME


def fresh_key() -> bytes:
    """Return a UUIDv7: 48 bits of milliseconds, then random ones, so that later keys sort later."""
    tail = bytearray(os.urandom(10))
    tail[0] = 0x70 | (tail[0] & 0x0F)
    tail[2] = 0x80 | (tail[2] & 0x3F)
    return (time.time_ns() // 1_000_000).to_bytes(6, "big") + bytes(tail)


# 16 random bytes. An entry carries them, so that a retry recognises an entry that landed as its own.
fresh_append_id = partial(os.urandom, 16)


def fresh_id() -> str:
    return str(UUID(bytes=fresh_key()))


def fit(text: str) -> str:
    """Fit a key of another program into an id or a label: a long one is cut, and made unique by a digest."""
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 33]}~{sha256(text.encode()).hexdigest()[:32]}"


def joined(*keys: str) -> str:
    """Make one text of several keys, whatever characters they have: `a/b` and `c` become `a%2Fb/c`."""
    return "/".join(key.replace("%", "%25").replace("/", "%2F") for key in keys)
