"""What every command takes: which store, which namespace, and whether a program reads the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from saveslot.cli.screen import Screen, note
from saveslot.manager import SessionManager
from saveslot.opening import located, open as open_sessions
from saveslot.settings import Setting
from saveslot.stores import VALKEY, shown, sqlite_path

EVERYWHERE = Group("Everywhere", sort_key=99)


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    store: Annotated[
        str | None,
        Parameter(group=EVERYWHERE, help="URL of the store. Else SAVESLOT_URL, saveslot.toml, or the user's own file."),
    ] = None
    namespace: Annotated[
        str | None, Parameter(group=EVERYWHERE, help="Whose sessions. Else SAVESLOT_NAMESPACE, saveslot.toml.")
    ] = None
    json: Annotated[bool, Parameter(group=EVERYWHERE, negative="", show_default=False, help="Answer in JSON.")] = False

    @property
    def screen(self) -> Screen:
        return Screen(json=self.json)

    @property
    def settings(self) -> dict[str, Setting]:
        """Store, namespace, and who set them."""
        return located(self.store, namespace=self.namespace)

    @property
    def url(self) -> str:
        return self.settings["url"].value

    @property
    def said_by(self) -> str:
        """Who chose the store, in the words of the command line."""
        return "--store" if self.store else self.settings["url"].source

    @property
    def file(self) -> Path | None:
        """The SQLite file, if the store is one."""
        return Path(sqlite_path(self.url)) if self.url.startswith("sqlite:") else None

    @property
    def hot(self) -> str | None:
        return self.settings["hot"].value if "hot" in self.settings else None

    @property
    def postgres(self) -> bool:
        return self.url.startswith(("postgresql:", "postgres:"))

    @property
    def valkey(self) -> bool:
        return self.url.startswith(tuple(f"{scheme}://" for scheme in VALKEY))

    @property
    def place(self) -> str:
        """The store as it may be shown: a file, or a URL without its password."""
        return str(self.file or shown(self.url))

    @asynccontextmanager
    async def sessions(self, *, create: bool = False, **options: Any) -> AsyncGenerator[SessionManager]:
        """The store, open. Looking at a file that is not there does not make one."""
        url = self.url
        if not create and self.file is not None and not self.file.exists():
            note(f"{self.file} is not there yet; the first session makes it ({self.said_by})")
            url = "memory:"
        async with open_sessions(url, namespace=self.settings["namespace"].value, **options) as sessions:
            yield sessions


COMMON = Common()
