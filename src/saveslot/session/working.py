"""The working copy of a held session: the object that `held.data` returns, and what a landed save does to it.

It is decoded when the caller first reads it, so a program that never does pays nothing. From then on it is one object,
until a rollback or a refresh replaces it: a save changes its content, never the object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from saveslot import codec
from saveslot.codec import difference
from saveslot.codec.text import checked_key, place
from saveslot.errors import InvalidInput
from saveslot.session.draft import Save
from saveslot.values.checks import Data, copied

Effect = Callable[[Data], None]


class WorkingCopy:
    def __init__(self) -> None:
        self.data: Data | None = None  # None: not read yet, so the caller cannot have changed it
        self.changes = 0  # how often a landed write changed it

    def read(self, state: codec.State) -> Data:
        if self.data is None:
            self.data = state.value()
        return self.data

    def drop(self) -> None:
        """Let the next read return what is stored then, as a new object."""
        self.data = None
        self.changes += 1

    def effect(self, save: Save) -> Effect | None:
        """Return what the save will do to the working copy once it lands; None if the caller has not read it.

        The arguments are copied: the caller may change its own while the write is under way. What the working copy and
        the new state share stays the same object.
        """
        now = self.data
        if now is None:
            return None
        if isinstance(save.data, dict):
            data = {key: value if now.get(key) is value else copied(value) for key, value in save.data.items()}
            return lambda copy: _replace(copy, data)
        if save.edited:
            put = {key: value if now.get(key) is value else copied(value) for key, value in (save.put or {}).items()}
            items: dict[str, Any] = copied(dict(save.append or {}), "append")
            cut = dict(save.cut or {})
            _check_lists(now, items, cut)
            edits = codec.Edits(put, [*(save.drop or ())], items, cut)
            return lambda copy: _edit(copy, edits)
        if save.patch is not None:
            patch = cast("Sequence[Mapping[str, Any]]", copied(save.patch))
            _patch(dict(now), patch)  # raise here, while nothing is stored, if it does not fit the caller's changes
            return lambda copy: _patch(copy, patch)
        return kept

    def landed(self, effect: Effect | None, state: codec.State | None) -> None:
        """Follow a save that landed."""
        if self.data is None:
            return
        if effect is not None:
            effect(self.data)
        elif state is not None:  # the caller first read it while the write was under way
            _replace(self.data, state.value())
        self.changes += 1


def _replace(copy: Data, data: Data) -> None:
    if copy is not data:
        copy.clear()
        copy.update(data)


def _check_lists(copy: Data, items: Mapping[str, Any], cut: Mapping[str, int]) -> None:
    for verb, keys in (("append", items), ("cut", cut)):
        for key in keys:
            if not isinstance(copy.get(key, []), list):
                hint = "held.data has no list there; save that change first: checkpoint(name)"
                raise InvalidInput(place(verb, [checked_key(key, verb)]), hint)


def _edit(copy: Data, edits: codec.Edits) -> None:
    """Make the same changes. Where the caller has just replaced a list, that unsaved change stays."""
    copy.update(edits.put)
    for key in edits.drop:
        copy.pop(key, None)
    for key, count in edits.cut.items():
        target = copy.get(key)
        if isinstance(target, list) and count:
            del cast("list[Any]", target)[-count:]
    for key, more in edits.append.items():
        target = copy.setdefault(key, [])
        if isinstance(target, list):
            cast("list[Any]", target).extend(more)


def _patch(copy: Data, patch: Sequence[Mapping[str, Any]]) -> None:
    _replace(copy, difference.patched(copy, patch))


def kept(_copy: Data) -> None:
    """The effect of a save that leaves the working copy as it is."""
