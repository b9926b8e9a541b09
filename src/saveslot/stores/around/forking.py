"""Stores in a forked child: every call to a store that the parent opened raises.

A child inherits connections, but not the threads and tasks that use them: if it wrote through them, it would share the
parent's leases and mix its bytes into the parent's. The child keeps the parent's stores until it ends, since closing
them would end the parent's connections.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn
from weakref import WeakSet

from saveslot.errors import FORKED, Unavailable
from saveslot.stores import Store
from saveslot.stores.around.wrapper import PassingStore


class Parents(Store):
    """Replaces such a store. Closing it does nothing."""

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise Unavailable(FORKED)

    append = heads = entries = find = count = beat = events = empty = swap = purge = _refuse
    namespaces = tend = scrub = _refuse

    async def close(self) -> None: ...


class ForkGuard(PassingStore):
    """Passes calls to its store, in the process that opened it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        _guards.add(self)

    def give_up(self) -> Store:
        inner, self._inner = self._inner, Parents()
        return inner


_guards: WeakSet[ForkGuard] = WeakSet()
_kept: list[Store] = []


def _forked() -> None:
    _kept.extend(guard.give_up() for guard in list(_guards))
    _guards.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
