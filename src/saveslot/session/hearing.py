"""Tell a verb that its synchronous caller left without the answer.

In an event loop, a caller that leaves shows as `CancelledError`. A caller in another thread (`saveslot.blocking`) can
also be interrupted after the coroutine has finished, while the answer is in transit: nothing is left to cancel, and the
verb would count as answered a call that its caller is about to repeat. So a verb can register a callback for that
case once it has its answer:

    if (unheard := HEARD.get()) is not None:
        unheard.append(lambda: ...)  # remember this call as one whose caller left

The contract:

- The callback runs in the event loop's thread if the caller left without the answer. It runs before any call that the
  same thread makes later, so a repeated call sees the callback's effect.
- It does not run if the caller got the answer, whether a result or an error.
- A verb that calls other verbs is the only one to register: it sets `HEARD` to None around them, since it gets their
  answers.
- A verb that was cancelled sees `CancelledError`, as in an event loop, and needs no callback.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar


class Unheard:
    """Callbacks of one call, in case its caller does not get the answer."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] | None = []

    def append(self, callback: Callable[[], None]) -> None:
        """Add one while the call runs; ignore it afterwards: a background task that the call started inherits its
        context, and would otherwise fill the list for as long as it runs.
        """
        if self._callbacks is not None:
            self._callbacks.append(callback)

    def close(self) -> list[Callable[[], None]]:
        """End the call: return its callbacks and take no more."""
        callbacks, self._callbacks = self._callbacks or [], None
        return callbacks


# None if the caller awaits the answer itself.
HEARD: ContextVar[Unheard | None] = ContextVar("heard", default=None)
