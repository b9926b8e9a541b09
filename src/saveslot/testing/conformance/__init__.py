"""What every store must do, as one pytest class. Subclass it, say how your store is opened, run pytest.

The tests are plain functions (each runs its own event loop), so any async plugin, or none, will do. Each gets a new
folder and a namespace of its own; a store that ignores the folder (a server) may keep its data from test to test.
"""

from __future__ import annotations

from saveslot.testing.conformance.appending import Appending
from saveslot.testing.conformance.finding import Finding
from saveslot.testing.conformance.keeping import Keeping
from saveslot.testing.conformance.living import Living
from saveslot.testing.conformance.naming import Naming
from saveslot.testing.conformance.owning import Owning
from saveslot.testing.conformance.watching import Watching

__all__ = ["StoreConformance"]


class StoreConformance(Appending, Owning, Naming, Living, Finding, Keeping, Watching):
    """One topic a file; `open` is yours."""
