"""From what a caller wants saved to a draft: the whole state, what to append to it, or a patch."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, cast

from saveslot import codec, difference
from saveslot.errors import InvalidInput
from saveslot.log import Entry
from saveslot.model import DATA_KINDS, Data, as_name, copied
from saveslot.slot import Draft, Slot


@dataclass(slots=True)
class Save:
    name: str
    data: Data | None
    metadata: Data | None
    append: Mapping[str, Sequence[Any]] | None
    patch: Sequence[Mapping[str, Any]] | None

    @contextmanager
    def left_behind(self) -> Generator[None]:
        """Around a write that goes on when its caller leaves: who left may change what it handed over."""
        try:
            yield
        except asyncio.CancelledError:
            with suppress(InvalidInput):  # what cannot be copied cannot be saved either, and that is told there
                self.data, self.metadata = copied(self.data), copied(self.metadata)
                self.append, self.patch = copied(self.append), copied(self.patch)
            raise

    def checked(self) -> Self:
        as_name(self.name, "name")
        if (self.data is not None) + (self.append is not None) + (self.patch is not None) > 1:
            raise InvalidInput("checkpoint", "give data, append or patch, not several of them")
        return self


def drafted(slot: Slot, state: codec.State, save: Save, before: Draft | None) -> Draft:
    """The checkpoint behind the slot's newest state; `before` itself if that was this same one, sent once more."""
    name, data, metadata, append, patch = save.name, save.data, save.metadata, save.append, save.patch
    draft = slot.draft()
    if append is not None or patch is not None:
        asked, path = (append, "append") if patch is None else (patch, "patch")
        about = codec.encode(metadata, "metadata", slot.limit)[0]
        draft.request = (name, codec.encode(asked, path, slot.limit)[0], about)
    if before is not None and draft.request is not None and before.request == draft.request:
        return before
    if patch is not None:
        append = _as_append(state, patch)
    if append is not None:
        draft.appended(name, dict(append), metadata)
    elif patch is not None:
        draft.checkpoint(name, difference.patched(state.value(), patch), metadata)
    else:
        draft.checkpoint(name, _whole(data), metadata)
    if before is not None and _repeats(draft.group.entries[-1], before.group.entries[-1]):
        return before
    return draft


def _as_append(state: codec.State, patch: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]] | None:
    """A patch that only adds to the ends of lists costs the addition; None for any other."""
    items = difference.appended_items(patch)
    lists = items is not None and all(state.texts.get(key, b"")[:1] == b"[" for key in items)
    return items if lists else None


def _whole(data: Any) -> Data:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidInput("data", f"must be a dict, not {type(data).__name__}")
    return cast("Data", data)


def _repeats(entry: Entry, before: Entry) -> bool:
    """True for the same checkpoint once more: the caller's retry of one whose outcome it did not learn."""
    same = entry.name == before.name and entry.note == before.note
    return same and entry.frame is None and before.kind in DATA_KINDS
