"""What each error code means outside Python: the status of an HTTP answer, and the exit code of a command."""

from __future__ import annotations

from typing import NamedTuple

OK, FAILURE, USAGE, CONFLICT, AUTH, NOT_FOUND, UNREACHABLE = range(7)


class Meaning(NamedTuple):
    status: int
    exit: int


# Two statuses depend on the request, too: a conflict under If-Match is 412, and the server sets another one where HTTP
# has its own, such as 415 for a content type.
CODES = {
    "not_found": Meaning(404, NOT_FOUND),
    "conflict": Meaning(409, CONFLICT),
    "already_exists": Meaning(409, CONFLICT),
    "lease_held": Meaning(409, CONFLICT),
    "lease_lost": Meaning(409, CONFLICT),
    "invalid_transition": Meaning(409, CONFLICT),
    "cancelled": Meaning(409, CONFLICT),
    "step_unknown": Meaning(409, FAILURE),
    "step_failed": Meaning(409, FAILURE),
    "history_lost": Meaning(409, FAILURE),
    "key_missing": Meaning(409, AUTH),
    "wrong_key": Meaning(409, AUTH),
    "invalid_input": Meaning(422, USAGE),
    "too_large": Meaning(413, FAILURE),
    "quota_exceeded": Meaning(429, FAILURE),
    "unauthorized": Meaning(401, AUTH),
    "forbidden": Meaning(403, AUTH),
    "corrupt": Meaning(500, FAILURE),
    "error": Meaning(500, FAILURE),
    "unavailable": Meaning(503, UNREACHABLE),
}


def meaning(code: str) -> Meaning:
    """Return what a code means; one of a newer version, or of somebody else's error, is a plain `error`."""
    return CODES.get(code, CODES["error"])
