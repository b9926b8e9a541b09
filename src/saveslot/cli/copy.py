"""`saveslot copy`: copy all sessions of a store to another one, or one session under a new id."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import transfer
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.screen import line, progress
from saveslot.cli.target import find_session
from saveslot.errors import NotFound
from saveslot.moving.copy import copy_sessions, count_sessions
from saveslot.stores import shown, sqlite_path, store_url


async def copy(
    source: Annotated[
        str, Parameter(name="FROM", help="The store to copy, a URL or a file; with --as, a session's id.")
    ],
    target: Annotated[str | None, Parameter(name="TO_URL", help="The store to copy it to; created if missing.")] = None,
    /,
    *,
    new_id: Annotated[
        str | None,
        Parameter(name="--as", metavar="ID", help="Copy one session, with its steps and records, under this id."),
    ] = None,
    upto: Annotated[
        str | None, Parameter(metavar="REF", help="With --as: its last entry, a checkpoint's name, number or ~2.")
    ] = None,
    common: Common = COMMON,
) -> None:
    if new_id is not None:
        if target is not None:
            raise Misuse("copy: name either a session and --as, or two stores")
        await _copy_session(source, new_id, upto, common)
        return
    if target is None or upto is not None:
        raise Misuse("copy: name two stores, or a session and the id of its copy: saveslot copy lesson-1 --as lesson-2")
    source, target = store_url(source), store_url(target)
    if source == target:
        raise Misuse("copy: name two different stores")
    namespace = common.settings["namespace"].value
    _there(source)
    async with transfer.opened(source) as here, transfer.opened(target) as there:
        with progress() as bars:
            bar = bars.add_task("copy", total=await count_sessions(here, namespace))
            report = await copy_sessions(here, there, namespace, lambda more: bars.advance(bar, more))
    transfer.answer(common, report, f"from {shown(source)} to {shown(target)}, read back and compared")


async def _copy_session(what: str, new_id: str, upto: str | None, common: Common) -> None:
    async with common.sessions() as sessions:
        session = await find_session(sessions, what, changes=True)
        copied = await sessions.copy_session(session.session_id, new_id, upto=upto)
    end = copied.checkpoints[-1].id if copied.checkpoints else copied.session_id
    common.screen.answer(copied, [line((copied.session_id, "bold")), f"copied from {session.session_id}, up to {end}"])


def _there(url: str) -> None:
    if url.startswith("sqlite:") and not Path(sqlite_path(url)).exists():
        raise NotFound(f"there is no file {sqlite_path(url)}; nothing was copied")
