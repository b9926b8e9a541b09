"""`/v1/sessions/{id}/steps`: the journal of effects, and how an operator settles one whose outcome is unknown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from saveslot.errors import InvalidInput
from saveslot.manager.steps import list_steps, resolve_step, retry_step
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.v1.answers import Page, Time, Value
from saveslot.server.v1.conditions import IF_MATCH, check

TAG = "Steps"


class SessionStep(Struct):
    """A step of a session. `result` is that of a finished one."""

    name: str
    key: str | None
    state: Literal["finished", "failed", "running", "unknown", "retrying", "retry"]
    idempotency_key: Annotated[str, Meta(description="The same for every run of the step.")]
    at: Time | None
    error: str
    seq: Annotated[int, Meta(description="The newest entry about it.")]
    attempts: int
    result: Value


class Settlement(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either the step's result, or that it did not happen and is to run again."""

    result: Annotated[Value, Meta(description="It happened: the next owner gets this.")] | UnsetType = UNSET
    retry: Annotated[bool, Meta(description="It did not: the next call runs it, by the same idempotency key.")] = False


class SettledStep(Struct):
    name: str
    key: str | None
    seq: Annotated[int, Meta(description="The entry that says so.")]


async def show(call: Call) -> Response:
    lines = await list_steps(call.sessions, call.path["id"])
    return call.json({"items": [line.to_dict() for line in lines], "next": None})


async def settle(call: Call) -> Response:
    settlement: Settlement = call.content
    name, key = call.path["name"], call.path.get("key")
    if (settlement.result is UNSET) == (not settlement.retry):
        raise InvalidInput("result", "excludes retry; pass one of the two")
    await check(call)
    if settlement.retry:
        seq = await retry_step(call.sessions, call.path["id"], name, key=key)
    else:
        seq = await resolve_step(call.sessions, call.path["id"], name, settlement.result, key=key)
    return call.json({"name": name, "key": key, "seq": seq})


async def settle_without_key(call: Call) -> Response:
    return await settle(call)


def _settling(path: str, respond: Callable[[Call], Awaitable[Response]], summary: str) -> Route:
    return Route(
        "POST",
        f"/v1/sessions/{{id}}/steps/{path}",
        "write",
        respond,
        summary,
        takes=Settlement,
        gives=SettledStep,
        headers=(IF_MATCH,),
        errors=("conflict", "lease_held", "invalid_transition"),
        tag=TAG,
        description="Refused while a living worker holds the session: it alone knows.",
    )


ROUTES = [
    Route(
        "GET",
        "/v1/sessions/{id}/steps",
        "read",
        show,
        "List the steps of a session, with results and attempts.",
        gives=Page[SessionStep],
        tag=TAG,
    ),
    _settling("{name}", settle_without_key, "Settle a failed or unknown step that has no key."),
    _settling("{name}/{key}", settle, "Settle a failed or unknown step."),
]
