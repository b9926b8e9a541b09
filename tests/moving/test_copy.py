"""A store copied to another backend is equal, log by log, verified, and an interrupted copy can be resumed."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import msgspec
import pytest

from saveslot import Corrupt, KeyMissing, Retention, SessionManager, Unavailable
from saveslot.manager.log_pages import forks_of
from saveslot.moving import loader, parcel
from saveslot.moving.copy import copy_sessions
from saveslot.stores import Store, open_store, sqlite_path
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite.file import connect
from saveslot.values.log import Query

from .conftest import BACKENDS, exports, lived


async def logs(store: Store) -> dict[str, tuple]:
    """Rows and entries as they are stored, without who holds them and when they last gave a sign of life."""
    by_key = {}
    for row in await store.find(Query(namespace="default"), limit=1000):
        entries = await store.entries(row.key)
        bare = [msgspec.structs.replace(entry, lease=None, alive=0) for entry in entries]
        about = (row.key, row.agent_type, row.user_id, row.state, row.created_at, row.fence, row.body, row.labels)
        by_key[row.session_id] = (about, bare)
    return by_key


@pytest.mark.parametrize(("first", "second"), list(product(BACKENDS, BACKENDS)))
async def test_copy_round_trips_between_backends(fresh, first, second):
    """From any backend to any other and back, every entry, checkpoint and row is equal, and none is doubled."""
    origin, away, back = await fresh(first), await fresh(second), await fresh(first)
    await lived(origin)
    there = await copy_sessions(origin, away, "default")
    again = await copy_sessions(away, back, "default")
    assert there.problems == again.problems == []
    assert sorted(there.landed) == sorted(again.landed) == sorted(await logs(origin))
    assert await logs(origin) == await logs(away) == await logs(back)
    assert (await exports(back)) == (await exports(origin))
    more = await copy_sessions(origin, back, "default")
    assert (more.landed, more.already, more.entries, more.problems) == ([], len(there.landed), 0, [])


@pytest.mark.parametrize(("first", "second"), [("sqlite", "memory"), ("memory", "sqlite"), ("sqlite", "postgres")])
async def test_copied_session_is_found_by_labels_of_its_entries(fresh, first, second):
    """The labels in checkpoints' metadata find the copy, too, and its calls are recognised by their keys."""
    origin, away = await fresh(first), await fresh(second)
    sessions, copies = SessionManager(store=origin), SessionManager(store=away)
    await sessions.create_session("tutor", session_id="labelled")
    call = {"metadata": {"labels": {"run": "r1"}}, "idempotency_key": "k"}
    saved = await sessions.checkpoint("labelled", "one", {"n": 1}, **call)
    await sessions.checkpoint("labelled", "two", put={"n": 2})
    report = await copy_sessions(origin, away, "default")
    assert report.problems == []
    assert [session.session_id for session in await copies.find(entry={"run": "r1"})] == ["labelled"]
    assert (await copies.checkpoint("labelled", "one", {"n": 1}, **call)).seq == saved.seq


@pytest.mark.parametrize(
    ("first", "second"), [("sqlite", "http"), ("http", "postgres"), ("postgres", "valkey"), ("valkey", "memory")]
)
async def test_sealed_copy_is_found_by_labels_of_its_entries(fresh, first, second):
    """The copy needs no key: the labels go along as they are hidden, those of forks, too."""
    origin, away = await fresh(first), await fresh(second)
    sessions = SessionManager(store=origin, encryption_key=bytes(32))
    await sessions.create_session("tutor", session_id="s")
    for n in range(3):
        await sessions.checkpoint("s", "turn", {"n": n}, {"labels": {"run": f"r{n % 2}"}})
    await sessions.record("s", "thought", "a secret")
    await sessions.fork("s", "~1", "fork")
    assert (await copy_sessions(origin, away, "default")).problems == []
    copies = SessionManager(store=away, encryption_key=bytes(32))
    assert {session.session_id for session in await copies.find(entry={"run": "r1"})} == {"s", "fork"}
    assert {session.session_id for session in await copies.find(entry={"run": "r0"})} == {"s"}
    assert [record.value for record in await copies.records("s")] == ["a secret"]
    forks = await forks_of(copies, "s")
    assert [fork.id for lines in forks.values() for fork in lines] == ["fork"]
    await sessions.checkpoint("s", "turn", {"n": 4}, {"labels": {"run": "r2"}})
    assert (await copy_sessions(origin, away, "default")).problems == []
    assert [session.session_id for session in await copies.find(entry={"run": "r2"})] == ["s"]


async def test_copied_session_has_no_owner(fresh):
    """A lease belongs to one store: the copy is free, and accepts writes."""
    origin, away = await fresh("sqlite"), await fresh("memory")
    await lived(origin)
    await copy_sessions(origin, away, "default")
    sessions = SessionManager(store=away)
    assert (await sessions.get_session("forked")).owner is None
    async with sessions.hold("forked") as held:
        assert held.data == {"paid": True, "by": "nobody yet"}
        assert await held.step("charge", lambda: pytest.fail("it ran again"), key="k-1") == {"paid": True}


async def test_second_copy_adds_new_entries(fresh):
    """A second run continues each session after its newest entry, including its state."""
    origin, away = await fresh("memory"), await fresh("sqlite")
    await lived(origin)
    await copy_sessions(origin, away, "default")
    sessions = SessionManager(store=origin)
    lesson = await sessions.get_session("lesson")
    await sessions.checkpoint(lesson, "more", append={"messages": [1]})
    lesson.context["late"] = True
    lesson.complete("done")
    await sessions.update_session(lesson)
    report = await copy_sessions(origin, away, "default")
    assert (report.landed, report.entries, report.problems) == (["lesson"], 3, [])
    before, after = await exports(origin), await exports(away)
    assert before["forked"] == after["forked"]
    assert (await SessionManager(store=away).get_session("lesson")).context["late"] is True
    assert await logs(origin) == await logs(away)


async def test_diverged_sessions_are_skipped_and_named(fresh):
    """An unrelated session of the same id, a diverged copy and a deleted one are each named, none touched."""
    origin, away = await fresh("memory"), await fresh("sqlite")
    await lived(origin)
    there = SessionManager(store=away)
    await there.create_session("stranger", session_id="done")
    report = await copy_sessions(origin, away, "default")
    assert [problem.what for problem in report.problems] == ["session done"]
    assert (await there.get_session("done")).agent_type == "stranger"
    await there.checkpoint("lesson", "own way", {"n": 1})
    await there.delete_session("crowd-3")
    here = SessionManager(store=origin)
    await here.checkpoint("lesson", "their way", {"n": 2})
    report = await copy_sessions(origin, away, "default")
    assert sorted(problem.what for problem in report.problems) == ["session crowd-3", "session done", "session lesson"]
    assert (await there.get_checkpoint("lesson")).name == "own way"
    assert await there.get_session("crowd-3") is None
    assert report.entries == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("key", [None, bytes(range(32))])
async def test_recreated_session_replaces_its_copy(fresh, backend, key):
    """A session that was deleted and created again is copied; the deletion of its old copy is copied too."""
    origin, away = await fresh("sqlite"), await fresh(backend)
    here = SessionManager(store=origin, encryption_key=key)
    there = SessionManager(store=away, encryption_key=key)
    await here.create_session("tutor", session_id="lesson")
    await here.checkpoint("lesson", "asked", {"n": 1})
    await copy_sessions(origin, away, "default")
    old = (await away.heads([("default", "lesson")]))[0].row.key
    await here.checkpoint("lesson", "asked", {"n": 2})
    await here.delete_session("lesson")
    await here.create_session("tutor", session_id="lesson")
    await here.checkpoint("lesson", "answered", {"n": 3})
    report = await copy_sessions(origin, away, "default")
    assert (report.landed, report.replaced, report.entries, report.problems) == (["lesson"], ["lesson"], 4, [])
    assert await logs(origin) == await logs(away)
    assert await there.get_data("lesson") == {"n": 3}
    assert await away.heads([old]) == [None]
    assert [entry.append_id for entry in await away.entries(old)] == [e.append_id for e in await origin.entries(old)]
    again = await copy_sessions(origin, away, "default")
    assert (again.landed, again.replaced, again.already, again.problems) == ([], [], 1, [])


async def test_changed_copy_of_a_recreated_session_is_kept(fresh):
    """A copy that was written to is left alone and named."""
    origin, away = await fresh("memory"), await fresh("sqlite")
    here, there = SessionManager(store=origin), SessionManager(store=away)
    await here.create_session("tutor", session_id="lesson")
    await copy_sessions(origin, away, "default")
    await there.checkpoint("lesson", "own way", {"n": 1})
    await here.delete_session("lesson")
    await here.create_session("tutor", session_id="lesson")
    report = await copy_sessions(origin, away, "default")
    assert (report.landed, report.replaced, report.entries) == ([], [], 0)
    assert [problem.what for problem in report.problems] == ["session lesson"]
    assert await there.get_data("lesson") == {"n": 1}


class Breaking:
    """A store whose n-th append never comes back."""

    def __init__(self, store: Store, after: int) -> None:
        self._store, self._left = store, after

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def append(self, groups, **how):
        if not self._left:
            raise Unavailable("gone")
        self._left -= 1
        return await self._store.append(groups, **how)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_interrupted_copy_is_finished_by_the_next(fresh, backend, monkeypatch):
    """Wherever it stops, no session is readable in part, and in the end each is copied once."""
    monkeypatch.setattr(loader, "TOGETHER", 4)
    monkeypatch.setattr(parcel, "MANY", 9)
    origin, away = await fresh("memory"), await fresh(backend)
    await lived(origin)
    runs, seen = 0, set()
    while runs < 60:
        runs += 1
        try:
            report = await copy_sessions(origin, Breaking(away, 2), "default")
            break
        except Unavailable:
            whole = await logs(origin)
            for session_id, (about, entries) in (await logs(away)).items():
                assert entries == whole[session_id][1][: len(entries)]
                parted = len(entries) < len(whole[session_id][1])
                assert about[3] == ("paused" if parted else whole[session_id][0][3])
                seen.add(parted)
    assert 3 < runs < 60
    assert seen == {True, False}
    assert report.problems == []
    assert await logs(origin) == await logs(away)


class Garbling(MemoryStore):
    """Silently drops a byte of every frame."""

    async def append(self, groups, **how):
        return await super().append([self._garbled(group) for group in groups], **how)

    def _garbled(self, group):
        frames = [entry.frame and entry.frame[:-1] + b"?" for entry in group.entries]
        pairs = zip(group.entries, frames, strict=True)
        return msgspec.structs.replace(group, entries=[msgspec.structs.replace(e, frame=f) for e, f in pairs])


async def test_garbling_store_is_detected(fresh):
    """Every entry is read back and compared."""
    origin = await fresh("memory")
    await lived(origin)
    report = await copy_sessions(origin, Garbling(), "default")
    assert report.landed == []
    assert {problem.what for problem in report.problems} == {f"session {name}" for name in await logs(origin)}


OTHERS = "update checkpoints set recipe = (select recipe from checkpoints where key = :key and seq = 5)"
# Damage to the file of `hurt`, and how it is reported.
DAMAGE = {
    "an entry in the middle is gone": ("delete from checkpoints where key = :key and seq = 9", "entry 9 is missing"),
    "the first is gone": ("delete from checkpoints where key = :key and seq = 1", "entry 1 is missing"),
    "all are gone": ("delete from checkpoints where key = :key", "has lost its entries"),
    "a patch is gone": (
        "update checkpoints set frame = null where key = :key and seq = 9", "entry 9 has lost 1 of its frames",
    ),
    "a keyframe is gone": (
        "update checkpoints set frame = null where key = :key and seq = 2", "entry 2 has lost 1 of its frames",
    ),
    "a byte of a keyframe": (
        "update checkpoints set frame = cast(x'0101' || substr(frame, 3) as blob) where key = :key and seq = 2",
        "entry 2 has a frame that does not match its digest",
    ),
    "a byte of a patch": (
        "update checkpoints set frame = cast(frame || x'00' as blob) where key = :key and seq = 9",
        "entry 9 has a frame that does not match its digest",
    ),
    "another's recipe": (
        f"{OTHERS} where key = :key and seq = 9",
        "entry 9 does not match its link",
    ),
    "another's recipe in a rollback": (
        f"{OTHERS} where key = :key and seq = 15",
        "entry 15 does not match its link",
    ),
    "no recipe": (
        "update checkpoints set recipe = x'' where key = :key and seq = 9", "entry 9 does not match its link",
    ),
    "another name": ("update checkpoints set name = 'x' where key = :key and seq = 9", "entry 9 does not match"),
    "another time": ("update checkpoints set at = at + 1 where key = :key and seq = 9", "entry 10 does not match"),
    "a note": (
        "update checkpoints set note = cast(note || x'00' as blob) where key = :key and seq = 9",
        "entry 9 has a note that was changed",
    ),
    "its context": (
        "update sessions set body = cast(body || x'00' as blob) where key = :key", "its context does not match",
    ),
}  # fmt: skip


async def hurt(store: Store) -> None:
    sessions = SessionManager(store=store)
    await sessions.create_session("tutor", context={"topic": "fractions"}, session_id="hurt")
    for n in range(13):
        await sessions.checkpoint("hurt", f"turn-{n}", append={"messages": [f"question {n}" * 20]}, metadata={"n": n})
    await sessions.rollback("hurt", 7)
    await sessions.checkpoint("hurt", "on", append={"messages": ["on"]})
    for n in range(3):
        await sessions.create_session("crowd", session_id=f"whole-{n}")


async def damaged(url: str, sql: str) -> Store:
    """The same file, damaged."""
    connection = connect(sqlite_path(url), None)  # which gives the pages that it writes their checksums
    [(key,)] = connection.execute("select key from sessions where id = 'hurt'").fetchall()
    connection.execute(sql, {"key": key})
    assert connection.changes()
    connection.close()
    return await open_store(url)


@pytest.mark.parametrize("parts", [500, 4])
@pytest.mark.parametrize("second", BACKENDS)
@pytest.mark.parametrize("what", DAMAGE)
async def test_damaged_session_is_skipped_and_named(fresh, fresh_url, second, what, parts, monkeypatch):
    """Whatever its damage, it is named once per run; none of it is copied, and all others are."""
    monkeypatch.setattr(parcel, "MANY", parts)
    url, away = fresh_url("sqlite"), await fresh(second)
    origin = await open_store(url)
    await hurt(origin)
    await origin.close()
    sql, said = DAMAGE[what]
    origin = await damaged(url, sql)
    for landed, already in ((3, 0), (0, 3)):
        report = await copy_sessions(origin, away, "default")
        assert [problem.what for problem in report.problems] == ["session hurt"]
        assert said in report.problems[0].reason
        assert (len(report.landed), report.already) == (landed, already)
    assert sorted(await logs(away)) == ["whole-0", "whole-1", "whole-2"]
    await origin.close()


async def test_copy_of_a_now_damaged_session_is_kept(fresh, fresh_url):
    """Copied entries are kept; none that depends on damage is appended after them."""
    url, away = fresh_url("sqlite"), await fresh("memory")
    origin = await open_store(url)
    await hurt(origin)
    await copy_sessions(origin, away, "default")
    before = await logs(away)
    await SessionManager(store=origin).checkpoint("hurt", "more", append={"messages": ["more"]})
    await origin.close()
    for gone in (9, 16):
        origin = await damaged(url, f"delete from checkpoints where key = :key and seq = {gone}")  # noqa: S608
        report = await copy_sessions(origin, away, "default")
        assert [problem.what for problem in report.problems] == ["session hurt"]
        assert "entry 9 is missing" in report.problems[0].reason
        assert await logs(away) == before
        await origin.close()


@pytest.mark.parametrize("key", [None, bytes(range(32))])
async def test_thinned_frames_are_not_damage(fresh, key):
    """Thinned frames are not missed, even while thinning is in progress."""
    origin, away, later = await fresh("sqlite"), await fresh("memory"), await fresh("memory")
    sessions = SessionManager(store=origin, encryption_key=key)
    await sessions.create_session("tutor", session_id="thin")
    for n in range(80):
        await sessions.checkpoint("thin", f"turn-{n}", append={"messages": [f"question {n}" * 20]})
    await sessions.rollback("thin", "~30")
    await sessions.checkpoint("thin", "on", append={"messages": ["on"]})
    rule = Retention(keep_last=3, keep_latest_per_name=False)
    assert (await sessions.thin("thin", rule)).marked
    [row] = await origin.find(Query(namespace="default"))
    assert await origin.empty(row.key, [5, 6, 7]) == 3
    assert (await copy_sessions(origin, away, "default")).problems == []
    assert (await sessions.thin("thin", rule, grace=timedelta(0))).emptied
    assert (await copy_sessions(origin, later, "default")).problems == []
    assert await logs(origin) == await logs(later)


class Refusing(MemoryStore):
    """Finds one session damaged, and with it every batch that it is in."""

    async def append(self, groups, **how):
        if any(group.create and group.create.session_id == "crowd-3" for group in groups):
            raise Corrupt("crowd-3", "is damaged")
        return await super().append(groups, **how)


async def test_damage_in_the_target_affects_one_session(fresh):
    """A target that finds one session damaged accepts all others."""
    origin, away = await fresh("memory"), Refusing()
    await lived(origin)
    report = await copy_sessions(origin, away, "default")
    assert [problem.what for problem in report.problems] == ["session crowd-3"]
    assert len(await logs(away)) == len(await logs(origin)) - 1


async def test_namespaces_stay_apart(fresh):
    origin, away = await fresh("memory"), await fresh("memory")
    await lived(origin)
    await lived(origin, "other")
    await copy_sessions(origin, away, "other")
    assert await exports(away) == {}
    assert await exports(away, "other") == await exports(origin, "other")


@pytest.mark.parametrize("second", BACKENDS)
async def test_sealed_session_is_copied_sealed(fresh, second):
    """Copying needs no key. With it the copy reads as the original and accepts writes; links noted earlier still
    verify.
    """
    key = bytes(range(32))
    origin, away = await fresh("sqlite"), await fresh(second)
    sealed = SessionManager(store=origin, encryption_key=key)
    await sealed.create_session("tutor", "anna", {"topic": "fractions"}, session_id="s")
    async with sealed.hold("s") as held:
        for n in range(3):
            await held.checkpoint("asked", {"n": n}, metadata={"why": "so"})
    await sealed.rollback("s", "~1")
    noted = (await sealed.audit("s")).head
    report = await copy_sessions(origin, away, "default")
    assert (report.landed, report.problems) == (["s"], [])
    assert await logs(origin) == await logs(away)
    with pytest.raises(KeyMissing):
        await SessionManager(store=away).get_session("s")
    there = SessionManager(store=away, encryption_key=key)
    assert (await there.get_data("s"), (await there.get_session("s")).context) == ({"n": 1}, {"topic": "fractions"})
    assert await there.export("s", plain=True) == await sealed.export("s", plain=True)
    await there.checkpoint("s", "on", {"n": 9})
    assert (await there.audit("s", link=noted)).misfit is None
