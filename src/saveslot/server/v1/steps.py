"""`/v1/sessions/{id}/steps`: effects that happen once. The holder of a lease begins and ends them; an operator settles
one whose outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from saveslot.errors import InvalidInput
from saveslot.manager.lease_steps import StepRun, begin_step, end_step
from saveslot.manager.steps import list_steps, resolve_step, retry_step, settled_before, settling
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.v1.answers import Page, Time, Value
from saveslot.server.v1.conditions import IF_MATCH, KEY, LEASE, check, key
from saveslot.server.v1.sessions import Id
from saveslot.session.step_calls import Options

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


class NewStep(Struct, forbid_unknown_fields=True, kw_only=True):
    """A step to begin. Its name and key identify it for the session's whole life."""

    name: Id
    key: Id | None = None
    mode: Annotated[
        Literal["idempotent", "at_most_once"],
        Meta(description="`at_most_once`: its start is in the log before it runs, and it is not run again after that."),
    ] = "idempotent"
    on_unknown: Annotated[
        Literal["fail", "skip", "retry"], Meta(description="What to do with one that started, and may have finished.")
    ] = "fail"
    retry: Annotated[bool, Meta(description="Run it again if it has failed.")] = False
    retries: Annotated[int, Meta(ge=0, description="Attempts after the first one.")] = 0
    backoff: Annotated[float, Meta(ge=0, description="Seconds before the second attempt; then doubled.")] = 1.0


class Settlement(Struct, forbid_unknown_fields=True, kw_only=True):
    """How a step ended. Under a lease either `result` or `error`; without one either `result` or `retry`."""

    result: Annotated[Value, Meta(description="It happened: whoever asks for it again gets this.")] | UnsetType = UNSET
    error: Annotated[str | None, Meta(description="Under a lease: why the attempt failed.")] = None
    again: Annotated[bool, Meta(description="With `error`: another attempt follows.")] = False
    retry: Annotated[bool, Meta(description="It did not: the next call runs it, by the same idempotency key.")] = False


class SettledStep(Struct):
    name: str
    key: str | None
    seq: Annotated[int, Meta(description="The entry that says so.")]


async def show(call: Call) -> Response:
    lines = await list_steps(call.sessions, call.path["id"])
    return call.json({"items": [line.to_dict() for line in lines], "next": None})


async def begin(call: Call) -> Response:
    new: NewStep = call.content
    lease = call.headers.get("saveslot-lease")
    if lease is None:
        await check(call)
        raise InvalidInput("Saveslot-Lease", "is required: a step runs under a lease; POST lease takes one")
    options = Options(new.key, new.mode, new.on_unknown, new.retry, new.retries, new.backoff)
    run = await begin_step(call.sessions, call.path["id"], lease, new.name, options, key(call))
    return call.json(run.to_dict())


async def settle(call: Call) -> Response:
    settlement: Settlement = call.content
    session_id, name, step_key = call.path["id"], call.path["name"], call.path.get("key")
    lease, result = call.headers.get("saveslot-lease"), settlement.result
    if [result is not UNSET, settlement.retry, settlement.error is not None].count(True) != 1:
        raise InvalidInput("result", "excludes error and retry; pass one of the three")
    if settlement.again and settlement.error is None:
        raise InvalidInput("again", "goes with error")
    if lease is not None:
        if settlement.retry:
            raise InvalidInput("retry", "is for callers without a lease; its holder begins the step again, with retry")
        seq = await end_step(
            call.sessions,
            session_id,
            lease,
            name,
            step_key,
            result=None if result is UNSET else result,
            error=settlement.error,
            again=settlement.again,
            idempotency_key=key(call),
        )
    else:
        if settlement.error is not None:
            raise InvalidInput("error", "needs the lease that the step ran under, in Saveslot-Lease")
        outcome = {"retry": True} if settlement.retry else {"result": result}
        call_id = settling(key(call), name, step_key, **outcome)
        seq = await settled_before(call.sessions, session_id, call_id)
        if seq is None:
            await check(call)
            settle_it = retry_step if settlement.retry else partial(resolve_step, result=result)
            seq = await settle_it(call.sessions, session_id, name, key=step_key, request=call_id)
    return call.json({"name": name, "key": step_key, "seq": seq})


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
        headers=(IF_MATCH, LEASE, KEY),
        errors=("conflict", "lease_held", "lease_lost", "invalid_transition"),
        tag=TAG,
        description="The holder of a lease ends a step that it began. Without a lease, an operator settles a failed or "
        "unknown one, which is refused while a living worker holds the session: it alone knows.",
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
    Route(
        "POST",
        "/v1/sessions/{id}/steps",
        "write",
        begin,
        "Begin a step under a lease: the answer is its result, or how to run it.",
        takes=NewStep,
        gives=StepRun,
        headers=(LEASE._replace(required=True), KEY),
        errors=("conflict", "lease_lost", "cancelled", "invalid_transition", "step_failed", "step_unknown"),
        tag=TAG,
        description="With `state: run` do the work, pass on `idempotency_key` to what you call, and POST the result or "
        "error to the step. With `finished` take `result`, and do nothing.",
    ),
    _settling("{name}", settle_without_key, "End or settle a step that has no key."),
    _settling("{name}/{key}", settle, "End or settle a step."),
]
