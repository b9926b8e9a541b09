"""`saveslot.open`: from a URL to a manager."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from saveslot import codec, settings
from saveslot.errors import InvalidInput
from saveslot.manager import SessionManager
from saveslot.model import as_span, as_text
from saveslot.retention import DEFAULT, Rules
from saveslot.settings import Setting
from saveslot.stores import open_store

HOT = ("valkey://", "valkeys://", "redis://", "rediss://", "unix://")


class open:  # noqa: A001, N801  (saveslot.open reads well)
    """`async with saveslot.open() as sessions:` or `sessions = await saveslot.open()`, then `await sessions.close()`.

    `url` is `postgresql://user@host/database`, `sqlite:///file.db`, `valkey://host` (sessions live there for
    `session_ttl_hours` after their last use) or `memory:`; `hot` puts a Valkey in front, `valkey://host`. What
    is left out comes from the environment (`SAVESLOT_URL`, `SAVESLOT_HOT`, `SAVESLOT_NAMESPACE`) or from
    `saveslot.toml`; else it is one SQLite file among the user's data.

    `encryption_key` (or `SAVESLOT_ENCRYPTION_KEY`) seals the sessions made from now on: 32 bytes, their base64 text, or
    several by id, the one for new sessions first. A sealed session is read with the key it was sealed with.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        hot: str | None = None,
        namespace: str | None = None,
        encryption_key: codec.Keys | None = None,
        session_ttl_hours: float = 24,
        max_state_bytes: int = codec.MAX_STATE,
        worker_beat: float = 5.0,
        worker_ttl: float = 20.0,
        max_block: float = 300.0,
        retention: Rules = DEFAULT,
    ) -> None:
        told = located(url, hot, namespace)
        self._url = told["url"].value
        self._hot = told["hot"].value if "hot" in told else None
        if self._hot is not None and not self._hot.startswith(HOT):
            raise InvalidInput("hot", f"{self._hot!r} ({told['hot'].source}) is no valkey:// or redis:// URL")
        self._options: dict[str, Any] = {
            "namespace": told["namespace"].value,
            "encryption_key": encryption_key if encryption_key is not None else _keys(told),
            "session_ttl_hours": session_ttl_hours,
            "max_state_bytes": max_state_bytes,
            "worker_beat": worker_beat,
            "worker_ttl": worker_ttl,
            "max_block": max_block,
            "retention": retention,
        }
        self._manager: SessionManager | None = None

    async def _open(self) -> SessionManager:
        ttl = as_span(self._options["session_ttl_hours"], "session_ttl_hours") * 3600
        store = await open_store(self._url, ttl)
        try:
            if self._hot is not None:
                from saveslot.stores.tiered import TieredStore  # imported when it is used

                store = TieredStore.at(store, self._hot, ttl)
            return SessionManager(store=store, **self._options)
        except BaseException:
            await store.close()
            raise

    def __await__(self) -> Generator[Any, Any, SessionManager]:
        return self._open().__await__()

    async def __aenter__(self) -> SessionManager:
        self._manager = await self._open()
        return self._manager

    async def __aexit__(self, *_: object) -> None:
        if self._manager is not None:
            await self._manager.close()


def located(url: str | None = None, hot: str | None = None, namespace: str | None = None) -> dict[str, Setting]:
    """Which store and namespace these arguments lead to, and who said so."""
    if url is not None and not as_text(url, "url"):
        hint = "leave it out for SAVESLOT_URL, saveslot.toml or the default file, or name one: sqlite:///file.db"
        raise InvalidInput("url", f"must not be empty; {hint}")
    if hot is not None:
        as_text(hot, "hot")
    found = settings.resolve(url=url, hot=hot, namespace=namespace)
    if "url" not in found:
        found["url"] = Setting(default_url(), "default")
    found.setdefault("namespace", Setting("default", "default"))
    return found


def encryption_keys(given: codec.Keys | None = None) -> codec.Keys | None:
    """The keys to seal with: the caller's, or those of the environment or `saveslot.toml`."""
    if given is not None:
        return given
    return _keys(settings.resolve())


def _keys(told: dict[str, Setting]) -> str | None:
    if "encryption_key" not in told:
        return None
    value, source = told["encryption_key"]
    if not value:  # a script that failed to read the key must not store plain text
        raise InvalidInput("encryption_key", f"{source} is empty; unset it to seal nothing, or give a key")
    return value


def default_url() -> str:
    """One file where the platform keeps a user's data."""
    return settings.sqlite_url(settings.data_folder() / "saveslot.db")
