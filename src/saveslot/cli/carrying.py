"""Many sessions at once: copy, `export --all`, and imports from other programs' stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from saveslot import codec
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import FAILURE, Misuse
from saveslot.cli.screen import note, progress
from saveslot.cli.words import many
from saveslot.errors import InvalidInput, NotFound
from saveslot.moving import copying, lines, sources
from saveslot.moving.landing import Landing, Report, Step
from saveslot.moving.parcel import Problem
from saveslot.opening import encryption_keys
from saveslot.sealing import SealedStore
from saveslot.stores import Store, open_store, shown, sqlite_path
from saveslot.stores.chained import ChainedStore

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Of what could not be taken a person is shown so many; --json has them all.
SHOWN = 50


async def copy(
    source: Annotated[str, Parameter(name="FROM_URL", help="The store to copy.")],
    target: Annotated[str, Parameter(name="TO_URL", help="The store to copy it to; made when it is not there.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    if source == target:
        raise Misuse("copy: name two stores")
    namespace = common.settings["namespace"].value
    _there(source)
    async with _opened(source) as here, _opened(target) as there:
        with progress() as bars:
            bar = bars.add_task("copy", total=await copying.count(here, namespace))
            report = await copying.copied(here, there, namespace, lambda more: bars.advance(bar, more))
    _told(common, report, f"from {shown(source)} to {shown(target)}, read back and compared")


async def export_all(common: Common, folder: Path, *, compress: bool, plain: bool) -> None:
    namespace = common.settings["namespace"].value
    if common.file is not None and not common.file.exists():
        raise NotFound(f"there is no file {common.file} ({common.said_by}); nothing was saved there yet")
    async with _opened(common.url) as store:
        with progress() as bars:
            bar = bars.add_task("export", total=await copying.count(store, namespace))
            try:
                going = lines.Export(store, namespace, folder, compress=compress, keyring=keyring(), plain=plain)
                done = await going.run(lambda more: bars.advance(bar, more))
            except OSError as exc:
                raise InvalidInput("--all", f"{folder} cannot be written ({exc.strerror})") from None
    if common.screen.json:
        told = {"folder": str(folder), "sessions": done.sessions, "files": done.files}
        common.screen.data({**told, "problems": [problem._asdict() for problem in done.problems]})
    else:
        note(f"{folder}: {many(done.sessions, 'session')} in {many(done.files, 'file')}")
    _end(common, done.problems)


async def import_source(common: Common, name: str, ask: sources.Ask) -> Report:
    """Everything that a source holds; what it could not give is in the report."""
    report = Report()
    async with sources.opened(name, ask) as found:
        if ask.new_id is not None and any(source.what != "checkpoints" for source in found):
            raise Misuse("import: --as names one session; this source holds many")
        async with _opened(common.url) as stored:
            store = SealedStore(ChainedStore(stored), ask.keyring)
            with progress() as bars:
                for source in found:
                    bar = bars.add_task(source.what, total=source.total)
                    landing = Landing(store, report, step=_stepping(bars, bar))
                    await landing.take(source.found)
    return report


def _stepping(bars: Progress, bar: TaskID) -> Step:
    return lambda more: bars.advance(bar, more)


def told(common: Common, name: str, report: Report) -> None:
    _told(common, report, f"from {shown(name)}")


def _told(common: Common, report: Report, how: str) -> None:
    if common.screen.json:
        common.screen.data(
            {
                "sessions": report.landed,
                "already": report.already,
                "entries": report.entries,
                "problems": [problem._asdict() for problem in report.problems],
            }
        )
    else:
        already = f", {many(report.already, 'session')} {'was' if report.already == 1 else 'were'} there already"
        told = f"{many(len(report.landed), 'session')}, {many(report.entries, 'entry')} {how}"
        note(told + (already if report.already else ""))
    _end(common, report.problems)


def _end(common: Common, problems: list[Problem]) -> None:
    """Name what was left out, and let the exit code say that something was."""
    if not problems:
        return
    if not common.screen.json:
        for problem in problems[:SHOWN]:
            note(f"saveslot: {problem.what}: {problem.reason}")
        if len(problems) > SHOWN:
            note(f"saveslot: and {len(problems) - SHOWN:,} more; --json tells them all")
    raise SystemExit(FAILURE)


def keyring() -> codec.Keyring | None:
    """The keys of the environment, or of `saveslot.toml`."""
    keys = encryption_keys()
    return None if keys is None else codec.Keyring.of(keys)


def _there(url: str) -> None:
    if url.startswith("sqlite:") and not Path(sqlite_path(url)).exists():
        raise NotFound(f"there is no file {sqlite_path(url)}; nothing was copied")


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[Store]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()
