"""What a forked child has of the stores that its parent opened: they are the parent's, every verb says so.

Connections come along with a fork, the threads and tasks that use them do not: a child that wrote through them would
share its parent's leases, and mix its words into the parent's. What the parent opened is kept to the child's end, since
closing it would say goodbye in the parent's name.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

from saveslot.errors import FORKED, Unavailable
from saveslot.stores import Store


class Parents:
    """In the place of such a store. To close it is fine, and does nothing."""

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise Unavailable(FORKED)

    append = heads = entries = find = count = beat = events = empty = purge = tend = _refuse

    async def close(self) -> None: ...


class Front(Protocol):
    """What stands in front of a store, so that it can be taken away."""

    def give_up(self, instead: Store) -> Store:
        """Use another one; the one that was used."""
        ...


_fronts: WeakSet[Front] = WeakSet()
_kept: list[Store] = []


def guard(front: Front) -> None:
    """In a forked child it will have no store."""
    _fronts.add(front)


def _forked() -> None:
    _kept.extend(front.give_up(Parents()) for front in list(_fronts))
    _fronts.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
