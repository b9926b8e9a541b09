"""State <-> bytes: JSON, frames, recipes and encryption. Nothing here knows of sessions or databases."""

from __future__ import annotations

from saveslot.codec.cipher import Keyring, Keys, new_key
from saveslot.codec.edits import Edits, append, change
from saveslot.codec.notes import Changed, note, noted, read_changes, read_note, read_parts
from saveslot.codec.patch import UNCHANGED, Changes
from saveslot.codec.state import State, next_digest, rebuild
from saveslot.codec.text import ANY_SIZE, MAX_STATE, decode, encode
from saveslot.codec.writing import Written, write
from saveslot.values.recipe import Recipe

__all__ = [
    "ANY_SIZE",
    "MAX_STATE",
    "UNCHANGED",
    "Changed",
    "Changes",
    "Edits",
    "Keyring",
    "Keys",
    "Recipe",
    "State",
    "Written",
    "append",
    "change",
    "decode",
    "encode",
    "new_key",
    "next_digest",
    "note",
    "noted",
    "read_changes",
    "read_note",
    "read_parts",
    "rebuild",
    "write",
]
