"""The weight of JSON: about how long it takes to turn it into objects and back, whatever it consists of.

A value weighs 1, an object or array 3, and each 256 bytes 1. A unit takes about half a microsecond, and 60 bytes of
memory. 15 MB of an agent's turns weigh 100,000 to 200,000; 15 MB of small numbers 7,500,000.
"""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar

from saveslot.errors import TooLarge

# The heaviest text that may become objects: set by a server for its requests, since nothing else runs meanwhile.
HEAVIEST: ContextVar[int] = ContextVar("heaviest", default=0)  # 0: no limit
CONTAINER, BYTES = 3, 256
# No byte of a text weighs more.
_MOST = CONTAINER + 1
# Bytes that matter when values are counted, and how many of them are looked at in one go.
_STRETCH = 1 << 20
_MARKS = b'"[{,'
_OTHERS = bytes(byte for byte in range(256) if byte not in _MARKS)


REQUEST = "the request"
_UNIT = f"units of weight (a value is one, an object or array {CONTAINER}, 256 bytes are one)"
_WRITE = "write it in parts, or through saveslot.open(URL)"
_READ = "read the data as a whole (GET …/data), other keys of it, or through saveslot.open(URL)"


def check(text: bytes | bytearray, what: str = "what would have to be decoded", most: int | None = None) -> None:
    """Raise `TooLarge` if the text is heavier than a request may bring or read. Nothing of it is decoded."""
    most = HEAVIEST.get() if most is None else most
    if most and len(text) * _MOST > most and (size := weight(text, most)) > most:
        raise TooLarge(what, limit=most, size=size, unit=_UNIT, hint=_WRITE if what == REQUEST else _READ)


def check_all(texts: Collection[bytes | bytearray], what: str) -> None:
    """The same for texts that become objects together."""
    most = HEAVIEST.get()
    if most and sum(map(len, texts)) * _MOST > most:
        check(b",".join(texts), what, most)


def weight(text: bytes | bytearray, enough: int = 0) -> int:
    """Return the weight of a text; if it is at most `enough`, an upper bound, which takes a tenth of the time."""
    size = len(text) // BYTES
    total = size + text.count(b",") + CONTAINER * (text.count(b"[") + text.count(b"{"))
    return total if total <= enough else size + _counted(text)


def _counted(text: bytes | bytearray) -> int:
    """Count what stands outside of strings."""
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS).replace(b'""', b"")
    total = quoted = 0
    for start in range(0, len(bare), _STRETCH):
        parts = bare[start : start + _STRETCH].split(b'"')
        outside = b"".join(parts[quoted::2])
        total += CONTAINER * len(outside) - (CONTAINER - 1) * outside.count(b",")
        quoted = (quoted + len(parts) - 1) % 2
    return total
