"""`saveslot serve`: the store over HTTP."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Flag, positive
from saveslot.cli.screen import note, write
from saveslot.errors import InvalidInput


def serve(
    *,
    host: Annotated[
        str,
        Parameter(metavar="HOST", help="Address to listen on. Beyond this machine, callers need tokens."),
    ] = "127.0.0.1",
    port: Annotated[int, Parameter(metavar="PORT", help="Port to listen on; 0: any free one.")] = 7788,
    token_required: Annotated[bool, Flag("Ask for tokens even before the first one was created.")] = False,
    rate: Annotated[
        float, Parameter(validator=positive, metavar="N", help="Maximum requests per second and token.")
    ] = 1000.0,
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

    options = run.Options(common.url, host, port, token_required=token_required, rate=rate)
    loops.run(run.serve(options, ready))
