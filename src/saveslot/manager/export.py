"""A session as JSON text and back: its first state, then what changed, entry by entry.

    {"saveslot": 1, "session": {…},
     "entries": [
      {"seq": 1, "kind": "created", "name": "session_created", "at": "2026-…", "data": {…}, "about": {…}},
      {"seq": 2, "kind": "checkpoint", "name": "task_received", "at": "2026-…", "state": {…}},
      {"seq": 3, "kind": "checkpoint", "name": "answered", "at": "2026-…", "patch": [{"op": "add", …}]}]}

An import restores everything: numbers, ids, times, metadata, the order of keys (`order`, where a patch does not tell)
and idempotency keys (`request`: as in the store, in hexadecimal). Non-JSON values are tagged as in the store
(FORMAT.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NoReturn, cast

from msgspec.structs import replace

from saveslot import codec
from saveslot.codec import difference, envelope
from saveslot.codec.envelope import Envelope
from saveslot.errors import Corrupt, InvalidInput, InvalidTransition
from saveslot.manager.reading import STRIDE
from saveslot.session.draft import ABOUT, Draft
from saveslot.session.engine import Space
from saveslot.session.lookup import Overtaken
from saveslot.session.model import AgentSession
from saveslot.session.timeline import Range, Timeline, hidden_by, merged, note_of
from saveslot.values.checks import Data, as_data, as_labels, as_name, as_time
from saveslot.values.kinds import ABOUT_KINDS, DATA_KINDS, FOLLOWED, HIDING_KINDS, STEP_KINDS, TAKING_KINDS, Kind
from saveslot.values.lifecycle import follow
from saveslot.values.log import ID, REQUEST, Entry, Head, Wanted, micros, moment

VERSION = 1
# Bytes of a state, or of an entry as stored, that is written in a thread.
LONG = 256 << 10
CLOSING = "\n]}\n"
# Extra nesting around a value here, compared with the store: entry, patch, operation.
WRAPPING = 3
# Kinds that no export contains: deleted sessions are not exported, and `hides` says what a checkpoint hides.
UNHEARD = frozenset({Kind.TOMBSTONE, Kind.THINNED})


async def export(sessions: Space, id: str, *, plain: bool = False) -> str:
    """Return the session as JSON text: its first state, then the changes. `import_session` reads it.

    The export of a sealed session is sealed too, unless `plain`.
    """
    return "".join([part async for part in export_parts(sessions, id, plain=plain)])


async def export_parts(sessions: Space, id: str, *, plain: bool = False) -> AsyncIterator[str]:
    """Yield the text of `export` in parts, for sessions too large to keep in memory."""
    head = await sessions.reader.existing(id)
    parts = _parts(sessions, head)
    keyring = None if plain else sessions.engine.vault.keyring_of(head.row.key)
    if keyring is None:
        async for part in parts:
            yield part
        return
    sealed = Envelope(keyring, sessions.namespace)
    yield sealed_opening(sessions.lookup.session(head), sealed.head)
    async for part in parts:
        yield sealed.part(part)
    yield sealed.part("", last=True) + CLOSING


async def _parts(sessions: Space, head: Head) -> AsyncIterator[str]:
    session = sessions.lookup.session(head)
    key, last = head.row.key, head.last.seq
    thinned = await sessions.lookup.hidden(head)
    yield opening(session)
    writer = Exporter(session.session_id)
    for first in range(1, last + 1, STRIDE):
        entries = await sessions.engine.vault.entries(
            key, Wanted([(first, min(last, first + STRIDE - 1))], frames=False)
        )
        if not entries:  # nothing is missing from a sound log; a damaged number could make this loop endless
            await sessions.lookup.again(head)
            raise Corrupt(f"session {session.session_id}", f"entries from {first} on, of {last}, are missing")
        while True:
            try:
                timeline = await sessions.lookup.timeline(head, (e for e in entries if e.seq not in thinned))
                abouts = await sessions.lookup.timeline(head, entries, ABOUT_KINDS)
                break
            except Overtaken:
                head = await sessions.lookup.again(head)
                thinned = await sessions.lookup.hidden(head)
        steps = merged((e.seq, e.seq) for e in entries if e.kind is Kind.STEP_FINISHED)
        results = {e.seq: e.frame for e in await sessions.engine.vault.entries(key, Wanted(steps))} if steps else {}
        await sessions.lookup.again(head)  # not erased or purged while this part was read
        for entry in entries:
            entry.frame = results.get(entry.seq)
            source = None if entry.seq in thinned else timeline if entry.kind in DATA_KINDS else abouts
            if _is_long(entry):  # must not block other tasks
                yield await asyncio.to_thread(writer.line, entry, source)
            else:
                yield writer.line(entry, source)
                await asyncio.sleep(0)
    yield CLOSING


def opening(session: AgentSession) -> str:
    return f'{_session(session)},\n "entries": ['


def sealed_opening(session: AgentSession, head: Data) -> str:
    """Return the text before the sealed parts: the fields that are not sealed in the store either."""
    bare = AgentSession.from_dict({**session.to_dict(), "context": {}, "metadata": {}, "checkpoints": []})
    return f'{_session(bare)},\n "sealed": {_text(head)},\n "parts": ['


def _session(session: AgentSession) -> str:
    fields = session.to_dict()
    del fields["checkpoints"]
    fields.pop("version", None)  # an import has its own
    return f'{{"saveslot": {VERSION}, "session": {_text(fields)}'


def _is_long(entry: Entry) -> bool:
    return entry.size > LONG or (bool(entry.recipe) and codec.Recipe.unpack(entry.recipe, entry.seq).size > LONG)


class Exporter:
    """Writes the entries of one session, in order."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._before: codec.State | None = None

    def line(self, entry: Entry, timeline: Timeline | None) -> str:
        """Return one entry as JSON. Without a timeline, the entry's data was thinned."""
        line: Data = {
            "seq": entry.seq,
            "kind": Kind(entry.kind).label,
            "name": entry.name,
            "at": moment(entry.at).isoformat(),
        }
        note = note_of(entry, f"{self._session_id}:{entry.seq}")
        if entry.kind in DATA_KINDS:
            state = None if timeline is None else _snapshot(timeline.state(entry))
            if state is None:
                line["thinned"] = True
            elif self._before is None:
                line["state"] = state.value()
            else:
                line |= _patch(self._before, state)
            self._before = state or self._before
            if note:
                line["metadata"] = note
        elif note or entry.kind not in ABOUT_KINDS | HIDING_KINDS:
            line["data"] = note
        if entry.kind is Kind.STEP_FINISHED and entry.frame is not None:
            line["result"] = codec.read_note(entry.frame)
        if entry.kind in HIDING_KINDS:
            line["hides"] = hidden_by(entry, f"{self._session_id}:{entry.seq}")
        if entry.kind in ABOUT_KINDS and timeline is not None:
            line["about"] = timeline.state(entry).value()
        if entry.request:
            line["request"] = entry.request.hex()
        return ("\n  " if entry.seq == 1 else ",\n  ") + _text(line)


def _patch(before: codec.State, after: codec.State) -> Data:
    """Return what changed, so that an import has all keys in their order, also in nested objects."""
    tagged = before.tagged or after.tagged
    patch = difference.diff_texts(before.texts, after.texts, tagged=tagged)
    changed = {
        key: bytes(text)
        for key, text in before.texts.items()
        if after.texts.get(key, text) != text and not _grown(bytes(text), bytes(after.texts[key]))
    }
    if changed:
        inside = [op for op in patch if _top(op["path"]) in changed]
        values = {key: codec.decode(text, tagged=tagged) for key, text in changed.items()}
        for key, value in difference.patched(values, inside).items():
            if codec.encode(value, key, codec.ANY_SIZE)[0] != after.texts[key]:  # the same, in another order
                patch = [op for op in patch if _top(op["path"]) != key]
                patch.append(
                    {"op": "replace", "path": _pointer(key), "value": codec.decode(after.texts[key], tagged=tagged)}
                )
    new = dict.fromkeys(_top(op["path"]) for op in patch if op["op"] == "add")
    order = [*(key for key in before.texts if key in after.texts), *(key for key in new if key not in before.texts)]
    return {"patch": patch} if order == [*after.texts] else {"patch": patch, "order": [*after.texts]}


def _grown(old: bytes, new: bytes) -> bool:
    """True if a list only got more items at its end."""
    return old[:1] == b"[" and new.startswith(old[:-1])


def _top(path: str) -> str:
    return path.split("/", 2)[1].replace("~1", "/").replace("~0", "~")


def _pointer(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _snapshot(state: codec.State) -> codec.State:
    kept = codec.State()
    kept.texts.update({key: bytes(text) for key, text in state.texts.items()})
    kept.tagged = state.tagged
    return kept


def _text(value: Any) -> str:
    return codec.encode(value, "export", codec.ANY_SIZE, depth=-WRAPPING)[0].decode()


def read_json(text: str) -> Any:
    """Parse strict JSON: a repeated key in one object, or a NaN, is refused."""
    import json  # takes 2 ms, and only an import needs it

    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput("import", f"must be the text of an export, not {type(text).__name__}")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("import", f"is not JSON ({exc})") from None


def values(text: str) -> Any:
    """Parse the text with its tagged values, which JSON does not have."""
    try:
        return codec.decode(text.encode(), tagged=True)
    except Corrupt as exc:
        raise InvalidInput("import", f"contains a value that {exc.reason}") from None
    except UnicodeEncodeError as exc:
        raise InvalidInput("import", f"contains half of a surrogate pair ({text[exc.start]!a})") from None


def parsed(text: str, keyring: codec.Keyring | None = None) -> tuple[AgentSession, list[Data]]:
    """Return an export's session (without checkpoints) and entries, checked; a sealed export is opened first."""
    export = read_json(text)
    if not isinstance(export, dict) or "saveslot" not in export:
        raise InvalidInput("import", "is not an export of a session (it has no key `saveslot`)")
    export = cast("Data", export)
    if export["saveslot"] != VERSION:
        raise InvalidInput(
            "import", f"has format {export['saveslot']!r}, but this Saveslot reads only {VERSION}; upgrade it"
        )
    if "sealed" in export:
        return parsed(envelope.opened(export["sealed"], export.get("parts"), keyring))
    del export  # before all of it is decoded again
    export = cast("Data", values(text))
    session = AgentSession.from_dict({**as_data(export.get("session"), "import.session")})
    for part in ("created_at", "last_heartbeat"):
        since_1970(getattr(session, part), f"import.session.{part}")
    entries = export.get("entries")
    if not isinstance(entries, list) or not entries:
        raise InvalidInput("import.entries", "must be a list with at least one entry")
    return session, cast("list[Data]", entries)


def since_1970(value: Any, path: str) -> int:
    """Return microseconds since 1970, at least 1: in a log, 0 and less are time spans."""
    at = micros(as_time(value, path))
    if at < 1:
        raise InvalidInput(path, f"must be later than the start of 1970, not {value}")
    return at


def fill(draft: Draft, session: AgentSession, entries: Sequence[Data]) -> Iterator[None]:
    """Add an export's entries to the draft of a new session, checked and encoded again, one per iteration.

    Each entry must be allowed in the state that the entries before it lead to, and the session must match them all.
    """
    state: Data | None = None
    gone: set[int] = set()  # imported without data
    hidden: list[Range] = []
    requests: set[bytes] = set()
    for n, entry in enumerate(entries):
        path = f"import.entries[{n}]"
        try:
            state = _fill_one(draft, entry, n + 1, state)
            _follow(draft)
            if "request" in entry:
                draft.group.entries[-1].request = _request(entry["request"], requests)
            if entry.get("thinned"):
                gone.add(n + 1)
            hidden += _hidden(entry.get("hides", ()), n + 1)
            yield
        except InvalidInput as exc:
            raise InvalidInput(f"{path}.{exc.path}", exc.reason) from None
        except (KeyError, TypeError, ValueError) as exc:
            raise InvalidInput(path, f"is not an entry of an export ({type(exc).__name__}: {exc})") from None
    for first, last in merged(hidden):
        gone.difference_update(range(first, last + 1))
    if gone:  # thinned while it was exported
        draft.mark((seq, seq) for seq in gone)
    _check_header(session, draft)


def _follow(draft: Draft) -> None:
    """Apply the newest entry to the session's state."""
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
    created = draft.group.entries[0]
    note = note_of(created, "1") if created.kind is Kind.CREATED else {}
    for part in ("agent_type", "user_id"):
        if note.get(part, getattr(session, part)) != getattr(session, part):
            raise InvalidInput(f"import.session.{part}", "does not match the first entry")
    about = {} if draft.at.about is None else draft.at.about.value()
    for part in ABOUT:
        logged = about.get(part, {})
        if getattr(session, part) != logged:
            raise InvalidInput(f"import.session.{part}", "does not match the entries")
        setattr(session, part, logged)  # 1 equals True


def _fill_one(draft: Draft, item: Data, seq: int, state: Data | None) -> Data | None:
    kind = _kind(item["kind"])
    if item["seq"] != seq or (kind is Kind.CREATED and seq > 1):
        raise InvalidInput(
            "seq", f"must be {seq}, and only the first entry `created`; found {item['seq']!r} {kind.name}"
        )
    if "hides" in item and kind not in DATA_KINDS | HIDING_KINDS:
        raise InvalidInput("hides", f"must not be given: an entry of kind {kind.label!r} hides nothing")
    name, at = as_name(item["name"], "name"), since_1970(item["at"], "at")
    if kind in DATA_KINDS and item.get("thinned"):
        draft.gone(kind, name, as_data(item.get("metadata"), "metadata"), at=at)
    elif kind in DATA_KINDS:
        state = as_data(item["state"], "state") if "state" in item else difference.patched(state or {}, item["patch"])
        if "order" in item:
            state = _ordered(cast("Data", state), item["order"])
        draft.checkpoint(name, cast("Data", state), as_data(item.get("metadata"), "metadata"), at=at, sign=False)
        draft.group.entries[-1].kind = kind
    if kind in DATA_KINDS:
        if "hides" in item:
            draft.hide(_hidden(item["hides"], seq))
    elif kind is Kind.MARKED:
        draft.mark(_hidden(item["hides"], seq))
        draft.group.entries[-1].at = at
    elif kind is Kind.CLEARED:
        draft.clear(_hidden(item["hides"], seq), name, at=at)
    elif kind in ABOUT_KINDS:
        about = as_data(item["about"], "about")
        parts = {part: as_data(about[part], part) for part in ABOUT}
        entry = draft.about({**parts, "labels": as_labels(parts["labels"])}, kind=kind, name=name, at=at)
        entry.note = codec.note(as_data(item["data"], "data"), "data") if item.get("data") else None
    elif kind in STEP_KINDS:
        result = codec.note(item["result"], "result") if "result" in item else None
        draft.step(kind, name, as_data(item.get("data"), "data"), result, at=at, sign=False)
    else:
        data = as_data(item.get("data"), "data")
        if kind is Kind.RECORD and "value" not in data:
            raise InvalidInput("data.value", "is missing: a record has a value")
        draft.lifecycle(kind, name, data, at=at)
        if kind in TAKING_KINDS:  # held by a worker elsewhere; the import has no owner
            draft.raise_fence()
    return state


def _ordered(state: Data, keys: Any) -> Data:
    if not isinstance(keys, list) or sorted(cast("list[Any]", keys)) != sorted(state):
        raise InvalidInput("order", "must be a list of the keys of the state")
    return {key: state[key] for key in cast("list[str]", keys)}


def _request(text: Any, requests: set[bytes]) -> bytes:
    """Return what identifies a call with an idempotency key, and add its part that no other entry may have."""
    request = bytes.fromhex(text) if isinstance(text, str) else b""
    if len(request) != REQUEST:
        raise InvalidInput("request", f"must be the hexadecimal digits of {REQUEST} bytes")
    if request[:ID] in requests:
        raise InvalidInput("request", "is that of an older entry")
    requests.add(request[:ID])
    return request


def _kind(label: Any) -> Kind:
    kind = Kind.__members__.get(str(label).upper())
    if kind is None or kind in UNHEARD:
        raise InvalidInput("kind", f"{label!r} is not a kind that exports contain")
    return kind


def _hidden(pairs: Any, seq: int) -> list[Range]:
    ranges = [(int(first), int(last)) for first, last in pairs]
    if not all(1 <= first <= last < seq for first, last in ranges):
        raise InvalidInput("hides", "must name older entries")
    return ranges


def _unique(pairs: list[tuple[str, Any]]) -> Data:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise InvalidInput("import", f"has the key {twice!r} twice in one object")
    return members


def _no_constant(name: str) -> NoReturn:
    raise InvalidInput("import", f"contains {name}, which is not JSON")
