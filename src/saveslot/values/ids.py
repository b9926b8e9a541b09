"""Unique keys and random ids."""

from __future__ import annotations

import os
import time
from functools import partial
from uuid import UUID


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
