"""A session as JSON text and back: its first state, then what changed, entry by entry.

    {"saveslot": 1, "session": {…},
     "entries": [
      {"seq": 1, "kind": "created", "name": "session_created", "at": "2026-…", "data": {…}, "about": {…}},
      {"seq": 2, "kind": "checkpoint", "name": "task_received", "at": "2026-…", "state": {…}},
      {"seq": 3, "kind": "checkpoint", "name": "answered", "at": "2026-…", "patch": [{"op": "add", …}]}]}

Everything comes back: numbers, ids, times, metadata. Values JSON does not know are tagged as in the store (FORMAT.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, cast

from msgspec.structs import replace

from saveslot import codec, difference
from saveslot.codec import parcel
from saveslot.errors import Corrupt, InvalidInput, InvalidTransition
from saveslot.lifecycle import follow
from saveslot.log import Entry, micros, moment
from saveslot.model import (
    DATA_KINDS,
    HIDING_KINDS,
    STEP_KINDS,
    TAKING_KINDS,
    VERBS,
    AgentSession,
    Data,
    Kind,
    as_data,
    as_labels,
    as_name,
    as_time,
)
from saveslot.slot import ABOUT, ABOUT_KINDS, Draft
from saveslot.timeline import Range, Timeline, hidden_by, note_of

VERSION = 1
CLOSING = "\n]}\n"
# So many containers stand around a value here at most, beyond those that it is stored in: entry, patch, operation.
WRAPPING = 3
# An entry that no export names: whole sessions go by a delete, and what hides others is told by `hides`.
UNHEARD = frozenset({Kind.TOMBSTONE, Kind.THINNED})
# What the session's state must allow. All other kinds are written in any state, and change none.
FOLLOWED: dict[int, str] = {**VERBS, Kind.ROLLBACK: "rollback", Kind.THINNED: "checkpoint"}


def opening(session: AgentSession) -> str:
    return f'{_session(session)},\n "entries": ['


def sealed_opening(session: AgentSession, head: Data) -> str:
    """In front of the sealed parts stands what is readable in the store, too."""
    bare = AgentSession.from_dict({**session.to_dict(), "context": {}, "metadata": {}, "checkpoints": []})
    return f'{_session(bare)},\n "sealed": {_text(head)},\n "parts": ['


def _session(session: AgentSession) -> str:
    told = session.to_dict()
    del told["checkpoints"]
    return f'{{"saveslot": {VERSION}, "session": {_text(told)}'


class Exporter:
    """Writes the entries of one session in their order."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._before: codec.State | None = None

    def line(self, entry: Entry, timeline: Timeline | None) -> str:
        """Without a timeline the entry's data was thinned."""
        told: Data = {
            "seq": entry.seq,
            "kind": Kind(entry.kind).label,
            "name": entry.name,
            "at": moment(entry.at).isoformat(),
        }
        note = note_of(entry, f"{self._session_id}:{entry.seq}")
        if entry.kind in DATA_KINDS:
            state = None if timeline is None else _snapshot(timeline.state(entry))
            if state is None:
                told["thinned"] = True
            elif self._before is None:
                told["state"] = state.value()
            else:
                tagged = state.tagged or self._before.tagged
                told["patch"] = difference.diff_texts(self._before.texts, state.texts, tagged=tagged)
            self._before = state or self._before
            if note:
                told["metadata"] = note
        elif note or entry.kind not in ABOUT_KINDS | HIDING_KINDS:
            told["data"] = note
        if entry.kind is Kind.STEP_FINISHED and entry.frame is not None:
            told["result"] = codec.read_note(entry.frame)
        if entry.kind in HIDING_KINDS:
            told["hides"] = hidden_by(entry, f"{self._session_id}:{entry.seq}")
        if entry.kind in ABOUT_KINDS and timeline is not None:
            told["about"] = timeline.state(entry).value()
        return ("\n  " if entry.seq == 1 else ",\n  ") + _text(told)


def _snapshot(state: codec.State) -> codec.State:
    kept = codec.State()
    kept.texts.update({key: bytes(text) for key, text in state.texts.items()})
    kept.tagged = state.tagged
    return kept


def _text(value: Any) -> str:
    return codec.encode(value, "export", 1 << 40, depth=-WRAPPING)[0].decode()


def read_json(text: str) -> Any:
    """What the text says, where JSON leaves no doubt: a key twice in one object or a NaN is no import."""
    import json  # takes 2 ms, and only an import needs it

    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput("import", f"must be the text of an export, not {type(text).__name__}")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("import", f"is not JSON ({exc})") from None


def values(text: str) -> Any:
    """The same once more, with the values that JSON does not know."""
    try:
        return codec.decode(text.encode(), tagged=True)
    except Corrupt as exc:
        raise InvalidInput("import", f"holds a value that {exc.reason}") from None
    except UnicodeEncodeError as exc:
        raise InvalidInput("import", f"holds half of a surrogate pair ({text[exc.start]!a})") from None


def parsed(text: str, keyring: codec.Keyring | None = None) -> tuple[AgentSession, list[Data]]:
    """An export's session (without checkpoints) and entries, checked as a whole; a sealed one is opened first."""
    found = read_json(text)
    if not isinstance(found, dict) or "saveslot" not in found:
        raise InvalidInput("import", "is not an export of a session (it has no key `saveslot`)")
    told = cast("Data", found)
    if told["saveslot"] != VERSION:
        raise InvalidInput(
            "import", f"has format {told['saveslot']!r}, this Saveslot reads {VERSION}; upgrade saveslot"
        )
    if "sealed" in told:
        return parsed(parcel.opened(told["sealed"], told.get("parts"), keyring))
    told = cast("Data", values(text))
    session = AgentSession.from_dict({**as_data(told.get("session"), "import.session")})
    for part in ("created_at", "last_heartbeat"):
        since_1970(getattr(session, part), f"import.session.{part}")
    entries = told.get("entries")
    if not isinstance(entries, list) or not entries:
        raise InvalidInput("import.entries", "must be a list with at least one entry")
    return session, cast("list[Data]", entries)


def since_1970(value: Any, path: str) -> int:
    """Microseconds; in a log 0 and less are spans."""
    at = micros(as_time(value, path))
    if at < 1:
        raise InvalidInput(path, f"is before 1970, or its first moment: {value}")
    return at


def fill(draft: Draft, session: AgentSession, entries: Sequence[Data]) -> Iterator[None]:
    """Add an export's entries to the draft of a new session, each checked and encoded anew, one a step.

    Each must be allowed in the state that those before it lead to, and the session be what all of them say.
    """
    state: Data | None = None
    gone: set[int] = set()  # came without data, and nothing hides them yet
    for n, told in enumerate(entries):
        path = f"import.entries[{n}]"
        try:
            state = _fill_one(draft, told, n + 1, state)
            _follow(draft)
            if told.get("thinned"):
                gone.add(n + 1)
            for first, last in told.get("hides", ()):
                gone.difference_update(range(first, last + 1))
            yield
        except InvalidInput as exc:
            raise InvalidInput(f"{path}.{exc.path}", exc.reason) from None
        except (KeyError, TypeError, ValueError) as exc:
            raise InvalidInput(path, f"is not an entry of an export ({type(exc).__name__}: {exc})") from None
    if gone:  # thinned while it was exported
        draft.mark((seq, seq) for seq in gone)
    _check_header(session, draft)


def _follow(draft: Draft) -> None:
    """What the newest entry makes of the session's state."""
    kind, state = draft.group.entries[-1].kind, draft.at.state
    if (verb := FOLLOWED.get(kind)) is None:
        return
    try:
        draft.at = replace(draft.at, state=follow(state, verb))
    except InvalidTransition:
        reason = f"{kind.label!r} cannot follow: the entries before it lead to {state.value}"
        raise InvalidInput("kind", reason) from None


def _check_header(session: AgentSession, draft: Draft) -> None:
    if session.state is not draft.at.state:
        reason = f"is {session.state.value}, but the entries lead to {draft.at.state.value}"
        raise InvalidInput("import.session.state", reason)
    about = {} if draft.at.about is None else draft.at.about.value()
    for part in ABOUT:
        logged = about.get(part, {})
        if getattr(session, part) != logged:
            raise InvalidInput(f"import.session.{part}", "is not what the entries lead to")
        setattr(session, part, logged)  # 1 equals True


def _fill_one(draft: Draft, told: Data, seq: int, state: Data | None) -> Data | None:
    kind = _kind(told["kind"])
    if told["seq"] != seq or (kind is Kind.CREATED and seq > 1):
        raise InvalidInput(
            "seq", f"must be {seq}, and only the first entry `created`; found {told['seq']!r} {kind.name}"
        )
    name, at = as_name(told["name"], "name"), since_1970(told["at"], "at")
    if kind in DATA_KINDS and told.get("thinned"):
        draft.gone(kind, name, as_data(told.get("metadata"), "metadata"), at=at)
    elif kind in DATA_KINDS:
        state = as_data(told["state"], "state") if "state" in told else difference.patched(state or {}, told["patch"])
        draft.checkpoint(name, cast("Data", state), as_data(told.get("metadata"), "metadata"), at=at, sign=False)
        draft.group.entries[-1].kind = kind
    if kind in DATA_KINDS:
        if "hides" in told:
            draft.hide(_hidden(told["hides"], seq))
    elif kind is Kind.MARKED:
        draft.mark(_hidden(told["hides"], seq))
        draft.group.entries[-1].at = at
    elif kind is Kind.CLEARED:
        draft.clear(_hidden(told["hides"], seq), name, at=at)
    elif kind in ABOUT_KINDS:
        about = as_data(told["about"], "about")
        parts = {part: as_data(about[part], part) for part in ABOUT}
        entry = draft.about({**parts, "labels": as_labels(parts["labels"])}, kind=kind, name=name, at=at)
        entry.note = codec.note(as_data(told["data"], "data"), "data") if told.get("data") else None
    elif kind in STEP_KINDS:
        result = codec.note(told["result"], "result") if "result" in told else None
        draft.step(kind, name, as_data(told.get("data"), "data"), result, at=at, sign=False)
    else:
        draft.lifecycle(kind, name, as_data(told.get("data"), "data"), at=at)
        if kind in TAKING_KINDS:  # it was taken by somebody elsewhere; here nobody holds it
            draft.raise_fence()
    return state


def _kind(told: Any) -> Kind:
    kind = Kind.__members__.get(str(told).upper())
    if kind is None or kind in UNHEARD:
        raise InvalidInput("kind", f"{told!r} is in no export")
    return kind


def _hidden(told: Any, seq: int) -> list[Range]:
    ranges = [(int(first), int(last)) for first, last in told]
    if not all(1 <= first <= last < seq for first, last in ranges):
        raise InvalidInput("hides", "must name older entries")
    return ranges


def _unique(pairs: list[tuple[str, Any]]) -> Data:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise InvalidInput("import", f"has the key {twice!r} twice in one object")
    return made


def _no_constant(name: str) -> NoReturn:
    raise InvalidInput("import", f"holds {name}, which is not JSON")
