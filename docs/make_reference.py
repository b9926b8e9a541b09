"""Write docs/reference.md from the code: python docs/make_reference.py"""  # noqa: INP001

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from types import EllipsisType
from typing import Any

import saveslot
from saveslot import blocking, errors, otel, settings
from saveslot.cli.app import app
from saveslot.cli.commands import ALIASES, COMMANDS
from saveslot.cli.help import CODES, REFS, arguments, usage
from saveslot.manager.keeper import Keeper
from saveslot.manager.log_lines import LogLine
from saveslot.manager.together import Change, Together
from saveslot.session.retention import DEFAULT
from saveslot.values import lifecycle

PAGE = Path(__file__).parent / "reference.md"
# A signature longer than this has one parameter a line.
WIDEST = 100
# What objects are called in headings, as in all examples.
VARIABLES: dict[type, str] = {
    saveslot.SessionManager: "sessions",
    saveslot.Held: "held",
    Together: "t",
    Keeper: "sessions.keeper",
}
# Durations in signatures are written in the largest of these that fits.
UNITS = {"days": timedelta(days=1), "hours": timedelta(hours=1), "minutes": timedelta(minutes=1)}


def page() -> str:
    text = "\n\n".join(part.strip("\n") for part in _parts() if part)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _parts() -> Iterator[str]:
    yield "# Reference"
    yield "Generated from the code by `python docs/make_reference.py`. What the words mean: [glossary](glossary.md)."
    yield (
        "The public API is `saveslot`, `saveslot.blocking`, `saveslot.types` (the types that signatures name), "
        "`saveslot.otel`, `saveslot.testing` and `saveslot.stack`. Any other module may change in any release."
    )
    yield (
        "In headings, `sessions` is a `SessionManager` as `saveslot.open` gives it, and `held` is a session that "
        "`sessions.hold` gives."
    )
    yield "## saveslot.open"
    yield from _described("saveslot.open", saveslot.open.__init__, inspect.getdoc(saveslot.open))
    # What users call is what `saveslot.blocking` has, too; the rest is for Saveslot's own modules.
    yield "## SessionManager"
    yield from _class(saveslot.SessionManager, like=blocking.SessionManager)
    yield "## Held"
    yield from _markdown(inspect.getdoc(saveslot.Held))
    yield (
        "Fields: `session`; `lost`, an event that is set when another worker may have taken the session; `cancelled`, "
        "an event that is set when the session was cancelled."
    )
    yield from _verbs(saveslot.Held, like=blocking.Held)
    yield "## Together"
    yield "`t`, as `sessions.together()` gives it. " + " ".join(_markdown(inspect.getdoc(Together)))
    yield from _verbs(Together, skip={"landed"})
    yield "### Change"
    yield from _markdown(inspect.getdoc(Change))
    yield "Fields: `session_id`, `result`."
    yield "## Keeper"
    yield "`sessions.keeper`. " + " ".join(_markdown(inspect.getdoc(inspect.getmodule(Keeper))))
    yield from _verbs(Keeper, like=blocking.Keeper)
    yield "## Values"
    yield "What the calls above return. Every one has `to_dict()`."
    for value in (saveslot.AgentSession, saveslot.SessionCheckpoint, saveslot.Checkpoint):
        yield f"### {value.__name__}"
        yield from _class(value, skip={"stored", "all_stored", "settle"}, level=4)
    yield "### Retention"
    yield from _class(saveslot.Retention, skip={"drops", "least", "to_dict", "from_dict"}, level=4)
    for value in (
        saveslot.Head,
        saveslot.EntryHeader,
        saveslot.Record,
        saveslot.Owner,
        saveslot.Step,
        saveslot.Page,
        saveslot.Event,
        LogLine,
        saveslot.Audit,
        saveslot.AuditLine,
        saveslot.Garbage,
        saveslot.Thinned,
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
    yield "## saveslot.otel"
    yield "OpenTelemetry traces: [observe](how-to/observe.md#traces). Needs the extra `saveslot[otel]`."
    for function in (otel.instrument, otel.uninstrument):
        yield from _described(f"saveslot.otel.{function.__name__}", function)
    yield "## Errors"
    yield from _markdown(inspect.getdoc(errors))
    yield "\n".join(_errors())
    yield "## Settings"
    yield from _markdown(inspect.getdoc(settings))
    yield "## Command line"
    yield f"{REFS} Exit codes: {CODES}; 130 after Ctrl-C."
    yield "Every command that looks at a store takes\n\n" + "\n".join(_options("ls", everywhere=True))
    names = ", ".join(f"`{alias}` ({name})" for alias, name in ALIASES.items())
    yield f"Other names: {names}; `saveslot help COMMAND`, `saveslot version`."
    for title, commands in COMMANDS.items():
        yield f"### {title}"
        for name, command in commands.items():
            yield f"#### saveslot {name}"
            yield f"`{usage(app, name)}`"
            yield str(command.help)
            yield "\n".join(_options(name))
            yield "```sh\n" + "\n".join(f"saveslot {example}" for example in command.examples) + "\n```"


# Python


def _class(
    kind: type, skip: frozenset[str] | set[str] = frozenset(), *, like: type | None = None, level: int = 3
) -> Iterator[str]:
    yield from _described(kind.__name__, kind.__init__, inspect.getdoc(kind))
    yield from _verbs(kind, skip, like=like, level=level)


def _verbs(
    kind: type, skip: frozenset[str] | set[str] = frozenset(), *, like: type | None = None, level: int = 3
) -> Iterator[str]:
    for name, member in _members(kind):
        if name in skip or (like is not None and not hasattr(like, name)):
            continue
        yield f"{'#' * level} {VARIABLES.get(kind, kind.__name__)}.{name}"
        if isinstance(member, property):
            hint = inspect.signature(member.fget).return_annotation if member.fget else ""
            yield f"```python\n{name}: {_hint(hint)}\n```"
            yield from _markdown(inspect.getdoc(member))
        else:
            yield from _described(name, member)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public ones in the order of the source: what a class adds, then what it inherits."""
    seen: set[str] = set()
    for base in kind.__mro__[:-1]:
        for name, member in vars(base).items():
            result = getattr(member, "__func__", member)
            public = not name.startswith("_") and name not in seen
            if public and (inspect.isroutine(result) or isinstance(result, property)):
                seen.add(name)
                yield name, result


def _described(name: str, function: Callable[..., Any], text: str | None = None) -> Iterator[str]:
    yield f"```python\n{_signature(name, function)}\n```"
    yield from _markdown(inspect.getdoc(function) if text is None else text)


def _signature(name: str, function: Callable[..., Any]) -> str:
    stored = inspect.signature(function)
    result = _hint(stored.return_annotation)
    verb = inspect.unwrap(function)
    front = "await " if inspect.iscoroutinefunction(verb) else ""
    if result == "Holding":  # the block of `hold`
        front, result = "async with ", "Held"
    elif result == "AsyncTogether":
        front, result = "async with ", "Together"
    elif inspect.isasyncgenfunction(verb):
        block = not inspect.isasyncgenfunction(function)  # a generator that stands for a context
        front = "async with " if block else "async for … in "
        result = result.removeprefix("AsyncGenerator[").removesuffix("]") if block else result
    given: list[str] = []
    for parameter in stored.parameters.values():
        if parameter.name in {"self", "cls"} or parameter.annotation == "Space":  # the manager itself
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
    hint = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return hint.replace("codec.", "").replace("'", '"')


def _default(value: Any) -> str:
    """Return a default as a user would write it."""
    match value:
        case saveslot.SessionState():
            return f'"{value.value}"'
        case tuple():
            return f"({', '.join(_default(one) for one in value)}{',' * (len(value) == 1)})"
        case str():
            return f'"{value}"'
        case EllipsisType():
            return "..."
        case int() if not isinstance(value, bool):
            return f"{value:_}"
        case timedelta():
            unit = next((name for name, one in UNITS.items() if not value % one), "seconds")
            return f"timedelta({unit}={value // UNITS.get(unit, timedelta(seconds=1))})"
        case saveslot.Retention() if value == DEFAULT:
            return f"Retention.parity(after_end={_default(value.after_end)})"
        case type():
            return value.__name__
        case _:
            return "…" if "factory" in repr(value).lower() else repr(value)


def _markdown(docstring: str | None) -> Iterator[str]:
    """A docstring's paragraphs; what is indented or drawn in it is a block."""
    text = re.sub(r"\n\n(?=    )", "\n\n\0", docstring or "")
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
            link = f"how-to/troubleshoot.md#{name.lower()}"
            yield f"| [`{name}`]({link}) | `{error.code}` | {inspect.getdoc(error)} |"


# Command line


def _options(name: str, *, everywhere: bool = False) -> Iterator[str]:
    for argument in arguments(app, name, everywhere=everywhere):
        names = ", ".join(f"`{one}`" for one in argument.names)
        value = f" {argument.parameter.metavar}" if argument.parameter.metavar else ""
        yield f"- {names}{value}: {argument.parameter.help}"


if __name__ == "__main__":
    PAGE.write_text(page())
