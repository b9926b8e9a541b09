"""How the command ends: the one place where an error's code becomes an exit code."""

from __future__ import annotations

from saveslot.errors import SaveslotError

OK, FAILURE, USAGE, CONFLICT, AUTH, NOT_FOUND, UNREACHABLE = range(7)
INTERRUPTED = 130  # as shells report a program that Ctrl-C ended
BROKEN_PIPE = 141  # the same for one whose reader went away

BY_CODE = {
    "not_found": NOT_FOUND,
    "conflict": CONFLICT,
    "already_exists": CONFLICT,
    "lease_held": CONFLICT,
    "lease_lost": CONFLICT,
    "invalid_transition": CONFLICT,
    "invalid_input": USAGE,
    "unauthorized": AUTH,
    "forbidden": AUTH,
    "unavailable": UNREACHABLE,
}


class Misuse(SaveslotError):
    """The command line itself makes no sense."""

    code = "invalid_input"


def exit_code(error: SaveslotError) -> int:
    return BY_CODE.get(error.code, FAILURE)
