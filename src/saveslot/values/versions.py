"""Versions: what a caller has seen of a session, as short text that names an entry.

17-9f86d081884c7d65      its number, and the first 8 bytes of its append_id in hex
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from saveslot.errors import InvalidInput

# Bytes of the append_id. With the number before them, two entries of one session never share them by chance.
STAMP = 8

_VERSION = re.compile(rf"([1-9][0-9]{{0,18}})-([0-9a-f]{{{2 * STAMP}}})")


class Version(NamedTuple):
    seq: int
    stamp: bytes  # an append_id, or the start of one

    def names(self, seq: int, append_id: bytes | None) -> bool:
        return seq == self.seq and append_id is not None and append_id.startswith(self.stamp)


def version(seq: int, append_id: bytes) -> str:
    return f"{seq}-{append_id[:STAMP].hex()}"


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def as_version(value: Any, path: str = "seen") -> Version | None:
    """Parse the version that a caller has seen; None if it gave none."""
    if value is None:
        return None
    match = _VERSION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidInput(path, f"{value!r} is not a version; pass that of a session, a checkpoint or a head")
    return Version(int(match[1]), bytes.fromhex(match[2]))
