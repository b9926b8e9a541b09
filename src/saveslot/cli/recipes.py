"""Rebuild what a log promises, whatever store keeps it: a checkpoint is good if it comes out as it went in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from saveslot import codec
from saveslot.cli.findings import Finding, Progress, few, problem, warning
from saveslot.cli.words import many
from saveslot.errors import Corrupt, KeyMissing, NotFound, SaveslotError
from saveslot.log import Entry, Row
from saveslot.model import DATA_KINDS, HIDING_KINDS, Data, Kind
from saveslot.opening import encryption_keys
from saveslot.sealing import SealedStore
from saveslot.slot import ABOUT_KINDS
from saveslot.stores import Store, open_store
from saveslot.stores.chained import ChainedStore
from saveslot.timeline import Timeline, needed, note_of, shown

# Entries whose frames are held at a time.
STRIDE = 500


async def recipes(
    url: str, sessions: Sequence[Any], entries: int, progress: Progress, *, most: int | None = None
) -> Finding:  # each session: its key, namespace, id and body
    """Rebuild every state that the log promises, and read every note; after `most` entries no other session."""
    damaged: list[str] = []
    advice: list[str] = []
    done = looked = 0
    locked: dict[str, int] = {}  # sessions that are sealed with keys we have not, by the key's id
    keys = encryption_keys()
    store = SealedStore(ChainedStore(await open_store(url)), None if keys is None else codec.Keyring.of(keys))
    try:
        for key, namespace, session_id, body in sessions:
            if most is not None and done >= most:
                break
            row = store.open_row(Row(key, namespace, session_id, body=body))
            if isinstance(row.locked, KeyMissing):
                locked[row.locked.key_id] = locked.get(row.locked.key_id, 0) + 1
                continue
            looked += 1
            before = len(damaged)
            states: list[tuple[int, bool]] = []  # each entry with the agent's data, and whether it can be read
            if reason := _unreadable(lambda row=row: _about(row)):
                damaged.append(f"{session_id}: context, metadata and labels: {reason}")
            async for seq, kind, reason in _entries(store, key, session_id):
                done += 1
                progress("recipes", done, max(done, entries))
                if kind in DATA_KINDS:
                    states.append((seq, reason is None))
                if reason is not None:
                    damaged.append(f"{session_id}:{seq}: {reason}")
            if len(damaged) > before:
                advice.append(_cure(session_id, namespace, states))
    except SaveslotError as exc:
        return problem("recipes", f"reading stopped after {many(done, 'entry')}: {exc}", "see the problems above")
    finally:
        await store.close()
    if damaged:
        told = f"{many(len(damaged), 'part')} of {many(done, 'entry')} cannot be read"
        return problem("recipes", told, *few(advice), details=few(damaged))
    if locked:
        told = f"{many(sum(locked.values()), 'session')} not looked into: sealed, and the key was not given"
        return warning("recipes", told, f"set SAVESLOT_ENCRYPTION_KEY to the keys {', '.join(sorted(locked))}")
    sample = f" of {many(looked, 'session')}, drawn by chance," if done < entries else ""
    return Finding("recipes", f"{many(done, 'entry')}{sample} rebuilt, each as it was saved")


def _about(row: Row) -> object:
    if row.locked is not None:
        raise row.locked
    return codec.read_note(row.body)


def _cure(session_id: str, namespace: str, states: list[tuple[int, bool]]) -> str:
    where = "" if namespace == "default" else f" --namespace {namespace}"
    sound = [seq for seq, readable in states if readable]
    if not sound:
        return f"restore {session_id} from a backup: none of its checkpoints can be read"
    if states[-1][1]:
        return f"{session_id} can go on: its newest state is sound; older ones are in a backup at best"
    return f"saveslot rollback {session_id} --to {sound[-1]}{where}  goes back to the newest sound checkpoint"


async def _entries(store: Store, key: bytes, id: str) -> AsyncGenerator[tuple[int, Kind | None, str | None]]:
    """The number and kind of each entry, and why it cannot be read, if so. What is hidden may have been emptied."""
    hiding = await store.entries(key, kinds=HIDING_KINDS, frames=False)
    hiding = [entry for entry in hiding if not _unreadable(lambda entry=entry: note_of(entry, id))]
    expected = 1
    while True:
        entries = await store.entries(key, [(expected, expected + STRIDE - 1)], frames=False)
        if not entries:
            return
        left = shown(entries, hiding, id)
        seqs = {entry.seq for entry in left}
        tracks = [
            await _timeline(store, key, id, [e for e in left if e.kind in kinds], kinds)
            for kinds in (DATA_KINDS, ABOUT_KINDS)
        ]
        for entry in entries:
            if entry.seq != expected:
                yield expected, None, f"is missing; entry {entry.seq} follows"
            expected = entry.seq + 1
            track = tracks[0] if entry.kind in DATA_KINDS else tracks[1] if entry.kind in ABOUT_KINDS else None
            gone = entry.seq not in seqs
            yield entry.seq, None if gone else entry.kind, _reason(entry, None if gone else track, f"{id}:{entry.seq}")


async def _timeline(store: Store, key: bytes, id: str, entries: list[Entry], kinds: frozenset[Any]) -> Timeline:
    sound = [entry for entry in entries if not _unreadable(lambda entry=entry: codec.Recipe.unpack(entry.recipe))]
    ranges = needed(sound)
    return Timeline(id, await store.entries(key, ranges, kinds=kinds) if ranges else [])


def _reason(entry: Entry, track: Timeline | None, name: str) -> str | None:
    def read() -> Iterator[Data]:
        yield note_of(entry, name)
        if track is not None:
            yield track.data(entry)

    return _unreadable(lambda: list(read()))


def _unreadable(read: Callable[[], object]) -> str | None:
    try:
        read()
    except Corrupt as exc:
        return exc.reason
    except NotFound:
        return "frames of it are gone"
    return None
