"""Ids, incarnations, namespaces, and bytes that come back as they were."""

from __future__ import annotations

import asyncio

from saveslot.testing.conformance.desk import ALREADY, APPENDED, CONFLICT, MISSING, Desk, Suite, on_a_desk, spots
from saveslot.testing.pen import Pen, payload
from saveslot.values.kinds import Kind
from saveslot.values.log import Query

NASTY = ("../x", "a'b\"c\\d", "%_*?", "Ünïcode 🌱 名前", "null", "x" * 200, " ", "{ns:key}")


class Naming(Suite):
    # Ids, incarnations, namespaces

    @on_a_desk
    async def test_one_of_many_creations_of_an_id_lands(self, desk: Desk) -> None:
        """The others get CONFLICT and its newest entry."""
        pens = [Pen(desk.namespace, "same") for _ in range(8)]
        groups = [pen.begin(2) for pen in pens]
        verdicts = await asyncio.gather(*map(desk.send, groups, [desk.store, desk.other] * 4))
        assert sorted(verdict.outcome for verdict in verdicts) == [APPENDED, *[CONFLICT] * 7]
        (winner,) = [n for n, verdict in enumerate(verdicts) if verdict.outcome is APPENDED]
        pens[winner].saw(groups[winner])
        for verdict in verdicts[:winner] + verdicts[winner + 1 :]:
            assert verdict.head is not None
            assert spots([verdict.head]) == [(2, pens[winner].prev)]
            assert verdict.head.frame is None
        assert len(await desk.store.find(Query(namespace=desk.namespace))) == 1
        assert sum([len(await desk.log(pen)) for pen in pens]) == 2

    @on_a_desk
    async def test_a_deleted_session_is_shown_nowhere(self, desk: Desk) -> None:
        """Heads, pages, counts and beats leave it out, and no entry follows its tombstone."""
        pen = await desk.create("a", count=3)
        await desk.create("b")
        stale = pen.copy()
        await desk.delete(pen)
        assert await desk.other.heads([pen.key, (desk.namespace, "a")]) == [None, None]
        assert await desk.ids() == ["b"]
        assert (await desk.other.count(Query(namespace=desk.namespace))).states == {"active": 1}
        assert await desk.store.beat([(pen.key, None)]) == [0]
        for late in (pen, stale):
            verdict = await desk.send(late.group())
            assert verdict.outcome is MISSING
            assert verdict.head is not None
            assert verdict.head.kind is Kind.TOMBSTONE
        assert [entry.seq for entry in await desk.log(pen)] == [1, 2, 3, 4]

    @on_a_desk
    async def test_a_recreated_id_starts_a_new_log(self, desk: Desk) -> None:
        """A new key and a new log; writers and retries of the former session get MISSING or ALREADY."""
        old = await desk.create("a", count=3, body=b"old", labels={"old": "yes"})
        unsent, landed = old.group(), old.group()
        await desk.land(old, landed)
        await desk.delete(old)
        new = await desk.create("a", body=b"new")
        assert (await desk.send(unsent)).outcome is MISSING
        assert (await desk.send(landed)).outcome is ALREADY
        head = await desk.head(new)
        assert (head.row.body, head.row.labels, head.last.seq) == (b"new", {}, 1)
        assert await desk.other.heads([(desk.namespace, "a"), old.key]) == [head, None]
        assert [entry.seq for entry in await desk.log(new)] == [1]
        assert await desk.ids() == ["a"]
        await desk.store.purge([old.key])
        assert await desk.other.heads([(desk.namespace, "a"), old.key]) == [head, None]
        assert (await desk.send(landed)).outcome is MISSING
        await desk.write(new)

    @on_a_desk
    async def test_namespaces_never_see_each_other(self, desk: Desk) -> None:
        """One id in two namespaces is two sessions; heads, pages, counts and events stay apart."""
        foreign = f"{desk.namespace}-foreign"
        _, cursor = await desk.store.events(desk.namespace, None)
        _, there = await desk.store.events(foreign, None)
        mine, theirs = await desk.create("a", body=b"mine"), await desk.create("a", namespace=foreign, body=b"theirs")
        await desk.write(theirs, 2)
        one, two, none = await desk.other.heads([(desk.namespace, "a"), (foreign, "a"), (foreign, "b")])
        assert one is not None
        assert two is not None
        assert none is None
        assert (one.row.key, one.row.body, two.row.key, two.row.body) == (mine.key, b"mine", theirs.key, b"theirs")
        for namespace, body in [(desk.namespace, b"mine"), (foreign, b"theirs")]:
            assert [row.body for row in await desk.other.find(Query(namespace=namespace))] == [body]
            assert (await desk.other.count(Query(namespace=namespace))).states == {"active": 1}
        assert len((await desk.other.events(desk.namespace, cursor))[0]) == 1
        assert len((await desk.other.events(foreign, there))[0]) == 3
        assert (await desk.other.events(foreign, cursor, mine.key))[0] == []
        await desk.delete(mine)
        assert [row.body for row in await desk.other.find(Query(namespace=foreign))] == [b"theirs"]
        assert await desk.other.heads([(desk.namespace, "a")]) == [None]

    @on_a_desk
    async def test_namespaces_are_listed_in_pages(self, desk: Desk) -> None:
        """Each namespace with a session that is not deleted comes once, whatever the size of a page."""
        mine = {f"{desk.namespace}-{end}" for end in ("a", "b", "B", "ä")}
        for name in mine:
            for n in range(3):
                await desk.create(f"s{n}", namespace=name)
        gone = await desk.create("gone", namespace=f"{desk.namespace}-gone")
        await desk.delete(gone)
        for limit in (1, 2, 1000):
            seen: list[str] = []
            while names := await desk.other.namespaces(seen[-1] if seen else "", limit):
                assert len(names) <= limit
                seen += names
            assert len({*seen}) == len(seen)
            assert {name for name in seen if name.startswith(desk.namespace)} == mine

    @on_a_desk
    async def test_names_are_exact(self, desk: Desk) -> None:
        """Ids, namespaces, types, users and labels can be any text and equal only themselves."""
        for name in NASTY:
            pen = await desk.create(name, agent_type=name, user_id=name, labels={name: name})
            (head,) = await desk.other.heads([(desk.namespace, name)])
            assert head is not None
            row = head.row
            assert (row.key, row.session_id, row.agent_type, row.user_id, row.labels) == (
                *(pen.key, name, name, name),
                {name: name},
            )
            for query in ({"agent_type": name}, {"user_id": name}, {"labels": {name: name}}):
                assert await desk.ids(**query) == [name]
            assert name in await desk.ids(prefix=name)
            assert name in await desk.ids(text=name)
            await desk.create(name, namespace=f"{desk.namespace}{name}")
        await desk.create("A")
        assert await desk.other.heads([(desk.namespace, "a"), (desk.namespace, "A ")]) == [None, None]

    @on_a_desk
    async def test_bytes_are_exact(self, desk: Desk) -> None:
        """NUL, emoji, every byte value and 5 MB come back unchanged: frames, notes, recipes, digests, bodies."""
        big = payload() * (5_000_000 // len(payload()))
        pen = await desk.create()
        for data in (b"\x00", "🌱\x00é".encode(), bytes(range(256)), b"", big):
            digest = data and data.ljust(32, b"\x00")[:32]
            await desk.write(pen, frame=data, note=data, recipe=data[:4096], digest=digest, whole={"body": data})
            (kept,) = await desk.log(pen, newest=1)
            assert (kept.recipe, kept.digest, kept.size) == (data[:4096], digest, 2 * len(data))
            assert kept.frame == data
            assert kept.note == data
            assert (await desk.head(pen)).row.body == data
