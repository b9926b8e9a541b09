"""`saveslot doctor`: the backend's own checkup, then a check of the logs in it; with `--repair` what can be saved."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from saveslot import codec
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Flag
from saveslot.cli.screen import Line, progress
from saveslot.cli.state import DIM
from saveslot.errors import Corrupt, InvalidInput, KeyMissing, SaveslotError
from saveslot.manager.repair import rescue
from saveslot.opening import encryption_keys
from saveslot.session.vault import Vault
from saveslot.session.verify import FRAME_KINDS, Verifier
from saveslot.stores import open_store
from saveslot.stores.findings import Finding, Logs, Progress, checkup, few, problem, repairing, warning
from saveslot.values.kinds import DATA_KINDS
from saveslot.values.log import Row, Wanted
from saveslot.values.words import many

# Entries whose frames are in memory at once.
STRIDE = 500
SAVES = "saves these sessions as new ones, each from its newest sound state, and leaves them as they are"
MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


async def doctor(
    *,
    hot: Annotated[
        str | None,
        Parameter(
            metavar="URL", help="Also check the Valkey in front at this URL (default: SAVESLOT_HOT or saveslot.toml)."
        ),
    ] = None,
    repair: Annotated[
        bool, Flag("Rebuild indexes, and save each damaged session as a new one from its newest sound state.")
    ] = False,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    with progress() as bars:
        tasks: dict[str, Any] = {}

        def step(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        findings = [finding async for finding in _examined(common, step, repair=repair)]
        findings += [finding async for finding in _examined_hot(hot or common.hot)]
    wrong = sum(finding.state == "problem" for finding in findings)
    lines = (line for finding in findings for line in _finding(finding, terminal=screen.terminal))
    screen.answer({"ok": not wrong, "findings": [finding.to_dict() for finding in findings]}, lines)
    if wrong:
        raise SystemExit(1)


async def _examined(common: Common, step: Progress, *, repair: bool) -> AsyncGenerator[Finding]:
    backend = checkup(common.url)
    if backend is None:
        raise InvalidInput("--store", f"doctor checks SQLite files, PostgreSQL, Valkey and servers, not {common.place}")
    common.require_file("nothing has been saved there yet")
    if repair and (repairs := repairing(common.url)) is not None and (rebuilt := await repairs.repair(common.url)):
        yield rebuilt
    async for item in backend.check(common.url, step, every=repair):
        if not isinstance(item, Logs):
            yield item
            continue
        finding, damaged = await _check_logs(item, step)
        yield await _rescued(common, finding, damaged) if repair and damaged else finding


async def _rescued(common: Common, finding: Finding, damaged: Sequence[Row]) -> Finding:
    """Save each of these sessions as a new one, and say as what."""
    saved: list[str] = []
    left: list[str] = []
    async with common.sessions() as sessions:
        for row in damaged:
            try:
                rescued = await rescue(sessions.of(row.namespace), row)
            except SaveslotError as exc:
                left.append(f"{row.session_id}: {exc}")
                continue
            if rescued is None:
                left.append(f"restore {row.session_id} from a backup: nothing of it is sound")
                continue
            what = f"as of checkpoint {rescued.seq}" if rescued.seq else "with its context, before any checkpoint"
            what += f", without {rescued.lost}" if rescued.lost else ""
            saved.append(f"{row.session_id} saved as {rescued.session_id}, {what}")
    text = f"{finding.text}; saved as new ones: {len(saved):,}"
    advice = [
        *left,
        *(["look at the new sessions, then delete the damaged ones: saveslot rm ID --yes"] if saved else []),
    ]
    return Finding("recipes", text, "problem" if left else "warning", few(advice), [*few(saved), *finding.details])


async def _examined_hot(url: str | None) -> AsyncGenerator[Finding]:
    if url is not None:
        from saveslot.stores.hot.checkup import check

        async for finding in check(url):
            yield finding


def _finding(finding: Finding, *, terminal: bool) -> Iterator[Line]:
    mark, style = MARKS[finding.state]
    mark = f"{mark} " if terminal else f"{finding.state:<8}"
    yield Line(((mark, style), (f"{finding.what:<12}  ", "bold")), ((finding.text, ""),))
    below = (((" " * (len(mark) + 14)), ""),)
    for detail in finding.details:
        yield Line(below, ((detail, DIM),))
    for advice in finding.advice:
        yield Line((*below, ("→ ", style)), ((advice, style),))


async def _check_logs(logs: Logs, progress: Progress) -> tuple[Finding, list[Row]]:
    """Verify every entry, and rebuild every state that the logs promise. Also return the rows of sessions to rescue."""
    damaged: list[str] = []
    advice: list[str] = []
    hurt: list[Row] = []
    done = checked = 0
    locked: dict[str, int] = {}  # number of sessions sealed with a key that was not given, by key id

    def step(more: int) -> None:
        nonlocal done
        done += more
        progress("recipes", done, max(done, logs.entries))

    keys = encryption_keys()
    try:
        opened = await open_store(logs.url)
    except Corrupt:  # the findings so far say why, and what helps
        return problem("recipes", "not checked: the store does not open as it is", "see the problems above"), hurt
    store = Vault(opened, None if keys is None else codec.Keyring.of(keys))
    try:
        for stored in logs.rows:
            row = store.open_row(stored)
            if logs.most is not None and done >= logs.most:
                break
            if isinstance(row.locked, KeyMissing):
                locked[row.locked.key_id] = locked.get(row.locked.key_id, 0) + 1
                continue
            checked += 1
            try:
                wrong, states = await _damage(store, row, step)
            except Corrupt as exc:
                wrong, states = {0: exc.reason}, []
                damaged.append(f"{exc.where}: {exc.reason}")
            else:
                damaged += [_named(row.session_id, *item) for item in wrong.items()]
            if wrong:
                cure = _cure(row, wrong, states)
                advice += [cure] if cure else []
                if not row.deleted_at and (0 in wrong or not states or states[-1] in wrong):
                    hurt.append(stored)
    except SaveslotError as exc:
        return problem("recipes", f"stopped after {many(done, 'entry')}: {exc}", "see the problems above"), hurt
    finally:
        await store.close()
    if damaged:
        text = f"{many(len(damaged), 'part')} of {many(done, 'entry')} are damaged"
        rescuing = [f"saveslot doctor --repair  {SAVES}"] if hurt else []
        return problem("recipes", text, *few(advice), *rescuing, details=few(damaged)), hurt
    if locked:
        text = f"{many(sum(locked.values()), 'session')} not checked: sealed, and the key was not given"
        cure = f"set SAVESLOT_ENCRYPTION_KEY to the keys {', '.join(sorted(locked))}"
        return warning("recipes", text, cure), hurt
    sample = f" of {many(checked, 'session')}, chosen at random," if done < logs.entries else ""
    return Finding("recipes", f"{many(done, 'entry')}{sample} verified and rebuilt"), hurt


def _named(session_id: str, seq: int, reason: str) -> str:
    return f"{session_id}:{seq}: {reason}" if seq else f"{session_id}: context, metadata and labels: {reason}"


def _cure(row: Row, wrong: dict[int, str], states: list[int]) -> str:
    """What helps without a repair; "" if nothing does."""
    session_id = row.session_id
    where = "" if row.namespace == "default" else f" --namespace {row.namespace}"
    sound = [seq for seq in states if seq not in wrong]
    if states and not sound:
        return f"restore {session_id} from a backup: none of its checkpoints is sound"
    if row.deleted_at or not states or 0 in wrong:
        return f"restore {session_id} from a backup" if row.deleted_at else ""
    if states[-1] not in wrong:
        return f"{session_id} can continue: its newest state is sound; restore older ones from a backup"
    return f"saveslot rollback {session_id} --to {sound[-1]}{where}  rolls back to the newest sound checkpoint"


async def _damage(store: Vault, row: Row, step: Callable[[int], None]) -> tuple[dict[int, str], list[int]]:
    """Damage by seq, and the seqs of the checkpoints that the log promises to rebuild."""
    if isinstance(row.locked, Corrupt):  # sealed, and its key is damaged: nothing of it can be opened
        return {0: row.locked.reason}, []
    headers = Wanted(frames=False)
    stored = await store.stored.stored.entries(row.key, headers)
    entries = await store.entries(row.key, headers)
    verifier = Verifier(row, stored, entries)
    wrong = {damage.seq: damage.reason for damage in verifier.headers()}
    for first in range(0, len(entries), STRIDE):
        part = entries[first : first + STRIDE]
        ranges = verifier.needs(part)
        frames = await store.entries(row.key, Wanted(ranges, kinds=FRAME_KINDS)) if ranges else []
        for damage in verifier.states(part, frames):
            wrong.setdefault(damage.seq, damage.reason)
        step(len(part))
    states = [entry.seq for entry in entries if entry.kind in DATA_KINDS and entry.seq in verifier.promised]
    return dict(sorted(wrong.items())), states
