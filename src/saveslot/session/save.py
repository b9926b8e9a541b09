"""Arguments of a checkpoint: the whole state, changes of some keys, a patch, or nothing, which keeps the state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self, cast

import msgspec

from saveslot import codec
from saveslot.codec import difference
from saveslot.codec.text import checked_key
from saveslot.errors import InvalidInput, TooLarge
from saveslot.session.draft import LABELS, Draft
from saveslot.session.log import Log
from saveslot.session.requests import request
from saveslot.values.checks import Data, as_labels, as_name
from saveslot.values.lifecycle import follow

# The arguments that change some keys; they combine.
EDITS = ("put", "drop", "append", "cut")


class Save(msgspec.Struct):
    name: str
    data: Data | None
    metadata: Data | None = None
    put: Mapping[str, Any] | None = None
    drop: Collection[str] | None = None
    append: Mapping[str, Sequence[Any]] | None = None
    cut: Mapping[str, int] | None = None
    patch: Sequence[Mapping[str, Any]] | None = None
    request: bytes = b""  # of a call with an idempotency key

    @property
    def edits(self) -> codec.Edits:
        """The changes of single keys."""
        return codec.Edits(self.put or {}, self.drop or (), self.append or {}, self.cut or {})

    @property
    def edited(self) -> bool:
        """True if single keys are named."""
        return not (self.put is self.drop is self.append is self.cut is None)

    @property
    def whole(self) -> bool:
        """True if no part of the state is named: all of it is saved, or kept."""
        return self.patch is self.put is self.drop is self.append is self.cut is None

    def checked(self) -> Self:
        as_name(self.name, "name")
        if isinstance(self.metadata, dict) and LABELS in self.metadata:
            as_labels(self.metadata[LABELS], f"metadata.{LABELS}")
        if not self.whole:
            self._check_edits()
        return self

    def _check_edits(self) -> None:
        for part, what in (("put", "values"), ("append", "lists"), ("cut", "numbers")):
            value = getattr(self, part)
            if value is not None and not isinstance(value, Mapping):
                raise InvalidInput(part, f"must be a dict of {what}, not {type(value).__name__}")
        if self.drop is not None:
            keys: Any = self.drop
            if not isinstance(keys, list | tuple | set | frozenset):
                raise InvalidInput("drop", f"must be a list of keys, not {type(keys).__name__}")
            self.drop = [*dict.fromkeys(checked_key(key, "drop") for key in cast("list[Any]", keys))]
        if (self.data is not None) + (self.patch is not None) + self.edited > 1:
            raise InvalidInput(
                "checkpoint", "pass only one of data, patch, and changes of keys (put, drop, append, cut)"
            )

    def copied(self, limit: int) -> Self:
        """Copy the arguments in place: the caller may change its own while the write waits its turn."""
        for part in ("data", "metadata", *EDITS, "patch"):
            if (given := getattr(self, part)) is not None:
                text, tagged = codec.encode(given, part, limit)
                setattr(self, part, codec.decode(text, tagged=tagged))
        return self

    def draft(self, log: Log, state: codec.State) -> Draft:
        """Draft the checkpoint after the log's newest state."""
        follow(log.at.state, "checkpoint")
        draft = log.draft()
        if self.patch is not None:
            self._patch(draft, state, self.patch)
        elif self.data is not None:
            draft.checkpoint(self.name, self.data, self.metadata)
        else:
            draft.changed(self.name, self.edits, self.metadata)
        if self.request:
            draft.group.entries[-1].request = self.request
        return draft

    def _patch(self, draft: Draft, state: codec.State, patch: Sequence[Mapping[str, Any]]) -> None:
        edits = _as_edits(state, patch)
        if edits is None:
            draft.checkpoint(self.name, difference.patched(state.value(), patch), self.metadata)
            return
        try:
            draft.changed(self.name, edits, self.metadata)
        except InvalidInput as exc:
            raise InvalidInput(exc.path.replace("put", "data", 1), exc.reason) from None
        except TooLarge as exc:
            raise TooLarge("data", limit=exc.limit, size=exc.size) from None

    def requested(self, key: str | None) -> Self:
        """Note the call's request: its content is what was given."""
        if key is not None:
            given = {part: getattr(self, part) for part in ("name", "data", "metadata", *EDITS, "patch")}
            self.request = request(key, "checkpoint", given)
        return self


# Stands for a value that a patch does not touch.
_UNTOUCHED = object()


def _as_edits(state: codec.State, patch: Sequence[Mapping[str, Any]]) -> codec.Edits | None:
    """Return a patch as changes of the keys that it touches; None if it touches the state as a whole."""
    items = difference.appended_items(patch)
    if items is not None and all(state.texts.get(key, b"")[:1] == b"[" for key in items):
        return codec.Edits(append=items)
    touched = difference.touched_keys(patch)
    if touched is None:
        return None
    before = {
        key: codec.decode(text, tagged=state.tagged) if key in touched else _UNTOUCHED
        for key, text in state.texts.items()
    }
    after: dict[str, Any] = difference.patched(before, patch)
    put = {key: value for key, value in after.items() if key not in before or value is not before[key]}
    return codec.Edits(put, [key for key in before if key not in after])
