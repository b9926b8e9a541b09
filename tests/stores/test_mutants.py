"""The conformance suite and the store machine catch every planted fault. Each is one text of a store, replaced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis.errors import Flaky

from saveslot.stores import Store
from saveslot.testing import Clock, StoreConformance, behaves_like_memory, first_failure
from tests.harness.mutants import Edit, mutant
from tests.harness.servers import Servers

_COPY = '__import__("copy").deepcopy((self._rows, self._deleted, self._ids, self._logs, self._feed, self._places))'
_RESTORE = "self._rows, self._deleted, self._ids, self._logs, self._feed, self._places = before"
_PAGE = "if events or left <= 0:\n"
_RING = "self._bells.ring([group.key for group in groups])\n"
_JUDGED = "outcome = judged(group, here, before, row, deleted=group.key in self._deleted)\n"
_REBASED = (
    "msgspec.structs.replace(group, prev=log[-1].append_id, entries=["
    "msgspec.structs.replace(entry, seq=len(log) + 1 + n) for n, entry in enumerate(group.entries)])"
)
_SPOT = "(group.create.namespace, group.create.session_id)"
_OWNER = "row.owner = None if row.lease is None else group.owner or row.owner\n"

MEMORY: dict[str, tuple[Edit, ...]] = {
    # The rules of the log
    "prev is not checked, the number alone is": (("before == group.prev and ", ""),),
    "a late writer's entries are put after those it has not seen": (
        (
            "return self._refused(group) or self._appended(group)",
            "verdict, log = self._refused(group), self._logs.get(group.key, [])\n"
            "        late = verdict is not None and verdict.outcome is Outcome.CONFLICT and group.create is None\n"
            "        if late and not group.only_stale and group.only_orphan is None:\n"
            f"            return self._appended({_REBASED})\n"
            "        return verdict or self._appended(group)",
        ),
    ),
    "of a group only the first entry is stored": (
        ("for entry in group.entries:\n            alive", "for entry in group.entries[:1]:\n            alive"),
        (
            "[entry.at for entry in log[group.entries[0].seq - 1 : group.entries[-1].seq]]",
            "[entry.at for entry in log[group.entries[0].seq - 1 : group.entries[0].seq]]",
        ),
    ),
    "a refused group changes the session's row": (
        (
            _JUDGED,
            f"{_JUDGED}                if row is not None and outcome is Outcome.CONFLICT:\n"
            "                    row.state = group.state or row.state\n",
        ),
    ),
    "a retry is appended again": (
        (
            "if outcome is Outcome.ALREADY:\n",
            "if outcome is Outcome.ALREADY:\n"
            "                    if group.key not in self._deleted:\n"
            f"                        self._write({_REBASED})\n",
        ),
    ),
    "a retry is recognised only while its entry is the newest": (
        (
            "if outcome is Outcome.ALREADY:\n",
            "if outcome is Outcome.ALREADY and len(log) > group.entries[-1].seq:\n"
            "                    return Verdict(Outcome.CONFLICT, head=self._last(group.key))\n"
            "                if outcome is Outcome.ALREADY:\n",
        ),
    ),
    "a retried creation is refused": (("mine = bool(log) and log[0].append_id == first.append_id", "mine = False"),),
    "one refused group fails its whole batch": (
        (
            "self._check_open()\n        groups = [checked",
            f"self._check_open()\n        before = {_COPY}\n        groups = [checked",
        ),
        (
            _RING,
            "bad = [v for v in verdicts if v.outcome not in {Outcome.APPENDED, Outcome.ALREADY}]\n"
            "        if bad:\n"
            f"            {_RESTORE}\n"
            "            verdicts = [bad[0] for _ in groups]\n"
            f"        {_RING}",
        ),
    ),
    "an append is acknowledged first and stored with the next one": (
        (
            "self._check_open()\n        groups = [checked",
            "self._check_open()\n"
            '        for group in self.__dict__.pop("_owed", ()):\n'
            "            self._land(group)\n"
            f"        before = {_COPY}\n"
            "        groups = [checked",
        ),
        (
            _RING,
            f'{_RESTORE}\n        self._owed = __import__("copy").deepcopy(list(groups))\n        {_RING}',
        ),
    ),
    "a cancelled append is not stored": (
        (
            "self._check_open()\n        groups = [checked",
            "self._check_open()\n        await asyncio.sleep(0)\n        groups = [checked",
        ),
    ),
    "a former owner gets a conflict": (
        (_JUDGED, f"{_JUDGED}                outcome = Outcome.CONFLICT if outcome is Outcome.FENCED else outcome\n"),
    ),
    "two leases with the same fence are one": (
        (
            _JUDGED,
            f"{_JUDGED}                if outcome is Outcome.FENCED and row is not None and row.fence == first.fence:\n"
            "                    outcome = Outcome.CONFLICT\n",
        ),
    ),
    "lost history is reported as a conflict": (
        (_JUDGED, f"{_JUDGED}                outcome = Outcome.CONFLICT if outcome is Outcome.LOST else outcome\n"),
    ),
    "labels that come with a checkpoint are dropped": (
        (
            "row.labels = row.labels if group.labels is None else",
            "plain = group.create is None and group.entries[-1].kind == Kind.CHECKPOINT\n"
            "        row.labels = row.labels if group.labels is None or plain else",
        ),
    ),
    # Deleting, emptying, purging
    "entries follow a tombstone": (
        (" and before == group.prev and group.key not in self._deleted", " and before == group.prev"),
        (
            "del self._ids[row.namespace, row.session_id]\n",
            "self._ids.pop((row.namespace, row.session_id), None)\n",
        ),
    ),
    "a deleted session is shown by its key": (
        (
            "or key in self._deleted:\n            return None",
            "or (key in self._deleted and key != ref):\n            return None",
        ),
    ),
    "a late retry of the creation revives a deleted session": (
        (
            "        if group.create is not None:\n            taken",
            "        if group.create is not None and group.key in self._deleted:\n"
            "            self._deleted.discard(group.key)\n"
            f"            self._ids.setdefault({_SPOT}, group.key)\n"
            "        if group.create is not None:\n            taken",
        ),
    ),
    "a deleted id cannot be created again": (
        (
            "            if taken is not None or row is not None:\n",
            "            former = [self._rows[key] for key in self._deleted]\n"
            f"            if row is None and {_SPOT} in [(of.namespace, of.session_id) for of in former]:\n"
            "                return Verdict(Outcome.CONFLICT)\n"
            "            if taken is not None or row is not None:\n",
        ),
    ),
    "a recreated session starts with the former body": (
        (
            "            self._logs[group.key], self._requests",
            "            for former in [self._rows[key] for key in self._deleted]:\n"
            "                if (former.namespace, former.session_id) == (row.namespace, row.session_id):\n"
            "                    row.body = former.body\n"
            "            self._logs[group.key], self._requests",
        ),
    ),
    "emptying removes entries": (
        (
            "        count = 0\n",
            "        log = self._logs.get(key, [])\n"
            "        count = sum(entry.seq in wanted and entry.frame is not None for entry in log)\n"
            "        log[:] = [entry for entry in log if entry.seq not in wanted] or log[:1]\n",
        ),
    ),
    "emptying takes notes too": (
        ("entry.note = entry.note[:SEAL] if notes and entry.note is not None else entry.note", "entry.note = None"),
    ),
    "a purge takes sessions that were not deleted": (
        ("self._purge(key) if key in self._deleted else 0", "self._purge(key) if key in self._rows else 0"),
    ),
    "a purge takes a session written to since it was seen": (
        ("key in self._logs and self._logs[key][-1].append_id == at", "key in self._logs"),
    ),
    "a purged session keeps its id": (
        ("if key not in self._deleted:\n            self._forget", "if False:\n            self._forget"),
    ),
    # Namespaces, pages, signs of life
    "pages show every namespace": (("row.namespace == query.namespace\n        and ", ""),),
    "events show every namespace": (
        (" and row.namespace == namespace:\n                    kind", ":\n                    kind"),
    ),
    "an id is taken in every namespace": (
        (
            f"self._ids.get({_SPOT})",
            "next((key for (_, name), key in self._ids.items() if name == group.create.session_id), None)",
        ),
    ),
    "pages skip sessions of the same time": (
        (
            "item[:2] < after if newest_first else item[:2] > after",
            "item[0] < after[0] if newest_first else item[0] > after[0]",
        ),
    ),
    "staleness ignores the entries": (("self._alive(row) < cutoff", "row.heartbeat < cutoff"),),
    "only_stale is ignored": (("if group.only_stale and ", "if False and "),),
    "every entry is a sign of life": (("alive = now if entry.sign else", "alive = now if True else"),),
    "an entry without a sign of life forgets the last one": (
        ("log[-1].alive if log else row.heartbeat", "row.created_at"),
    ),
    "an ended session is kept alive": ((' or row.state not in {"active", "paused"}', ""),),
    # Owners
    "a released session keeps its owner": ((_OWNER, "row.owner = group.owner or row.owner\n"),),
    "an entry that names no owner clears the owner": ((_OWNER, "row.owner = group.owner\n"),),
    "a claimed session keeps its former owner": (
        (
            _OWNER,
            "row.owner = None if row.lease is None else (group.only_orphan is None and group.owner) or row.owner\n",
        ),
    ),
    "the row's fence does not rise": (("row.fence, row.lease = log[-1].fence,", "row.fence, row.lease = 0,"),),
    "a claim takes sessions of living workers": (
        ("group.only_orphan is None or ", "group.only_orphan is None or True or "),
    ),
    "a claim ignores its patience": (("self._bury(row.owner, group.only_orphan)", "self._bury(row.owner, 0)"),),
    "pages of orphans ignore the patience": (("(row.owner, query.orphan_for)", "(row.owner, 0)"),),
    "a claim leaves the former owner alive": (("        self._workers[owner].dead = True\n", ""),),
    "a claim that does not land declares the owner dead": (
        (
            _JUDGED,
            f"{_JUDGED}                if row is not None and group.only_orphan is not None:\n"
            "                    self._bury(row.owner, group.only_orphan)\n",
        ),
    ),
    "a released session is an orphan": (
        (
            "if owner is None or not self._orphaned",
            "if owner is None:\n            return True\n        if not self._orphaned",
        ),
    ),
    "a dead worker renews itself": (
        ("if row is None or row.dead:\n            return 0", "if row is None:\n            return 0"),
    ),
    "a dead worker returns with a first beat": (
        (
            "self._workers.setdefault(worker.id, _Crewman(worker.name, 0, now))",
            "self._workers[worker.id] = _Crewman(worker.name, 0, now)",
        ),
    ),
    "a late worker is refused though no worker declared it dead": (
        (
            "if row is None or row.dead:",
            "if row is None or row.dead or (not worker.first and self._orphaned(worker.id, 0)):",
        ),
    ),
    "a worker that leaves is only late": (("now, not worker.ttl", "now, False"),),
    "an owner that never beat holds forever": (('_Crewman("", 0, 0, dead=True)', '_Crewman("", 1 << 62, 0)'),),
    "leases go by the wall clock": (("self._uptime = uptime", "self._uptime = clock"),),
    "a heartbeat needs no lease": ((" or row.lease != lease", ""),),
    "staleness ignores the owner": (("0 if owner is None else owner.beaten", "0"),),
    "any worker's beat keeps every session from being stale": (
        (
            "0 if owner is None else owner.beaten",
            "max((worker.beaten for worker in self._workers.values()), default=0)",
        ),
    ),
    "orphans are not counted": (("counts.orphaned += self._orphaned(row.owner, 0)", "counts.orphaned += 0"),),
    "a chain ends after one base": (("yield seq\n", "yield from {seq, log[seq - 1].base or seq}\n        break\n"),),
    "a request may come twice": (("if known and any(entry", "if False and any(entry"),),
    "labels of several entries count as those of one": (
        (
            "any(query.entry.items() <= labels.items() for labels in self._marks[key].values())",
            "query.entry.items() <= {item for labels in self._marks[key].values() for item in labels.items()}",
        ),
    ),
    "entries without labels get some with a body": ((" if seq in marks}", "}"),),
    "of groups that land together some land": (
        ("return [verdict or Verdict(Outcome.SKIPPED) for verdict in refused]", "pass"),
    ),
    # Events
    "after a full page one event is skipped": (
        (_PAGE, f"at = min(at + (len(events) == limit), len(places))\n            {_PAGE}"),
    ),
    "after a full page its last event is repeated": ((_PAGE, f"at -= len(events) == limit > 1\n            {_PAGE}"),),
    "a waiting reader of events is not woken": ((_RING, "pass\n"),),
}

_LANDING = "stores/sqlite/landing.py"
_STATEMENTS = "stores/postgres/statements.py"
_SCRIPT = "stores/valkey/script.lua"
# Name: file below src/saveslot, and its edits.
MUTANTS: dict[str, tuple[str, tuple[Edit, ...]]] = {
    **{name: ("stores/memory.py", edits) for name, edits in MEMORY.items()},
    "SQLite: prev is not checked": (_LANDING, (("p.append_id = ?2", "?2 is not null"),)),
    "SQLite: a claim that does not land declares the owner dead": (
        _LANDING,
        (("order by seq desc limit 1) = ?", "order by seq desc limit 1) is not null and ? is not null"),),
    ),
    "SQLite: only_stale ignores the owner": (_LANDING, (("seq = ?2), coalesce(beaten, 0)", "seq = ?2), 0"),)),
    "SQLite: cursors are given out again after a purge": (
        "stores/sqlite/__init__.py",
        (("connection.execute(_KEPT, (newest,))", "pass"),),
    ),
    "SQLite: a reader keeps its first snapshot": (
        "stores/sqlite/reader.py",
        (
            (
                "return (short(connection),)",
                'return (connection.in_transaction or connection.execute("begin"), short(connection))[1:]',
            ),
            (
                "return work(connection)",
                'return (connection.in_transaction or connection.execute("begin"), work(connection))[1]',
            ),
        ),
    ),
    "SQLite: a chain goes on in another session": (
        "stores/sqlite/reading.py",
        (("where c.key = ?1 and c.seq = chain.base", "where c.key > x'' and c.seq = chain.base"),),
    ),
    "PostgreSQL: an entry of both range and chain comes twice": (
        _STATEMENTS,
        (("not exists (select from ranges where", "not exists (select from ranges where false and"),),
    ),
    "SQLite: what landed before a refusal stays": (_LANDING, (('connection.execute("rollback to together")', "pass"),)),
    "SQLite: a deleted session is found by its entries": (
        _LANDING,
        (("        if group.delete:\n            connection.execute(UNMARK, (group.key,))\n", ""),),
    ),
    "PostgreSQL: a request that came before is overlooked": (
        _STATEMENTS,
        (('_NEW = "and n.key <> all(array(select key from asked))"', '_NEW = ""'),),
    ),
    "PostgreSQL: groups that should land together land alone": (
        _STATEMENTS,
        (("(select count(*) from first) = $32::int8)", "(select count(*) from first) <= $32::int8)"),),
    ),
    "PostgreSQL: prev is not checked": (
        _STATEMENTS,
        (("c.append_id = $5 and c.kind", "$5::bytea is not null and c.kind"),),
    ),
    "PostgreSQL: entries follow a tombstone": (
        _STATEMENTS,
        (("c.append_id = $5 and c.kind <> 9", "c.append_id = $5"),),
    ),
    "PostgreSQL: labels are found in another case": (
        "stores/postgres/migrations/001.sql",
        (("lower((id ||", "((id ||"),),
    ),
    "Valkey: a base is read at another place": (_SCRIPT, (("for _ = 1, 11 do", "for _ = 1, 6 do"),)),
    "Valkey: groups land before the others are admitted": (_SCRIPT, (("if stopped then return verdicts end\n", ""),)),
    "Valkey: each label may be another entry's": (
        _SCRIPT,
        (
            (
                "mark(label, value, made, key, seq)) then return false",
                "mark(label, value, made, key, 2)) then return false",
            ),
        ),
    ),
    "Valkey: prev is not checked": (_SCRIPT, ((" and before == group.prev\n", "\n"),)),
    "Valkey: a former owner gets a conflict": (
        _SCRIPT,
        (("then return 'fenced' end", "then return 'conflict' end"),),
    ),
    "Valkey: a dead worker renews itself": (
        _SCRIPT,
        (("if not w or w.dead then return 0 end", "if not w then return 0 end"),),
    ),
    "Valkey: a deleted session is shown": (
        _SCRIPT,
        (("not last and not ns or gone == '1' then", "not last and not ns then"),),
    ),
}

# The machine's steps come one after another: it neither cancels nor waits, no two share a transaction, and none
# replaces labels of entries.
BEYOND_THE_MACHINE = {
    "a cancelled append is not stored",
    "a waiting reader of events is not woken",
    "entries without labels get some with a body",
}
# The machine meets these after many seconds, or not in every run ("a claim ignores its patience").
RARELY_MET = {
    "a chain ends after one base",
    "SQLite: a chain goes on in another session",
    "a claim ignores its patience",
    "SQLite: a claim that does not land declares the owner dead",
    "SQLite: only_stale ignores the owner",
    "labels of several entries count as those of one",
    "SQLite: a deleted session is found by its entries",
}
# Met by the machine in 10 s of CPU or more; all others take less than 5.
SLOWLY_MET = {"a claim that does not land declares the owner dead", "a request may come twice"}
SERVERS = ("PostgreSQL: ", "Valkey: ")

Open = Callable[[Path, Clock], Awaitable[Store]]


@pytest.fixture
def faulty(servers: Servers, tmp_path: Path) -> Callable[[str], Any]:
    """How to open a store with this fault; in memory, one for each folder."""

    @contextmanager
    def planted(name: str) -> Iterator[Open]:
        file, edits = MUTANTS[name]
        (tmp_path / "source").mkdir()
        backend = Path(file).parts[1]
        place = {"postgres": servers.schema, "valkey": servers.valkey}.get(backend, str)()
        with mutant(tmp_path / "source", file, *edits) as module:
            stores: dict[Path, Store] = {}

            async def memory(folder: Path, clock: Clock) -> Store:
                return stores.setdefault(folder, module.MemoryStore(clock, clock.uptime))

            async def sqlite(folder: Path, clock: Clock) -> Store:
                uptime = lambda: ("this boot", clock.uptime())  # noqa: E731
                return await module.SqliteStore.open(str(folder / "store.db"), clock, uptime=uptime)

            async def postgres(folder: Path, clock: Clock) -> Store:
                return await module.PostgresStore.open(place, clock, clock.uptime)

            async def valkey(folder: Path, clock: Clock) -> Store:
                return await module.ValkeyStore.open(place, 3600, clock, clock.uptime)

            yield {"memory.py": memory, "sqlite": sqlite, "postgres": postgres, "valkey": valkey}[backend]

    return planted


@pytest.mark.parametrize("name", MUTANTS)
def test_the_suite_catches(name: str, faulty: Callable[[str], Any], tmp_path: Path) -> None:
    """A store with this fault fails the conformance suite."""
    with faulty(name) as opened:

        class Suite(StoreConformance):
            erases = not name.startswith("Valkey")

            async def open(self, folder: Path, clock: Clock) -> Store:
                return await opened(folder, clock)

        assert first_failure(Suite, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in SLOWLY_MET else ())
        for name in MUTANTS
        if name not in BEYOND_THE_MACHINE | RARELY_MET and not name.startswith(SERVERS)
    ],
)
def test_the_machine_catches(name: str, faulty: Callable[[str], Any], tmp_path: Path) -> None:
    """A store with this fault differs from memory within 1,000 examples."""
    with faulty(name) as opened:

        async def open_two(clock: Clock) -> tuple[Store, Store]:
            return await opened(tmp_path, clock), await opened(tmp_path, clock)

        # Flaky: what one example left spoils the next, as with an id that is taken in every namespace.
        with pytest.raises((AssertionError, Flaky)):
            behaves_like_memory(open_two, examples=1000, repeatable=True)


def test_a_text_that_moved_fails_loudly(tmp_path: Path) -> None:
    """A mutant whose text is not in its file is an error in the table, not a fault that was caught."""
    with (
        pytest.raises(AssertionError, match="update the table"),
        mutant(tmp_path, "stores/memory.py", ("no such text", "")),
    ):
        pass
