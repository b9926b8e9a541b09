"""The working copy: `held.data` is one object that the caller changes, and `checkpoint(name)` saves it."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

import saveslot
from saveslot import AgentSession, InvalidInput, SessionManager, Unavailable, blocking
from tests.session.test_held import Shaky

START = {"n": 1, "list": [1]}


@pytest.fixture
async def held(sessions):
    await sessions.create_session("tutor", session_id="s")
    await sessions.checkpoint("s", "start", START)
    async with sessions.hold("s") as held:
        yield held


async def test_changes_to_data_are_saved_by_the_next_checkpoint(held, others):
    """`held.data` is the same object until a rollback or refresh, and `checkpoint(name)` saves it."""
    working = held.data
    working["n"] = 2
    working["list"].append(2)
    assert await others.get_data("s") == START
    await held.checkpoint("two")
    assert await others.get_data("s") == {"n": 2, "list": [1, 2]} == held.data
    del working["n"]
    await held.checkpoint("three", None, {"why": "tidy"})
    checkpoint = await others.get_checkpoint("s", "three")
    assert (checkpoint.data, checkpoint.metadata) == ({"list": [1, 2]}, {"why": "tidy"})
    await held.checkpoint("four", working)
    assert held.data is working


async def test_checkpoint_without_data_is_a_mark(held, sessions, others):
    """If the data was not changed, `checkpoint(name)` keeps the state, on `held` and on the manager; `data={}` empties
    it.
    """
    checkpoint = await held.checkpoint("mark")
    assert checkpoint.data == START == held.data
    assert (await sessions.log("s", all=True))[-1].changed == []
    await held.checkpoint("emptied", data={})
    assert held.data == {} == await others.get_data("s")
    await held.release()
    session = await others.get_session("s")
    await others.checkpoint(session, "two", {"n": 2})
    assert (await others.checkpoint("s", "mark")).data == {"n": 2} == await others.get_data("s")
    await others.refresh(session)
    assert (await others.checkpoint(session, "mark", metadata={"by": "me"})).data == {"n": 2}
    assert (await others.checkpoint(session, "emptied", {})).data == {}
    await others.create_session("tutor", session_id="new")
    assert (await others.checkpoint("new", "mark")).data == {}


@pytest.mark.parametrize(
    ("more", "saved", "after"),
    [
        ({"append": {"list": (7,), "new": [1]}}, {"n": 1, "list": [1, 7], "new": [1]}, {"list": [1, 5, 7], "new": [1]}),
        (
            {"patch": [{"op": "add", "path": "/x", "value": {"y": 1}}]},
            {"n": 1, "list": [1], "x": {"y": 1}},
            {"list": [1, 5], "x": {"y": 1}},
        ),
        ({"patch": [{"op": "add", "path": "/list/-", "value": 7}]}, {"n": 1, "list": [1, 7]}, {"list": [1, 5, 7]}),
    ],
)
async def test_append_and_patch_save_only_what_they_name(held, others, more, saved, after):
    """They are applied to the working copy, too; its other unsaved changes wait for the next `checkpoint(name)`."""
    working = held.data
    working["n"] = "unsaved"
    working["list"].append(5)
    await held.checkpoint("named", **more)
    assert await others.get_data("s") == saved
    assert held.data is working
    assert working == {"n": "unsaved", **after}
    await held.checkpoint("rest")
    assert await others.get_data("s") == working


async def test_append_that_contradicts_an_unsaved_change_is_refused(held, others):
    """Nothing is saved, and the message names the key and the way out."""
    held.data["list"] = None
    with pytest.raises(InvalidInput, match=r"append.list: held.data has no list there; save that change first"):
        await held.checkpoint("two", append={"list": [2]})
    with pytest.raises(InvalidInput, match="patch"):
        await held.checkpoint("two", patch=[{"op": "add", "path": "/list/-", "value": 1}])
    assert await others.get_data("s") == START
    assert held.data == {"n": 1, "list": None}


async def test_checkpoint_with_data_becomes_the_working_copy(held, others):
    """The object stays the same and is equal to the new data; it shares nothing with it but what it had before."""
    working, inner = held.data, held.data["list"]
    mine = {"mine": [1]}
    await held.checkpoint("two", {**working, **mine})
    assert held.data is working
    assert working == {**START, "mine": [1]}
    assert working["list"] is inner
    mine["mine"].append(2)
    assert working["mine"] == [1]
    await held.checkpoint("three", {"other": 1})
    assert held.data is working
    assert working == {"other": 1}
    working["more"] = 2
    await held.checkpoint("four")
    assert await others.get_data("s") == {"other": 1, "more": 2}


async def test_rollback_and_refresh_drop_unsaved_changes(held):
    """Both return to what is stored, as a new object."""
    first = held.data
    first["n"] = 2
    await held.refresh()
    assert held.data == START
    assert held.data is not first
    second = held.data
    second["n"] = 3
    await held.checkpoint("three")
    second["n"] = 4
    await held.rollback("start")
    assert held.data == START
    assert held.data is not second


async def test_refused_checkpoint_keeps_unsaved_changes(held, others):
    """What cannot be stored is named with its path; the working copy stays as the caller left it."""
    held.data["bad"] = object()
    with pytest.raises(InvalidInput, match=r"data\.bad"):
        await held.checkpoint("two")
    with pytest.raises(InvalidInput):
        await held.checkpoint("two", [1])
    with pytest.raises(InvalidInput):
        await held.checkpoint("two", append={"list": 5})
    held.data["bad"] = 1
    await held.checkpoint("two")
    assert await others.get_data("s") == {**START, "bad": 1}


async def test_concurrent_saves_lose_nothing(held, others):
    """Saves of one holder at once: `checkpoint(name)` includes what an earlier append has just added."""
    held.data["n"] = 5
    await asyncio.gather(
        held.checkpoint("a", append={"list": [2]}),
        held.checkpoint("b"),
        held.checkpoint("c", append={"list": [3]}),
        held.checkpoint("d"),
    )
    assert held.data == {"n": 5, "list": [1, 2, 3]} == await others.get_data("s")
    by_key = {checkpoint.name: checkpoint.data for checkpoint in await others.history("s")}
    assert (by_key["a"], by_key["b"]) == ({"n": 1, "list": [1, 2]}, {"n": 5, "list": [1, 2]})


async def test_data_read_during_a_save_shows_it_afterwards(held):
    """A caller that reads `data` for the first time while another saves gets the new state when that save returns."""
    saving = asyncio.ensure_future(held.checkpoint("two", {"n": 2}))
    await asyncio.sleep(0)
    working = held.data
    await saving
    assert held.data is working
    assert working == {"n": 2}


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_write_in_doubt_reaches_the_working_copy_once(stores, others, fault):
    """When an answer is lost, the append is applied once, whether the call is retried or another one settles it."""
    store = Shaky(stores[0])
    sessions = SessionManager(store=store)
    await sessions.create_session("tutor", session_id="s")
    async with sessions.hold("s") as held:
        await held.checkpoint("start", START)
        assert held.data == START
        for again in (True, False):
            store.fault = fault
            with pytest.raises(Unavailable):
                await held.checkpoint("more", append={"list": [2]})
            if again:
                await held.checkpoint("more", append={"list": [2]})
            else:
                held.data["n"] = 2
                await held.checkpoint("rest")
            assert held.data == await others.get_data("s")
        assert held.data == {"n": 2, "list": [1, 2, 2]}
        store.fault = fault
        held.data["n"] = 3
        with pytest.raises(Unavailable):
            await held.checkpoint("rest")
        held.data["n"] = 4
        await held.checkpoint("rest")
        assert await others.get_data("s") == {"n": 4, "list": [1, 2, 2]}
    assert [checkpoint.name for checkpoint in await others.history("s")] == [
        *("session_created", "start", "more", "more", "rest", "rest", "rest"),
    ]


def test_blocking_has_the_same_working_copy(url):
    """The same object, marks and saves for synchronous callers."""
    with blocking.open(url) as sessions:
        sessions.create_session("tutor", session_id="s")
        with sessions.hold("s") as held:
            working = held.data
            working["messages"] = ["hello"]
            held.checkpoint("one")
            held.checkpoint("two", append={"messages": ["there"]})
            assert held.data is working
            assert working == {"messages": ["hello", "there"]} == sessions.get_data("s")
            held.checkpoint("three", None, {"m": 1})
            held.rollback("one")
            assert held.data == {"messages": ["hello"]}
            with pytest.raises(InvalidInput, match=r"call held\.complete"):
                held.session.complete()


# Session values


@pytest.mark.parametrize("verb", ["checkpoint", "heartbeat", "pause", "resume", "complete", "fail"])
async def test_verbs_of_the_held_session_name_those_that_store(held, verb):
    """`held.session` only shows the session: a verb on it would be staged and dropped, so it is refused."""
    arguments = {"checkpoint": ("two", {}), "fail": ("broken",)}.get(verb, ())
    with pytest.raises(InvalidInput, match=f"call held.{verb}$"):
        getattr(held.session, verb)(*arguments)
    assert held.session.staged == []
    with pytest.raises(InvalidInput, match="load the session with get_session"):
        held.session.recover()


async def test_updates_of_the_held_session_are_refused(held, sessions, others):
    """They were a conflict with the hold itself; now and after it they name the verb that stores them."""
    held.session.context["topic"] = "fractions"
    with pytest.raises(InvalidInput, match="call held"):
        await sessions.update_session(held.session)
    await held.update_context(topic="fractions")
    await held.release()
    with pytest.raises(InvalidInput, match="load it with get_session"):
        await sessions.update_session(held.session)
    assert (await others.get_session("s")).context == {"topic": "fractions"}


def staged_warnings(records, session_id):
    return [str(one.message) for one in records if f"session {session_id} " in str(one.message)]


async def test_value_that_goes_away_with_staged_verbs_warns(sessions):
    """It names the session, the entries and the way to store them; a stored, unstaged or merely local one is silent."""
    for session_id in ("late", "stored", "dropped"):
        await sessions.create_session("tutor", session_id=session_id)
    late, stored, dropped = [await sessions.get_session(session_id) for session_id in ("late", "stored", "dropped")]
    local = AgentSession("local")
    for session in (late, stored, dropped, local):
        session.checkpoint("two", {"n": 1})
    await sessions.update_session(stored)
    dropped.unstage()
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        session = late = stored = dropped = local = None
        gc.collect()
    [text] = staged_warnings(records, "late")
    assert text.endswith("staged entries (two); store them with update_session, or unstage")
    assert not any(staged_warnings(records, name) for name in ("stored", "dropped", "local"))


async def test_closing_a_manager_warns_of_staged_verbs(place):
    """It warns once, when it closes; the value itself warns no more."""
    sessions = await saveslot.open(place)
    late = await sessions.create_session("tutor", session_id="closed")
    late.pause()
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        await sessions.close()
        [text] = staged_warnings(records, "closed")
        late = None
        gc.collect()
    assert "its manager" in text
    assert "session_paused" in text
    assert "update_session" in text
    assert staged_warnings(records, "closed") == [text]
