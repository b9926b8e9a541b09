"""Calls with an idempotency key, and sessions found by labels of their entries."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from saveslot import InvalidInput, InvalidTransition, KeyMissing, LeaseHeld, LeaseLost, NotFound, Retention

KEY = bytes(range(32))


async def test_repeated_checkpoint_gets_its_first_answer(sessions, others, fresh):
    """By any process, whatever came after: not current, held by another, ended, or stale by `seen`; stored once."""
    await sessions.create_session("tutor", session_id="s")
    seen = (await sessions.head("s")).version
    call = {"append": {"list": [1]}, "metadata": {"m": 1}, "idempotency_key": "k"}
    first = await sessions.checkpoint("s", "one", **call)
    assert await sessions.checkpoint("s", "one", **call) == first
    await others.checkpoint("s", "two", {"n": 2})
    assert await sessions.checkpoint("s", "one", **call, seen=seen) == first
    async with others.hold("s") as held:
        assert await sessions.checkpoint("s", "one", **call) == first
        assert await held.checkpoint("one", **call) == first
        assert held.data == {"n": 2}
        with pytest.raises(LeaseHeld):
            await sessions.checkpoint("s", "one", {"n": 3}, idempotency_key="refused")
        await held.complete()
    assert await fresh().checkpoint("s", "one", **call) == first
    assert [c.name for c in await others.history("s")] == ["session_created", "one", "two", "session_completed"]


async def test_answer_without_its_data_once_thinned(sessions, others):
    """Retention took the data of the first answer: the rest of it comes back, also as a dict."""
    await sessions.create_session("tutor", session_id="s")
    first = await sessions.checkpoint("s", "one", {"text": "x" * 5000}, {"m": 1}, idempotency_key="k")
    await sessions.checkpoint("s", "two", {"n": 2})
    await sessions.drop("s", ["one"])
    await sessions.thin("s", grace=timedelta(0))
    again = await others.checkpoint("s", "one", {"text": "x" * 5000}, {"m": 1}, idempotency_key="k")
    assert (again.id, again.version) == (first.id, first.version)
    assert again.to_dict() == {**first.to_dict(), "data": None}
    with pytest.raises(NotFound, match="thinned"):
        _ = again.data
    with pytest.raises(InvalidInput, match="idempotency_key"):
        await others.checkpoint("s", "one", {"text": "y"}, {"m": 1}, idempotency_key="k")


async def test_other_content_under_a_used_key_is_refused(sessions, others):
    """Name, data, metadata and the form of the change are the content; a refused call uses no key up."""
    await sessions.create_session("tutor", session_id="s", data={"list": []})
    for wrong in ({"append": {"no": 1}}, {"drop": ["nobody"]}):
        with pytest.raises(InvalidInput):
            await sessions.checkpoint("s", "one", **wrong, idempotency_key="k")
    await sessions.checkpoint("s", "one", put={"n": 1}, idempotency_key="k")
    for name, changes in (
        ("two", {"put": {"n": 1}}),
        ("one", {"put": {"n": True}}),
        ("one", {"put": {"n": 1}, "metadata": {"m": 1}}),
        ("one", {"data": {"n": 1}}),
    ):
        with pytest.raises(InvalidInput, match="idempotency_key"):
            await others.checkpoint("s", name, **changes, idempotency_key="k")
    with pytest.raises(InvalidInput, match="key"):
        await others.record("s", "one", 1, key="k")
    for wrong in ("", 5, "x" * 201):
        with pytest.raises(InvalidInput, match="idempotency_key"):
            await sessions.checkpoint("s", "one", idempotency_key=wrong)
    with pytest.raises(InvalidInput, match=r"put\.n"):
        await sessions.checkpoint("s", "one", put={"n": object()}, idempotency_key="new")


async def test_racing_calls_are_stored_once(sessions, others):
    """Many callers in two processes with one key: one entry, one answer."""
    await sessions.create_session("tutor", session_id="s")
    await others.head("s")
    calls = [m.checkpoint("s", "one", append={"l": [1]}, idempotency_key="k") for m in (sessions, others) * 6]
    answers = await asyncio.gather(*calls)
    assert {answer.seq for answer in answers} == {2}
    assert await others.get_data("s") == {"l": [1]}


async def test_repeated_rollback_gets_its_first_answer(sessions, others):
    """By id and of a holder, whatever came after; other content under its key is refused."""
    await sessions.create_session("tutor", session_id="s", data={"n": 1})
    await sessions.checkpoint("s", "two", {"n": 2})
    first = await sessions.rollback("s", "created", idempotency_key="back")
    await sessions.checkpoint("s", "three", {"n": 3})
    assert await others.rollback("s", "created", idempotency_key="back") == first
    racing = [manager.rollback("s", "two", idempotency_key="race") for manager in (sessions, others) * 3]
    assert len({answer.seq for answer in await asyncio.gather(*racing)}) == 1
    with pytest.raises(InvalidInput, match="idempotency_key"):
        await others.rollback("s", "three", idempotency_key="back")
    async with sessions.hold("s") as held:
        assert await held.rollback("created", idempotency_key="back") == first
        assert held.data == {"n": 2}
        mine = await held.rollback("three", idempotency_key="mine")
        await held.checkpoint("four", put={"n": 4})
        assert await held.rollback("three", idempotency_key="mine") == mine
        assert held.data == await others.get_data("s") == {"n": 4}


async def test_keys_of_a_holder(sessions, others):
    """A held session: the working copy is saved once under the key, and is changed once."""
    async with sessions.hold("s", create="tutor") as held:
        held.data["n"] = 1
        first = await held.checkpoint("one", idempotency_key="a")
        held.data["n"] = 2
        assert await held.checkpoint("one", idempotency_key="a") == first
        await held.checkpoint("two", append={"l": [1]}, idempotency_key="b")
        await held.checkpoint("two", append={"l": [1]}, idempotency_key="b")
        assert (held.data, (await others.get_data("s"))) == ({"n": 2, "l": [1]}, {"n": 1, "l": [1]})


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_session_is_created_once(opened, key):
    """The same creation gets the first session, from any process; a deleted one frees the key."""
    async with opened(encryption_key=key) as sessions, opened(encryption_key=key) as others:
        create = {"context": {"a": 1}, "data": {"n": 1}, "idempotency_key": "k"}
        found = await asyncio.gather(*(m.create_session("tutor", "anna", **create) for m in (sessions, others) * 4))
        [session_id] = {session.session_id for session in found}
        await others.checkpoint(session_id, "one", {"n": 2}, idempotency_key="k")
        assert (await others.create_session("tutor", "anna", **create)).session_id == session_id
        assert await sessions.count() == 1
        with pytest.raises(InvalidInput, match="idempotency_key"):
            await others.create_session("tutor", "ben", **create)
        assert (await sessions.of("other").create_session("tutor", "ben", **create)).session_id != session_id
        await sessions.delete_session(session_id)
        assert (await others.create_session("tutor", "ben", **create)).session_id != session_id
        with pytest.raises(NotFound):
            await others.checkpoint(session_id, "one", {"n": 2}, idempotency_key="k")


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["without", "another"])
async def test_repeated_creation_needs_the_key_of_the_session(opened, key):
    """A manager that cannot open the session that the call created says so: the call may well be the same."""
    async with opened(encryption_key=KEY) as sessions:
        await sessions.create_session("tutor", idempotency_key="k")
    async with opened(encryption_key=key) as sessions:
        with pytest.raises(KeyMissing):
            await sessions.create_session("tutor", idempotency_key="k")


@pytest.mark.parametrize("key", [None, KEY])
async def test_sessions_are_found_by_labels_of_an_entry(opened, key):
    """One entry must have all of them; copies have them too, sealed sessions as well."""
    async with opened(encryption_key=key) as sessions:
        for name in ("a", "b"):
            await sessions.create_session("tutor", session_id=name)
            await sessions.checkpoint(name, "one", {"n": 1}, {"labels": {"run": "r1", "step": name}})
            await sessions.checkpoint(name, "two", metadata={"labels": {"run": f"only-{name}"}}, append={"l": [1]})
        async with sessions.hold("c", create="grader") as held:
            await held.checkpoint("one", {"n": 1}, {"labels": {"run": "r1"}})
        await sessions.copy_session("a", "copy")

        async def found(**entry):
            return {session.session_id for session in await sessions.find(entry=entry)}

        assert await found(run="r1") == {"a", "b", "c", "copy"}
        assert await sessions.count(entry={"run": "r1"}) == 4
        assert await sessions.count(entry={"run": "r1"}, agent_type="grader", state="active") == 1
        assert await sessions.count(entry={"run": "r2"}) == 0
        assert await found(run="r1", step="b") == {"b"}
        assert await found(run="only-a", step="a") == set()
        assert await found(run="only-a") == {"a", "copy"}
        assert [one.head.name for one in await sessions.find(entry={"run": "only-b"}, heads=True)] == ["two"]
        await sessions.delete_session("a")
        assert await found(run="only-a") == {"copy"}
        for wrong in ({"run": 5}, {"": "x"}, ["run"]):
            with pytest.raises(InvalidInput, match=r"metadata\.labels"):
                await sessions.checkpoint("b", "wrong", {}, {"labels": wrong})
            with pytest.raises(InvalidInput, match="entry"):
                await sessions.find(entry=wrong)


async def test_forks_copies_and_imports_are_made_once(sessions, others):
    """Each answers with the session that the first call made; a key's scope is the source; copies keep its keys."""
    for name in ("a", "b"):
        await sessions.create_session("tutor", session_id=name, data={"n": 1})
        first = await sessions.checkpoint(name, "one", {"n": 2}, idempotency_key="k")
    text = await sessions.export("a")
    forks = await asyncio.gather(*(m.fork("a", "one", idempotency_key="f") for m in (sessions, others) * 3))
    [fork] = {session.session_id for session in forks}
    assert (await others.fork("b", "one", idempotency_key="f")).session_id != fork
    copies = await asyncio.gather(*(m.copy_session("a", "copy", idempotency_key="c") for m in (sessions, others) * 3))
    assert {session.session_id for session in copies} == {"copy"}
    imports = [m.import_session(text, session_id="import", idempotency_key="i") for m in (sessions, others) * 3]
    assert {session.session_id for session in await asyncio.gather(*imports)} == {"import"}
    await others.checkpoint("copy", "later", {"n": 3})
    assert (await others.checkpoint("copy", "one", {"n": 2}, idempotency_key="k")).seq == first.seq
    for call in (
        sessions.fork("a", "created", idempotency_key="f"),
        sessions.copy_session("a", "other", idempotency_key="c"),
        sessions.import_session(text, session_id="other", idempotency_key="i"),
    ):
        with pytest.raises(InvalidInput, match="idempotency_key"):
            await call
    assert await sessions.count() == 6


@pytest.mark.parametrize("key", [None, KEY])
async def test_lifecycle_calls_are_made_once(opened, key):
    """The same pause, resume, complete or fail by id writes nothing, whatever the state and `seen` are by then."""
    async with opened(encryption_key=key) as sessions, opened(encryption_key=key) as others:
        born = await sessions.create_session("tutor", session_id="s")
        await sessions.pause("s", seen=born.version, idempotency_key="p")
        await sessions.resume("s", idempotency_key="r")
        assert (await others.pause("s", seen=born.version, idempotency_key="p")).state == "active"
        for call in (others.fail("s", "x", idempotency_key="p"), others.resume("s", idempotency_key="p")):
            with pytest.raises(InvalidInput, match="idempotency_key"):
                await call
        await others.resume("s", idempotency_key="unused")  # it is active: nothing is written
        await others.pause("s")
        with pytest.raises(InvalidTransition):
            await others.pause("s", idempotency_key="refused")
        await others.resume("s", idempotency_key="refused")  # that call used no key up
        await sessions.head("s")
        racing = [manager.complete("s", {"grade": "A"}, idempotency_key="c") for manager in (sessions, others) * 3]
        assert {session.state for session in await asyncio.gather(*racing)} == {"completed"}
        with pytest.raises(InvalidInput, match="idempotency_key"):
            await others.complete("s", {"grade": "B"}, idempotency_key="c")
        await others.create_session("tutor", session_id="f")
        for manager in (sessions, others, others):
            assert (await manager.fail("f", "x", {"at": 1}, idempotency_key="f")).state == "failed"
        kinds = [entry.kind for entry in await sessions.entries("s")]
        assert kinds == ["created", "paused", "resumed", "paused", "resumed", "completed"]
        assert [entry.kind for entry in await sessions.entries("f")] == ["created", "failed"]


async def test_lifecycle_calls_of_a_holder_are_made_once(opened):
    """The same pause, resume, complete or fail writes nothing, also by id, and after it has ended the hold."""
    async with opened() as sessions, opened() as others:
        async with sessions.hold("s", create="tutor") as held:
            await held.pause(idempotency_key="p")
            await held.resume(idempotency_key="r")
            await held.pause(idempotency_key="p")
            assert (await others.pause("s", idempotency_key="p")).state == held.session.state == "active"
            with pytest.raises(InvalidInput, match="idempotency_key"):
                await held.fail("x", idempotency_key="p")
            await held.complete({"grade": "A"}, idempotency_key="c")
            await held.complete({"grade": "A"}, idempotency_key="c")
            with pytest.raises(InvalidInput, match="idempotency_key"):
                await held.complete({"grade": "B"}, idempotency_key="c")
        assert (await others.complete("s", {"grade": "A"}, idempotency_key="c")).state == "completed"
        kinds = [entry.kind for entry in await sessions.entries("s")]
        assert kinds == ["created", "taken", "paused", "resumed", "completed"]


async def test_a_call_that_ends_a_hold_is_made_twice_at_once(opened):
    """The same complete or fail, made again while the first is under way, changes nothing and raises nothing."""
    async with opened() as sessions:
        for verb, argument in (("complete", 1), ("fail", "x")):
            async with sessions.hold(verb, create="tutor") as held:
                call = getattr(held, verb)
                await asyncio.gather(*(call(argument, idempotency_key="k") for _ in range(3)))
                with pytest.raises(LeaseLost):
                    await call(argument, idempotency_key="k2")
            assert len(await sessions.entries(verb)) == 3


@pytest.mark.parametrize("key", [None, KEY])
async def test_an_update_is_stored_once(opened, key):
    """Another process that stages the same gets its value refreshed; other content is refused and stays staged."""
    async with opened(encryption_key=key) as sessions, opened(encryption_key=key) as others:
        mine = await sessions.create_session("tutor", session_id="s")
        theirs = await others.get_session("s")
        for value in (mine, theirs):
            value.checkpoint("one", {"n": 1})
            value.context["a"] = 1
        await sessions.update_session(mine, idempotency_key="u")
        await sessions.checkpoint("s", "two", {"n": 2})
        assert await others.update_session(theirs, idempotency_key="u") is theirs
        assert (theirs.staged, theirs.context, theirs.checkpoints[-1].data) == ([], {"a": 1}, {"n": 2})
        theirs.checkpoint("three", {"n": 3})
        with pytest.raises(InvalidInput, match="idempotency_key"):
            await others.update_session(theirs, idempotency_key="u")
        assert len(theirs.staged) == 1
        await others.update_session(theirs, idempotency_key="v")
        await others.update_session(theirs, idempotency_key="w")  # nothing to write
        theirs.checkpoint("four", {"n": 4})
        await others.update_session(theirs, idempotency_key="w")
        assert [entry.name for entry in await sessions.entries("s", kinds=["checkpoint"])] == [
            *("one", "two", "three", "four")
        ]


@pytest.mark.parametrize("key", [None, KEY])
async def test_checkpoints_are_dropped_once(opened, key):
    """The same drop gets its first answer, though what it names is hidden by then; a deleted session frees the key."""
    async with opened(encryption_key=key) as sessions, opened(encryption_key=key) as others:
        for _ in range(2):
            await sessions.create_session("tutor", session_id="s", data={"n": 0})
            for n in range(4):
                await sessions.checkpoint("s", "turn", {"n": n})
            with pytest.raises(InvalidInput, match="latest"):
                await sessions.drop("s", ["latest"], idempotency_key="d")
            assert await sessions.drop("s", [2, "s:4", 5], idempotency_key="d") == 3
            assert await others.drop("s", [5, 2, "s:4"], idempotency_key="d") == 3
            racing = [manager.drop("s", 3, idempotency_key="e") for manager in (sessions, others) * 3]
            assert await asyncio.gather(*racing) == [1] * 6
            with pytest.raises(InvalidInput, match="idempotency_key"):
                await others.drop("s", 3, idempotency_key="d")
            assert len(await sessions.entries("s", kinds=["marked"])) == 2
            await others.delete_session("s")


@pytest.mark.parametrize("key", [None, KEY])
async def test_imported_session_answers_repeated_calls(opened, key):
    """An export has the idempotency keys: the session imported from it gets the same calls as the first one did."""
    async with opened(encryption_key=key) as sessions, opened(encryption_key=key) as others:
        await sessions.create_session("tutor", session_id="s", data={"n": 0})
        first = await sessions.checkpoint("s", "one", {"n": 1}, idempotency_key="a")
        await sessions.checkpoint("s", "two", {"n": 2})
        back = await sessions.rollback("s", "one", idempotency_key="b")
        number = await sessions.record("s", "seen", {"at": 1}, key="c")
        await sessions.pause("s", idempotency_key="d")
        await sessions.resume("s")
        await sessions.drop("s", "two", idempotency_key="e")
        await sessions.import_session(await sessions.export("s"), session_id="t")
        count = len(await others.entries("t"))
        assert (await others.checkpoint("t", "one", {"n": 1}, idempotency_key="a")).seq == first.seq
        assert (await others.rollback("t", "one", idempotency_key="b")).seq == back.seq
        assert await others.record("t", "seen", {"at": 1}, key="c") == number
        assert (await others.pause("t", idempotency_key="d")).state == "active"
        assert await others.drop("t", "two", idempotency_key="e") == 1
        with pytest.raises(InvalidInput, match="idempotency_key"):
            await others.checkpoint("t", "one", {"n": 2}, idempotency_key="a")
        assert len(await others.entries("t")) == count


async def test_a_repeated_release_leaves_the_next_owner_alone(sessions, others, fresh):
    """The lease that another worker took since is not touched; without an owner the call uses no key up."""
    await sessions.create_session("tutor", session_id="s")
    assert await sessions.release("s", idempotency_key="k") is False
    first = await others.take("s")
    assert await sessions.release("s", "stuck", idempotency_key="k") is True
    async with others.hold("s", wait=30) as held:
        for manager in (sessions, fresh()):
            assert await manager.release("s", "stuck", idempotency_key="k") is True
        await held.checkpoint("still ours", {"n": 1})
        with pytest.raises(InvalidInput, match="idempotency_key"):
            await sessions.release("s", "other", idempotency_key="k")
    with pytest.raises(LeaseLost):
        await first.checkpoint("late", {})


async def test_repeated_upkeep_is_about_what_the_first_call_named(sessions, others):
    """`latest` is what it was, and a rule does not drop what came since; another call with the key is refused."""
    await sessions.create_session("tutor", session_id="s")
    rule = Retention(keep_first=0, keep_last=1, keep_latest_per_name=False)
    for n in range(4):
        await sessions.checkpoint("s", "c", {"n": n})
    pinned = await sessions.pin("s", idempotency_key="pin")
    thinned = await sessions.thin("s", rule, idempotency_key="thin")
    assert thinned.marked == 3
    for n in range(4, 8):
        await others.checkpoint("s", "c", {"n": n})
    once = await asyncio.gather(*(one.thin("s", rule, idempotency_key="at once") for one in (sessions, others) * 3))
    assert {one.marked for one in once} == {3}
    for n in range(8, 12):
        await others.checkpoint("s", "c", {"n": n})
    before = await others.head("s")
    assert (await others.pin("s", idempotency_key="pin")).id == pinned.id
    assert await others.thin("s", rule, idempotency_key="thin") == thinned
    assert await others.pins("s") == [pinned.seq]
    assert await sessions.head("s") == before
    for call in (
        lambda: others.pin("s", "c", idempotency_key="pin"),
        lambda: others.unpin("s", "latest", idempotency_key="pin"),
        lambda: others.thin("s", Retention(keep_last=2), idempotency_key="thin"),
    ):
        with pytest.raises(InvalidInput, match="idempotency_key"):
            await call()
    await others.unpin("s", pinned.seq, idempotency_key="unpin")
    await others.pin("s", pinned.seq)
    await sessions.unpin("s", pinned.seq, idempotency_key="unpin")
    assert await sessions.pins("s") == [pinned.seq]
