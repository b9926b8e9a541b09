"""Options of every command: the store, the namespace, and JSON output."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from saveslot.cli.candidates import namespaces
from saveslot.cli.screen import Screen, note
from saveslot.errors import NotFound
from saveslot.manager import SessionManager
from saveslot.opening import hurried, located, open as open_sessions
from saveslot.settings import Setting
from saveslot.stores import shown, sqlite_path

EVERYWHERE = Group("All commands", sort_key=99)


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    store: Annotated[
        str | None,
        Parameter(
            group=EVERYWHERE,
            metavar="URL",
            help="Store: a file or a URL (default: SAVESLOT_URL, saveslot.toml, or a file in the user's data).",
        ),
    ] = None
    namespace: Annotated[
        str | None,
        Parameter(
            group=EVERYWHERE,
            metavar="NAME",
            completer=namespaces,
            help="Namespace (default: SAVESLOT_NAMESPACE or saveslot.toml).",
        ),
    ] = None
    json: Annotated[bool, Parameter(group=EVERYWHERE, negative="", show_default=False, help="Print JSON.")] = False
    no_pager: Annotated[
        bool, Parameter(group=EVERYWHERE, negative="", show_default=False, help="Never open a pager.")
    ] = False

    @property
    def screen(self) -> Screen:
        return Screen(json=self.json, paged=not self.no_pager)

    @property
    def settings(self) -> dict[str, Setting]:
        """Store and namespace, and where they were set."""
        return located(self.store, namespace=self.namespace)

    @property
    def url(self) -> str:
        return self.settings["url"].value

    @property
    def source(self) -> str:
        """Where the store was set, as a user of the command line knows it."""
        return "--store" if self.store else self.settings["url"].source

    @property
    def file(self) -> Path | None:
        """The SQLite file, if the store is one."""
        return Path(sqlite_path(self.url)) if self.url.startswith("sqlite:") else None

    @property
    def hot(self) -> str | None:
        return self.settings["hot"].value if "hot" in self.settings else None

    @property
    def place(self) -> str:
        """The store for messages: a file, or a URL without its password."""
        return str(self.file or shown(self.url))

    def require_file(self, hint: str) -> None:
        """Raise `NotFound` if the store is a SQLite file that does not exist."""
        if self.file is not None and not self.file.exists():
            raise NotFound(f"there is no file {self.file} ({self.source}); {hint}")

    @asynccontextmanager
    async def sessions(
        self, *, create: bool = False, patient: bool = False, **options: Any
    ) -> AsyncGenerator[SessionManager]:
        """Open the store. Unless the command may `create` it, say that a SQLite file is missing: it reads as empty.

        `patient`: wait up to 30 s for a server that is not there yet.
        """
        if not create and self.file is not None and not self.file.exists():
            note(f"{self.file} does not exist yet; the first session creates it ({self.source})")
        opening = open_sessions if patient else hurried
        async with opening(self.url, namespace=self.settings["namespace"].value, **options) as sessions:
            yield sessions


COMMON = Common()


@Parameter(name="*")
@dataclass(frozen=True)
class Place:
    """The same without --namespace, for commands where it would mean something else."""

    store: Annotated[
        str | None,
        Parameter(
            group=EVERYWHERE,
            metavar="URL",
            help="Store: a file or a URL (default: SAVESLOT_URL, saveslot.toml, or a file in the user's data).",
        ),
    ] = None
    json: Annotated[bool, Parameter(group=EVERYWHERE, negative="", show_default=False, help="Print JSON.")] = False
    no_pager: Annotated[
        bool, Parameter(group=EVERYWHERE, negative="", show_default=False, help="Never open a pager.")
    ] = False

    @property
    def common(self) -> Common:
        return Common(self.store, None, self.json, self.no_pager)


HERE = Place()
