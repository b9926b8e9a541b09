"""What wakes the watchers of this process: those of one session by its appends, the others by any."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from weakref import WeakValueDictionary

# Seconds for which a watcher rests that was woken for nothing: a namespace without news must not cost a read for every
# append to the others.
REST = 0.01


class Bells:
    def __init__(self) -> None:
        self._any, self._heard = asyncio.Event(), False  # made anew only once a watcher has it
        self._own: WeakValueDictionary[bytes, asyncio.Event] = WeakValueDictionary()  # as long as watchers wait

    def message(self, key: bytes | None) -> asyncio.Event:
        """The event that is set by the next append: to this session, or to any."""
        if key is None:
            self._heard = True
            return self._any
        if (event := self._own.get(key)) is None:
            event = self._own[key] = asyncio.Event()
        return event

    def ring(self, keys: Iterable[bytes] | None = None) -> None:
        """Wake the watchers of these sessions (None: of all), and those of the store."""
        if self._heard:
            self._any.set()
            self._any, self._heard = asyncio.Event(), False
        if self._own:
            for key in list(self._own) if keys is None else keys:
                self.ring_for(key)

    def ring_for(self, key: bytes) -> None:
        """Wake only the watchers of this session."""
        if self._own and (event := self._own.pop(key, None)) is not None:
            event.set()
