"""Settings: which store, hot tier, namespace and key to use.

Each setting is looked up separately, and the first place that sets it wins:

    argument                    open(url=…), saveslot --store …
    environment                 SAVESLOT_URL, SAVESLOT_HOT, SAVESLOT_NAMESPACE, SAVESLOT_ENCRYPTION_KEY
                                (an empty value counts as not set; an empty key is an error)
    the folder's file           saveslot.toml in the working folder or the nearest folder above it
    the user's file             saveslot.toml in ~/.config/saveslot (or where the platform keeps configuration)
    default                     one SQLite file among the user's data, no hot tier, namespace "default"

    # saveslot.toml
    url = "agents.db"             # relative to this file, wherever the command is run
    namespace = "staging"

An unknown setting is an error that suggests the nearest known one: a typo must not silently send sessions to another
store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from saveslot.errors import InvalidInput
from saveslot.stores import sqlite_path, sqlite_url, store_url

FILE = "saveslot.toml"
KEYS = ("url", "hot", "namespace", "encryption_key")


class Setting(NamedTuple):
    """A value and its source: `argument url`, `SAVESLOT_URL`, a file's path, or `default`."""

    value: str
    source: str


def resolve(**arguments: str | None) -> dict[str, Setting]:
    """Return the settings that are set, by name."""
    files = [_read(path) for path in (_folder_file(), user_file()) if path is not None]
    settings: dict[str, Setting] = {}
    for key in KEYS:
        given = arguments.get(key)
        from_env = os.environ.get(f"SAVESLOT_{key.upper()}")
        if given is not None:
            settings[key] = Setting(given, f"argument {key}")
        elif from_env or (from_env is not None and key == "encryption_key"):
            settings[key] = Setting(from_env, f"SAVESLOT_{key.upper()}")
        else:
            settings.update([(key, file[key]) for file in files if key in file][:1])
    return settings


def user_file() -> Path | None:
    """Return the path of the user's own saveslot.toml, if it exists."""
    path = user_folder() / "saveslot" / FILE
    return path if os.path.lexists(path) else None


def user_folder() -> Path:
    """Return the platform's folder for a user's configuration."""
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def data_folder() -> Path:
    """Return Saveslot's folder among the user's data."""
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return folder / "saveslot"


def _folder_file() -> Path | None:
    # Even if it is unreadable, a dangling link or a folder: skipping it would send sessions to another store.
    return next((path for folder in _upward() if os.path.lexists(path := folder / FILE)), None)


def _upward() -> Iterator[Path]:
    """Yield the working folder and its parents, up to the home folder: folders above it belong to other users."""
    try:
        here, home = Path.cwd(), Path.home()
    except (OSError, RuntimeError):  # the working folder was removed, or the user has no home
        return
    for folder in (here, *here.parents):
        yield folder
        if folder == home:
            return


def _read(path: Path) -> dict[str, Setting]:
    import tomllib

    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InvalidInput(str(path), f"cannot be read as TOML ({exc})") from None
    return {key: Setting(value, str(path)) for key, value in _checked(settings, path).items()}


def _checked(settings: Mapping[str, Any], path: Path) -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in settings.items():
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
    """Resolve a relative SQLite file against the settings file that names it."""
    try:
        url = store_url(url)
        if not url.startswith("sqlite:"):
            return url
        file = sqlite_path(url)
    except InvalidInput as exc:
        raise InvalidInput(str(path), f"url {exc.reason}") from None
    return url if Path(file).is_absolute() else sqlite_url(path.parent / file)


def _toml_type(value: Any) -> str:
    kind = type(value).__name__
    return {"bool": "a boolean", "int": "a number", "float": "a number", "dict": "a table"}.get(kind, f"a {kind}")
