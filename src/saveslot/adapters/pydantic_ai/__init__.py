"""Pydantic AI: a store of its conversations, and runs that go on where they were. Extra: `pydantic-ai`."""

# ruff: noqa: E402  (the version of the framework is checked before it is imported)

from saveslot.adapters.access import require

require("pydantic-ai", "pydantic-ai-slim", "2.68", "3")

from saveslot.adapters.pydantic_ai.history import SaveslotMessageHistory
from saveslot.adapters.pydantic_ai.steps import SaveslotStepStore, idempotency_key

__all__ = ["SaveslotMessageHistory", "SaveslotStepStore", "idempotency_key"]
