"""Steps of a session that a program elsewhere holds by a lease: it begins one, does the work, and says how it ended.

The journal is that of `held.step`: whoever takes the session over, in any language, gets the results that are there,
and learns of a step that was begun and not ended.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from saveslot.errors import InvalidInput
from saveslot.manager.leases import under
from saveslot.manager.steps import settled_before
from saveslot.session import steps
from saveslot.session.engine import Space
from saveslot.session.held import Held
from saveslot.session.requests import entry_of, request
from saveslot.session.runs import Run
from saveslot.session.step_calls import Options, StepCall
from saveslot.session.steps import Step
from saveslot.values.checks import Data


class StepRun(msgspec.Struct, frozen=True):
    """A step to run now, or one that has a result. `pause`: seconds to wait before this attempt."""

    name: str
    key: str | None
    state: Literal["run", "finished"]
    idempotency_key: str
    attempt: int
    pause: float = 0.0
    result: Any = None

    def to_dict(self) -> Data:
        return msgspec.structs.asdict(self)


async def begin_step(
    sessions: Space, id: str, lease_id: str, name: str, options: Options, idempotency_key: str | None = None
) -> StepRun:
    """Return the result of a finished step, or how to run it; the start of one that runs at most once is durable then.

    The same call with the same `idempotency_key` gets the same attempt. Raises as `held.step` does.
    """
    call = StepCall[None](name, _nothing, (), {}, options.checked())
    steps.checked(name, options.key, options.mode, options.on_unknown)
    content = {"name": name, **{part: getattr(options, part) for part in ("key", "mode", "on_unknown", "retry")}}
    call_id = request(idempotency_key, "begin_step", content)

    async def begin(held: Held) -> StepRun:
        earlier = await entry_of(sessions.engine.vault, held.key, call_id)
        # A start under another lease was another worker's, which may have done the work.
        if earlier is not None and earlier.fence == held.fence:
            step = await _journaled(held, name, options.key)
            if step.seq == earlier.seq and step.state == "started":
                return _run(step, step.attempts)
        run = await held.runs.begin(call, request=call_id if earlier is None else b"")
        try:
            await held.runs.prepare(run)
        finally:
            run.end()
        if run.done:
            return StepRun(name, options.key, "finished", run.step.idempotency_key, run.attempt, result=run.result)
        return _run(run.step, run.attempt, run.pause)

    return await under(sessions, id, lease_id, None, begin, fresh=True)


async def end_step(
    sessions: Space,
    id: str,
    lease_id: str,
    name: str,
    key: str | None,
    *,
    result: Any = None,
    error: str | None = None,
    again: bool = False,
    idempotency_key: str | None = None,
) -> int:
    """Journal a step's result, or its error, `again` if another attempt follows; return the entry's number.

    The same call with the same `idempotency_key` gets the same number, also when the lease has ended meanwhile.
    """
    content = {"name": name, "key": key, "result": result, "error": error, "again": again}
    call_id = request(idempotency_key, "end_step", content)

    if (before := await settled_before(sessions, id, call_id)) is not None:
        return before

    async def end(held: Held) -> int:
        if (earlier := await entry_of(sessions.engine.vault, held.key, call_id)) is not None:
            return earlier.seq
        step = await _journaled(held, name, key)
        if step.state == "finished":
            raise InvalidInput("name", f"step {steps.label(step)} finished at {step.at}; its result stays")
        run = Run(step, Options(key=key), attempt=max(1, step.attempts + (step.state == "retrying")))
        run.request = call_id
        if error is None:
            await held.runs.finish(run, result)
        else:
            await held.runs.fail(run, error[: steps.MAX_ERROR], again=again)
        return (await _journaled(held, name, key)).seq

    return await under(sessions, id, lease_id, None, end)


async def _journaled(held: Held, name: str, key: str | None) -> Step:
    known = {(step.name, step.key): step for step in await held.runs.steps()}
    return known.get((name, key)) or steps.Journal(held.id, held.key).new(name, key)


def _run(step: Step, attempt: int, pause: float = 0.0) -> StepRun:
    return StepRun(step.name, step.key, "run", step.idempotency_key, attempt, round(pause, 3))


def _nothing() -> None: ...
