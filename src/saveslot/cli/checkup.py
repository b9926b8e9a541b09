"""What may be wrong with a SQLite file of Saveslot, and what to do about it. Looks only: nothing is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

from saveslot import codec
from saveslot.cli.words import many, size
from saveslot.errors import Corrupt, InvalidInput, NotFound, SaveslotError, Unavailable
from saveslot.log import Entry
from saveslot.model import DATA_KINDS, Data, Kind
from saveslot.slot import ABOUT_KINDS
from saveslot.stores import Store, open_store
from saveslot.stores.sqlite_file import APPLICATION_ID, migrations
from saveslot.timeline import Timeline, needed, note_of

# Before this one two processes that write a WAL file can damage it.
SOUND_SQLITE = 3_051_003
# Less room than this may be gone before anyone looks again.
SCARCE, LITTLE = 100_000_000, 1_000_000_000
# A WAL is copied into the file every 4 MB; one this large is being held back.
LARGE_WAL = 256_000_000
# WAL needs memory that all processes of one machine share; over a network there is none.
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"}
# Damaged entries that are named; behind them only their number.
NAMED = 10
# Entries whose frames are held at a time.
STRIDE = 500

Progress = Callable[[str, int, int], None]  # of what, how much is done, of how much


class Finding(msgspec.Struct):
    what: str
    told: str
    state: str = "ok"  # ok, warning or problem
    advice: list[str] = []  # what to do, one line each
    details: list[str] = []


def problem(what: str, told: str, *advice: str, details: Sequence[str] = ()) -> Finding:
    return Finding(what, told, "problem", list(advice), list(details))


def warning(what: str, told: str, *advice: str) -> Finding:
    return Finding(what, told, "warning", list(advice))


async def check(path: Path, url: str, progress: Progress) -> AsyncGenerator[Finding]:
    """Everything, from the outside in; what a broken layer makes meaningless is left out."""
    yield _file(path)
    if found := _filesystem(path):
        yield found
    yield _space(path)
    yield _sqlite()
    try:
        with looking(path) as connection:
            told = _format(connection, path)
            yield told
            if told.state == "problem":
                return
            yield _journal(connection)
            yield Finding(
                "synchronous", "FULL, set on every connection: an acknowledged checkpoint survives a power cut"
            )
            yield _integrity(connection, progress)
            yield _counts(connection)
            sql = "select key, namespace, id, body from sessions order by key"
            sessions = cast("list[Any]", connection.execute(sql).fetchall())
            entries: int = connection.execute("select count(*) from checkpoints").get
    except apsw.NotADBError:
        yield problem("format", "is not a SQLite database", "name another file with --store, or restore this one")
        return
    except apsw.Error as exc:
        yield problem("format", f"SQLite cannot read it ({exc})", "restore the file from a backup")
        return
    if told.state == "ok":
        yield await _recipes(url, sessions, entries, progress)


@contextmanager
def looking(path: Path) -> Generator[apsw.Connection]:
    """A connection that cannot write."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(10_000)
        yield connection
    finally:
        connection.close()


def formats(path: Path) -> tuple[int, int]:
    """The file's format, and the newest that this Saveslot knows."""
    try:
        with looking(path) as connection:
            found, known = version(connection)
    except apsw.NotADBError:
        raise InvalidInput("url", f"{path} is not a SQLite database; name another file") from None
    except apsw.Error as exc:
        raise Unavailable(f"{path} cannot be read ({exc}); saveslot doctor says more") from None
    if found < 0:
        raise InvalidInput("url", f"{path} is another program's database; name a file of its own for Saveslot")
    return found, known


def version(connection: apsw.Connection) -> tuple[int, int]:
    """The same of an open file; -1 when it is not ours."""
    found: int = connection.pragma("user_version")
    ours = connection.pragma("application_id") == APPLICATION_ID
    used = found or connection.execute("select count(*) from sqlite_schema").get
    return (-1 if used and not ours else found), len(migrations())


def _file(path: Path) -> Finding:
    wal = path.with_name(path.name + "-wal")
    waiting = wal.stat().st_size if wal.exists() else 0
    told = f"{path}, {size(path.stat().st_size)}" + (f" and {size(waiting)} in its WAL" if waiting else "")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        return problem(
            "file", f"{told}, not writable", f"let this user write {path} and its folder (the WAL lies there)"
        )
    if waiting > LARGE_WAL:
        return warning("file", told, "a reader or a stopped process holds the WAL back; end it, and the WAL shrinks")
    return Finding("file", told)


def _filesystem(path: Path) -> Finding | None:
    """Where the file lies, when that can be told and matters."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    above = {str(folder) for folder in path.resolve().parents}
    here = max((mount for mount in mounts if mount[0] in above), key=lambda mount: len(mount[0]), default=None)
    if here is None or here[1] not in REMOTE:
        return None
    return problem(
        "disk", f"lies on {here[1]}, over a network", "move the file to a local disk: WAL needs shared memory"
    )


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    if free < SCARCE:
        return problem("free space", f"only {size(free)} left", "free some space: without it every save fails")
    if free < LITTLE:
        return warning("free space", f"{size(free)} left", "free some space before it runs out")
    return Finding("free space", f"{size(free)}")


def _sqlite() -> Finding:
    found = apsw.sqlite_lib_version()
    if apsw.SQLITE_VERSION_NUMBER < SOUND_SQLITE:
        return problem(
            "SQLite",
            f"{found} can damage a file that two processes write",
            "pip install --upgrade apsw (3.51.3 or newer)",
        )
    return Finding("SQLite", found)


def _format(connection: apsw.Connection, path: Path) -> Finding:
    found, known = version(connection)
    if found < 0:
        return problem("format", "is another program's database", f"leave {path} alone; name another file with --store")
    if found > known:
        return problem(
            "format", f"{found}, of a newer Saveslot (this one knows {known})", "pip install --upgrade saveslot"
        )
    if found < known:
        return warning("format", f"{found} of {known}", "saveslot migrate --apply (any use of the file does it, too)")
    return Finding("format", f"{found}, the newest")


def _journal(connection: apsw.Connection) -> Finding:
    mode = connection.pragma("journal_mode")
    if mode != "wal":
        return problem("journal", f"{mode}, not wal", "stop all users of the file, then: pragma journal_mode=wal")
    return Finding("journal", "wal")


def _integrity(connection: apsw.Connection, progress: Progress) -> Finding:
    progress("integrity", 0, 0)
    found = [str(row[0]) for row in connection.execute(f"pragma integrity_check({NAMED})")]
    if found != ["ok"]:
        return problem(
            "integrity",
            f"SQLite finds {many(len(found), 'fault')}",
            "export what can be read (saveslot export), then restore the file from a backup",
            details=found,
        )
    return Finding("integrity", "every page and index is sound")


def _counts(connection: apsw.Connection) -> Finding:
    count: Any = connection.execute(
        "select count(*), count(deleted_at), count(distinct namespace) from sessions"
    ).fetchone()
    entries: int = connection.execute("select count(*) from checkpoints").get
    idle = connection.pragma("freelist_count") * connection.pragma("page_size")
    told = f"{many(count[0] - count[1], 'session')} in {many(count[2], 'namespace')}, {many(entries, 'entry')}"
    told += f", {count[1]:,} deleted" if count[1] else ""
    return Finding("content", told + (f", {size(idle)} free inside" if idle > LITTLE // 100 else ""))


# --- every recipe -----------------------------------------------------------------------------------------------------


async def _recipes(url: str, sessions: list[Any], entries: int, progress: Progress) -> Finding:
    """Rebuild every state that the log promises, and read every note."""
    damaged: list[str] = []
    advice: list[str] = []
    done = 0
    store = await open_store(url)
    try:
        for key, namespace, session_id, body in sessions:
            before = len(damaged)
            states: list[tuple[int, bool]] = []  # each entry with the agent's data, and whether it can be read
            if reason := _unreadable(lambda body=body: codec.read_note(body)):
                damaged.append(f"{session_id}: context, metadata and labels: {reason}")
            async for seq, kind, reason in _entries(store, key, session_id):
                done += 1
                progress("recipes", done, max(done, entries))
                if kind in DATA_KINDS:
                    states.append((seq, reason is None))
                if reason is not None:
                    damaged.append(f"{session_id}:{seq}: {reason}")
            if len(damaged) > before:
                advice.append(_cure(session_id, namespace, states))
    except SaveslotError as exc:
        return problem("recipes", f"reading stopped after {many(done, 'entry')}: {exc}", "see the problems above")
    finally:
        await store.close()
    if damaged:
        told = f"{many(len(damaged), 'part')} of {many(done, 'entry')} cannot be read"
        return problem("recipes", told, *_few(advice), details=_few(damaged))
    return Finding("recipes", f"{many(done, 'entry')} rebuilt, each as it was saved")


def _cure(session_id: str, namespace: str, states: list[tuple[int, bool]]) -> str:
    where = "" if namespace == "default" else f" --namespace {namespace}"
    sound = [seq for seq, readable in states if readable]
    if not sound:
        return f"restore {session_id} from a backup: none of its checkpoints can be read"
    if states[-1][1]:
        return f"{session_id} can go on: its newest state is sound; older ones are in a backup at best"
    return f"saveslot rollback {session_id} --to {sound[-1]}{where}  goes back to the newest sound checkpoint"


def _few(lines: list[str]) -> list[str]:
    return lines if len(lines) <= NAMED else [*lines[:NAMED], f"and {len(lines) - NAMED:,} more"]


async def _entries(store: Store, key: bytes, id: str) -> AsyncGenerator[tuple[int, Kind | None, str | None]]:
    """The number and kind of each entry, and why it cannot be read, if so."""
    expected = 1
    while True:
        entries = await store.entries(key, [(expected, expected + STRIDE - 1)], frames=False)
        if not entries:
            return
        tracks = [
            await _timeline(store, key, id, [e for e in entries if e.kind in kinds], kinds)
            for kinds in (DATA_KINDS, ABOUT_KINDS)
        ]
        for entry in entries:
            if entry.seq != expected:
                yield expected, None, f"is missing; entry {entry.seq} follows"
            expected = entry.seq + 1
            track = tracks[0] if entry.kind in DATA_KINDS else tracks[1] if entry.kind in ABOUT_KINDS else None
            yield entry.seq, entry.kind, _reason(entry, track, f"{id}:{entry.seq}")


async def _timeline(store: Store, key: bytes, id: str, entries: list[Entry], kinds: frozenset[Any]) -> Timeline:
    sound = [entry for entry in entries if not _unreadable(lambda entry=entry: codec.Recipe.unpack(entry.recipe))]
    ranges = needed(sound)
    return Timeline(id, await store.entries(key, ranges, kinds=kinds) if ranges else [])


def _reason(entry: Entry, track: Timeline | None, name: str) -> str | None:
    def read() -> Iterator[Data]:
        yield note_of(entry, name)
        if track is not None:
            yield track.data(entry)

    return _unreadable(lambda: list(read()))


def _unreadable(read: Callable[[], object]) -> str | None:
    try:
        read()
    except Corrupt as exc:
        return exc.reason
    except NotFound:
        return "frames of it are gone"
    return None
