"""Test your own store: the conformance suite, a state machine that compares it with memory, and faults to plant in it.

    from saveslot.testing import StoreConformance

    class TestMyStore(StoreConformance):
        async def open(self, folder, clock):
            return await MyStore.open(folder / "data", clock=clock, uptime=clock.uptime)

`behaves_like_memory` runs the machine. `saveslot.testing.faults` has wrappers that break one promise each, around any
store: the suite must fail on every one of them. Needs `pip install saveslot[testing]`.
"""

try:
    import hypothesis as hypothesis
    import pytest
except ModuleNotFoundError as exc:
    if exc.name not in {"hypothesis", "pytest"}:
        raise
    message = f"saveslot.testing needs {exc.name}: pip install 'saveslot[testing]'"
    raise ModuleNotFoundError(message, name=exc.name) from None

pytest.register_assert_rewrite("saveslot.testing.conformance", "saveslot.testing.machine")

from saveslot.testing.conformance import (  # noqa: E402  (after the line above, or asserts say little)
    StoreConformance,
    first_failure,
)
from saveslot.testing.machine import behaves_like_memory  # noqa: E402
from saveslot.testing.pen import Clock, Pen  # noqa: E402

__all__ = ["Clock", "Pen", "StoreConformance", "behaves_like_memory", "first_failure"]
