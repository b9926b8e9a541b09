"""Types that the signatures of the public API use, for annotations in your code."""

from __future__ import annotations

from saveslot.checkpoints.files import Quarantined
from saveslot.checkpoints.files.document import Document
from saveslot.codec import Keys
from saveslot.manager.gc import Progress
from saveslot.manager.keeper import Keeper, Takeover
from saveslot.manager.reading import Order
from saveslot.manager.together import Change, Together
from saveslot.session.attempts import Limit
from saveslot.session.retention import Rules
from saveslot.session.step_calls import StepCall
from saveslot.session.steps import Mode, OnUnknown
from saveslot.stores import Store
from saveslot.stores.around.cached import Level
from saveslot.values.checks import Data, Span

__all__ = [
    "Change",
    "Data",
    "Document",
    "Keeper",
    "Keys",
    "Level",
    "Limit",
    "Mode",
    "OnUnknown",
    "Order",
    "Progress",
    "Quarantined",
    "Rules",
    "Span",
    "StepCall",
    "Store",
    "Takeover",
    "Together",
]
