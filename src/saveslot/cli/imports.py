"""`saveslot import`: exported sessions, and those of other programs."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from saveslot.cli import transfer
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse, exit_code
from saveslot.cli.screen import line, note, progress
from saveslot.errors import AlreadyExists, InvalidInput, SaveslotError
from saveslot.manager import SessionManager
from saveslot.moving import sources
from saveslot.moving.loader import Loader, Report, Step
from saveslot.session.vault import Vault
from saveslot.stores import shown

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# The first line of an export, with the session.
_HEADER = re.compile(r'\{"saveslot": \d+, "session": (\{.*\}),\n')


async def import_(
    *files: Annotated[
        str,
        Parameter(
            name="SOURCE",
            help="Output of `saveslot export` (- for stdin); checkpoints as a JSON list; a folder of checkpoint files; "
            "a SQLite file of LangGraph, OpenAI Agents or Google ADK; postgresql://… with LangGraph, Google ADK or "
            "agent_sessions tables; valkey://…",
        ),
    ],
    new_id: Annotated[
        str | None, Parameter(name="--as", metavar="ID", help="Import it under this id; one session only.")
    ] = None,
    valkey: Annotated[
        str | None, Parameter(metavar="URL", help="Valkey with newer copies of the agent_sessions rows.")
    ] = None,
    prefix: Annotated[str, Parameter(metavar="PREFIX", help="Prefix of its keys: PREFIX:session:ID.")] = "default",
    common: Common = COMMON,
) -> None:
    screen = common.screen
    if not files:
        raise Misuse("import: name the files to import, or - for stdin")
    if new_id is not None and len(files) > 1:
        raise Misuse("import: --as renames one session; import the files one by one")
    for name in files:
        if sources.is_foreign(name):
            if len(files) > 1:
                raise Misuse(f"import: {name} can contain many sessions; import it on its own")
            ask = sources.Ask(common.settings["namespace"].value, new_id, valkey, prefix, transfer.keyring())
            transfer.answer(common, await _import_source(common, name, ask), f"from {shown(name)}")
            return
    if valkey is not None:
        raise Misuse("import: --valkey needs the postgresql:// URL of an agent_sessions table")
    # Let Ctrl-C stop us anywhere, even while reading a large file: a commit is all or nothing.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done: list[str] = []
    failed: SaveslotError | None = None
    try:
        async with common.sessions(create=True) as sessions:
            with progress() as bars:
                bar = bars.add_task("import", total=len(files))
                for name in files:
                    try:
                        done.append(await _import(sessions, name, new_id))
                        if not screen.json:  # at once, so that it is known even if a later file fails
                            screen.lines([line((done[-1], "bold"))])
                            sys.stdout.flush()
                    except SaveslotError as exc:
                        note(f"saveslot: {name}: {_reason(exc)}")
                        failed = failed or exc
                    bars.advance(bar)
    finally:
        signal.signal(signal.SIGINT, before)
    screen.answer(done, ())
    if failed is not None:
        raise SystemExit(exit_code(failed))


async def _import_source(common: Common, name: str, ask: sources.Ask) -> Report:
    """Import everything from a source; its problems are in the report."""
    report = Report()
    async with sources.opened(name, ask) as contents:
        if ask.new_id is not None and any(source.what != "checkpoints" for source in contents):
            raise Misuse("import: --as renames one session; this source has many")
        async with transfer.opened(common.url) as stored:
            store = Vault(stored, ask.keyring)
            with progress() as bars:
                for source in contents:
                    bar = bars.add_task(source.what, total=source.total)
                    loader = Loader(store, report, step=_stepping(bars, bar))
                    await loader.load(source.parcels)
    return report


def _stepping(bars: Progress, bar: TaskID) -> Step:
    return lambda more: bars.advance(bar, more)


async def _import(sessions: SessionManager, name: str, new_id: str | None) -> str:
    text = _read(name)
    try:
        return (await sessions.import_session(text, session_id=new_id)).session_id
    except (asyncio.CancelledError, KeyboardInterrupt):
        session_id = new_id or _exported_id(text)
        stored = session_id is not None and await sessions.get_session(session_id, history=0) is not None
        note(f"interrupted: {name} {'is stored completely' if stored else 'was not stored'}")
        raise


def _read(name: str) -> str:
    try:
        if name == "-":
            return sources.read_text(sys.stdin.buffer, "import")
        with Path(name).open("rb") as file:
            return sources.read_text(file, "import")
    except OSError as exc:
        raise InvalidInput("import", f"cannot be read ({exc.strerror})") from None


def _reason(exc: SaveslotError) -> str:
    """The error for the command line, where the file has been named already."""
    match exc:
        case AlreadyExists():
            return f"{str(exc).partition(';')[0]}; import it under another id with --as"
        case InvalidInput(path="import"):
            return exc.reason
        case _:
            return str(exc)


def _exported_id(text: str) -> str | None:
    match = _HEADER.match(text)
    try:
        return None if match is None else str(msgspec.json.decode(match[1])["session_id"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
