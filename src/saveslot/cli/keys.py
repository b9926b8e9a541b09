"""The command that looks after keys: `key new`, `key list`, `key rotate`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.screen import note
from saveslot.cli.state import DIM
from saveslot.cli.words import many
from saveslot.codec import Keyring, new_key
from saveslot.model import Data
from saveslot.opening import encryption_keys

Action = Annotated[
    Literal["new", "list", "rotate"],
    Parameter(
        name="ACTION",
        help="new prints a key; list shows which are in use; rotate wraps all sessions by the newest one given.",
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
    made = new_key()
    if common.screen.json:
        common.screen.data({"id": Keyring.of(made).newest, "key": made})
        return
    print(made)
    note("keep it where the store is not: without it nobody reads what it seals (SAVESLOT_ENCRYPTION_KEY)")


async def _list(common: Common) -> None:
    screen = common.screen
    keys = encryption_keys()
    given = [] if keys is None else Keyring.of(keys).ids
    async with common.sessions() as sessions:
        used = await sessions.key_ids()
    rows: list[Data] = [
        {"id": key_id, "sessions": used.get(key_id, 0), "given": key_id in given, "newest": key_id in given[:1]}
        for key_id in dict.fromkeys([*given, *sorted(set(used) - {""})])
    ]
    if screen.json:
        screen.data({"keys": rows, "not_sealed": used.get("", 0)})
        return
    for row in rows:
        told = "for new sessions" if row["newest"] else "given" if row["given"] else "not given: these cannot be read"
        screen.say((f"{row['id']:<12}", "bold"), (f"{many(row['sessions'], 'session'):<16}", ""), (told, DIM))
    if used.get(""):
        screen.say((f"{'(none)':<12}", "bold"), (f"{many(used[''], 'session'):<16}", ""), ("not sealed", DIM))


async def _rotate(common: Common) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        told = await sessions.rotate_keys()
    if screen.json:
        screen.data(told)
    else:
        screen.say((many(told["rotated"], "session"), "bold"), (" wrapped by the newest key", ""))
    for key_id, count in told["locked"].items():
        note(f"{many(count, 'session')} left: the key {key_id} was not given")
    if told["changed_meanwhile"]:
        note(f"{many(told['changed_meanwhile'], 'session')} changed meanwhile: rotate again")
    if told["locked"] or told["changed_meanwhile"]:
        raise SystemExit(1)
