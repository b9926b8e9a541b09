"""`saveslot export`: one session as JSON, or all of them as JSON Lines."""

from __future__ import annotations

import os
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import Parameter

from saveslot.checkpoints.files.folder import sync
from saveslot.cli import target, transfer
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.options import Flag, SessionArg
from saveslot.cli.screen import progress, write_json
from saveslot.cli.sessions import entries
from saveslot.errors import InvalidInput
from saveslot.manager import SessionManager
from saveslot.moving import jsonl
from saveslot.moving.copy import count_sessions
from saveslot.session.model import AgentSession
from saveslot.values.words import many, size


async def export(
    what: SessionArg | None = None,
    /,
    *,
    every: Annotated[
        Path | None,
        Parameter(name="--all", metavar="DIR", help="Export all sessions to a new directory (JSON Lines). Resumable."),
    ] = None,
    compress: Annotated[bool, Flag("With --all: compress the files.", "--zstd")] = False,
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"],
            metavar="FILE",
            help="Write to this file, which appears once it is complete, or to a named pipe.",
        ),
    ] = None,
    plain: Annotated[bool, Flag("Decrypt sealed sessions: anyone can read the export.")] = False,
    common: Common = COMMON,
) -> None:
    if (what is None) == (every is None) or (every is not None and output is not None):
        raise Misuse("export: name one session, or a directory for all of them (--all DIR)")
    if every is not None:
        await _export_all(common, every, compress=compress, plain=plain)
        return
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what or "", changes=True)
        if output is None:
            await _put(sessions, session, write_json, plain=plain)
            return
        try:
            with _written(output) as file:
                written = await _put(sessions, session, file.write, plain=plain)
        except BrokenPipeError:  # its reader went away
            raise
        except OSError as exc:
            raise InvalidInput("--output", f"cannot write {output} ({exc.strerror})") from None
    value = {"session_id": session.session_id, "file": str(output), "bytes": written}
    common.screen.answer(value, [f"{output}: {session.session_id}, {many(entries(session), 'entry')}, {size(written)}"])


async def _export_all(common: Common, folder: Path, *, compress: bool, plain: bool) -> None:
    namespace = common.settings["namespace"].value
    common.require_file("nothing has been saved there yet")
    async with transfer.opened(common.url) as store:
        with progress() as bars:
            bar = bars.add_task("export", total=await count_sessions(store, namespace))
            try:
                keys = transfer.keyring()
                export = jsonl.Export(store, namespace, folder, compress=compress, keyring=keys, plain=plain)
                done = await export.run(lambda more: bars.advance(bar, more))
            except OSError as exc:
                raise InvalidInput("--all", f"cannot write {folder} ({exc.strerror})") from None
    value = {"folder": str(folder), "sessions": done.sessions, "files": done.files}
    common.screen.answer(
        {**value, "problems": [problem._asdict() for problem in done.problems]},
        [f"{folder}: {many(done.sessions, 'session')} in {many(done.files, 'file')}"],
    )
    transfer.end(common, done.problems)


async def _put(sessions: SessionManager, session: AgentSession, put: Callable[[bytes], object], *, plain: bool) -> int:
    """Write the export and return its bytes."""
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
    """A file that appears once it is complete, also through a symlink. It keeps the mode of the file it replaces; a
    new one is readable by its owner only.

    What is not a regular file, such as a named pipe or a device, is written to directly.
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
            sync(number)
        if before is not None:
            if sys.platform != "win32":
                with suppress(PermissionError):  # only root may change owners
                    os.chown(draft, before.st_uid, before.st_gid)
            draft.chmod(stat.S_IMODE(before.st_mode))
        draft.replace(real)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _waiting_for_a_reader() -> Generator[None]:
    """Let Ctrl-C interrupt at once while opening a pipe waits for its reader."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
