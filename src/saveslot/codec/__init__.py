"""State <-> bytes. Knows JSON, frames and recipes; knows nothing of sessions or databases."""

from __future__ import annotations

from typing import Any

from saveslot.codec.cipher import Keyring, Keys, new_key
from saveslot.codec.frame import pack, seal, unpack, unseal
from saveslot.codec.state import Recipe, State, Written, append, rebuild, write
from saveslot.codec.text import MAX_STATE, decode, encode
from saveslot.errors import Corrupt

__all__ = [
    "MAX_STATE",
    "Keyring",
    "Keys",
    "Recipe",
    "State",
    "Written",
    "append",
    "decode",
    "encode",
    "new_key",
    "note",
    "read_note",
    "rebuild",
    "write",
]


def note(value: Any, path: str, limit: int = MAX_STATE) -> bytes:
    """A value that stands alone: sealed with its own digest."""
    text, tagged = encode(value, path, limit)
    return seal(pack(text, patch=False, tagged=tagged))


def read_note(sealed: bytes) -> Any:
    """The value of a note, or `Corrupt`."""
    found = unpack(unseal(sealed))
    if found.patch:
        raise Corrupt("a note", "holds a patch")
    return decode(found.body, tagged=found.tagged)
