"""The weight of JSON: about how long it takes to turn it into objects and back, whatever it consists of.

A value weighs 1, an object or array 3, and each 256 bytes 1; an integer of hundreds of digits weighs more. A unit
takes about half a microsecond, and 60 bytes of memory. 15 MB of an agent's turns weigh 100,000 to 200,000; 15 MB of
small numbers 7,500,000.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextvars import ContextVar

from saveslot.errors import TooLarge

CONTAINER, BYTES = 3, 256
# Bytes that matter when values are counted, and how many of them are looked at in one go.
_STRETCH = 1 << 20
_MARKS = b'"[{,'
_OTHERS = bytes(byte for byte in range(256) if byte not in _MARKS)
_PLAIN = _OTHERS + b'"'
# An integer takes time by the square of its digits: 4,000 of them weigh 500. Longer ones than the last are refused.
_DIGITS, _LAST, _SQUARE = 300, 4300, 32_000
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBERS = re.compile(rb"(?<!0)0{%d,%d}(?!0)" % (_DIGITS, _LAST))

REQUEST, STORED = "the request", "what would have to be decoded"
_UNIT = f"units of weight (a value is one, an object or array {CONTAINER}, {BYTES} bytes are one)"
_WRITE = "write it in parts, or through saveslot.open(URL)"
_READ = "read the data as a whole (GET …/data), less at a time, or through saveslot.open(URL)"
# Bytes that the objects of a unit take.
OBJECTS = 48


class Limits:
    """How much may become objects: what a server sets for each request, since nothing else runs meanwhile."""

    def __init__(self, heaviest: int, total: int | None, took: Callable[[int], None]) -> None:
        self.heaviest = heaviest  # of texts that become objects at once
        self.left = total  # of all together; None: no limit
        self._took = took  # is told how many bytes of memory that takes

    def take(self, size: int, weight: int, what: str) -> None:
        if weight > self.heaviest:
            hint = _WRITE if what == REQUEST else _READ
            raise TooLarge(what, limit=self.heaviest, size=weight, unit=_UNIT, hint=hint)
        if self.left is not None:
            if weight > self.left:
                raise TooLarge(what, limit=self.left, size=weight, unit=_UNIT + ", after what was decoded", hint=_READ)
            self.left -= weight
        self._took(size + OBJECTS * weight)


LIMITS: ContextVar[Limits | None] = ContextVar("limits", default=None)


def check(text: bytes | bytearray, what: str = STORED) -> None:
    """Raise `TooLarge` if the text is heavier than a request may bring or read. Nothing of it is decoded."""
    if (limits := LIMITS.get()) is not None:
        limits.take(len(text), weight(text, limits.heaviest), what)


def check_all(texts: Collection[bytes | bytearray], what: str) -> None:
    """The same for texts that become objects together. Each is counted when it does."""
    limits = LIMITS.get()
    if limits is not None and (size := sum([weight(text, limits.heaviest) for text in texts])) > limits.heaviest:
        raise TooLarge(what, limit=limits.heaviest, size=size, unit=_UNIT, hint=_READ)


def weight(text: bytes | bytearray, enough: int = 0) -> int:
    """Return the weight of a text; if it is at most `enough`, an upper bound, which takes a tenth of the time."""
    size = len(text) // BYTES + _long_numbers(text)
    marks = text.translate(None, _PLAIN)  # counting each of them in the text takes four times as long
    total = size + CONTAINER * len(marks) - (CONTAINER - 1) * marks.count(b",")
    return total if total <= enough else size + _counted(text)


def _long_numbers(text: bytes | bytearray) -> int:
    zeros = text.translate(_ZEROS)
    if b"0" * _DIGITS not in zeros:
        return 0
    return sum([(number.end() - number.start()) ** 2 for number in _LONG_NUMBERS.finditer(zeros)]) // _SQUARE


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
