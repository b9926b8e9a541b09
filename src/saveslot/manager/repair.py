"""Rescue of a damaged session: a new session continues from its newest sound state; the damaged one stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from saveslot import codec
from saveslot.errors import AlreadyExists, Corrupt, InvalidInput, NotFound
from saveslot.manager.create import branch
from saveslot.session.draft import ABOUT
from saveslot.session.engine import Space
from saveslot.session.lookup import about_of
from saveslot.session.model import AgentSession, Checkpoint
from saveslot.session.timeline import Timeline, frames_of, note_of, visible
from saveslot.session.vault import Vault
from saveslot.values.checks import MAX_NAME, Data, as_labels
from saveslot.values.kinds import ABOUT_KINDS, DATA_KINDS, HIDING_KINDS, Kind
from saveslot.values.log import MAX_SEQ, Entry, Row, Wanted, moment

SUFFIX = "-repaired"
# Ids to try: earlier repairs, of older damage, may have taken some.
TRIES = 20
# Reads that may fail: about ten for each damaged entry of a log of 1,000. If all fail, the log as a whole is damaged.
MOST_FAILED = 2_000


class Rescued(NamedTuple):
    session_id: str  # of the new session
    seq: int  # the checkpoint that it continues from; 0 if the damaged session had none
    lost: str = ""  # what could not be saved, besides newer checkpoints


async def rescue(sessions: Space, row: Row) -> Rescued | None:
    """Create a session from what is sound in a damaged one, or find the one that an earlier rescue created.

    None if nothing is: no state of it can be rebuilt, or its key is damaged.
    """
    vault = sessions.engine.vault
    opened = vault.open_row(replace(row, locked=None))
    if vault.is_locked(row.key):
        return None
    entries = await _entries(vault, row.key)
    data = [entry for entry in _visible(entries, row.session_id) if entry.kind in DATA_KINDS]
    origin = await _newest(vault, row, data, DATA_KINDS)
    if origin is None and data:
        return None
    about = _body(opened, entries)
    if about is None:
        newest = await _newest(vault, row, [entry for entry in entries if entry.kind in ABOUT_KINDS], ABOUT_KINDS)
        about = None if newest is None else _checked(newest.data)
    if origin is None and about is None:
        return None
    source = AgentSession(session_id=row.session_id, agent_type=row.agent_type, user_id=row.user_id, **(about or {}))
    new_id = await _created(sessions, source, origin)
    return Rescued(new_id, 0 if origin is None else origin.seq, "" if about else "its context, metadata and labels")


async def _created(sessions: Space, source: AgentSession, origin: Checkpoint | None) -> str:
    came_from = source.session_id if origin is None else origin.id
    stem = source.session_id[: MAX_NAME - len(SUFFIX) - 3]
    for n in range(1, TRIES + 1):
        new_id = f"{stem}{SUFFIX}" + (f"-{n}" if n > 1 else "")
        try:
            await branch(sessions, source, origin, new_id)
        except AlreadyExists:
            known = await sessions.lookup.head(new_id)
            if known is None or sessions.lookup.session(known).metadata.get("forked_from") != came_from:
                continue
        return new_id
    raise AlreadyExists(f"{TRIES} sessions {stem}{SUFFIX}… exist already; delete those that you do not need")


async def _entries(vault: Vault, key: bytes) -> list[Entry]:
    """All entries that can be read, without frames."""
    entries: list[Entry] = []
    failed = 0
    left = [(first, min(2 * first - 1, MAX_SEQ)) for first in (1 << n for n in range(MAX_SEQ.bit_length()))]
    left.reverse()
    while left and failed < MOST_FAILED:
        first, last = left.pop()
        try:
            entries += await vault.entries(key, Wanted([(first, last)], frames=False))
        except Corrupt:
            failed += 1
            if first < last:
                middle = (first + last) // 2
                left += [(middle + 1, last), (first, middle)]
    return entries


def _visible(entries: list[Entry], session_id: str) -> list[Entry]:
    return visible(entries, _readable(entries), session_id)


def _readable(entries: list[Entry]) -> Iterator[Entry]:
    for entry in entries:
        if entry.kind in HIDING_KINDS:
            try:
                codec.read_note(entry.note or b"")
            except Corrupt:
                continue
            yield entry


async def _newest(vault: Vault, row: Row, entries: list[Entry], kinds: frozenset[Kind]) -> Checkpoint | None:
    """The newest of these entries whose frames match its digest."""
    for entry in reversed(entries):
        name = f"{row.session_id}:{entry.seq}"
        try:
            recipe = codec.Recipe.unpack(entry.recipe, entry.seq)
            frames = await frames_of(vault, row.key, [recipe], kinds) if recipe else []
            value = Timeline(row.session_id, frames).state(entry).value()
        except (Corrupt, NotFound):
            continue
        try:
            note = note_of(entry, name)
        except Corrupt:
            note = Data()
        return Checkpoint(name, entry.name, moment(entry.at), value, note)
    return None


def _body(row: Row, entries: list[Entry]) -> Data | None:
    try:
        return None if row.locked is not None or not entries else _checked(about_of(row, entries[-1])[0])
    except Corrupt:
        return None


def _checked(about: Data) -> Data | None:
    """Context, metadata and labels, if they are that."""
    try:
        if not all(isinstance(about.get(part), dict) for part in ABOUT):
            return None
        return {part: about[part] for part in ABOUT} | {"labels": as_labels(about["labels"])}
    except InvalidInput:
        return None
