"""The processes of `saveslot serve --workers N`, which share what they counted: a scrape reaches only one of them.

Each has a socket in a folder of the parent's, and tells its counts to whatever connects to it. The folder belongs to
the user who runs the server, and nobody else may enter it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

# Seconds that another process gets to answer. One that is starting, ending or stuck is left out.
PATIENCE = 5.0


class Siblings:
    def __init__(self, folder: str, number: int, tell: Callable[[], Awaitable[bytes]]) -> None:
        self.number = number
        self._folder = Path(folder)
        self._tell = tell
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        path = self._folder / str(self.number)
        path.unlink(missing_ok=True)  # of the process that had this number before
        self._server = await asyncio.start_unix_server(self._answer, path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            with suppress(OSError):  # the parent was quicker, or others are still there
                (self._folder / str(self.number)).unlink()
                self._folder.rmdir()

    async def others(self) -> dict[int, bytes]:
        """Return what the other processes tell, by their number."""
        numbers = [int(path.name) for path in self._folder.iterdir() if int(path.name) != self.number]
        answers = await asyncio.gather(*map(self._ask, numbers))
        return {number: answer for number, answer in zip(numbers, answers, strict=True) if answer}

    async def _ask(self, number: int) -> bytes:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_unix_connection(self._folder / str(number))
                try:
                    return await reader.read()
                finally:
                    writer.close()
        return b""

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(await self._tell())
            await writer.drain()
        writer.close()
