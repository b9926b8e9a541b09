"""The commands that carry sessions elsewhere: export and import."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from cyclopts import Parameter

from saveslot.cli import carrying, target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse, exit_code
from saveslot.cli.looking import entries
from saveslot.cli.options import SessionArg
from saveslot.cli.screen import note, progress, write_json
from saveslot.cli.words import many, size
from saveslot.errors import AlreadyExists, InvalidInput, SaveslotError
from saveslot.manager import SessionManager
from saveslot.model import AgentSession
from saveslot.moving import sources

# The beginning of an export, as `transfer` writes it: one line with the session.
_HEADER = re.compile(r'\{"saveslot": \d+, "session": (\{.*\}),\n')


async def export(
    what: SessionArg | None = None,
    /,
    *,
    every: Annotated[
        Path | None,
        Parameter(name="--all", help="A new folder for all sessions, as JSON Lines. Run again, it goes on."),
    ] = None,
    compress: Annotated[
        bool, Parameter(name="--zstd", negative="", show_default=False, help="With --all: compress the files.")
    ] = False,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="A file; it appears when it is complete. Or a named pipe.")
    ] = None,
    plain: Annotated[
        bool, Parameter(negative="", show_default=False, help="Open what is sealed: anyone can read it then.")
    ] = False,
    common: Common = COMMON,
) -> None:
    if (what is None) == (every is None) or (every is not None and output is not None):
        raise Misuse("export: name one session, or a folder for all of them (--all DIR)")
    if every is not None:
        await carrying.export_all(common, every, compress=compress, plain=plain)
        return
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what or "")
        if output is None:
            await _export(sessions, session, write_json, plain=plain)
            return
        try:
            with _written(output) as file:
                written = await _export(sessions, session, file.write, plain=plain)
        except BrokenPipeError:  # whoever read it had enough
            raise
        except OSError as exc:
            raise InvalidInput("--output", f"{output} cannot be written ({exc.strerror})") from None
    if common.screen.json:
        common.screen.data({"session_id": session.session_id, "file": str(output), "bytes": written})
    else:
        note(f"{output}: {many(entries(session), 'entry')}, {size(written)}")


async def _export(
    sessions: SessionManager, session: AgentSession, put: Callable[[bytes], object], *, plain: bool
) -> int:
    """How many bytes it is."""
    count = 0
    with progress() as bars:
        bar = bars.add_task("export", total=entries(session) + 2)
        async for part in sessions.export_parts(session.session_id, plain=plain):
            data = part.encode()
            put(data)
            count += len(data)
            bars.advance(bar)
    return count


@contextmanager
def _written(path: Path) -> Generator[BinaryIO]:
    """A file that appears when it is complete, behind links too: as readable as what it replaces, else to its owner.

    Whatever is no regular file, such as a named pipe or a device, is written into as it stands.
    """
    try:
        before = path.stat()
    except FileNotFoundError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode):
        with _waiting_for_a_reader(), path.open("wb") as file:
            yield file
        return
    real = Path(os.path.realpath(path))
    number, name = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    draft = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(number)
        if before is not None:
            if sys.platform != "win32":
                with suppress(PermissionError):  # root alone may give files away
                    os.chown(draft, before.st_uid, before.st_gid)
            draft.chmod(stat.S_IMODE(before.st_mode))
        draft.replace(real)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _waiting_for_a_reader() -> Generator[None]:
    """Opening a pipe waits for whoever reads it: Ctrl-C ends that at once."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def import_(
    *files: Annotated[
        str,
        Parameter(
            name="SOURCE",
            help="What `saveslot export` wrote (- is stdin); checkpoints as a JSON list; a folder of checkpoint files; "
            "a SQLite file of LangGraph or OpenAI Agents; postgresql://… with their or agent_sessions tables; valkey://…",
        ),
    ],
    new_id: Annotated[str | None, Parameter(name="--as", help="Store it under this id; one session only.")] = None,
    valkey: Annotated[str | None, Parameter(help="Valkey with newer copies of an agent_sessions table.")] = None,
    prefix: Annotated[str, Parameter(help="What its keys begin with: PREFIX:session:ID.")] = "default",
    common: Common = COMMON,
) -> None:
    screen = common.screen
    if not files:
        raise Misuse("import: name the files to import, or - for stdin")
    if new_id is not None and len(files) > 1:
        raise Misuse("import: --as names one session; import the files one by one")
    for name in files:
        if sources.is_foreign(name):
            if len(files) > 1:
                raise Misuse(f"import: {name} may hold many sessions; import it alone")
            ask = sources.Ask(common.settings["namespace"].value, new_id, valkey, prefix, carrying.keyring())
            carrying.told(common, name, await carrying.import_source(common, name, ask))
            return
    if valkey is not None:
        raise Misuse("import: --valkey goes with the postgresql:// URL of an agent_sessions table")
    # Ctrl-C stops us wherever we are, also in the middle of reading a large file; a commit is whole or not at all.
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
                        if not screen.json:  # told at once: what is stored is known, whatever comes next
                            screen.say((done[-1], "bold"))
                            sys.stdout.flush()
                    except SaveslotError as exc:
                        note(f"saveslot: {name}: {_reason(exc)}")
                        failed = failed or exc
                    bars.advance(bar)
    finally:
        signal.signal(signal.SIGINT, before)
    if screen.json:
        screen.data(done)
    if failed is not None:
        raise SystemExit(exit_code(failed))


async def _import(sessions: SessionManager, name: str, new_id: str | None) -> str:
    text = _read(name)
    try:
        return (await sessions.import_session(text, session_id=new_id)).session_id
    except asyncio.CancelledError:
        session_id = new_id or _told_id(text)
        stored = session_id is not None and await sessions.get_session(session_id, history=0) is not None
        note(f"interrupted: {name} {'is stored, whole' if stored else 'was not stored'}")
        raise


def _read(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode()
    except OSError as exc:
        raise InvalidInput("import", f"cannot be read ({exc.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidInput("import", "is not an export of a session (it is not UTF-8 text)") from None


def _reason(exc: SaveslotError) -> str:
    """In the words of the command line; the file is named in front already."""
    match exc:
        case AlreadyExists():
            return f"{str(exc).partition(';')[0]}; --as stores it under another id"
        case InvalidInput(path="import"):
            return exc.reason
        case _:
            return str(exc)


def _told_id(text: str) -> str | None:
    found = _HEADER.match(text)
    try:
        return None if found is None else str(msgspec.json.decode(found[1])["session_id"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
