"""`saveslot.open`: from a URL to a manager."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from saveslot import codec, settings
from saveslot.errors import InvalidInput
from saveslot.manager import SessionManager
from saveslot.session import attempts
from saveslot.session.retention import DEFAULT, Rules
from saveslot.settings import Setting
from saveslot.stores import Store, open_store, shown, sqlite_url, store_url
from saveslot.values.checks import Span, as_span, as_text

AWAIT = "write `async with saveslot.open(…) as sessions:` or `sessions = await saveslot.open(…)`"
HOT = ("valkey://", "valkeys://", "redis://", "rediss://", "unix://")


class open:  # noqa: A001, N801  (saveslot.open reads well)
    """`async with saveslot.open() as sessions:` or `sessions = await saveslot.open()`, then `await sessions.close()`.

    `url` is the path of a SQLite file (`agents.db`), `postgresql://user@host/database`, `valkey://host` (sessions
    expire `session_ttl_hours` after their last use), `memory:`, or a server's (`http://host:7788`), with the `token`
    that it asks for (or `SAVESLOT_TOKEN`). The first write creates a missing file, or missing tables; reading creates
    nothing. `hot`, such as `valkey://host`, adds a hot tier. Defaults come from the environment
    (`SAVESLOT_URL`, `SAVESLOT_HOT`, `SAVESLOT_NAMESPACE`) or `saveslot.toml`; the default store is a SQLite file in the
    user's data folder.

    `encryption_key` (or `SAVESLOT_ENCRYPTION_KEY`) seals new sessions: 32 bytes, their base64 text, or several keys by
    id, the one for new sessions first. Reading a sealed session needs the key that sealed it.

    A session that its owners leave by an exception, or die with, is claimed again at once, then after pauses that grow
    from `backoff` seconds to 5 minutes; after `max_attempts` without a new checkpoint or finished step in between it is
    failed (None: never).
    """

    _patient = True  # wait up to 30 s for a server that is not there yet

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        hot: str | None = None,
        namespace: str | None = None,
        encryption_key: codec.Keys | None = None,
        token: str | None = None,
        session_ttl_hours: Span = 24,
        max_state_bytes: int = codec.MAX_STATE,
        worker_beat: Span = 5.0,
        worker_ttl: Span = 20.0,
        max_block: Span = 300.0,
        retention: Rules = DEFAULT,
        backoff: Span = attempts.BACKOFF,
        max_attempts: int | None = attempts.MAX_ATTEMPTS,
    ) -> None:
        resolved = located(url, hot, namespace)
        self._url = resolved["url"].value
        self._hot = resolved["hot"].value if "hot" in resolved else None
        if self._hot is not None and not self._hot.startswith(HOT):
            raise InvalidInput("hot", f"{self._hot!r} ({resolved['hot'].source}) is not a valkey:// or redis:// URL")
        self._token = None if token is None else as_text(token, "token")
        self._options: dict[str, Any] = {
            "namespace": resolved["namespace"].value,
            "encryption_key": encryption_key if encryption_key is not None else _keys(resolved),
            "session_ttl_hours": session_ttl_hours,
            "max_state_bytes": max_state_bytes,
            "worker_beat": worker_beat,
            "worker_ttl": worker_ttl,
            "max_block": max_block,
            "retention": retention,
            "backoff": backoff,
            "max_attempts": max_attempts,
        }
        self._manager: SessionManager | None = None

    async def _open(self) -> SessionManager:
        ttl = as_span(self._options["session_ttl_hours"], "session_ttl_hours", 3600) * 3600
        store = await open_store(self._url, ttl, token=self._token, patient=self._patient)
        try:
            if self._hot is not None:
                from saveslot.stores.hot import TieredStore  # imported when it is used

                store = TieredStore.at(store, self._hot, ttl)
            return SessionManager(store=self._around(store), **self._options)
        except BaseException:
            await store.close()
            raise

    def _around(self, store: Store) -> Store:
        """The store with what a subclass puts around it."""
        return store

    def __repr__(self) -> str:
        return f"<saveslot.open({shown(self._url)!r}), not opened yet: {AWAIT}>"

    if not TYPE_CHECKING:  # or every attribute would pass a type checker

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"saveslot.open(…) is not open yet, so it has no {name!r}: {AWAIT}")

        def __enter__(self) -> Any:
            raise TypeError(f"write `with saveslot.blocking.open(…) as sessions:` in code without async, else {AWAIT}")

        def __exit__(self, *_: object) -> None: ...

    def __await__(self) -> Generator[Any, Any, SessionManager]:
        return self._open().__await__()

    async def __aenter__(self) -> SessionManager:
        self._manager = await self._open()
        return self._manager

    async def __aexit__(self, *_: object) -> None:
        if self._manager is not None:
            await self._manager.close()


class hurried(open):  # noqa: N801  (reads like `open`)
    """`open` for commands: gives up within 2 s on a host that is unknown or refuses connections."""

    _patient = False


def located(
    url: str | os.PathLike[str] | None = None, hot: str | None = None, namespace: str | None = None
) -> dict[str, Setting]:
    """Return the store and namespace that the arguments and settings name, and where each was set."""
    if url is not None and not (isinstance(url, os.PathLike) or as_text(url, "url")):
        hint = "omit it for SAVESLOT_URL, saveslot.toml or the default file, or pass one: agents.db, sqlite:///file.db"
        raise InvalidInput("url", f"must not be empty; {hint}")
    if hot is not None:
        as_text(hot, "hot")
    resolved = settings.resolve(url=None if url is None else store_url(url), hot=hot, namespace=namespace)
    if "url" in resolved:
        value, source = resolved["url"]
        resolved["url"] = Setting(store_url(value), source)
    else:
        resolved["url"] = Setting(default_url(), "default")
    resolved.setdefault("namespace", Setting("default", "default"))
    return resolved


def encryption_keys(given: codec.Keys | None = None) -> codec.Keys | None:
    """Return the caller's encryption keys, or those from the environment or `saveslot.toml`."""
    if given is not None:
        return given
    return _keys(settings.resolve())


def _keys(resolved: dict[str, Setting]) -> str | None:
    if "encryption_key" not in resolved:
        return None
    value, source = resolved["encryption_key"]
    if not value:  # a script that failed to read its key must not store plain text
        raise InvalidInput(
            "encryption_key", f"{source} is empty; set it to a key, or unset it to store sessions unsealed"
        )
    return value


def default_url() -> str:
    """Return the default store's URL: a SQLite file in the user's data folder."""
    return sqlite_url(settings.data_folder() / "saveslot.db")
