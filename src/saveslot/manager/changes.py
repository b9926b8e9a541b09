"""The changes of a block of `together`: each checks its arguments, takes its session's turn, and drafts its entries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from saveslot.errors import Conflict, NotFound, SaveslotError
from saveslot.manager.checkpoints import check_ended
from saveslot.manager.create import begun, created, made, row_for, taken
from saveslot.manager.reading import get_session
from saveslot.manager.update import OWNERS_ALONE, advance, as_value, heartbeat, named as as_named, staged_draft
from saveslot.session.answers import answered
from saveslot.session.change import Author
from saveslot.session.draft import Draft, Save, creation
from saveslot.session.engine import Space, passerby
from saveslot.session.held import Held
from saveslot.session.log import Log
from saveslot.session.model import AgentSession, Checkpoint
from saveslot.session.refusals import overtaken, recreated
from saveslot.session.requests import entry_of
from saveslot.session.retries import Scope, content
from saveslot.values.checks import as_name
from saveslot.values.kinds import DATA_KINDS, Kind
from saveslot.values.lifecycle import TRANSITIONS
from saveslot.values.log import Verdict
from saveslot.values.versions import Version, as_version

Landed = Callable[[Any, Draft, Verdict], None]


class Again(Exception):
    """Something moved meanwhile: start over."""


class Plan:
    """One change. A repeated one is recognised by its content, which is seldom asked for: most callers stay."""

    request: bytes = b""
    value: AgentSession | None = None
    version: Version | None = None

    def __init__(self, sessions: Space, session_id: str, *what: object) -> None:
        self.sessions = sessions
        self.where: Scope = sessions.namespace, session_id
        self.scope = self.where
        self._what: tuple[object, ...] = (self.where, *what)  # nothing that changes later
        self.author: Author | None = None
        self.held: Held | None = None  # if this process holds the session
        self.log: Log | None = None
        self.draft: Draft | None = None
        self.over = False  # answered without a write
        self.answer: Any = None

    @property
    def content(self) -> Hashable:
        return content(type(self).__name__, *self._what)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)

    async def look_up(self) -> None:
        """Find the answer of a call that was made before with the same key."""

    async def enter(self, turns: AsyncExitStack) -> None:
        """Take the session's turn."""
        self.log = self.draft = None
        if self.over:
            return
        self.held = held_here(self.sessions, self.where)
        self.author = author = self.stranger() if self.held is None else self.held.winding_up
        self.log = log = await turns.enter_async_context(author.turn())
        log.refused = False
        try:
            await log.settle()
        except SaveslotError as exc:
            await self._retry(log, exc)

    async def draw(self) -> None:
        """Draft the entries, if there are any to write."""
        log, author = self.log, self.author
        if log is None or author is None:
            return
        try:
            await author.meet(log)
            if self.held is not None:
                await self._follow(self.held, log)
            draft = await self.drafted(log)
        except SaveslotError as exc:
            await self._retry(log, exc)
        draft.blind = author.blind
        if draft.group.entries:
            self.draft = draft

    async def _retry(self, log: Log, why: SaveslotError) -> NoReturn:
        if not log.refused or self.author is None:
            raise why
        await self.author.refused(log, self.draft, why)
        raise Again

    async def _follow(self, held: Held, log: Log) -> None:
        """Raise `Conflict` unless the version and the session value are those of the newest entry."""
        held.follow(self.version)
        if self.value is None:
            return
        seen, session_id = self.value.seen, self.where[1]
        if seen is None:
            raise Conflict(f"session {session_id}: this value was not read from the store; refresh it first")
        if seen.append_id == log.at.append_id:
            return
        head = await self.sessions.lookup.existing(session_id)
        if head.row.key != seen.key:
            raise recreated(session_id)
        if not await self.sessions.lookup.current(head, Version(seen.seq, seen.append_id)):
            raise overtaken(session_id, head, seen.seq)
        seen.seq, seen.append_id = log.at.seq, log.at.append_id or b""

    async def refused(self, log: Log, draft: Draft, why: SaveslotError) -> None:
        """Raise the caller's error, or return to try again."""
        if self.author is not None:
            await self.author.refused(log, draft, why)

    async def undo(self) -> None:
        """Nothing was stored: what drafting changed is read again."""
        if self.draft is None or self.log is None:
            return
        self.log.undo()
        if self.held is None:
            self.sessions.engine.cache.drop(self.where, self.log)
        else:
            with suppress(SaveslotError):  # the next verb reads it, or raises this
                await self.held.reload()

    async def repeats(self, first: Plan) -> bool:
        """True if the first call's entry is still the newest one."""
        if self.over or first.over:
            return True
        return self.log is not None and self.log.ends_with(first.draft)

    def adopt(self, first: Plan) -> None:
        if not self.over:
            self.over, self.answer, self.draft = first.over, first.answer, first.draft

    def result(self) -> Any:
        return self.answer if self.over else self.stored()

    @abstractmethod
    def stranger(self) -> Author:
        """Return the author of a write to a session that this process does not hold."""

    @abstractmethod
    async def drafted(self, log: Log) -> Draft: ...

    @abstractmethod
    def stored(self) -> Any: ...


class Saving(Plan):
    """A checkpoint."""

    def __init__(
        self, sessions: Space, session: AgentSession | str, given: tuple[Any, ...], seen: str | None, key: str | None
    ) -> None:
        save = Save(*given).checked().requested(key)
        self.value, session_id = as_named(session)
        self.version, self.request = as_version(seen), save.request
        where = sessions.namespace, as_name(session_id, "session_id")
        held = held_here(sessions, where)
        # Saving the working copy leaves it as it is, with what the caller changes before the block ends.
        self._own = held is not None and save.data is not None and save.data is held.working.data
        self._save = save.copied(sessions.engine.limit)
        super().__init__(sessions, where[1], self._save, self._own)

    async def look_up(self) -> None:
        if not self.over and self.request:
            self.answer = await answered(self.sessions, self.where[1], self.request)
            self.over = self.answer is not None

    def stranger(self) -> Author:
        return passerby(self.sessions, self.where[1], self.value, self.version, alone=True)

    async def drafted(self, log: Log) -> Draft:
        if await entry_of(self.sessions.engine.vault, log.key, self.request) is not None:
            raise Again
        if self.held is None:
            if log.at.state not in TRANSITIONS["checkpoint"]:
                await check_ended(self.sessions, log)
            draft = self._save.draft(log, await log.load_data())
        else:
            draft = self.held.saving(self._save, log, await log.load_data(), own=self._own)
        if self.value is not None:
            _then(draft, partial(advance, self.value))
        return draft

    async def refused(self, log: Log, draft: Draft, why: SaveslotError) -> None:
        try:
            await super().refused(log, draft, why)
        except Conflict:  # perhaps with the same call in another process
            await self.look_up()
            if not self.over:
                raise

    def stored(self) -> Checkpoint | None:
        return None if self.draft is None else self.draft.stored(Checkpoint)


class Creation(Plan):
    """A new session."""

    def __init__(
        self, sessions: Space, *args: Any, session_id: str | None, idempotency_key: str | None, **more: Any
    ) -> None:
        self._exist_ok = more.pop("exist_ok")
        given = {**more, "session_id": session_id, "idempotency_key": idempotency_key}
        self._session, self._draft, self.request = begun(sessions, *args, **given)
        row = row_for(sessions, self._session, self._draft)
        row.request = self.request
        self._draft.group = creation(row, self._draft)
        self._draft.landed = self._created
        what = [(entry.name, entry.note) for entry in self._draft.group.entries]
        states = [None if state is None else state.value() for state in (self._draft.at.about, self._draft.at.data)]
        super().__init__(sessions, self._session.session_id, *what, *states)
        if session_id is None:
            self.scope = sessions.namespace, self._session.agent_type
            self._what = (sessions.namespace, *what, *states)

    def _created(self, log: Log, draft: Draft, verdict: Verdict) -> None:
        created(self.sessions, self._session, log, draft, verdict)

    async def look_up(self) -> None:
        if not self.over:
            self.answer = await made(self.sessions, self.request)
            self.over = self.answer is not None

    async def enter(self, turns: AsyncExitStack) -> None:  # noqa: ARG002  (a new session has no turn)
        self.draft = None

    async def draw(self) -> None:
        if not self.over:
            self.draft = self._draft
            self.log = self.sessions.engine.cache.new(self.where, self._draft)

    async def refused(self, log: Log, draft: Draft, why: SaveslotError) -> None:  # noqa: ARG002
        if not isinstance(why, Conflict):
            raise why
        await self.look_up()
        if not self.over and self._exist_ok:
            self.answer = await get_session(self.sessions, self.where[1])
            self.over = self.answer is not None  # else it was deleted just now: try again
        elif not self.over:
            raise taken(self.sessions, self.where[1], why)

    async def undo(self) -> None: ...

    async def repeats(self, first: Plan) -> bool:
        return self.over or first.over or first.draft is not None

    def adopt(self, first: Plan) -> None:
        self.over, self.answer = True, first.result()

    def stored(self) -> AgentSession:
        return self._session


class Update(Plan):
    """What a session value has staged."""

    def __init__(self, sessions: Space, session: AgentSession, seen: str | None) -> None:
        self._value = self.value = as_value(session)
        self.version = as_version(seen)
        super().__init__(sessions, session.session_id)

    def stranger(self) -> Author:
        alone = any(item.kind in OWNERS_ALONE for item in self._value.staged)
        return passerby(self.sessions, self.where[1], self._value, self.version, alone=alone)

    async def drafted(self, log: Log) -> Draft:
        held = self.held
        draft = await staged_draft(log, self._value, self.sessions.engine.limit)
        if draft.group.entries and held is not None:
            draft.landed = held.landed
            _then(draft, partial(advance, self._value))
            if any(entry.kind in DATA_KINDS for entry in draft.group.entries):
                _then(draft, lambda _log, draft, _verdict: held.working.landed(None, draft.at.data))
        elif not draft.group.entries and held is None:
            await heartbeat(self.sessions, self._value, log)
        return draft

    async def repeats(self, first: Plan) -> bool:
        """What was staged since is not the first call's."""
        if self.log is None or not (first.draft is None or self.log.ends_with(first.draft)):
            return False
        return not (await staged_draft(self.log, self._value, self.sessions.engine.limit)).group.entries

    def stored(self) -> AgentSession:
        return self._value


class Deletion(Plan):
    """A tombstone."""

    def __init__(self, sessions: Space, id: str, seen: str | None) -> None:
        self.version = as_version(seen)
        super().__init__(sessions, as_name(id, "id"))

    def stranger(self) -> Author:
        return passerby(self.sessions, self.where[1], version=self.version, fresh=True, insists=True)

    async def enter(self, turns: AsyncExitStack) -> None:
        with suppress(NotFound):
            await super().enter(turns)

    async def draw(self) -> None:
        with suppress(NotFound):
            await super().draw()

    async def drafted(self, log: Log) -> Draft:
        draft = log.draft()
        draft.lifecycle(Kind.TOMBSTONE, "session_deleted", {})
        draft.group.delete = True
        draft.landed = self._gone
        return draft

    def _gone(self, log: Log, draft: Draft, _verdict: Verdict) -> None:  # noqa: ARG002
        self.sessions.engine.cache.drop(self.where)
        if self.held is not None:
            self.held.lose(NotFound(f"session {self.where[1]} was deleted; create it again to start over"))

    async def refused(self, log: Log, draft: Draft, why: SaveslotError) -> None:
        with suppress(NotFound):  # by another caller: the next attempt finds nothing to delete
            await super().refused(log, draft, why)

    async def repeats(self, first: Plan) -> bool:
        return self.log is None and (first.draft is not None or first.log is None)

    def stored(self) -> bool:
        return self.draft is not None


def held_here(sessions: Space, where: Scope) -> Held | None:
    """Return the session if this process holds it."""
    worker = sessions.engine.worker
    for holder in () if worker is None else [*worker.holders.values()]:
        if isinstance(holder, Held) and holder.where == where:
            return holder
    return None


def _then(draft: Draft, more: Landed) -> None:
    """Call `more` too when the draft lands."""
    first = draft.landed

    def landed(log: Any, draft: Draft, verdict: Verdict) -> None:
        if first is not None:
            first(log, draft, verdict)
        more(log, draft, verdict)

    draft.landed = landed


@contextmanager
def named(plan: Plan) -> Generator[None]:
    """Let an error's message say which session it is about."""
    try:
        yield
    except SaveslotError as exc:
        where = f"session {plan.where[1]}"
        if where not in str(exc):
            exc.args = (f"{where}: {exc}",)
        raise
