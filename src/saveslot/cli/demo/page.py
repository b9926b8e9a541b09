"""The web page beside the story: `saveslot serve` on its store, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from saveslot.cli.demo.stage import Broken, Place

INSTALL = "pip install 'saveslot[server]'"


class Page(NamedTuple):
    url: str
    server: asyncio.subprocess.Process

    async def until_stopped(self) -> None:
        """Serve until Ctrl-C. SIGTERM and a closed terminal end it the same way, so that the store is kept."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        await self.server.wait()

    def stop(self) -> None:
        with suppress(ProcessLookupError):  # Ctrl-C on a terminal reaches the server, too
            self.server.terminate()


def installed() -> bool:
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "httptools"))


@asynccontextmanager
async def page(place: Place, namespace: str, folder: Path) -> AsyncGenerator[Page]:
    """Start the server on any free port; stop it however the demo ends."""
    errors = folder / "server.txt"
    environ = os.environ | ({} if place.hot is None else {"SAVESLOT_HOT": place.hot})
    code = [sys.executable, "-m", "saveslot", "serve", "--store", place.url, "--port", "0"]
    with errors.open("wb") as file:
        server = await asyncio.create_subprocess_exec(
            *code, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=file, env=environ
        )
    assert server.stdout is not None  # noqa: S101  (a pipe)
    running = Page("", server)
    try:
        line = (await server.stdout.readline()).decode()
        if not line.startswith("listening on "):
            raise Broken(f"the page's server did not start: {errors.read_text().strip()}")
        at = line.split()[-1]
        yield running._replace(url=at if namespace == "default" else f"{at}/?ns={quote(namespace, safe='')}")
    finally:
        running.stop()
        await server.wait()
