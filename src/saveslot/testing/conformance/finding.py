"""Pages, counts, and the entries of one session."""

from __future__ import annotations

from typing import Any

import msgspec

from saveslot.testing.conformance.desk import Desk, Suite, on_a_desk
from saveslot.testing.pen import SECOND, Pen
from saveslot.values.ids import fresh_key
from saveslot.values.kinds import Kind
from saveslot.values.log import Query, Row


class Finding(Suite):
    # Finding

    @on_a_desk
    async def test_find_takes_every_filter(self, desk: Desk) -> None:
        """Each filter alone and all combined return the matching sessions, newest first."""
        items: list[dict[str, Any]] = [
            {"agent_type": "coder", "user_id": "u1", "state": "active", "labels": {"team": "Red", "x": "1"}},
            {"agent_type": "coder", "user_id": "u2", "state": "paused", "labels": {"team": "blue"}},
            {"agent_type": "Tester", "user_id": "u1", "state": "completed", "labels": {}},
            {"agent_type": "", "user_id": "", "state": "failed", "labels": {"team": "Red"}},
        ]
        for n, row in enumerate(items):
            await desk.create(f"{'Job' if n % 2 else 'job'}-{n}", created_at=10 + n, **row)
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "3210"),
            ({"agent_type": "coder"}, "10"),
            ({"agent_type": ""}, "3"),
            ({"agent_type": "code"}, ""),
            ({"user_id": "u1"}, "20"),
            ({"state": "paused"}, "1"),
            ({"labels": {"team": "Red"}}, "30"),
            ({"labels": {"team": "Red", "x": "1"}}, "0"),
            ({"labels": {"team": "1"}}, ""),
            ({"created_after": 11}, "32"),
            ({"created_before": 11}, "0"),
            ({"created_after": 10, "created_before": 13}, "21"),
            ({"text": "JOB-2"}, "2"),
            ({"text": "TEST"}, "2"),
            ({"text": "U2"}, "1"),
            ({"text": "red"}, "30"),
            ({"text": "team"}, ""),
            ({"text": ""}, "3210"),
            ({"text": "%"}, ""),
            ({"prefix": "job-"}, "20"),
            ({"prefix": "Job-1"}, "1"),
            ({"prefix": "ob"}, ""),
            ({"prefix": "job-0-and-more"}, ""),
            ({"agent_type": "coder", "user_id": "u1", "state": "active", "labels": {"x": "1"}, "text": "j"}, "0"),
            ({"agent_type": "coder", "user_id": "u1", "state": "paused"}, ""),
        ]
        for query, expected in cases:
            assert [name[-1] for name in await desk.ids(**query)] == list(expected), query
            counts = await desk.other.count(Query(namespace=desk.namespace, **query))
            assert sum(counts.states.values()) == len(expected), query
            assert sum(counts.agent_types.values()) == len(expected), query

    @on_a_desk
    async def test_text_search_ignores_ascii_case_only(self, desk: Desk) -> None:
        """Text search ignores the case of ASCII letters and of no others."""
        await desk.create("STRASSE Ä")
        assert await desk.ids(text="strasse") == ["STRASSE Ä"]
        assert await desk.ids(text="Ä") == ["STRASSE Ä"]
        assert await desk.ids(text="ä") == []

    @on_a_desk
    async def test_text_search_has_no_patterns(self, desk: Desk) -> None:
        """The text is matched literally, within one name or label value, never across two."""
        await desk.create("one", agent_type="50%_x", labels={"a": 'say "hi"', "b": "back\\slash", "c": "x, y [z]"})
        await desk.create("two", agent_type="50 percent", user_id="anna maria", labels={"a": "b", "c": "d"})
        result = {
            "50%": ["one"],
            "0%_": ["one"],
            "%": ["one"],
            "_": ["one"],
            '"hi"': ["one"],
            "k\\s": ["one"],
            "\\": ["one"],
            ", ": ["one"],
            "[": ["one"],
            "Y [Z": ["one"],
            "A MARIA": ["two"],
            "0 p": ["two"],
            " ": ["two", "one"],
            '"': ["one"],
            "b\x1fd": [],
            "onetwo": [],
            "two50": [],
        }
        for text, names in result.items():
            assert sorted(await desk.ids(text=text)) == sorted(names), text

    @on_a_desk
    async def test_find_uses_the_present_labels(self, desk: Desk) -> None:
        """A session is found by its present labels, in order, and not after its deletion."""
        pens = [await desk.create(name, created_at=10 + n, labels={"team": "red"}) for n, name in enumerate("abcd")]
        await desk.write(pens[1], 1, Kind.UPDATED, whole={"body": b"", "labels": {"team": "blue", "x": "1"}})
        await desk.delete(pens[2])
        assert await desk.ids(labels={"team": "red"}) == ["d", "a"]
        assert await desk.ids(labels={"team": "blue"}) == await desk.ids(text="BLUE") == ["b"]
        assert await desk.ids(labels={"x": "1", "team": "blue"}) == ["b"]
        assert (
            await desk.ids(labels={"x": "1", "team": "red"}) == await desk.ids(labels={"x": "1"}, state="failed") == []
        )
        counts = await desk.other.count(Query(namespace=desk.namespace, labels={"team": "red"}))
        assert (counts.states, counts.held) == ({"active": 2}, 0)
        [first] = await desk.other.find(Query(namespace=desk.namespace, labels={"team": "red"}), None, 1)
        page = await desk.other.find(
            Query(namespace=desk.namespace, labels={"team": "red"}), (first.created_at, first.key)
        )
        assert [row.session_id for row in page] == ["a"]

    @on_a_desk
    async def test_pages_neither_skip_nor_repeat_while_others_write(self, desk: Desk) -> None:
        """Pages after a place return each session that existed exactly once, while others are created and deleted."""
        names = [f"s{n:02}" for n in range(25)]
        pens = {name: await desk.create(name, created_at=100 + n // 4) for n, name in enumerate(names)}
        seen: list[Row] = []
        for turn in range(100):
            after = (seen[-1].created_at, seen[-1].key) if seen else None
            page = await desk.other.find(Query(namespace=desk.namespace), after, limit=4)
            if not page:
                break
            assert len(page) <= 4
            seen += page
            await desk.create(f"new-{turn}", created_at=1000 + turn)
            await desk.delete(pens.pop(seen[-1].session_id))  # the place itself goes away
        assert sorted(row.session_id for row in seen) == names
        places = [(row.created_at, row.key) for row in seen]
        assert places == sorted(places, reverse=True)

    @on_a_desk
    async def test_changed_pages_are_ordered_by_the_newest_entry(self, desk: Desk) -> None:
        """By the displayed time of the newest entry, pins and retention marks aside, then by key; newest first."""
        pens = [await desk.create(f"s{n:02}", created_at=100 - n) for n in range(9)]
        for n, pen in enumerate(pens):
            await desk.write(pen, 1, at=1000 + n // 3)
        for kind in (Kind.MARKED, Kind.PINNED, Kind.UNPINNED):
            await desk.write(pens[0], 1, kind, at=5000)
        await desk.write(pens[1], 1, Kind.PAUSED, at=4000)
        await desk.write(pens[2], 1, Kind.STEP_FINISHED, at=3000)
        times = {pen.session_id: 1000 + n // 3 for n, pen in enumerate(pens)} | {"s01": 4000, "s02": 3000}
        query = Query(namespace=desk.namespace, changed=True)
        seen: list[Row] = []
        while page := await desk.other.find(query, (seen[-1].changed_at, seen[-1].key) if seen else None, limit=2):
            seen += page
        assert {row.session_id: row.changed_at for row in seen} == times
        places = [(row.changed_at, row.key) for row in seen]
        assert places == sorted(places, reverse=True)
        assert sum((await desk.other.count(query)).states.values()) == len(pens)

    @on_a_desk
    async def test_stale_pages_are_ordered_by_heartbeat(self, desk: Desk) -> None:
        """Stale pages start with the oldest heartbeat and continue after (heartbeat, key), past busy sessions."""
        start = desk.clock()
        pens = [await desk.create(f"s{n:02}", heartbeat=start - (n // 3) * SECOND) for n in range(14)]
        busy = pens[::4]
        desk.clock.jump(1000)
        for pen in busy:
            await desk.write(pen, sign=True)  # alive by their last entry, though their rows are old
        query = Query(namespace=desk.namespace, stale_for=500 * SECOND)
        seen: list[Row] = []
        while page := await desk.other.find(query, (seen[-1].heartbeat, seen[-1].key) if seen else None, limit=3):
            seen += page
        places = [(row.heartbeat, row.key) for row in seen]
        assert places == sorted(places)
        silent = {pen.session_id for pen in pens} - {pen.session_id for pen in busy}
        assert sorted(row.session_id for row in seen) == sorted(silent)
        assert sum((await desk.other.count(query)).states.values()) == len(silent)

    @on_a_desk
    async def test_find_ended_and_deleted_sessions_by_age(self, desk: Desk) -> None:
        """It ended with its last ending entry or its row, whichever is later; deleted ones need `deleted_for`."""
        pens = {name: await desk.create(name, count=2) for name in ("done", "failed", "beaten", "working", "gone")}
        for name, kind in (("done", Kind.COMPLETED), ("failed", Kind.FAILED), ("beaten", Kind.COMPLETED)):
            await desk.write(pens[name], 1, kind, note=b"12", whole={"state": kind.label})
        await desk.delete(pens["gone"])
        ended_at = desk.clock()
        desk.clock.jump(100)
        await desk.write(pens["beaten"], 1, Kind.UPDATED, whole={"heartbeat": True})
        await desk.write(pens["failed"])  # an entry after the end does not make it younger
        age: dict[str, Any] = {"ended_for": 100 * SECOND}
        assert sorted(await desk.ids(**age)) == ["done", "failed"]
        assert await desk.ids(**age, state="completed") == ["done"]
        assert await desk.ids(ended_for=100 * SECOND + 1) == []
        assert sorted(await desk.ids(ended_for=0)) == ["beaten", "done", "failed"]
        query = Query(namespace=desk.namespace, **age)
        [row] = await desk.other.find(query, (desk.clock() - 1000 * SECOND, b""), 1)
        log = await desk.log(Pen(desk.namespace, row.session_id, row.key))
        assert (row.now, row.weight) == (desk.clock(), sum(entry.size for entry in log))
        assert (row.length, row.last) == (len(log), log[-1].append_id)
        assert (await desk.head(pens["done"])).row.now == desk.clock()
        [gone] = await desk.other.find(Query(namespace=desk.namespace, deleted_for=100 * SECOND))
        assert (gone.session_id, gone.deleted_at, gone.key) == ("gone", ended_at, pens["gone"].key)
        assert gone.weight == sum(entry.size for entry in await desk.log(pens["gone"]))
        assert await desk.other.find(Query(namespace=desk.namespace, deleted_for=0), (ended_at, gone.key)) == []
        assert await desk.ids(deleted_for=100 * SECOND + 1) == []

    @on_a_desk
    async def test_count_by_state_and_agent_type(self, desk: Desk) -> None:
        """Sessions are counted by state and agent type; entries and bytes over the whole store."""
        before = await desk.other.count(Query(namespace=desk.namespace))
        assert (before.states, before.agent_types) == ({}, {})
        pens = [await desk.create(name, agent_type="coder" if name == "a" else "") for name in "abc"]
        await desk.write(pens[0], 2, Kind.PAUSED, whole={"state": "paused"})
        await desk.delete(pens[2])
        after = await desk.other.count(Query(namespace=desk.namespace))
        assert after.states == {"paused": 1, "active": 1}
        assert after.agent_types == {"coder": 1, "": 1}
        assert after.entries - before.entries == 6
        assert after.stored_bytes > 0

    @on_a_desk
    async def test_entries_and_bytes_of_the_sessions_that_match(self, desk: Desk) -> None:
        """With `totals="matching"` they are of these sessions alone: whatever is stored of them weighs something."""
        query = Query(namespace=desk.namespace)
        empty = await desk.other.count(query, totals="matching")
        assert (empty.entries, empty.stored_bytes) == (0, 0)
        pen = await desk.create("a", agent_type="coder", body=b"b" * 500)
        await desk.write(pen, frame=b"f" * 2000)
        await desk.write(await desk.create("b", namespace=f"{desk.namespace}-b"), frame=b"f" * 9000)
        first = await desk.other.count(query, totals="matching")
        assert first.entries == 2
        assert 2500 <= first.stored_bytes < 9000
        await desk.write(pen, note=b"n" * 300, frame=b"f" * 700)
        second = await desk.other.count(query, totals="matching")
        assert second.entries == 3
        assert second.stored_bytes >= first.stored_bytes + 1000
        await desk.create("c")
        typed = Query(namespace=desk.namespace, agent_type="coder")
        assert await desk.other.count(typed, totals="matching") == msgspec.structs.replace(
            second, states={"active": 1}, agent_types={"coder": 1}
        )
        await desk.store.empty(pen.key, [1, 2])
        emptied = await desk.other.count(typed, totals="matching")
        assert emptied.stored_bytes <= second.stored_bytes - 2000
        await desk.delete(pen)
        assert (await desk.other.count(typed, totals="matching")).entries == 0
        gone = await desk.other.count(Query(namespace=desk.namespace, deleted_for=0), totals="matching")
        assert gone.entries == 4
        assert gone.stored_bytes >= 1000
        bare = await desk.other.count(query, totals="none")
        assert (bare.states, bare.entries, bare.stored_bytes) == ({"active": 1}, 0, 0)

    # Reading entries

    @on_a_desk
    async def test_entries_filters_combine(self, desk: Desk) -> None:
        """Ranges, kinds, a name and the newest n combine; entries are ordered by seq."""
        pen = await desk.create()
        for n in range(2, 11):
            kind = Kind.PAUSED if n % 3 == 0 else Kind.CHECKPOINT
            await desk.write(pen, 1, kind, name="even" if n % 2 == 0 else "odd")
        marks = frozenset({Kind.CHECKPOINT})
        cases: list[tuple[dict[str, Any], list[int]]] = [
            ({}, [*range(1, 11)]),
            ({"ranges": [(3, 5)]}, [3, 4, 5]),
            ({"ranges": [(0, 2), (4, 4), (9, 99)]}, [1, 2, 4, 9, 10]),
            ({"ranges": []}, []),
            ({"ranges": [(5, 4), (11, 20)]}, []),
            ({"kinds": marks}, [2, 4, 5, 7, 8, 10]),
            ({"kinds": frozenset({Kind.CREATED, Kind.PAUSED})}, [1, 3, 6, 9]),
            ({"kinds": frozenset[int]()}, []),
            ({"name": "even"}, [2, 4, 6, 8, 10]),
            ({"name": "Even"}, []),
            ({"newest": 3}, [8, 9, 10]),
            ({"newest": 0}, []),
            ({"newest": 99}, [*range(1, 11)]),
            ({"newest": 2, "kinds": marks}, [8, 10]),
            ({"newest": 1, "name": "odd", "ranges": [(1, 6)]}, [5]),
            ({"newest": 4, "ranges": [(1, 3), (6, 7)]}, [2, 3, 6, 7]),
            ({"newest": 2, "ranges": [(1, 3), (6, 9)], "kinds": marks, "name": "even"}, [2, 8]),
        ]
        for how, expected in cases:
            assert [entry.seq for entry in await desk.log(pen, **how)] == expected, how
        assert await desk.store.entries(fresh_key()) == []

    @on_a_desk
    async def test_entries_without_frames_keep_their_size(self, desk: Desk) -> None:
        """Without frames every other field is returned, including note and size."""
        pen = await desk.create()
        await desk.write(pen, frame=b"12345", note=b"123")
        await desk.write(pen, frame=None, note=None)
        whole, bare = await desk.log(pen), await desk.log(pen, frames=False)
        assert [entry.size for entry in bare[1:]] == [8, 0]
        assert [entry.frame for entry in bare] == [None] * 3
        for entry in whole:
            entry.frame = None
        assert bare == whole
