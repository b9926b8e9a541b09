"""Frames of format 1, which Saveslot wrote until 2026-11: read, and never written.

A keyframe is a map from each key to its text, a patch an array of operations in their order. FORMAT.md shows them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from saveslot.codec.frame import Frame
from saveslot.codec.patch import Texts
from saveslot.errors import Corrupt

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Splice(msgspec.Struct, array_like=True, tag=0):
    """Keep the first `front` and the last `back` bytes of a text, with `middle` between. A new text keeps none."""

    key: str
    front: _Count
    back: _Count
    middle: bytes


class Remove(msgspec.Struct, array_like=True, tag=1):
    key: str


class Order(msgspec.Struct, array_like=True, tag=2):
    """All keys in their new order. Without it, kept keys stay in order and new ones follow."""

    keys: list[str]


_decode_ops = msgspec.msgpack.Decoder(list[Splice | Remove | Order]).decode
_decode_texts = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def apply(texts: Texts, frame: Frame) -> None:
    """Apply a frame to the texts, in place. After `Corrupt` they hold anything."""
    try:
        if frame.patch:
            _patch(texts, frame.body)
        else:
            texts.clear()
            texts.update(_decode_texts(frame.body))
    except (ValueError, KeyError, IndexError, RecursionError) as exc:
        raise Corrupt("a frame", "does not fit the state before it") from exc


def _patch(texts: Texts, body: bytes) -> None:
    for op in _decode_ops(body):
        if isinstance(op, Splice):
            if op.front == op.back == 0:
                texts[op.key] = op.middle
                continue
            old = texts[op.key]
            end = len(old) - op.back
            if op.front > end:
                raise IndexError
            grown = old if isinstance(old, bytearray) else bytearray(old)
            grown[op.front : end] = op.middle
            texts[op.key] = grown
        elif isinstance(op, Remove):
            del texts[op.key]
        else:
            items = {key: texts[key] for key in op.keys}
            if len(items) != len(texts):
                raise IndexError
            texts.clear()
            texts.update(items)
