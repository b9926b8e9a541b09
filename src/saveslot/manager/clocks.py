"""Trust in the wall clock, by which a local store measures ages: set a year ahead, it makes every session a year older.

The clock since boot cannot be set. When the wall clock moves against it, nothing is failed or purged by age until both
have agreed for a minute.
"""

from __future__ import annotations

import asyncio
import time

# Seconds that the clocks may move against each other between two looks. A clock that is being corrected slowly stays
# below that.
SLACK = 5.0
# Seconds that they must agree after a jump.
CALM = 60.0


class Clocks:
    def __init__(self) -> None:
        self._lead = _lead()
        self._jumped = float("-inf")  # when they last disagreed, since boot

    def left(self) -> float:
        """Seconds until ages can be trusted, if the clocks agree until then."""
        before, self._lead = self._lead, _lead()
        if abs(self._lead - before) > SLACK:
            self._jumped = time.monotonic()
        return max(0.0, self._jumped + CALM - time.monotonic())

    async def calm(self) -> None:
        """Wait until ages can be trusted."""
        while left := self.left():  # noqa: ASYNC110  (clocks send no events)
            await asyncio.sleep(min(left, 1.0))


def _lead() -> float:
    return time.time_ns() / 1e9 - time.monotonic()
