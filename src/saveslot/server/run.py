"""One server process: bind, open the store, answer until SIGTERM or Ctrl-C, let requests finish, close the store."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager

import msgspec
import uvicorn

from saveslot.errors import InvalidInput, Unavailable
from saveslot.opening import located, open as open_sessions
from saveslot.server.app import Server
from saveslot.server.feeds import end_streams
from saveslot.server.guard import LOOPBACK, RATE, Rates
from saveslot.server.tokens import Tokens

# Seconds that open requests get to finish after SIGTERM.
GRACE = 10


# Seconds that an idle connection is kept open.
KEPT = 120


class Uvicorn(uvicorn.Server):
    """Calls `ready` once it listens. Leaves signals to `serve`, which closes the store after it."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Options(msgspec.Struct, frozen=True):
    """What `saveslot serve` was told."""

    url: str | None = None
    host: str = "127.0.0.1"
    port: int = 7788
    token_required: bool = False
    rate: float = RATE


async def serve(options: Options, ready: Callable[[str], None]) -> None:
    """Serve the store until this process is told to end. `ready` gets the server's URL once it answers."""
    async with open_sessions(options.url) as sessions:
        tokens = Tokens(sessions, required=options.token_required or not is_loopback(options.host))
        await tokens.start()
        try:
            await _serve(
                options, Server(sessions, tokens, Rates(options.rate), located(options.url)["url"].value), ready
            )
        finally:
            await tokens.stop()


async def _serve(options: Options, app: Server, ready: Callable[[str], None]) -> None:
    if app.tokens.required and not app.tokens.any and not is_loopback(options.host):
        raise InvalidInput(
            "--host",
            f"{options.host} can be reached from other machines, so callers need tokens, and the store has none; "
            "create one first: saveslot token create NAME --scope admin",
        )
    with closing(bind(options.host, options.port)) as listening:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEPT,
            timeout_graceful_shutdown=GRACE,
        )
        place = listening.getsockname()
        server = Uvicorn(config, lambda: ready(f"http://{_quoted(place[0])}:{place[1]}"))
        loop = asyncio.get_running_loop()
        signals = () if sys.platform == "win32" else (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, _end, server, app)
        try:
            await server.serve(sockets=[listening])
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def _end(server: Uvicorn, app: Server) -> None:
    server.should_exit = True
    end_streams(app.manager)


def is_loopback(host: str) -> bool:
    return _quoted(host) in LOOPBACK


def bind(host: str, port: int) -> socket.socket:
    try:
        [(family, kind, number, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listening = socket.socket(family, kind, number)
        try:
            if sys.platform != "win32":  # there it would let another process take the port over
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except BaseException:
            listening.close()
            raise
    except OSError as exc:
        raise Unavailable(f"cannot listen on {host}:{port} ({exc.strerror}); choose another --port") from exc
    return listening


def _quoted(host: str) -> str:
    return f"[{host}]" if ":" in host else host
