"""`saveslot key`: `key new`, `key list` and `key rotate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.screen import Line, line, note
from saveslot.cli.state import DIM
from saveslot.codec import Keyring, new_key
from saveslot.opening import encryption_keys
from saveslot.values.checks import Data
from saveslot.values.words import many

Action = Annotated[
    Literal["new", "list", "rotate"],
    Parameter(
        name="ACTION",
        help="new: print a key; list: show the keys in use; rotate: re-encrypt all session keys with the newest key.",
    ),
]


async def key(action: Action, /, *, common: Common = COMMON) -> None:
    match action:
        case "new":
            _new(common)
        case "list":
            await _list(common)
        case "rotate":
            await _rotate(common)


def _new(common: Common) -> None:
    key = new_key()
    common.screen.answer(
        {"id": Keyring.of(key).newest, "key": key},
        [
            line((key, "")),
            "store this key outside the database (SAVESLOT_ENCRYPTION_KEY); if you lose it, sealed sessions are lost",
        ],
    )


async def _list(common: Common) -> None:
    keys = encryption_keys()
    given = [] if keys is None else Keyring.of(keys).ids
    async with common.sessions() as sessions:
        used = await sessions.key_ids()
    rows: list[Data] = [
        {"id": key_id, "sessions": used.get(key_id, 0), "given": key_id in given, "newest": key_id in given[:1]}
        for key_id in dict.fromkeys([*given, *sorted(set(used) - {""})])
    ]
    common.screen.answer({"keys": rows, "not_sealed": used.get("", 0)}, _listed(rows, used.get("", 0)))


def _listed(rows: list[Data], not_sealed: int) -> Iterator[Line]:
    for row in rows:
        use = (
            "for new sessions"
            if row["newest"]
            else "given"
            if row["given"]
            else "not given: its sessions cannot be read"
        )
        yield line((f"{row['id']:<12}", "bold"), (f"{many(row['sessions'], 'session'):<16}", ""), (use, DIM))
    if not_sealed:
        yield line((f"{'(none)':<12}", "bold"), (f"{many(not_sealed, 'session'):<16}", ""), ("not sealed", DIM))


async def _rotate(common: Common) -> None:
    async with common.sessions() as sessions:
        rotated = await sessions.rotate_keys()
    wrapped = line((many(rotated["rotated"], "session"), "bold"), (" re-encrypted with the newest key", ""))
    common.screen.answer(rotated, [wrapped])
    for key_id, count in rotated["locked"].items():
        note(f"{many(count, 'session')} skipped: key {key_id} was not given")
    if rotated["changed_meanwhile"]:
        note(f"{many(rotated['changed_meanwhile'], 'session')} changed meanwhile; rotate again")
    if rotated["locked"] or rotated["changed_meanwhile"]:
        raise SystemExit(1)
