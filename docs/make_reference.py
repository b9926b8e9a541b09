"""Write docs/reference.md from the code: python docs/make_reference.py"""  # noqa: INP001

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import saveslot
from saveslot import blocking, errors, lifecycle, settings
from saveslot.cli.app import COMMANDS, app
from saveslot.cli.common import EVERYWHERE
from saveslot.glance import LogLine
from saveslot.keeper import Keeper

PAGE = Path(__file__).parent / "reference.md"
# A signature longer than this has one parameter a line.
WIDEST = 100
# What a held session has for the manager that made it, and for `saveslot.blocking`.
INTERNAL = {"drafted", "taken", "untaken", "doubt", "trust", "lose", "begin_step", "finish_step", "fail_step"}


def page() -> str:
    text = "\n\n".join(part.strip("\n") for part in _parts() if part)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _parts() -> Iterator[str]:
    yield "# Reference"
    yield "Generated from the code by `python docs/make_reference.py`. What the words mean: [glossary](glossary.md)."
    yield "## Open a store"
    yield from _described("saveslot.open", saveslot.open.__init__, inspect.getdoc(saveslot.open))
    yield "## SessionManager"
    yield from _class(saveslot.SessionManager)
    yield "## Held"
    yield from _markdown(inspect.getdoc(saveslot.Held))
    yield "Fields: `session`, `lost` (an event, set when others may have taken the session)."
    yield from _verbs(saveslot.Held, skip=INTERNAL)
    yield "## Keeper"
    yield "`sessions.keeper`. " + " ".join(_markdown(inspect.getdoc(inspect.getmodule(Keeper))))
    yield from _verbs(Keeper)
    yield "## Values"
    for value in (saveslot.AgentSession, saveslot.SessionCheckpoint, saveslot.Checkpoint):
        yield f"### {value.__name__}"
        yield from _class(value, skip={"stored", "settle"})
    for value in (
        saveslot.Owner,
        saveslot.Step,
        saveslot.Page,
        saveslot.Event,
        LogLine,
        saveslot.Audit,
        saveslot.AuditLine,
    ):
        yield f"### {value.__name__}"
        yield from _markdown(inspect.getdoc(value))
        yield f"Fields: {', '.join(f'`{name}`' for name in value.__annotations__)}."
    yield "### SessionState"
    names = ", ".join(f"`{state.name}`" for state in saveslot.SessionState)
    yield f"{names}; the values are the same words in lower case. Which state follows which, by verb:"
    yield "\n".join(_transitions())
    yield "Where there is a dash: `InvalidTransition`."
    yield "## CheckpointManager"
    yield from list(_markdown(inspect.getdoc(inspect.getmodule(saveslot.CheckpointManager))))[1:]
    yield from _class(saveslot.CheckpointManager)
    yield "## CheckpointStore"
    yield from _class(saveslot.CheckpointStore)
    yield "## saveslot.blocking"
    yield from _markdown(inspect.getdoc(blocking))
    yield f"Its `SessionManager` has {', '.join(f'`{name}`' for name, _ in _members(blocking.SessionManager))}."
    yield "## Errors"
    yield from _markdown(inspect.getdoc(errors))
    yield "\n".join(_errors())
    yield "## Settings"
    yield from _markdown(inspect.getdoc(settings))
    yield "## Command line"
    yield str(app.help_epilogue)
    yield "Every command that looks at a store takes\n\n" + "\n".join(_options("ls", everywhere=True))
    for title, (_, commands) in COMMANDS.items():
        yield f"### {title}"
        for name in commands:
            yield f"**`{_usage(name)}`** {app[name].help}"
            yield "\n".join(_options(name))


# Python


def _class(kind: type, skip: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    yield from _described(kind.__name__, kind.__init__, inspect.getdoc(kind))
    yield from _verbs(kind, skip)


def _verbs(kind: type, skip: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    for name, member in _members(kind):
        if name in skip:
            continue
        if isinstance(member, property):
            hint = inspect.signature(member.fget).return_annotation if member.fget else ""
            yield f"```text\n.{name}: {_hint(hint)}\n```"
            yield from _markdown(inspect.getdoc(member))
        else:
            yield from _described(name, member)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public ones in the order of the source: what a class adds, then what it inherits."""
    seen: set[str] = set()
    for base in kind.__mro__[:-1]:
        for name, member in vars(base).items():
            made = getattr(member, "__func__", member)
            public = not name.startswith("_") and name not in seen
            if public and (inspect.isroutine(made) or isinstance(made, property)):
                seen.add(name)
                yield name, made


def _described(name: str, function: Callable[..., Any], told: str | None = None) -> Iterator[str]:
    yield f"```text\n{_signature(name, function)}\n```"
    yield from _markdown(inspect.getdoc(function) if told is None else told)


def _signature(name: str, function: Callable[..., Any]) -> str:
    found = inspect.signature(function)
    result = _hint(found.return_annotation)
    verb = inspect.unwrap(function)
    front = "await " if inspect.iscoroutinefunction(verb) else ""
    if inspect.isasyncgenfunction(verb):
        block = not inspect.isasyncgenfunction(function)  # a generator that stands for a context
        front = "async with " if block else "async for … in "
        result = result.removeprefix("AsyncGenerator[").removesuffix("]") if block else result
    given: list[str] = []
    for parameter in found.parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not any(one.startswith("*") for one in given):
            given.append("*")
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        given.append(f"{stars}{parameter.name}: {_hint(parameter.annotation)}{default}")
    back = "" if result in {"None", "_empty"} or name == "saveslot.open" else f" -> {result}"
    line = f"{front}{name}({', '.join(given)}){back}"
    if len(line) <= WIDEST:
        return line
    return f"{front}{name}(\n" + "".join(f"    {one},\n" for one in given) + f"){back}"


def _hint(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    if isinstance(value, saveslot.SessionState):
        return repr(value.value)
    return "…" if "factory" in repr(value).lower() else repr(value)


def _markdown(told: str | None) -> Iterator[str]:
    """A docstring's paragraphs; what is indented or drawn in it is a block."""
    text = re.sub(r"\n\n(?=    )", "\n\n\0", told or "")
    blocks = re.split(r"\n\n(?![\0])(?! )", text)
    for block in blocks:
        words, *drawn = block.split("\n\n\0")
        if "├──" in words:
            yield f"```text\n{words}\n```"
        elif words:
            yield words
        if drawn:
            yield "```text\n" + dedent("\n\n".join(drawn)) + "\n```"


def _transitions() -> Iterator[str]:
    states = list(saveslot.SessionState)
    yield f"| | {' | '.join(f'from {state}' for state in states)} |"
    yield "| --- |" + " --- |" * len(states)
    for verb, targets in lifecycle.TRANSITIONS.items():
        yield f"| `{verb}` | {' | '.join(str(targets.get(state, '–')) for state in states)} |"


def _errors() -> Iterator[str]:
    yield "| error | `.code` | |\n| --- | --- | --- |"
    for name in saveslot.__all__:
        error = getattr(saveslot, name)
        if isinstance(error, type) and issubclass(error, saveslot.SaveslotError):
            yield f"| `{name}` | `{error.code}` | {inspect.getdoc(error)} |"


# Command line


def _arguments(name: str) -> list[Any]:
    return [found for found in app[name].assemble_argument_collection() if found.name != "*"]


def _usage(name: str) -> str:
    words = ["saveslot", name]
    for argument in _arguments(name):
        if argument.field_info.kind is inspect.Parameter.VAR_POSITIONAL:
            words.append(f"{argument.name}…")
        elif not argument.name.startswith("-"):
            words.append(argument.name if argument.required else f"[{argument.name}]")
        elif argument.required:
            words.append(f"{argument.name} {argument.name.lstrip('-').upper()}")
    return " ".join(words)


def _options(name: str, *, everywhere: bool = False) -> Iterator[str]:
    for argument in _arguments(name):
        if (argument.parameter.group == (EVERYWHERE,)) is everywhere:
            names = ", ".join(f"`{one}`" for one in argument.names)
            yield f"- {names}: {argument.parameter.help}"


if __name__ == "__main__":
    PAGE.write_text(page())
