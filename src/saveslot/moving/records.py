"""Sessions as JSON: an `agent_sessions` row or the value of a Valkey key, and lists of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from saveslot import codec, refs
from saveslot.errors import Corrupt, InvalidInput, TooLarge
from saveslot.lifecycle import SessionState
from saveslot.log import micros, moment
from saveslot.model import AgentSession, Data, as_data, as_name, as_state
from saveslot.moving.drafting import Making, stamp
from saveslot.moving.growing import Growing, told_id
from saveslot.moving.parcel import Kept, Problem
from saveslot.transfer import read_json

KNOWN = frozenset(
    {
        *("id", "session_id", "agent_type", "user_id", "state", "context", "metadata", "labels", "checkpoints"),
        *("created_at", "updated_at", "last_heartbeat", "deleted_at"),
    }
)
REFUSED = (InvalidInput, TooLarge)


def deleted(record: Data) -> bool:
    """A row that is only kept for the audit trail: a deleted session never returns."""
    return record.get("state") == "deleted" or record.get("deleted_at") is not None


def session(record: Data, namespace: str, new_id: str | None = None) -> Iterator[Kept | Problem]:
    """One row or value as a parcel, and what of it cannot be taken."""
    session_id = record.get("id", record.get("session_id"))
    name = f"session {session_id}"
    try:
        value, state = _begun(record, new_id or str(session_id))
        history = _checkpoints(record.get("checkpoints"))
    except REFUSED as exc:
        yield Problem(name, str(exc))
        return
    made = Making(namespace, value)
    ids = [told_id(b"", "agent_sessions", namespace, value.session_id, micros(value.created_at))]
    taken: list[int] = []  # the places of those that ids stand for, but for the first
    for n, told in enumerate(history):
        try:
            if n == 0 and isinstance(told, dict) and cast("Data", told).get("name") == "session_created":
                item = cast("Data", told)
                made.created(as_data(item.get("data"), "data"), item.get("timestamp", value.created_at))
                continue
            if not made.seq:
                made.created()
            ids.append(told_id(ids[-1], *_taken(made, told, value)))
            taken.append(n)
        except REFUSED as exc:
            yield Problem(f"{name}, checkpoint {n + 1}", str(exc))
    heartbeat = record.get("last_heartbeat") or record.get("updated_at")

    def go_on(more: Making, done: int) -> None:
        again = _checkpoints(record.get("checkpoints"))  # parsed anew: a batch of them would fill the memory
        for n in taken[done:]:
            _taken(more, again[n], value)
        about = {"context": value.context, "metadata": value.metadata, "labels": value.labels}
        more.settle({part: about[part] for part in about if record.get(part) is not None}, state, heartbeat)

    try:
        if not made.seq:
            made.created()
        yield Growing(made.parcel(state, heartbeat), ids, go_on)
    except REFUSED as exc:
        yield Problem(name, str(exc))


def _taken(made: Making, told: Any, session: AgentSession) -> tuple[str, int, Data, Data]:
    """One of the history, written; and what it says."""
    if not isinstance(told, dict):
        raise InvalidInput("checkpoint", f"must be a dict, not {type(told).__name__}")
    item = cast("Data", told)
    at = item.get("timestamp", session.created_at)
    made.checkpoint(item.get("name"), item.get("data"), item.get("metadata"), at)
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


def _checkpoints(told: Any) -> list[Any]:
    found = parsed(told)
    if found is None:
        return []
    if not isinstance(found, list):
        raise InvalidInput("checkpoints", f"must be a list, not {type(found).__name__}")
    return cast("list[Any]", found)


def parsed(value: Any) -> Any:
    """A JSON column comes as text from some drivers, as a value from others."""
    if not isinstance(value, str):
        return value
    try:
        return codec.decode(value.encode(), tagged=False)
    except (Corrupt, UnicodeEncodeError):
        return read_json(value)  # slower, and says what is wrong


def checkpoints(items: list[Any], namespace: str, name: str, new_id: str | None = None) -> Iterator[Kept | Problem]:
    """A list of `{id, name, timestamp, data, metadata}`; `<session_id>:<n>` keeps its number. `name`: of the file."""
    found: dict[str, list[tuple[int, int, Data]]] = {}
    for n, told in enumerate(items, 1):
        if not isinstance(told, dict) or "name" not in told:
            yield Problem(f"checkpoint {n}", "is no checkpoint: a dict with a name is one")
            continue
        item = cast("Data", told)
        place = refs.elsewhere(str(item.get("id") or ""))
        session_id, seq = (name, 0) if place is None else place
        found.setdefault(session_id, []).append((n, seq, item))
    for session_id, told in found.items():
        yield from _history(new_id or session_id, told, namespace)


# A log has no gaps: so many entries may stand for numbers that are not in a list.
MAX_SKIPPED = 10_000


def _history(session_id: str, told: list[tuple[int, int, Data]], namespace: str) -> Iterator[Kept | Problem]:
    times: list[int] = []
    good: list[tuple[int, int, Data]] = []
    for n, seq, item in told:
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
    made = Making(namespace, AgentSession(session_id=session_id, created_at=moment(min(times))))
    for n, seq, item in sorted(good, key=lambda one: one[1]) if numbered else good:
        try:
            metadata = as_data(item.get("metadata"), "metadata")
            if not numbered and item.get("id") is not None:
                metadata["imported_id"] = item["id"]
            made.checkpoint(item["name"], item.get("data"), metadata, item["timestamp"], seq=seq if numbered else 0)
        except REFUSED as exc:
            yield Problem(f"session {session_id}, checkpoint {n}", str(exc))
    try:
        yield made.parcel()
    except REFUSED as exc:
        yield Problem(f"session {session_id}", str(exc))


def _numbered(seqs: Iterable[int]) -> bool:
    """True when the numbers can be kept."""
    found = list(seqs)
    return len(set(found)) == len(found) and min(found) >= 1 and max(found) <= len(found) + MAX_SKIPPED
