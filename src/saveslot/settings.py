"""Where sessions are kept, when the caller does not say.

Each setting is looked for on its own, and the first that is set wins:

    argument                    open(url=…), saveslot --store …
    environment                 SAVESLOT_URL, SAVESLOT_HOT, SAVESLOT_NAMESPACE, SAVESLOT_ENCRYPTION_KEY
                                (an empty one counts as not set; an empty key is an error)
    the folder's file           saveslot.toml in the working folder or the nearest folder above it
    the user's file             saveslot.toml in ~/.config/saveslot (or where the platform keeps configuration)
    default                     one SQLite file among the user's data, no hot tier, namespace "default"

    # saveslot.toml
    url = "sqlite:///agents.db"   # relative to this file, wherever the command is run
    namespace = "staging"

A key that does not exist is an error which names the nearest one that does: a misspelt setting must never send
sessions to another place in silence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from saveslot.errors import InvalidInput
from saveslot.stores import sqlite_path

FILE = "saveslot.toml"
KEYS = ("url", "hot", "namespace", "encryption_key")


class Setting(NamedTuple):
    """A value, and who set it: `argument url`, `SAVESLOT_URL`, a file's path, or `default`."""

    value: str
    source: str


def resolve(**arguments: str | None) -> dict[str, Setting]:
    """What is set, by key; a key that nobody set is missing."""
    files = [_read(path) for path in (_folder_file(), user_file()) if path is not None]
    found: dict[str, Setting] = {}
    for key in KEYS:
        given = arguments.get(key)
        told = os.environ.get(f"SAVESLOT_{key.upper()}")
        if given is not None:
            found[key] = Setting(given, f"argument {key}")
        elif told or (told is not None and key == "encryption_key"):
            found[key] = Setting(told, f"SAVESLOT_{key.upper()}")
        else:
            found.update([(key, file[key]) for file in files if key in file][:1])
    return found


def user_file() -> Path | None:
    """The user's own settings, if there is such a file."""
    path = user_folder() / "saveslot" / FILE
    return path if os.path.lexists(path) else None


def user_folder() -> Path:
    """Where the platform keeps a user's configuration."""
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def data_folder() -> Path:
    """Where the platform keeps a user's data."""
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return folder / "saveslot"


def _folder_file() -> Path | None:
    # Also one that cannot be read, a link that leads nowhere or a folder: passed over, sessions would go elsewhere.
    return next((path for folder in _upward() if os.path.lexists(path := folder / FILE)), None)


def _upward() -> Iterator[Path]:
    """The working folder and those above it. The home folder is the last: what lies above belongs to others."""
    try:
        here, home = Path.cwd(), Path.home()
    except (OSError, RuntimeError):  # the folder was removed under us, or this user has no home
        return
    for folder in (here, *here.parents):
        yield folder
        if folder == home:
            return


def _read(path: Path) -> dict[str, Setting]:
    import tomllib

    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InvalidInput(str(path), f"cannot be read as TOML ({exc})") from None
    return {key: Setting(value, str(path)) for key, value in _checked(told, path).items()}


def _checked(told: Mapping[str, Any], path: Path) -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in told.items():
        if key not in KEYS:
            raise InvalidInput(str(path), f"has the unknown key {key!r}; {_nearest(key)}")
        if not isinstance(value, str):
            raise InvalidInput(str(path), f"{key} must be text, not {_toml_type(value)}")
        if not value:
            raise InvalidInput(str(path), f"{key} must not be empty; leave it out instead")
        values[key] = _anchored(value, path) if key == "url" else value
    return values


def _nearest(key: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key.lower(), KEYS, n=1, cutoff=0.4)
    return f"did you mean {close[0]!r}?" if close else f"the keys are {', '.join(KEYS)}"


def _anchored(url: str, path: Path) -> str:
    """A relative SQLite file lies beside the settings that name it."""
    if not url.startswith("sqlite:"):
        return url
    try:
        file = sqlite_path(url)
    except InvalidInput as exc:
        raise InvalidInput(str(path), f"url {exc.reason}") from None
    return url if Path(file).is_absolute() else sqlite_url(path.parent / file)


def sqlite_url(path: Path) -> str:
    """The URL of a file, whatever characters its folders are named with."""
    return f"sqlite:///{quote(str(path))}"


def _toml_type(value: Any) -> str:
    kind = type(value).__name__
    return {"bool": "a boolean", "int": "a number", "float": "a number", "dict": "a table"}.get(kind, f"a {kind}")
