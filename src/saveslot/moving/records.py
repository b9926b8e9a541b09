"""Sessions as JSON: an `agent_sessions` row or the value of a Valkey key, and lists of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from saveslot import codec
from saveslot.errors import Corrupt, InvalidInput, TooLarge
from saveslot.manager.export import read_json
from saveslot.moving.builder import Builder, stamp
from saveslot.moving.ongoing import OngoingParcel, history_id
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.session.model import AgentSession
from saveslot.values import refs
from saveslot.values.checks import Data, as_data, as_name, as_state
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import micros, moment

KNOWN = frozenset(
    {
        *("id", "session_id", "agent_type", "user_id", "state", "context", "metadata", "labels", "checkpoints"),
        *("created_at", "updated_at", "last_heartbeat", "deleted_at"),
    }
)
REFUSED = (InvalidInput, TooLarge)


def deleted(record: Data) -> bool:
    """Whether a row is kept only as an audit trail: deleted sessions are not imported."""
    return record.get("state") == "deleted" or record.get("deleted_at") is not None


def session(record: Data, namespace: str, new_id: str | None = None) -> Iterator[MemoryParcel | Problem]:
    """One row or value as a parcel, and the problems with it."""
    session_id = record.get("id", record.get("session_id"))
    name = f"session {session_id}"
    try:
        value, state = _begun(record, new_id or str(session_id))
        history = _checkpoints(record.get("checkpoints"))
    except REFUSED as exc:
        yield Problem(name, str(exc))
        return
    builder = Builder(namespace, value)
    ids = [history_id(b"", "agent_sessions", namespace, value.session_id, micros(value.created_at))]
    places: list[int] = []  # the history index that each id but the first stands for
    for n, item in enumerate(history):
        try:
            if n == 0 and isinstance(item, dict) and cast("Data", item).get("name") == "session_created":
                first = cast("Data", item)
                builder.created(as_data(first.get("data"), "data"), first.get("timestamp", value.created_at))
                continue
            if not builder.seq:
                builder.created()
            ids.append(history_id(ids[-1], *_append(builder, item, value)))
            places.append(n)
        except REFUSED as exc:
            yield Problem(f"{name}, checkpoint {n + 1}", str(exc))
    heartbeat = record.get("last_heartbeat") or record.get("updated_at")

    def go_on(more: Builder, done: int) -> None:
        again = _checkpoints(record.get("checkpoints"))  # parsed again: keeping a batch of them would fill the memory
        for n in places[done:]:
            _append(more, again[n], value)
        about = {"context": value.context, "metadata": value.metadata, "labels": value.labels}
        more.settle({part: about[part] for part in about if record.get(part) is not None}, state, heartbeat)

    try:
        if not builder.seq:
            builder.created()
        yield OngoingParcel(builder.parcel(state, heartbeat), ids, go_on)
    except REFUSED as exc:
        yield Problem(name, str(exc))


def _append(builder: Builder, value: Any, session: AgentSession) -> tuple[str, int, Data, Data]:
    """Append one history item, and return what its id is derived from."""
    if not isinstance(value, dict):
        raise InvalidInput("checkpoint", f"must be a dict, not {type(value).__name__}")
    item = cast("Data", value)
    at = item.get("timestamp", session.created_at)
    builder.checkpoint(item.get("name"), item.get("data"), item.get("metadata"), at)
    return item["name"], stamp(at), item.get("data") or {}, item.get("metadata") or {}


def _begun(record: Data, session_id: str) -> tuple[AgentSession, SessionState]:
    if record.get("created_at") is None:
        raise InvalidInput("created_at", "is missing")
    state = as_state(record.get("state") or "active")
    value = AgentSession(
        session_id=session_id,
        agent_type=record.get("agent_type") or "",
        user_id=record.get("user_id") or "",
        created_at=record["created_at"],
        context=as_data(parsed(record.get("context")), "context"),
        metadata=as_data(parsed(record.get("metadata")), "metadata"),
        labels=as_data(parsed(record.get("labels")), "labels"),
    )
    return value, state


def _checkpoints(column: Any) -> list[Any]:
    value = parsed(column)
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidInput("checkpoints", f"must be a list, not {type(value).__name__}")
    return cast("list[Any]", value)


def parsed(value: Any) -> Any:
    """The value of a JSON column, which some drivers return as text."""
    if not isinstance(value, str):
        return value
    try:
        return codec.decode(value.encode(), tagged=False)
    except (Corrupt, UnicodeEncodeError):
        return read_json(value)  # slower, but names the error


def checkpoints(
    items: list[Any], namespace: str, name: str, new_id: str | None = None
) -> Iterator[MemoryParcel | Problem]:
    """A list of `{id, name, timestamp, data, metadata}`; `<session_id>:<n>` keeps its number. `name`: of the file."""
    by_key: dict[str, list[tuple[int, int, Data]]] = {}
    for n, value in enumerate(items, 1):
        if not isinstance(value, dict) or "name" not in value:
            yield Problem(f"checkpoint {n}", "is not a checkpoint; it must be a dict with a name")
            continue
        item = cast("Data", value)
        place = refs.elsewhere(str(item.get("id") or ""))
        session_id, seq = (name, 0) if place is None else place
        by_key.setdefault(session_id, []).append((n, seq, item))
    for session_id, numbered in by_key.items():
        yield from _history(new_id or session_id, numbered, namespace)


# A log has no gaps: the most filler entries that stand for numbers missing from a list.
MAX_SKIPPED = 10_000


def _history(session_id: str, items: list[tuple[int, int, Data]], namespace: str) -> Iterator[MemoryParcel | Problem]:
    times: list[int] = []
    good: list[tuple[int, int, Data]] = []
    for n, seq, item in items:
        try:
            times.append(stamp(item.get("timestamp")))
            good.append((n, seq, item))
        except REFUSED as exc:
            yield Problem(f"session {session_id}, checkpoint {n}", str(exc))
    try:
        as_name(session_id, "session_id")
    except REFUSED as exc:
        yield Problem(f"session {session_id}", str(exc))
        return
    if not good:
        return
    numbered = _numbered([seq for _, seq, _ in good])
    builder = Builder(namespace, AgentSession(session_id=session_id, created_at=moment(min(times))))
    for n, seq, item in sorted(good, key=lambda one: one[1]) if numbered else good:
        try:
            metadata = as_data(item.get("metadata"), "metadata")
            if not numbered and item.get("id") is not None:
                metadata["imported_id"] = item["id"]
            builder.checkpoint(item["name"], item.get("data"), metadata, item["timestamp"], seq=seq if numbered else 0)
        except REFUSED as exc:
            yield Problem(f"session {session_id}, checkpoint {n}", str(exc))
    try:
        yield builder.parcel()
    except REFUSED as exc:
        yield Problem(f"session {session_id}", str(exc))


def _numbered(seqs: Iterable[int]) -> bool:
    """Whether the numbers can be kept."""
    numbers = list(seqs)
    return len(set(numbers)) == len(numbers) and min(numbers) >= 1 and max(numbers) <= len(numbers) + MAX_SKIPPED
