"""What every store must do, as one pytest class. Subclass it, say how your store is opened, run pytest.

The tests are plain functions (each runs its own event loop), so any async plugin, or none, will do. Each gets a new
folder and a namespace of its own; a store that ignores the folder (a server) may keep its data from test to test.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from saveslot.errors import SaveslotError
from saveslot.testing.conformance import desk
from saveslot.testing.conformance.appending import Appending
from saveslot.testing.conformance.calls import Calls
from saveslot.testing.conformance.chains import Chains
from saveslot.testing.conformance.finding import Finding
from saveslot.testing.conformance.keeping import Keeping
from saveslot.testing.conformance.living import Living
from saveslot.testing.conformance.naming import Naming
from saveslot.testing.conformance.owning import Owning
from saveslot.testing.conformance.states import States
from saveslot.testing.conformance.watching import Watching

__all__ = ["StoreConformance", "first_failure"]


class StoreConformance(Appending, Owning, Naming, Living, Finding, Calls, Chains, Keeping, States, Watching):
    """One topic a file; `open` is yours."""


def first_failure(suite: type[StoreConformance], folder: Path, patience: float = 2) -> str | None:
    """The name of the first test of the suite that fails, or None: for a store with a fault that you planted.

    Each test may take `patience` seconds: a store that hangs fails it too.
    """
    for name in [name for name in dir(suite) if name.startswith("test_")]:
        (folder / name).mkdir()
        tests = suite()
        getattr(tests, "setup_method", lambda: None)()
        with patch.object(desk, "PATIENCE", patience):
            try:
                getattr(tests, name)(folder / name)
            except (AssertionError, TimeoutError, SaveslotError):
                return name
    return None
