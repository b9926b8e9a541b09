"""For anyone's store: what every store must do, and a machine that compares it with memory.

    from saveslot.testing import StoreConformance

    class TestMyStore(StoreConformance):
        async def open(self, folder, clock):
            return await MyStore.open(folder / "data", clock=clock, uptime=clock.uptime)

Needs `pip install saveslot[testing]`. `saveslot.testing.faults` holds stores with one fault each: these catch them all.
"""

import pytest

pytest.register_assert_rewrite("saveslot.testing.conformance", "saveslot.testing.machine")

from saveslot.testing.conformance import StoreConformance  # noqa: E402  (after the line above, or asserts say little)
from saveslot.testing.machine import behaves_like_memory  # noqa: E402
from saveslot.testing.pen import Clock, Pen  # noqa: E402

__all__ = ["Clock", "Pen", "StoreConformance", "behaves_like_memory"]
