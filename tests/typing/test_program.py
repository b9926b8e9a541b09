"""The program that `make types` checks: it must run, too."""

from __future__ import annotations

from tests.typing import program


async def test_async_program_runs():
    """What the type checkers accept is what the API does."""
    await program.main()


def test_blocking_program_runs():
    """The same through `saveslot.blocking`."""
    program.main_blocking()
