"""Google ADK's conversations as sessions: what the adapter writes, and an import of ADK's own tables.

tutor/anna/s1    a conversation: {"state": {…}, "events": […], "last_update_time": 1763500000.0}
app:tutor        the state that all conversations of an app share, without its prefix `app:`
user:tutor/anna  that of one user
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, cast

from saveslot.errors import InvalidInput
from saveslot.moving.builder import Builder, key_of, stamp
from saveslot.moving.ongoing import OngoingParcel, history_id
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.moving.records import REFUSED, parsed
from saveslot.session.model import AgentSession
from saveslot.values.checks import Data, as_data, as_name, as_text
from saveslot.values.ids import fit, joined
from saveslot.values.log import moment

# Agent types: of conversations, and of the state that they share.
CONVERSATION, SHARED = "google-adk", "google-adk-state"
# The label by which the conversations of an app are found.
APP = "google-adk.app"
# Keys of a conversation's data.
STATE, EVENTS, UPDATED = "state", "events", "last_update_time"
# Prefixes of state keys. What begins with the last one is never stored.
APP_PREFIX, USER_PREFIX, TEMP_PREFIX = "app:", "user:", "temp:"


class Place(NamedTuple):
    """A conversation, by ADK's three keys."""

    app_name: str
    user_id: str
    session_id: str

    @property
    def id(self) -> str:
        return _id(self)

    @property
    def shared(self) -> dict[str, str]:
        """The sessions of the state that it shares, by prefix."""
        return shared(self.app_name, self.user_id)

    @property
    def context(self) -> Data:
        return {"app_name": self.app_name, "user_id": self.user_id, "session_id": self.session_id}

    @property
    def labels(self) -> dict[str, str]:
        return {APP: fit(self.app_name)}


@lru_cache(4096)
def _id(place: Place) -> str:
    return fit(joined(*place))


def shared(app_name: str, user_id: str) -> dict[str, str]:
    return {
        APP_PREFIX: fit(f"{APP_PREFIX}{joined(app_name)}"),
        USER_PREFIX: fit(f"{USER_PREFIX}{joined(app_name, user_id)}"),
    }


def split(state: Mapping[str, Any]) -> dict[str, Data]:
    """Split a state by the prefixes of its keys, which it then has no more; "" is the conversation's own."""
    parts: dict[str, Data] = {APP_PREFIX: {}, USER_PREFIX: {}, "": {}}
    for key, value in state.items():
        prefix = next((prefix for prefix in (APP_PREFIX, USER_PREFIX, TEMP_PREFIX) if key.startswith(prefix)), "")
        if prefix != TEMP_PREFIX:
            parts[prefix][key.removeprefix(prefix)] = value
    return parts


def delta_of(event: Data) -> dict[str, Data]:
    """What an event changes of the state, split."""
    delta = _within(event, "actions", "state_delta")
    return split(cast("Data", delta) if isinstance(delta, dict) else {})


def name_of(event: Data) -> str:
    """The name of an event's checkpoint: its author, and the tools that it calls."""
    parts = _within(event, "content", "parts")
    listed = cast("list[Any]", parts) if isinstance(parts, list) else []
    calls = [_within(part, "function_call", "name") for part in listed]
    tools = ", ".join(call for call in calls if isinstance(call, str))
    try:
        author = as_name(event.get("author"), "author")
        return as_name(fit(f"{author}: {tools}"), "author") if tools else author
    except InvalidInput:
        return "event"


def _within(value: Any, *keys: str) -> Any:
    for key in keys:
        value = cast("Data", value).get(key) if isinstance(value, dict) else None
    return value


# Import: the tables of DatabaseSessionService, which are those of SqliteSessionService, too


class Row(NamedTuple):
    """A row of `sessions`. Times are seconds since 1970, ISO texts in UTC, or datetimes."""

    app_name: Any
    user_id: Any
    id: Any
    state: Any
    create_time: Any
    update_time: Any


SESSIONS = Row._fields
TABLES = {
    "sessions": {*SESSIONS},
    "events": {"id", "app_name", "user_id", "session_id", "invocation_id", "timestamp", "event_data"},
    "app_states": {"app_name", "state", "update_time"},
    "user_states": {"app_name", "user_id", "state", "update_time"},
}


def is_one(tables: Mapping[str, Any]) -> bool:
    return all(columns - {"event_data"} <= set(tables.get(name, ())) for name, columns in TABLES.items())


def check(tables: Mapping[str, Any], where: str) -> None:
    if "event_data" not in tables["events"]:
        raise InvalidInput(
            where,
            "holds the pickles of google-adk before 1.22, which are not opened; convert it with: adk migrate session",
        )


def conversation(row: Row, events: Iterable[Sequence[Any]], namespace: str) -> Iterator[MemoryParcel | Problem]:
    """Build the session of a row and its events: each an id, a time and JSON text."""
    what = f"session {row.app_name}/{row.user_id}/{row.id}"
    try:
        place = Place(*(as_text(key, name) for key, name in zip(row[:3], SESSIONS, strict=False)))
        state, created = as_data(_json(row.state), "state"), _time(row.create_time)
        about = AgentSession(place.id, CONVERSATION, fit(place.user_id), created_at=created)
        about.context, about.labels = place.context, place.labels
        builder = _begun(namespace, about)
    except REFUSED as exc:
        yield Problem(what, str(exc))
        return
    kept: list[Data] = []
    for event_id, at, text in events:
        try:
            event = as_data(_json(text), "event_data")
            kept.append({"timestamp": stamp(at) / 1e6, **event, "id": as_text(event_id, "id")})
        except REFUSED as exc:
            yield Problem(f"{what}, event {event_id}", str(exc))

    def go_on(more: Builder, done: int) -> None:
        _add(more, kept[max(0, done - 2) :])  # two entries are before the first event
        if more.data.get(STATE) != state:
            more.append("imported", {}, row.update_time, {STATE: state})

    ids = [history_id(b"", "adk", namespace, place.id)]
    for item in ("paused", "created", *kept):
        ids.append(history_id(ids[-1], item))
    # Only the newest state is stored there. The earlier ones follow from what the events changed.
    touched = {key for event in kept for key in delta_of(event)[""]}
    known = {key: value for key, value in state.items() if key not in touched}
    try:
        builder.checkpoint("created", {STATE: known, EVENTS: [], UPDATED: stamp(created) / 1e6}, None, created)
        go_on(builder, 0)
        yield OngoingParcel(builder.parcel(), ids, go_on)
    except REFUSED as exc:
        yield Problem(what, str(exc))


def _add(builder: Builder, events: Sequence[Data]) -> None:
    state: Data = builder.data.get(STATE) or {}
    for event in events:
        delta = delta_of(event)[""]
        state |= delta
        put: Data = {UPDATED: event["timestamp"]} | ({STATE: state} if delta else {})
        builder.append(name_of(event), {EVENTS: [event]}, event["timestamp"], put)


def shared_state(app_name: Any, user_id: Any, state: Any, at: Any, namespace: str) -> Iterator[MemoryParcel | Problem]:
    """Build the session of a row of `app_states`, without a user, or of `user_states`."""
    what = f"state of app {app_name}" if user_id is None else f"state of user {app_name}/{user_id}"
    try:
        app, user = as_text(app_name, "app_name"), "" if user_id is None else as_text(user_id, "user_id")
        name = shared(app, user)[APP_PREFIX if user_id is None else USER_PREFIX]
        data, when = as_data(_json(state), "state"), _time(at)
        if not data:
            return

        def go_on(more: Builder, _: int) -> None:
            if more.data != data:
                more.checkpoint("imported", data, None, when)

        # Its name is all that is fixed: it was created at a time that is not stored there.
        first = history_id(b"", "adk", namespace, name)
        builder = _begun(namespace, AgentSession(name, SHARED, fit(user), created_at=when), key_of(1, first))
        go_on(builder, 0)
        yield OngoingParcel(builder.parcel(), [first], go_on)
    except REFUSED as exc:
        yield Problem(what, str(exc))


def _begun(namespace: str, session: AgentSession, key: bytes | None = None) -> Builder:
    builder = Builder(namespace, session, key)
    builder.created()
    builder.rest(session.created_at)
    return builder


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        raise InvalidInput("value", f"is not JSON text, but {type(value).__name__}")
    return parsed(value)


def _time(value: Any) -> datetime:
    return moment(stamp(value))
