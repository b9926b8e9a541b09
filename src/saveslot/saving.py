"""From what a caller wants saved to a draft: the whole state, what to append to it, or a patch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from saveslot import codec, difference
from saveslot.errors import InvalidInput
from saveslot.log import Entry
from saveslot.model import DATA_KINDS, Data, as_name
from saveslot.slot import Draft, Slot


class Save(msgspec.Struct):
    name: str
    data: Data | None
    metadata: Data | None
    append: Mapping[str, Sequence[Any]] | None
    patch: Sequence[Mapping[str, Any]] | None

    def kept(self, limit: int) -> Self:
        """In our own hands: while the write waits, others may change what they handed over."""
        for part in ("data", "metadata", "append", "patch"):
            text, tagged = codec.encode(getattr(self, part), part, limit)
            setattr(self, part, codec.decode(text, tagged=tagged))
        return self

    def checked(self) -> Self:
        as_name(self.name, "name")
        if self.append is not None and not isinstance(self.append, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("append", f"must be a dict of lists, not {type(self.append).__name__}")
        if self.data is None and (self.append is None or self.patch is None):
            return self
        if self.append is not None or self.patch is not None:
            raise InvalidInput("checkpoint", "give data, append or patch, not several of them")
        return self


def drafted(slot: Slot, state: codec.State, save: Save, before: Draft | None) -> Draft:
    """The checkpoint behind the slot's newest state; `before` itself if that was this same one, sent once more."""
    draft = slot.draft()
    if save.append is None and save.patch is None:
        draft.checkpoint(save.name, {} if save.data is None else save.data, save.metadata)
    else:
        draft.request = _asked(save, slot.limit)
        if before is not None and before.request == draft.request:
            return before
        _change(draft, state, save)
    if before is not None and _repeats(draft.group.entries[-1], before.group.entries[-1]):
        return before
    return draft


def _asked(save: Save, limit: int) -> object:
    """What a retry is recognised by: applied once more, the same change would make another state."""
    asked, path = (save.append, "append") if save.patch is None else (save.patch, "patch")
    return save.name, codec.encode(asked, path, limit)[0], codec.encode(save.metadata, "metadata", limit)[0]


def _change(draft: Draft, state: codec.State, save: Save) -> None:
    append = save.append if save.patch is None else _as_append(state, save.patch)
    if append is not None:
        draft.appended(save.name, dict(append), save.metadata)
    elif save.patch is not None:
        draft.checkpoint(save.name, difference.patched(state.value(), save.patch), save.metadata)


def _as_append(state: codec.State, patch: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]] | None:
    """A patch that only adds to the ends of lists costs the addition; None for any other."""
    items = difference.appended_items(patch)
    lists = items is not None and all(state.texts.get(key, b"")[:1] == b"[" for key in items)
    return items if lists else None


def _repeats(entry: Entry, before: Entry) -> bool:
    """True for the same checkpoint once more: the caller's retry of one whose outcome it did not learn."""
    same = entry.name == before.name and entry.note == before.note
    return same and entry.frame is None and before.kind in DATA_KINDS
