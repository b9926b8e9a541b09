"""Workers killed with -9 and stopped anywhere: every session is finished, every effect counted, every history legal."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import runpy
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import saveslot
from saveslot import codec
from saveslot.stores.sqlite import SqliteStore
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry
from tests.harness import history

SCRIPT = str(Path(__file__).with_name("worker.py"))
SCOPE = runpy.run_path(SCRIPT)
Plan, digest = SCOPE["Plan"], SCOPE["digest"]
SPAWN = multiprocessing.get_context("forkserver")
Process = Any


class Crew:
    """Worker processes, and what was done to them."""

    def __init__(self, plan: Any, size: int) -> None:
        SPAWN.set_forkserver_preload(["tests.harness.killing", "tests.harness.history", "saveslot.stores.sqlite"])
        self._plan = plan
        self._choice = random.Random(11)
        self.everyone: list[Process] = []
        self.working: list[Process] = []
        self.stopped: dict[Process, float] = {}  # and when each continues
        self.struck: defaultdict[int, list[float]] = defaultdict(list)  # when each was killed, stopped or went on
        self.kills = self.stops = 0
        self.end = 0.0
        for _ in range(size):
            self.start()

    def start(self) -> None:
        plan = self._plan._replace(name=f"w{len(self.everyone)}")
        options = {"init_globals": {"PLAN": tuple(plan)}, "run_name": "__main__"}
        worker = SPAWN.Process(target=runpy.run_path, args=(SCRIPT,), kwargs=options, daemon=True)
        worker.start()
        self.everyone.append(worker)
        self.working.append(worker)

    def strike(self) -> None:
        """Kill a worker and start another, or stop one for at most a TTL."""
        candidates = [worker for worker in self.working if worker not in self.stopped and worker.is_alive()]
        if not candidates:
            return  # the work is done
        worker = self._choice.choice(candidates)
        if self._choice.random() < 0.5:
            self.kill(worker)
            self.start()
        else:
            self._signal(worker, signal.SIGSTOP)
            self.stopped[worker] = time.monotonic() + self._choice.uniform(0.05, self._plan.ttl)
            self.stops += 1

    def kill(self, worker: Process) -> None:
        self._signal(worker, signal.SIGKILL)
        self.working.remove(worker)
        self.kills += 1

    def strike_for(self, seconds: float, every: float) -> None:
        now = time.monotonic()
        end, following = now + seconds, now + every
        while now < end:
            for worker in [worker for worker, until in self.stopped.items() if until <= now]:
                self.go_on(worker)
            if now >= following:
                self.strike()
                following += every
            time.sleep(max(0.001, min([following, end, *self.stopped.values()]) - time.monotonic()))
            now = time.monotonic()
        for worker in list(self.stopped):
            self.go_on(worker)
        self.end = time.time()

    def go_on(self, worker: Process) -> None:
        del self.stopped[worker]
        self._signal(worker, signal.SIGCONT)

    def _signal(self, worker: Process, number: int) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(worker.pid, number)
        self.struck[worker.pid].append(time.time())

    def ended(self, within: float) -> set[int | None]:
        """How they all ended, those too that were killed."""
        end = time.monotonic() + within
        for worker in self.everyone:
            worker.join(max(0, end - time.monotonic()))
        return {worker.exitcode for worker in self.everyone}

    def leave(self) -> None:
        for worker in self.everyone:
            worker.kill()  # also one that is stopped
            worker.join()


@contextmanager
def crew_of(size: int, plan: Any) -> Iterator[Crew]:
    crew = Crew(plan, size)
    try:
        yield crew
    finally:
        crew.leave()


async def begin(plan: Any) -> None:
    with history.Recorder(Path(plan.folder) / "begin.jsonl", "begin") as record:
        async with saveslot.open(plan.url) as sessions:

            async def create(session_id: str) -> None:
                with record.call("create", session_id) as call:
                    session = await sessions.create_session("agent", session_id=session_id)
                    call.ok(seq=session.seen.seq)

            await asyncio.gather(*(create(f"s{n}") for n in range(plan.sessions)))


class Found:
    """What is there when all is over."""

    def __init__(self) -> None:
        self.states = Counter[str]()
        self.logs: dict[str, list[Entry]] = {}
        self.data: dict[str, dict[int, Any]] = {}  # of each checkpoint, by session and seq


async def found(plan: Any, path: Path) -> Found:
    everything = Found()
    store = await SqliteStore.open(str(path))
    async with saveslot.SessionManager(store=store) as sessions:
        for n in range(plan.sessions):
            session_id = f"s{n}"
            [head] = await store.heads([("default", session_id)])
            assert head is not None
            everything.states[head.row.state] += 1
            everything.logs[session_id] = await store.entries(head.row.key)
            contents = [
                checkpoint for checkpoint in await sessions.history(session_id) if checkpoint.name.startswith("turn")
            ]
            everything.data[session_id] = {result.seq: result.data for result in contents}
    return everything


def run(tmp_path: Path, crew_size: int, seconds: float, every: float, drain: float, **how: Any) -> tuple[Crew, Found]:
    plan = Plan(url=f"sqlite:///{tmp_path / 's.db'}", folder=str(tmp_path), name="", **how)
    asyncio.run(begin(plan))
    with crew_of(crew_size, plan) as crew:
        crew.strike_for(seconds, every)
        assert crew.ended(drain) == {0, -signal.SIGKILL}
    everything = asyncio.run(found(plan, tmp_path / "s.db"))
    check(plan, everything)
    return crew, everything


def check(plan: Any, everything: Found) -> None:
    assert everything.states == {"completed": plan.sessions}
    for session_id, log in everything.logs.items():
        assert [entry.seq for entry in log] == list(range(1, len(log) + 1)), session_id
        fences = [entry.fence for entry in log]
        takes = [entry.kind in {Kind.TAKEN, Kind.CLAIMED} for entry in log]
        assert [after - before for before, after in zip([0, *fences], fences, strict=False)] == takes, session_id
        turns = [data["turn"] for data in everything.data[session_id].values()]
        assert turns == list(range(1, plan.turns + 1)), session_id
    check_effects(plan, everything)
    operations = history.read(Path(plan.folder).glob("*.jsonl"))
    items = [op for op in operations if op.op == "write" and op.outcome == "ok"]
    assert len(items) > plan.sessions * plan.turns / 2
    for op in items:
        assert digest(everything.data[op.session][op.seq]) == op.digest, op
    logs = {
        session_id: [
            history.logged(entry, digest(data[entry.seq]) if entry.seq in data else "")
            for entry in everything.logs[session_id]
        ]
        for session_id, data in everything.data.items()
    }
    wrong = history.check(operations, logs)
    assert not wrong, "\n".join(map(str, wrong[:20]))


def check_effects(plan: Any, everything: Found) -> None:
    lines = (Path(plan.folder) / "ledger").read_bytes().splitlines()
    ledger = [msgspec.json.decode(line, type=history.Effect) for line in lines]
    steps = [(f"s{n}", turn) for n in range(plan.sessions) for turn in range(1, plan.turns + 1)]
    charges = Counter((e.session, e.step) for e in ledger if e.mode == "at_most_once")
    assert max(charges.values()) == 1
    keys = {(e.session, e.step, e.key) for e in ledger if e.mode == "idempotent"}
    assert sorted((session, step) for session, step, _ in keys) == sorted((s, f"mail {turn}") for s, turn in steps)
    assert len({key for *_, key in keys}) == len(steps)
    finished: list[tuple[str, str]] = []
    for session_id, log in everything.logs.items():
        for entry in log:
            note = codec.read_note(entry.note) if entry.kind is Kind.STEP_FINISHED else {"skipped": True}
            if not note.get("skipped"):
                finished.append((session_id, f"{entry.name} {note['key']}"))
    wrong = history.check_effects(ledger, finished)
    assert not wrong, "\n".join(map(str, wrong[:20]))


class Takeover(NamedTuple):
    at: float
    pid: int  # of the former owner


def taken_over(everything: Found) -> list[Takeover]:
    claims = [entry for log in everything.logs.values() for entry in log if entry.kind is Kind.CLAIMED]
    return [Takeover(entry.at / 1e6, int(codec.read_note(entry.note)["from"].rpartition(":")[2])) for entry in claims]


@pytest.mark.faults
def test_twenty_workers_struck_every_300_ms_finish_every_session(tmp_path):
    """After a minute of kills and stops all 300 sessions complete; no effect is doubled, nothing acknowledged lost."""
    how = {"sessions": 300, "turns": 12, "room": 4, "pace": 2, "ttl": 2, "beat": 0.4}
    crew, everything = run(tmp_path, 20, seconds=60, every=0.3, drain=180, **how)
    takeovers = taken_over(everything)
    assert min(crew.kills, crew.stops, len(takeovers) / 2) > 50
    assert crew.end - max(it.at for it in takeovers) < 20  # there was work to the end
    # A worker stopped inside a commit stops all writers, and none is declared dead for that. (A few may be that sent no
    # heartbeat for a whole TTL because the machine was busy.)
    unstruck = [it for it in takeovers if not any(at <= it.at for at in crew.struck[it.pid])]
    assert len(unstruck) <= len(takeovers) / 20


def test_five_workers_struck_for_two_seconds_finish_every_session(tmp_path):
    """The same in short: every session completes, every effect is counted, every history is legal."""
    how = {"sessions": 16, "turns": 4, "room": 2, "pace": 0.3, "ttl": 0.5, "beat": 0.1}
    crew, _ = run(tmp_path, 5, seconds=2, every=0.15, drain=60, **how)
    assert crew.kills
    assert crew.stops
