"""Errors as answers: problem+json (RFC 9457) with the stable codes of `saveslot.errors`.

    HTTP/1.1 404 Not Found
    content-type: application/problem+json

    {"type": "urn:saveslot:error:not_found", "title": "Not Found", "status": 404,
     "detail": "no session s1 in namespace default", "code": "not_found", "message": "no session s1 …"}

`code`, `message` and the fields after them are those of `SaveslotError.to_dict`, so `errors.from_dict` rebuilds it; but
where the library's message advises a Python call, this one names the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from saveslot.errors import QuotaExceeded, SaveslotError
from saveslot.values.advice import reworded
from saveslot.values.codes import meaning

PROBLEM = "application/problem+json"
# Seconds after which a client may try again when the store or the server was busy.
RETRY_AFTER = "1"


class Problem(Exception):
    """An error whose status is not that of its code."""

    def __init__(
        self,
        status: int,
        error: SaveslotError,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers or {}
        self.more = more or {}  # fields of the answer beside those of the error


def status_of(error: SaveslotError, *, conditional: bool = False) -> int:
    """Return the status of an error. `conditional`: the request had If-Match, so a conflict is a failed condition."""
    return 412 if conditional and error.code == "conflict" else meaning(error.code).status


def problem(
    error: SaveslotError,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    request_id: str = "",
    more: Mapping[str, Any] | None = None,
) -> Response:
    status = status_of(error) if status is None else status
    message = reworded(str(error), "request")
    fields: dict[str, Any] = {
        "type": f"urn:saveslot:error:{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        **error.to_dict(),
        "message": message,
        **(more or {}),
    }
    if request_id:
        fields["request_id"] = request_id
    extra = dict(headers or {})
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        extra.setdefault("retry-after", RETRY_AFTER)
    if isinstance(error, QuotaExceeded) and error.retry_after:
        extra.setdefault("retry-after", str(error.retry_after))
    if status == HTTPStatus.UNAUTHORIZED:
        extra.setdefault("www-authenticate", 'Bearer realm="saveslot"')
    return Response(msgspec.json.encode(fields), status, extra, PROBLEM)
