"""`together`: changes to several sessions in one commit, or none."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

import saveslot
from saveslot import AlreadyExists, Conflict, InvalidInput, LeaseHeld, NotFound, SessionManager, Unavailable, blocking
from saveslot.stores.around.wrapper import PassingStore

KEY = bytes(range(32))


async def names(sessions, session_id) -> list[str]:
    return [checkpoint.name for checkpoint in await sessions.history(session_id)]


async def made(sessions, *ids) -> None:
    for session_id in ids:
        await sessions.create_session("tutor", session_id=session_id, data={"list": [1]})


async def block(sessions, gather) -> None:
    async with sessions.together() as t:
        if (more := gather(t)) is not None:
            await more


async def four_changes(sessions, others) -> None:
    """One of each kind, read by another manager."""
    await made(sessions, "a", "b", "c")
    value = await sessions.get_session("b")
    value.context["topic"] = "fractions"
    value.pause()
    value.checkpoint("staged", {"n": 2})
    async with sessions.together() as t:
        saved = t.checkpoint("a", "saved", append={"list": [2]})
        new = t.create_session("critic", context={"of": "a"}, data={"n": 1})
        updated = t.update_session(value)
        deleted, nothing = t.delete_session("c"), t.delete_session("nobody")
        with pytest.raises(InvalidInput, match="a: is known when the block has ended"):
            assert saved.result
        assert await others.get_data("a") == {"list": [1]}
    assert (saved.result.name, saved.result.data) == ("saved", {"list": [1, 2]})
    assert (new.session_id, new.result.session_id, new.result.context) == (new.session_id,) * 2 + ({"of": "a"},)
    assert updated.result is value
    assert not value.staged
    assert (deleted.result, nothing.result) == (True, False)
    assert await others.get_data("a") == saved.result.data
    assert await others.get_data(new.session_id) == {"n": 1}
    there = await others.get_session("b")
    assert (there.state, there.context) == ("paused", {"topic": "fractions"})
    assert await others.get_data("b") == {"n": 2}
    assert await others.get_session("c") is None
    await sessions.checkpoint("a", "next", append={"list": [3]})  # by id, after what the block wrote
    await sessions.update_session(value)
    await sessions.checkpoint(new.result, "next", put={"n": 2})
    assert await others.get_data("a") == {"list": [1, 2, 3]}
    assert (await others.audit("a")).misfit is None


async def test_changes_of_every_kind_land_together(sessions, others):
    await four_changes(sessions, others)


async def test_on_valkey(valkey_url):
    async with saveslot.open(valkey_url) as sessions, saveslot.open(valkey_url) as others:
        await four_changes(sessions, others)
        await refused_changes(sessions, others)


async def test_in_front_of_a_database(valkey_url, file):
    async with saveslot.open(str(file), hot=valkey_url) as sessions, saveslot.open(str(file), hot=valkey_url) as others:
        await four_changes(sessions, others)


async def test_sealed_sessions(fresh):
    await four_changes(fresh(encryption_key=KEY), fresh(encryption_key=KEY))


async def refused_changes(sessions, others) -> None:
    """Whatever refuses one undoes all, and its error says which."""
    await made(sessions, "x", "y")
    old = (await sessions.head("y")).version
    await others.checkpoint("y", "theirs")
    before = [await names(others, one) for one in ("x", "y")]

    async def refused(error: type[Exception], second) -> None:
        def gather(t) -> None:
            t.checkpoint("x", "mine", append={"list": [2]})
            t.create_session("tutor", session_id="z")
            second(t)

        with pytest.raises(error, match=r"session (no such )?y"):
            await block(sessions, gather)
        assert [await names(others, one) for one in ("x", "y")] == before
        assert await others.get_session("z") is None

    await refused(Conflict, lambda t: t.checkpoint("y", "mine", put={"n": 1}))
    await sessions.head("y")
    await refused(AlreadyExists, lambda t: t.create_session("tutor", session_id="y"))
    await refused(InvalidInput, lambda t: t.checkpoint("y", "mine", cut={"list": 5}))
    await refused(NotFound, lambda t: t.checkpoint("no such y", "mine"))
    await refused(Conflict, lambda t: t.delete_session("y", seen=old))
    async with others.hold("y"):
        before[1:] = [await names(others, "y")]
        await refused(LeaseHeld, lambda t: t.checkpoint("y", "mine"))
    await sessions.head("y")
    async with sessions.together() as t:  # nothing of all that is in the way
        t.checkpoint("x", "mine", append={"list": [2]})
        t.checkpoint("y", "mine", append={"list": [2]})
    assert await others.get_data("x") == await others.get_data("y") == {"list": [1, 2]}


async def test_a_refusal_undoes_all(sessions, others):
    await refused_changes(sessions, others)


async def test_a_refusal_by_the_store_undoes_all(sessions, others):
    """What this process learns only when it writes: another one wrote, created or deleted."""
    await made(sessions, "x", "y")
    value = await sessions.get_session("x")

    async def gather(t, theirs) -> None:
        t.update_session(value)
        t.checkpoint("h", "mine", append={"list": [2]})
        t.checkpoint("y", "mine", append={"list": [2]})
        t.create_session("tutor", session_id="z")
        await theirs()

    async with sessions.hold("h", create="tutor") as held:
        await held.checkpoint("one", {"list": [1]})
        for theirs, error in (
            (lambda: others.checkpoint("y", "theirs"), Conflict),
            (lambda: others.create_session("tutor", session_id="z"), AlreadyExists),
            (lambda: others.delete_session("y"), NotFound),
        ):
            value.checkpoint("staged", {"n": 1})
            with pytest.raises(error, match=r"session [yz]"):
                await block(sessions, partial(gather, theirs=theirs))
            assert [item.checkpoint.name for item in value.staged] == ["staged"]
            value.unstage()
            assert held.data == {"list": [1]}
            await sessions.head("y")
            await held.checkpoint("two", put={"n": 1})
            held.data.pop("n")
            await held.checkpoint("three")
        assert await names(others, "x") == ["session_created", "created"]
    assert "mine" not in await names(others, "h")


async def test_an_exception_in_the_block_writes_nothing(sessions, others):
    await made(sessions, "a")
    for wrong in (
        lambda _: 1 / 0,
        lambda t: t.checkpoint("a", "again"),
        lambda t: t.delete_session("a"),
        lambda t: t.checkpoint("b", "saved", put={"n": object()}),
        lambda t: t.create_session("tutor", labels={"n": 1}),
        lambda t: t.update_session("b"),
    ):
        blocks = []

        def gather(t, wrong=wrong, blocks=blocks) -> None:
            blocks.append(t)
            t.checkpoint("a", "saved")
            wrong(t)

        with pytest.raises((ZeroDivisionError, InvalidInput)):
            await block(sessions, gather)
        with pytest.raises(InvalidInput, match="has ended"):
            blocks[0].checkpoint("a", "late")
    async with sessions.together():
        pass
    with pytest.raises(TypeError, match="async with"), sessions.together():
        pass
    assert await names(others, "a") == ["session_created", "created"]


async def test_arguments_are_copied_at_once(sessions):
    await made(sessions, "a")
    data = {"n": 1}
    async with sessions.together() as t:
        t.checkpoint("a", "one", data)
        new = t.create_session("tutor", context=data, data=data)
        data["n"] = 2
    assert await sessions.get_data("a") == await sessions.get_data(new.session_id) == new.result.context == {"n": 1}


async def test_a_session_that_may_exist(sessions, others):
    for n in range(2):
        async with sessions.together() as t:
            there = t.create_session("tutor", session_id="a", data={"n": n}, exist_ok=True)
            new = t.create_session("tutor", data={"n": n})
        assert (there.result.session_id, await others.get_data("a")) == ("a", {"n": 0})
        assert await others.get_data(new.session_id) == {"n": n}


async def test_a_held_session_is_written_with_its_lease(sessions, others):
    """Its working copy follows, and its own verbs go on after the block."""
    await made(sessions, "b")
    async with sessions.hold("a", create="tutor", data={"list": [1], "n": 1}) as held:
        mine = held.data
        mine["unsaved"] = True
        async with sessions.together() as t:
            t.checkpoint("a", "one", append={"list": [2]})
            t.checkpoint("b", "one")
        assert mine is held.data
        assert held.data == {"list": [1, 2], "n": 1, "unsaved": True}
        assert await others.get_data("a") == {"list": [1, 2], "n": 1}
        async with sessions.together() as t:
            t.checkpoint("a", "two", held.data)
            held.data["later"] = 1
        assert held.data == mine == {"list": [1, 2], "n": 1, "unsaved": True, "later": 1}
        await held.checkpoint("three")
        value = await sessions.get_session("a")
        value.context["topic"] = "fractions"
        value.checkpoint("four", {"n": 4})
        async with sessions.together() as t:
            t.update_session(value)
            t.checkpoint("b", "two")
        assert (held.data, held.session.context) == ({"n": 4}, {"topic": "fractions"})
        await held.checkpoint("five", put={"n": 5})
        value = await sessions.get_session("a")
        value.complete({"grade": "A"})
        async with sessions.together() as t:
            t.update_session(value)
        with pytest.raises(saveslot.LeaseLost):
            await held.checkpoint("six")
    assert (await names(others, "a"))[-4:] == ["three", "four", "five", "session_completed"]
    async with sessions.hold("b") as held:
        async with sessions.together() as t:
            gone = t.delete_session("b")
        assert gone.result
        with pytest.raises(NotFound):
            await held.checkpoint("one")


async def test_blocks_of_the_same_sessions_do_not_wait_for_each_other_forever(sessions, others):
    """In one process they take turns; another one's are refused as a whole and come again."""
    ids = [f"s{n}" for n in range(4)]
    await made(sessions, *ids)

    async def insisted(manager: SessionManager, n: int) -> None:
        while True:
            try:
                async with manager.together() as t:
                    for one in ids[n % 4 :] + ids[: n % 4]:
                        t.checkpoint(one, f"block {n}", append={"list": [n]})
                return
            except Conflict:
                for one in ids:
                    await manager.head(one)

    async with asyncio.timeout(60):
        await asyncio.gather(*(insisted((sessions, others)[n % 2], n) for n in range(8)))
    states = [await others.get_data(one) for one in ids]
    assert states.count(states[0]) == len(ids)
    assert sorted(states[0]["list"][1:]) == [*range(8)]


async def test_keys_of_a_block(sessions, others):
    """A block that is repeated elsewhere, whatever came after, is stored once."""
    await made(sessions, "a", "b")

    async def keyed(manager: SessionManager, n: int = 1) -> tuple:
        async with manager.together() as t:
            first = t.checkpoint("a", "one", append={"list": [n]}, idempotency_key="k")
            new = t.create_session("tutor", data={"n": 1}, idempotency_key="k")
            second = t.checkpoint("b", "one", append={"list": [1]}, idempotency_key="k")
        return first.result, new.result.session_id, second.result

    answer = await keyed(sessions)
    await others.checkpoint("b", "two")
    assert await keyed(others) == answer == await keyed(sessions)
    assert await asyncio.gather(*map(keyed, (sessions, others) * 3)) == [answer] * 6
    with pytest.raises(InvalidInput, match="session a: idempotency_key"):
        await keyed(others, 2)
    assert (await others.get_data("a"), await others.count()) == ({"list": [1, 1]}, 3)
    async with sessions.together() as t:
        t.create_session("tutor", idempotency_key="new")
        with pytest.raises(InvalidInput, match="another creation in this block"):
            t.create_session("tutor", idempotency_key="new")
    assert await others.count() == 4


class Faint(PassingStore):
    """A store that answers late, or loses an answer before or after it has written."""

    def __init__(self, inner):
        super().__init__(inner)
        self.ready, self.lose = asyncio.Event(), ""
        self.sent = asyncio.Event()
        self.ready.set()

    async def append(self, groups, *, together=False):
        lose, self.lose = self.lose if together else "", "" if together else self.lose
        if together:
            self.sent.set()
            await self.ready.wait()
        if lose == "before":
            raise Unavailable("lost")
        verdicts = await self._inner.append(groups, together=together)
        if lose:
            raise Unavailable("lost")
        return verdicts


async def test_a_cancelled_block_lands_as_a_whole_and_once(stores, others):
    store = Faint(stores[0])
    sessions = SessionManager(store=store)
    await made(sessions, "a", "b")
    value = await sessions.get_session("b")
    value.checkpoint("staged", {"n": 1})

    async def again() -> list:
        async with sessions.together() as t:
            changes = [
                t.checkpoint("a", "one", append={"list": [2]}),
                t.create_session("tutor", data={"n": 1}),
                t.update_session(value),
                t.delete_session("nobody"),
            ]
        return [change.result for change in changes]

    store.ready.clear()
    for _ in range(2):
        store.sent.clear()
        task = asyncio.ensure_future(again())
        await asyncio.wait_for(asyncio.shield(store.sent.wait()), 60) if not _ else await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await names(others, "a") == ["session_created", "created"]
    store.ready.set()
    saved, new, _, gone = await again()
    assert (saved.seq, gone, new.seen.seq) == (3, False, 2)
    assert (await again())[0].seq == 4  # answered: the next one is another call
    assert (await names(others, "b"), await others.count()) == (["session_created", "created", "staged"], 4)


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_a_block_of_unknown_outcome(stores, others, lost):
    """Repeated, it is stored once. Not repeated, the next write to one of its sessions settles all of them."""
    store = Faint(stores[0])
    sessions = SessionManager(store=store)
    await made(sessions, "a", "b", "c", "d")
    async with sessions.hold("c") as held:

        async def again(first: str) -> None:
            async with sessions.together() as t:
                t.checkpoint(first, "one", append={"list": [2]})
                t.delete_session("d")
                t.checkpoint("b", "one", append={"list": [2]})
                t.checkpoint("c", "one", append={"list": [2]})

        store.lose = lost
        with pytest.raises(Unavailable):
            await again("a")
        await again("a")
        states = [await others.get_data(one) for one in ("a", "b", "c")]
        assert states == [held.data] * 3 == [{"list": [1, 2]}] * 3
        assert await others.get_session("d") is None

        store.lose = lost
        with pytest.raises(Unavailable):
            await again("a")
        await held.checkpoint("two", put={"n": 1})
        await sessions.checkpoint("b", "two", put={"n": 1})
        assert await others.get_data("a") == {"list": [1, 2, 2]}
        assert await others.get_data("b") == await others.get_data("c") == held.data == {"list": [1, 2, 2], "n": 1}

        store.lose = "before"
        with pytest.raises(Unavailable):
            await again("a")
        await others.head("b")
        await others.checkpoint("b", "theirs")
        await held.checkpoint("three", put={"n": 3})
        with pytest.raises(Conflict):
            await sessions.checkpoint("b", "mine")
        await sessions.checkpoint("a", "three", put={"n": 3})
        assert await others.get_data("a") == held.data == {"list": [1, 2, 2], "n": 3}


def test_blocking(file):
    with blocking.open(str(file)) as sessions:
        sessions.create_session("tutor", session_id="a", data={"list": [1]})
        with sessions.hold("b", create="tutor") as held:
            with sessions.together() as t:
                saved = t.checkpoint("a", "one", append={"list": [2]})
                t.checkpoint(held.id, "one", {"n": 1})
                new = t.create_session("tutor", data={"n": 1})
            assert (saved.result.seq, held.data) == (3, {"n": 1})
            assert sessions.get_data(new.result.session_id) == {"n": 1}

        def two(seen: str | None = None, n: int = 0) -> float:
            with sessions.together() as t:
                t.checkpoint("a", "two")
                t.checkpoint("b", "two", seen=seen)
                return 1 / n

        with pytest.raises(Conflict, match="session b"):
            two(saved.result.version, 1)
        with pytest.raises(ZeroDivisionError):
            two()
        assert [checkpoint.name for checkpoint in sessions.history("a")][-1] == "one"
        two(n=1)
        assert [sessions.head(one).name for one in "ab"] == ["two", "two"]
