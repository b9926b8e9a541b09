"""Ids that nobody else draws."""

from __future__ import annotations

import os
import time
from uuid import UUID


def fresh_key() -> bytes:
    """A UUIDv7: 48 bits of milliseconds, then randomness; keys made later sort later."""
    tail = bytearray(os.urandom(10))
    tail[0] = 0x70 | (tail[0] & 0x0F)
    tail[2] = 0x80 | (tail[2] & 0x3F)
    return (time.time_ns() // 1_000_000).to_bytes(6, "big") + bytes(tail)


# Random numbers drawn in advance: the system takes longer to give one than it takes to hash a kilobyte.
_drawn: list[int] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.clear)


def drawn() -> bytes:
    """16 random bytes, for ids and nonces. The last eight are mixed with the clock, so that a machine which was copied
    while it ran does not draw what its copy draws.
    """
    while True:
        try:
            return (_drawn.pop() ^ time.time_ns()).to_bytes(16)
        except IndexError:
            more = os.urandom(16 * 256)
            _drawn.extend([int.from_bytes(more[at : at + 16]) for at in range(0, len(more), 16)])


def fresh_id() -> str:
    return str(UUID(bytes=fresh_key()))
