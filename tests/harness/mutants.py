"""A store with a planted fault: its own source with one text replaced, imported beside the real one.

The files may be Python, SQL or Lua. A text that is not found exactly once fails the test: update the table.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import saveslot

SOURCE = Path(saveslot.__file__).parent
Edit = tuple[str, str]  # old text, new text


@contextmanager
def mutant(folder: Path, file: str, *edits: Edit) -> Generator[ModuleType]:
    """The module of this file, or the whole package of a backend, with these edits. `folder` holds the copy."""
    path = SOURCE / file
    parts = Path(file).parts
    room = SOURCE.joinpath(*parts[:2]) if parts[0] == "stores" else path
    name = ".".join(("saveslot", *room.relative_to(SOURCE).with_suffix("").parts))
    copy = folder / room.name
    if room.is_dir():
        shutil.copytree(room, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / path.relative_to(room)).write_text(_edited(file, path.read_text(), edits))
    real = {known: module for known, module in sys.modules.items() if _within(known, name)}
    _forget(name)
    try:
        yield _imported(name, copy)
    finally:
        _forget(name)
        sys.modules.update(real)
        importlib.invalidate_caches()


def _edited(file: str, text: str, edits: tuple[Edit, ...]) -> str:
    for old, new in edits:
        count = text.count(old)
        assert count == 1, f"text found {count} times in {file}, not once: update the table: {old!r}"
        text = text.replace(old, new)
    return text


def _imported(name: str, copy: Path) -> ModuleType:
    inside = [str(copy)] if copy.is_dir() else None
    spec = spec_from_file_location(name, copy / "__init__.py" if inside else copy, submodule_search_locations=inside)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _within(known: str, name: str) -> bool:
    return known == name or known.startswith(f"{name}.")


def _forget(name: str) -> None:
    for known in [known for known in sys.modules if _within(known, name)]:
        del sys.modules[known]
