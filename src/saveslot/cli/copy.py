"""`saveslot copy`: copy all sessions of a store to another one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import transfer
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.screen import progress
from saveslot.errors import NotFound
from saveslot.moving.copy import copy_sessions, count_sessions
from saveslot.stores import shown, sqlite_path, store_url


async def copy(
    source: Annotated[str, Parameter(name="FROM_URL", help="The store to copy: a URL or a file.")],
    target: Annotated[str, Parameter(name="TO_URL", help="The store to copy it to; created if missing.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
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


def _there(url: str) -> None:
    if url.startswith("sqlite:") and not Path(sqlite_path(url)).exists():
        raise NotFound(f"there is no file {sqlite_path(url)}; nothing was copied")
