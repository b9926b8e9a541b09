"""`together`: changes to several sessions that are stored in one commit, or not at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from saveslot.errors import InvalidInput, SaveslotError
from saveslot.manager.changes import Again, Creation, Deletion, Plan, Saving, Update, named
from saveslot.session.attempts import Limit
from saveslot.session.engine import Space
from saveslot.session.joint import Joint
from saveslot.session.model import AgentSession, Checkpoint
from saveslot.session.retention import Retention
from saveslot.session.retries import CALL, Scope, once_in
from saveslot.values.checks import Data

R = TypeVar("R")

BLOCK = "write `async with sessions.together() as t:`"


class Change(Generic[R]):
    """One change of a block; `result` is what the verb returns, once the block has ended."""

    def __init__(self, session_id: str) -> None:
        self.session_id: str = session_id
        self._results: list[R] = []

    def __repr__(self) -> str:
        return f"<change of {self.session_id}{' stored' if self._results else ''}>"

    def to_dict(self) -> Data:
        """Its session and, once stored, its result."""
        result: Any = self._results[0] if self._results else None
        return {"session_id": self.session_id, "result": result.to_dict() if hasattr(result, "to_dict") else result}

    @property
    def result(self) -> R:
        if not self._results:
            raise InvalidInput("result", f"of {self.session_id}: is known when the block has ended without an error")
        return self._results[0]

    def settle(self, result: R) -> None:
        self._results = [result]


class Together:
    """The verbs of a block: they check and copy their arguments at once, and write nothing."""

    def __init__(self, sessions: Space) -> None:
        self._sessions = sessions
        self._plans: dict[str, tuple[Plan, Change[Any]]] = {}
        self.ended = False

    def checkpoint(
        self,
        session: AgentSession | str,
        name: str,
        data: Data | None = None,
        metadata: Data | None = None,
        *,
        put: Mapping[str, Any] | None = None,
        drop: Collection[str] | None = None,
        append: Mapping[str, Sequence[Any]] | None = None,
        cut: Mapping[str, int] | None = None,
        patch: Sequence[Mapping[str, Any]] | None = None,
        seen: str | None = None,
        idempotency_key: str | None = None,
    ) -> Change[Checkpoint]:
        """Like `sessions.checkpoint`; also of a session that this process holds."""
        return self._add(
            Saving(
                self._sessions,
                session,
                (name, data, metadata, put, drop, append, cut, patch),
                seen,
                idempotency_key,
            )
        )

    def create_session(
        self,
        agent_type: str,
        user_id: str = "",
        context: Data | None = None,
        metadata: Data | None = None,
        *,
        labels: dict[str, str] | None = None,
        session_id: str | None = None,
        retention: Retention | None = None,
        max_attempts: Limit = ...,
        data: Data | None = None,
        name: str = "created",
        exist_ok: bool = False,
        idempotency_key: str | None = None,
    ) -> Change[AgentSession]:
        """Like `sessions.create_session`; the change's `session_id` is the new one's."""
        return self._add(
            Creation(
                self._sessions,
                agent_type,
                user_id,
                context,
                metadata,
                labels=labels,
                session_id=session_id,
                retention=retention,
                max_attempts=max_attempts,
                data=data,
                name=name,
                exist_ok=exist_ok,
                idempotency_key=idempotency_key,
            )
        )

    def update_session(self, session: AgentSession, *, seen: str | None = None) -> Change[AgentSession]:
        """Like `sessions.update_session`: stores what the value has staged when the block ends."""
        return self._add(Update(self._sessions, session, seen))

    def delete_session(self, id: str, *, seen: str | None = None) -> Change[bool]:
        """Like `sessions.delete_session`; the result is False if there was no such session."""
        return self._add(Deletion(self._sessions, id, seen))

    def _add(self, plan: Plan) -> Change[Any]:
        if self.ended:
            raise InvalidInput("together", "the block has ended; open another one")
        session_id = plan.where[1]
        if session_id in self._plans:
            raise InvalidInput("together", f"session {session_id} has a change already: a block makes one per session")
        if plan.request and any(isinstance(plan, Creation) and plan.request == p.request for p, _ in self._made()):
            raise InvalidInput("idempotency_key", f"of session {session_id} is that of another creation in this block")
        change = Change[Any](session_id)
        self._plans[session_id] = plan, change
        return change

    def _made(self) -> list[tuple[Plan, Change[Any]]]:
        return [plan for plan in self._plans.values() if isinstance(plan[0], Creation)]

    async def landed(self) -> None:
        """Store what was gathered."""
        if self._plans:
            plans, changes = zip(*self._plans.values(), strict=True)
            for change, result in zip(changes, await land(self._sessions, *plans), strict=True):
                change.settle(result)

    def __dir__(self) -> list[str]:
        return ["checkpoint", "create_session", "delete_session", "update_session"]


class AsyncTogether(Together):
    """The block of `together`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended = True
        if error is None:
            await self.landed()

    def __repr__(self) -> str:
        return f"<together {len(self._plans)} changes: {BLOCK}>"

    if not TYPE_CHECKING:  # or a type checker would accept it

        def __enter__(self) -> Any:
            raise TypeError(BLOCK)

        def __exit__(self, *_: object) -> None: ...


def together(sessions: Space) -> AsyncTogether:
    """Change several sessions in one commit: `async with sessions.together() as t:`, then `t.checkpoint(…)`,
    `t.create_session(…)`, `t.update_session(…)`, `t.delete_session(…)`.

    The calls only gather, with their arguments as they are then, at most one per session. When the block ends, all of
    them are stored, or none: an exception in the block stores nothing, and so does any refusal, whose error says which
    session it is about. Each call returns a `Change`; its `result` is what the verb returns, once the block has ended.

    A session that this process holds is written with its lease, and `held.data` follows. A block whose caller was
    cancelled lands as a whole; the same block again gets its results, in this process and while its entries are the
    newest of their sessions. To repeat it from anywhere, give each checkpoint and creation an `idempotency_key`: one
    that was stored before is not stored again.
    """
    return AsyncTogether(sessions)


def _scope(_sessions: object, plan: Any) -> Scope:
    return plan.scope


@once_in(_scope)
async def land(sessions: Space, *plans: Plan) -> list[Any]:
    """Store all of them, or none; return their results."""
    while True:
        for plan in plans:
            with named(plan):
                await plan.look_up()
        try:
            if await _attempt(sessions, plans):
                return [plan.result() for plan in plans]
        except Again:
            continue


async def _attempt(sessions: Space, plans: Sequence[Plan]) -> bool:
    """Take the turns of all sessions, in an order that all blocks share, then draft and send."""
    call = CALL.get()
    before: Joint | None = None if call is None or call.draft is None else call.draft.joint
    if before is not None and not await before.landed():
        before = None
    async with AsyncExitStack() as turns:
        try:
            for plan in sorted(plans, key=lambda plan: plan.where):
                with named(plan):
                    await plan.enter(turns)
            if before is not None:
                pairs = [*zip(plans, before.changes, strict=True)]
                if all([await plan.repeats(first) for plan, first in pairs]):
                    for plan, first in pairs:
                        plan.adopt(first)
                    return True
            for plan in plans:
                with named(plan):
                    await plan.draw()
        except BaseException:
            await _undo(plans)
            raise
        parts = [(plan, plan.log, plan.draft) for plan in plans if plan.log is not None and plan.draft is not None]
        if not parts:
            return True
        joint = Joint(sessions.engine.vault, [(log, draft) for _, log, draft in parts])
        joint.changes = plans
        if call is not None:
            call.draft = parts[0][2]
        try:
            errors = await joint.send()
        except SaveslotError:
            if joint.known:
                await _undo(plans)
            raise
        if errors:
            await _undo([plan for plan, log, _ in parts if log not in errors])
            for plan, log, draft in parts:
                if log in errors:
                    with named(plan):
                        await plan.refused(log, draft, errors[log])
            return False
        for plan, _, draft in parts:
            sessions.calls.moved(plan.where, draft)
        return True


async def _undo(plans: Sequence[Plan]) -> None:
    for plan in plans:
        await plan.undo()
