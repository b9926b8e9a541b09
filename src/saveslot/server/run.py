"""One server process: bind, open the store, answer until SIGTERM or Ctrl-C, let requests finish, close the store."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, ClassVar, NamedTuple

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from saveslot.errors import InvalidInput, Unavailable
from saveslot.manager import SessionManager
from saveslot.opening import located, open as open_sessions
from saveslot.server.app import Server
from saveslot.server.feeds import end_streams
from saveslot.server.guard import LOOPBACK, RATE, Rates
from saveslot.server.keepers import Keepers, Retaining
from saveslot.server.limits import Limited
from saveslot.server.load import HEADING, UNREAD
from saveslot.server.measured import Measured
from saveslot.server.metrics import own
from saveslot.server.seen import log_json
from saveslot.server.siblings import Siblings
from saveslot.server.tokens import Tokens
from saveslot.session.retention import DEFAULT
from saveslot.stores import Store

# Seconds that open requests get to finish after SIGTERM.
GRACE = 10
# Seconds that an idle connection is kept open.
KEPT = 120
# Connections of a process, if it may have as many files, and files that it needs for itself.
CONNECTIONS, FILES = 10_000, 100


class Protocol(HttpToolsProtocol):
    """Cuts a client that does not send the head of a request in time; and of too many connections those that have been
    without a request for longest, so that idle ones keep nobody out.
    """

    most = CONNECTIONS
    open = 0
    idle: ClassVar[OrderedDict[Protocol, None]] = OrderedDict()

    _heading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()
        Protocol.open += 1
        self.idle[self] = None
        if self.open > self.most:
            self.idle.popitem(last=False)[0].transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)
        Protocol.open -= 1
        self.idle.pop(self, None)

    def on_message_begin(self) -> None:
        self._arrived()
        self._expect()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._arrived()
        self.idle.pop(self, None)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self.idle[self] = None

    def _expect(self) -> None:
        self._heading = self.loop.call_later(HEADING, self.transport.abort)

    def _arrived(self) -> None:
        if self._heading is not None:
            self._heading.cancel()
            self._heading = None


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
    cert: str | None = None
    key: str | None = None
    log: str = "text"  # or "json": a line for each request
    proxy: str | None = None  # addresses of proxies whose X-Forwarded headers count
    traces: bool = False
    retaining: Retaining | None = None  # None: no keeper runs here

    def place(self, listening: socket.socket) -> str:
        host, port, *_ = listening.getsockname()
        return f"{'http' if self.cert is None else 'https'}://{_quoted(host)}:{port}"


class limited(open_sessions):  # noqa: N801  (reads like `open`)
    """`open` for a server: what is written keeps to the namespaces' quotas."""

    limits: Limited

    def _around(self, store: Store) -> Store:
        self.limits = Limited(store)
        return Measured(self.limits)


class Position(NamedTuple):
    """The position of one process of `--workers`."""

    number: int
    folder: str  # of their sockets
    parent: int  # a file that is at its end once the parent process is gone


async def serve(
    options: Options, listening: socket.socket, ready: Callable[[], None], position: Position | None = None
) -> None:
    """Serve the store until this process is told to end, or its parent is gone. `ready` is called once it answers."""
    if options.log == "json":
        log_json()
    retaining = options.retaining
    opening = limited(options.url, retention=DEFAULT if retaining is None else retaining.rules)
    async with opening as sessions, _keepers(sessions, retaining, position):
        required = options.token_required or not is_loopback(options.host)
        tokens = Tokens(sessions, opening.limits, required=required)
        await tokens.start()
        try:
            if not tokens.any and not is_loopback(options.host):
                raise InvalidInput(
                    "--host",
                    f"{options.host} can be reached from other machines, so callers need tokens, and the store has "
                    "none; create one first: saveslot token create NAME --scope admin",
                )
            server = _traced_server() if options.traces else Server
            app = server(sessions, tokens, Rates(options.rate), located(options.url)["url"].value)
            app.jobs.start()
            try:
                if position is None:
                    await _serve(options, app, listening, ready)
                else:
                    async with _siblings(app, position):
                        await _serve(options, app, listening, ready, position.parent)
            finally:
                await app.jobs.stop()
        finally:
            await tokens.stop()


async def _serve(
    options: Options, app: Server, listening: socket.socket, ready: Callable[[], None], parent: int | None = None
) -> None:
    try:
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=options.proxy is not None,
            forwarded_allow_ips=options.proxy or "",
            ssl_certfile=options.cert,
            ssl_keyfile=options.key,
            timeout_keep_alive=KEPT,
            timeout_graceful_shutdown=GRACE,
        )
        config.load()
    except OSError as exc:  # the certificate
        raise InvalidInput("--tls-cert", f"{options.cert} cannot be used with its key ({exc.strerror or exc})") from exc
    Protocol.most = _connections()
    server = Uvicorn(config, ready)
    loop = asyncio.get_running_loop()
    signals = () if sys.platform == "win32" else (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, _end, server, app)
    if parent is not None:
        loop.add_reader(parent, _orphaned, server, app, parent)
    try:
        await server.serve(sockets=[listening])
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _connections() -> int:
    """Return how many connections this process can have; let it have as many files as the system allows."""
    if sys.platform == "win32":
        return CONNECTIONS
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = CONNECTIONS + FILES if hard == resource.RLIM_INFINITY else hard
    with suppress(ValueError, OSError):  # the system has a limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(CONNECTIONS, soft - FILES))


def _orphaned(server: Uvicorn, app: Server, parent: int) -> None:
    asyncio.get_running_loop().remove_reader(parent)  # it stays at its end
    _end(server, app)


@asynccontextmanager
async def _siblings(app: Server, position: Position) -> AsyncGenerator[None]:
    async def figures() -> bytes:
        return msgspec.json.encode(await own(app.manager, app.room, app.seen))

    siblings = app.seen.siblings = Siblings(position.folder, position.number, figures)
    try:
        await siblings.start()
    except OSError as exc:
        raise Unavailable(f"--workers needs sockets in {position.folder} ({exc}); set TMPDIR to a short path") from exc
    try:
        yield
    finally:
        await siblings.stop()


@asynccontextmanager
async def _keepers(
    sessions: SessionManager, retaining: Retaining | None, position: Position | None
) -> AsyncGenerator[None]:
    """Keep the store's namespaces meanwhile; of `--workers`, one process does."""
    if retaining is None or (position is not None and position.number):
        yield
        return
    keepers = Keepers(sessions, retaining)
    keepers.start()
    try:
        yield
    finally:
        await keepers.stop()


def _traced_server() -> type[Server]:
    from saveslot.server.traces import TracedServer, start  # OpenTelemetry is an extra

    start()
    return TracedServer


def _end(server: Uvicorn, app: Server) -> None:
    server.should_exit = True
    app.room.draining.set()
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
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                # A client that takes nothing of its answer is cut by the kernel, and its buffers are freed.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD)
            listening.bind(address)
        except BaseException:
            listening.close()
            raise
    except OSError as exc:
        raise Unavailable(f"cannot listen on {host}:{port} ({exc.strerror}); choose another --port") from exc
    return listening


def _quoted(host: str) -> str:
    return f"[{host}]" if ":" in host else host
