"""Help pages: the usage line and what follows the options. Both are written when a page is asked for.

cyclopts knows a parameter only after its command's module is imported, which other commands should not pay for.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from saveslot.cli.commands import ALIASES, COMMANDS, Command
from saveslot.cli.common import EVERYWHERE

if TYPE_CHECKING:
    from cyclopts import App

REFS = (
    "Name a session by its id or a unique beginning or end of it (to change it in a script: by its full id), "
    "a checkpoint by ID@name, ID@17, ID@~2 or ID@latest."
)
INDENT = "  "
CODES = "0 ok, 1 failure, 2 usage, 3 conflict, 4 auth, 5 not found, 6 unreachable"


def fill(app: App, name: str | None, width: int) -> None:
    """Add usage, examples and notes to the page of a command, or to that of the whole program."""
    if name is None:
        app.help_epilogue = "\n\n".join(_program(app, width))
        return
    app[name].usage = usage(app, name)
    app[name].help_epilogue = "\n\n".join(_command(name))


def described(name: str) -> Command:
    return next(commands[name] for commands in COMMANDS.values() if name in commands)


def arguments(app: App, name: str, *, everywhere: bool = False) -> list[Any]:
    """The arguments of a command; with `everywhere`, those that all commands have."""
    shown_arguments = [one for one in app[name].assemble_argument_collection() if one.name != "*"]
    return [one for one in shown_arguments if (one.parameter.group == (EVERYWHERE,)) is everywhere]


def usage(app: App, name: str) -> str:
    words = ["saveslot", name]
    options = False
    for one in arguments(app, name):
        if one.field_info.kind is inspect.Parameter.VAR_POSITIONAL:
            words.append(f"[{one.name}…]")
        elif not one.name.startswith("-"):
            words.append(one.name if one.required else f"[{one.name}]")
        elif one.required:
            words.append(f"{one.name} {one.parameter.metavar}")
        else:
            options = True
    return " ".join([*words, *(["[OPTIONS]"] * options)])


def _program(app: App, width: int) -> Iterator[str]:
    yield _block("Options of every command:", _aligned(_everywhere(app), width - len(INDENT)))
    yield _block("Start here:", ["saveslot demo", "saveslot ls", "saveslot COMMAND --help"])
    names = ", ".join(f"{alias} ({name})" for alias, name in ALIASES.items())
    yield f"Other names: {names}, help, version. {REFS}"
    yield f"Exit codes: {CODES}; 130 after Ctrl-C, 141 after a closed pipe, 143 after SIGTERM."


def _command(name: str) -> Iterator[str]:
    yield _block("Examples:", [f"saveslot {example}" for example in described(name).examples])
    aliases = [alias for alias, target in ALIASES.items() if target == name]
    if aliases:
        yield f"Also: saveslot {', '.join(aliases)}"


def _everywhere(app: App) -> Iterator[tuple[str, str]]:
    for one in arguments(app, "ls", everywhere=True):
        yield " ".join(filter(None, (one.name, one.parameter.metavar))), str(one.parameter.help)


def _aligned(rows: Iterator[tuple[str, str]], width: int) -> list[str]:
    """Two columns; the right one is wrapped and stays to the right."""
    pairs = list(rows)
    left = max(len(name) for name, _ in pairs) + 2
    lines: list[str] = []
    for name, text in pairs:
        first, *more = textwrap.wrap(text, max(1, width - left))
        lines += [f"{name:<{left}}{first}", *(" " * left + line for line in more)]
    return lines


def _block(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(INDENT + line for line in lines)])
