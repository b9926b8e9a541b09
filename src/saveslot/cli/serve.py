"""`saveslot serve`: the store over HTTP."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.screen import note, write
from saveslot.errors import InvalidInput


def serve(
    *,
    host: Annotated[str, Parameter(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(metavar="PORT", help="Port to listen on; 0: any free one.")] = 7788,
    common: Common = COMMON,
) -> None:
    try:
        import uvloop as loops
    except ModuleNotFoundError:
        import asyncio as loops  # Windows
    try:
        from saveslot.server import run
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("saveslot"):
            raise
        raise InvalidInput("serve", "the server needs the extra: pip install 'saveslot[server]'") from None

    def ready(url: str) -> None:
        write(f"listening on {url}\n".encode())
        note(f"store: {common.place} ({common.source}); stop with Ctrl-C")

    loops.run(run.serve(common.url, host, port, ready))
