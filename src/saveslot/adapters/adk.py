"""Google ADK: a session service whose conversations are sessions. Extra: `adk`.

A conversation's state is `{"state": {…}, "events": […], "last_update_time": …}`; each event is a checkpoint, named by
its author. State that conversations share (`app:`, `user:`) is in sessions of its own, and what an event changes of
them is stored in the same commit as the event. `moving/adk.py` shows their names.
"""

# ruff: noqa: E402  (the version of the framework is checked before it is imported)

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, cast

from saveslot import blocking
from saveslot.adapters.access import Access, require
from saveslot.adapters.follow import New, Sight, Turns, look, look_at_all, own_hold, settled, write
from saveslot.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from saveslot.manager import SessionManager
from saveslot.manager.changes import Creation, Plan, Saving
from saveslot.manager.create import create_paused
from saveslot.manager.together import land
from saveslot.moving.adk import (
    APP,
    APP_PREFIX,
    CONVERSATION,
    EVENTS,
    SHARED,
    STATE,
    UPDATED,
    USER_PREFIX,
    Place,
    name_of,
    shared,
    split,
)
from saveslot.session.model import Seen
from saveslot.values.checks import Data, copied
from saveslot.values.ids import fit

require("adk", "google-adk", "2.13", "2.14")

from google.adk.cli.service_registry import get_service_registry
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time, uuid as platform_uuid
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from pydantic_core import PydanticSerializationError, to_jsonable_python

# Conversations whose newest entry and state are kept in memory, so that an event costs no read.
MOST_KNOWN = 1000
# Conversations per page of a list, and how many states are read at once.
PAGE, AT_ONCE = 1000, 32
# URL schemes after `saveslot+`.
SCHEMES = ("sqlite", "postgresql", "postgres", "valkey", "valkeys", "redis", "rediss", "http", "https")


class Known(NamedTuple):
    """What this process knows of a conversation."""

    sight: Sight
    state: Data  # its own part
    last: Data | None = None  # its newest event, if it was read

    @property
    def marker(self) -> str:
        """What a session that ADK holds was read at: equal as long as no event was added."""
        return f"{self.sight.data_seq}.{self.sight.key.hex()}"


class SaveslotSessionService(BaseSessionService):
    """A session service: `Runner(agent=…, app_name=…, session_service=SaveslotSessionService(url))`.

    An event follows what its run has read: if another run added events meanwhile, it is a `StaleSessionError`, and
    nothing of it is stored. Inside a `sessions.hold(service.saveslot_id(…))` by this process, events carry its lease,
    and other processes get `LeaseHeld`.

    `sessions` is an open manager; otherwise `url` and `options` are those of `saveslot.open`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: SessionManager | blocking.SessionManager | None = None,
        namespace: str | None = None,
        **options: Any,
    ) -> None:
        self._access = Access(url, sessions=sessions, namespace=namespace, **options)
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._turns = Turns()  # the parallel branches of a run share its session

    def __repr__(self) -> str:
        return f"<SaveslotSessionService on {self._access!r}>"

    def saveslot_id(self, *, app_name: str, user_id: str, session_id: str) -> str:
        """Return the id of a conversation's session, to hold or to look at."""
        return Place(app_name, user_id, session_id.strip()).id

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a conversation; what its state sets of the shared state is stored in the same commit."""
        place = Place(app_name, user_id, (session_id or "").strip() or platform_uuid.new_uuid())
        parts = split(_jsonable(state or {}, "state"))
        now = platform_time.get_time()
        data: Data = {STATE: parts[""], EVENTS: [], UPDATED: now}

        async def create(sessions: SessionManager) -> Session:
            about: Data = {"session_id": place.id, "context": place.context, "labels": place.labels, "data": data}
            while True:
                plan = Creation(
                    sessions, CONVERSATION, fit(user_id), **about, paused=True, exist_ok=False, idempotency_key=None
                )
                try:
                    [created, *_] = await self._land(sessions, place, plan, parts)
                except AlreadyExists as exc:
                    raise AlreadyExistsError(str(exc)) from exc
                except Conflict:  # in the shared state
                    continue
                break
            seen = cast("Seen", created.seen)
            sight = Sight(seen.key, created.version, seen.seq)
            self._keep(place, Known(sight, copied(parts[""])))
            return _session(place, data, sight, await _shared(sessions, app_name, user_id), [])

        return await settled(self._access.call(create))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a conversation with its events, or those that `config` asks for; None if there is no such one."""
        place = Place(app_name, user_id, session_id.strip())
        return await self._access.call(lambda sessions: self._read(sessions, place, config))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the conversations of an app, or of one of its users, with their states, without events: the one that
        changed last is the last.
        """

        async def listed(sessions: SessionManager) -> list[Session]:
            places = [place async for place in _found(sessions, app_name, user_id)]
            read: list[tuple[Place, Data, Sight]] = []
            for start in range(0, len(places), AT_ONCE):
                some = places[start : start + AT_ONCE]
                looks = await asyncio.gather(*(look(sessions, place.id, {}, [STATE, UPDATED]) for place in some))
                read += [(place, *seen) for place, seen in zip(some, looks, strict=True) if UPDATED in seen[0]]
            users = {place.user_id for place, _, _ in read}
            states = dict(
                zip(users, await asyncio.gather(*(_shared(sessions, app_name, u) for u in users)), strict=True)
            )
            return [_session(place, data, sight, states[place.user_id], []) for place, data, sight in read]

        found = await self._access.call(listed)
        return ListSessionsResponse(sessions=sorted(found, key=lambda one: (one.last_update_time, one.user_id, one.id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a conversation; the state that it shares stays."""
        place = Place(app_name, user_id, session_id.strip())

        async def delete(sessions: SessionManager) -> None:
            self._known.pop(place.id, None)
            await sessions.delete_session(place.id)

        await settled(self._access.call(delete))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return a user's shared state, its keys without `user:`."""
        name = shared(app_name, user_id)[USER_PREFIX]
        state, _ = await self._access.call(lambda sessions: look(sessions, name, None))
        return state

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event, with all that it changes, after what `session` shows; partial ones are not stored."""
        if event.partial or (session.events and session.events[-1].id == event.id and session.events[-1] == event):
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        item = _dumped(event)
        parts = split(_jsonable(event.actions.state_delta, "state_delta"))
        place = Place(session.app_name, session.user_id, session.id)

        async def append(sessions: SessionManager) -> None:
            async with self._turns.of(place.id):
                marker = await self._append(sessions, place, session, item, parts)
                session.last_update_time = event.timestamp
                session._storage_update_marker = marker  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                self._commit_event_to_session(session, event)

        await settled(self._access.call(append))
        return event

    async def close(self) -> None:
        """Close what this object opened."""
        await self._access.close()

    # Writes

    async def _append(
        self, sessions: SessionManager, place: Place, session: Session, item: Data, parts: dict[str, Data]
    ) -> str:
        """Store an event, and return the session's new marker."""
        while True:
            known = await self._met(sessions, place, session, item)
            if known.last == item:  # stored by a call that was cancelled, or whose answer was lost
                return known.marker
            state = known.state | parts[""]
            put: Data = {UPDATED: item["timestamp"]} | ({STATE: state} if parts[""] else {})
            change: Data = {"append": {EVENTS: [item]}, "put": put}
            self._known.pop(place.id, None)  # until it is known what became of the write
            try:
                if parts[APP_PREFIX] or parts[USER_PREFIX]:
                    held = own_hold(sessions, place.id) is not None
                    given = (name_of(item), None, None, put, None, change["append"], None, None)
                    seen = None if held else known.sight.version
                    [saved, *_] = await self._land(
                        sessions, place, Saving(sessions, place.id, given, seen, None), parts
                    )
                    sight = Sight(known.sight.key, saved.version, saved.seq)
                else:
                    new = New(CONVERSATION, place.id)
                    sight = await write(sessions, new, name_of(item), known.sight, change)
            except (Conflict, NotFound):  # perhaps by an entry without data, or in the shared state: look again
                continue
            return self._keep(place, Known(sight, state)).marker

    async def _met(self, sessions: SessionManager, place: Place, session: Session, item: Data) -> Known:
        """Return what the store has, if `session` shows it, or if its newest event is this one."""
        seen: str | None = session._storage_update_marker  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        known = self._known.get(place.id)
        if known is not None and known.marker == seen:
            return known
        data, sight = await look(sessions, place.id, {EVENTS: 1}, [STATE, UPDATED])
        if UPDATED not in data:
            raise SessionNotFoundError(f"session {place.id} is not there; it was deleted, or never created")
        last = next(iter(data[EVENTS]), None)
        known = Known(sight, data[STATE], last)
        if seen is None:  # made by hand: its events tell what it shows
            newest = session.events[-1].id if session.events else None
            fresh = newest == (None if last is None else last["id"])
        else:
            fresh = known.marker == seen
        if not fresh and last != item:
            raise StaleSessionError(
                f"session {place.id}: another caller changed it after this one read it; event {item['id']} was not "
                "stored: read the session again (get_session), for a conversation by another run"
            )
        return known

    async def _land(self, sessions: SessionManager, place: Place, plan: Plan, parts: dict[str, Data]) -> list[Any]:
        """Write to a conversation and the state that it shares, in one commit."""
        changed = {name: parts[prefix] for prefix, name in place.shared.items() if parts[prefix]}
        while True:
            saves = [
                Saving(sessions, name, ("changed", None, None, delta, None, None, None, None), None, None)
                for name, delta in changed.items()
            ]
            try:
                return await land(sessions, plan, *saves)
            except NotFound:
                if not await _begin(sessions, place, changed):
                    raise
            except Conflict:
                for name in changed:
                    await sessions.head(name)  # the next attempt follows what is there now
                raise

    async def _read(self, sessions: SessionManager, place: Place, config: GetSessionConfig | None) -> Session | None:
        newest = None if config is None else config.num_recent_events
        last = None if newest is None else {EVENTS: newest}
        # The shared state after the events, so that what they changed is there.
        names = shared(place.app_name, place.user_id)
        wanted = (place.id, last, [STATE, UPDATED]), *((name, None, ()) for name in names.values())
        [(data, sight), *states] = await look_at_all(sessions, *wanted)
        if UPDATED not in data:
            return None
        session = _session(place, data, sight, _prefixed(names, states), _events(data[EVENTS], config))
        self._keep(place, Known(sight, copied(data[STATE])))
        return session

    def _keep(self, place: Place, known: Known) -> Known:
        self._known[place.id] = known
        self._known.move_to_end(place.id)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return known


async def _begin(sessions: SessionManager, place: Place, names: Iterable[str]) -> bool:
    """Create those of the sessions for shared state that are not there; return whether there were any."""
    begun = False
    for name in names:
        if await sessions.head(name) is None:
            user = "" if name == place.shared[APP_PREFIX] else fit(place.user_id)
            begun = True
            with suppress(AlreadyExists):  # another conversation was first
                await create_paused(sessions, SHARED, name, user_id=user)
    return begun


async def _shared(sessions: SessionManager, app_name: str, user_id: str) -> Data:
    """Return what all conversations of an app, and those of a user, share: keys with their prefixes."""
    names = shared(app_name, user_id)
    return _prefixed(names, await look_at_all(sessions, *((name, None, ()) for name in names.values())))


def _prefixed(names: Iterable[str], states: Iterable[tuple[Data, Sight]]) -> Data:
    return {
        f"{prefix}{key}": value
        for prefix, (state, _) in zip(names, states, strict=True)
        for key, value in state.items()
    }


async def _found(sessions: SessionManager, app_name: str, user_id: str | None) -> AsyncGenerator[Place]:
    after: str | None = None
    labels, user = {APP: fit(app_name)}, None if user_id is None else fit(user_id)
    while True:
        page = await sessions.find(agent_type=CONVERSATION, user_id=user, labels=labels, limit=PAGE, after=after)
        for session in page:
            yield Place(**session.context)
        if (after := page.next) is None:
            return


def _session(place: Place, data: Data, sight: Sight, shared_state: Data, events: list[Event]) -> Session:
    session = Session(
        app_name=place.app_name,
        user_id=place.user_id,
        id=place.session_id,
        state={**data[STATE], **shared_state},
        events=events,
        last_update_time=data[UPDATED],
    )
    session._storage_update_marker = Known(sight, {}).marker  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return session


def _events(stored: list[Data], config: GetSessionConfig | None) -> list[Event]:
    """Return the events; with `after_timestamp`, those after the last one that is older."""
    start = 0
    if config is not None and config.after_timestamp is not None:
        older = [n for n, event in enumerate(stored) if event["timestamp"] < config.after_timestamp]
        start = older[-1] + 1 if older else 0
    return [Event.model_validate(event) for event in stored[start:]]


def _dumped(event: Event) -> Data:
    try:
        return event.model_dump(mode="json", exclude_none=True)
    except PydanticSerializationError as exc:
        raise InvalidInput("event", f"cannot be stored as JSON ({exc})") from exc


def _jsonable(state: Mapping[str, Any], path: str) -> Data:
    """As ADK's own services store it: what JSON does not have becomes text."""
    try:
        return to_jsonable_python(dict(state), serialize_unknown=True)
    except PydanticSerializationError as exc:
        raise InvalidInput(path, f"cannot be stored as JSON ({exc})") from exc


def from_uri(uri: str, **options: Any) -> SaveslotSessionService:
    """Return a service for `saveslot://` (the store of the settings), `saveslot:///agents.db` (a file), or any other
    store's URL after `saveslot+`. Importing this module makes `adk web --session_service_uri` call it.
    """
    options.pop("agents_dir", None)
    place = uri.removeprefix("saveslot:")
    if place != uri:
        return SaveslotSessionService(f"sqlite:{place}" if place.strip("/") else None, **options)
    return SaveslotSessionService(uri.removeprefix("saveslot+"), **options)


for _scheme in ("saveslot", *(f"saveslot+{scheme}" for scheme in SCHEMES)):
    get_service_registry().register_session_service(_scheme, from_uri)
