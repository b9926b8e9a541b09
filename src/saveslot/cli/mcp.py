"""`saveslot mcp`: the tools of a coding agent, for its MCP client."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Flag, port_number
from saveslot.cli.screen import note, write
from saveslot.errors import InvalidInput


def mcp(
    *,
    http: Annotated[bool, Flag("Serve clients on this machine over HTTP, at /mcp; default is stdio.")] = False,
    port: Annotated[
        int, Parameter(validator=port_number, metavar="PORT", help="Port for --http; 0: any free one.")
    ] = 7789,
    session: Annotated[
        str | None,
        Parameter(metavar="NAME", help="Session that tools use by default (default: the current folder's name)."),
    ] = None,
    common: Common = COMMON,
) -> None:
    try:
        from saveslot.adapters import mcp as server
    except ImportError as exc:
        raise InvalidInput("mcp", str(exc)) from None
    place = common.file if common.file is not None and common.file.is_dir() else common.url
    namespace = common.settings["namespace"].value

    def ready(url: str) -> None:
        write(f"listening on {url}\n".encode())
        note(f"store: {common.place} ({common.source}); stop with Ctrl-C")

    if http:
        asyncio.run(server.serve_http(place, namespace, port, ready, session))
    else:
        asyncio.run(server.serve_stdio(place, namespace, session))
