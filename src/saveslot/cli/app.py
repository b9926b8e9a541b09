"""The commands by name, and how a command line is parsed."""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword

from cyclopts import App, CycloptsError, Group, UnknownCommandError, UnusedCliTokensError

from saveslot import __version__
from saveslot.cli.commands import ALIASES, COMMANDS
from saveslot.cli.exits import Misuse


def commands(*, aliases: bool = False) -> App:
    """The commands by name; with `aliases`, for completion, by their other names too (see `after_command`)."""
    app = App(
        name="saveslot",
        help="Durable sessions and checkpoints for AI agents.",
        help_format="plaintext",
        help_flags=["--help", "-h"],
        version=f"saveslot {__version__}",
        version_flags=["--version", "-V"],
        print_error=False,
        exit_on_error=False,
        help_on_error=False,
    )
    for place, (title, listed) in enumerate(COMMANDS.items()):
        group = Group(title, sort_key=place)
        for rank, (name, command) in enumerate(listed.items()):
            function = f"{name}_" if iskeyword(name) else name
            names = [name, *(alias for alias, other in ALIASES.items() if aliases and other == name)]
            app.command(
                f"saveslot.cli.{command.module}:{function}", name=names, help=command.help, group=group, sort_key=rank
            )
    app["--help"].group = app["--version"].group = Group("Help", sort_key=99)
    return app


app = commands()

# Options that may precede the command, and whether they take a value.
BEFORE = {"--store": True, "--namespace": True, "--json": False, "--no-pager": False}


def after_command(tokens: Sequence[str]) -> list[str]:
    """Move options in front of the command after it, where the command declares them, and resolve its other names."""
    match list(tokens):
        case ["__complete", *words, last]:  # the shell asks for what may follow these words
            return ["__complete", *_moved(words), last]
        case ["version", *rest]:
            return ["--version", *rest]
        case ["help", *rest]:
            return [*_moved(rest), "--help"]
        case words:
            return _moved(words)


def _moved(tokens: list[str]) -> list[str]:
    front: list[str] = []
    rest = tokens
    while rest and rest[0].partition("=")[0] in BEFORE:
        name, equals, _ = rest[0].partition("=")
        take = 2 if BEFORE[name] and not equals else 1
        front += rest[:take]
        rest = rest[take:]
    if front and not rest:
        raise Misuse("name a command, such as `saveslot ls` (saveslot --help)")
    if rest[:1] == ["import"] and "-" in rest and "--" not in rest:
        rest = [*(word for word in rest if word != "-"), "--", "-"]  # stdin, not an option
    return [*(ALIASES.get(name, name) for name in rest[:1]), *front, *rest[1:]]


def complaint(error: CycloptsError) -> str:
    """A usage error in one line."""
    error.verbose = False
    match error:
        case UnknownCommandError():
            text = str(error).partition(" Available commands:")[0]
        case UnusedCliTokensError() if error.unused_tokens:
            text = f"unexpected argument: {' '.join(error.unused_tokens)}"
        case _:
            text = str(error)
    text = " ".join(text.split())
    command = " ".join(["saveslot", *(error.command_chain or ())])
    return f"{text[:1].lower()}{text[1:]} ({command} --help)"
