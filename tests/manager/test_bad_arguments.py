"""What makes no sense is refused by `InvalidInput` that names the argument, in the same words on every store."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from saveslot import InvalidInput, InvalidTransition, NotFound, SessionManager

HALF = "\ud800"  # of a surrogate pair: no database holds it
HUGE = 2**70
NUMBERS = ["1", 1.5, True, None, [1]]


async def refused(call) -> InvalidInput:
    with pytest.raises(InvalidInput) as told:
        async with asyncio.timeout(5):  # a watch that takes a wrong cursor waits
            await call
    return told.value


@pytest.mark.parametrize("wrong", [[1], 5, "x", b"x", [("messages", [1])]])
async def test_what_is_appended_is_a_dict(sessions, session, wrong):
    """Anything else is refused, to an id, a value and a holder alike, and nothing is saved."""
    sid = session.session_id
    for which in (sid, session):
        told = await refused(sessions.checkpoint(which, "one", append=wrong))
        assert str(told) == f"append: must be a dict of lists, not {type(wrong).__name__}"
    async with sessions.hold(sid) as held:
        assert (await refused(held.checkpoint("one", append=wrong))).path == "append"
    assert await sessions.get_data(sid) == {}


@pytest.mark.parametrize("wrong", [None, "a-name", 5, {}])
async def test_only_a_session_value_is_updated_or_refreshed(sessions, wrong):
    """An id has nothing staged: it is refused, and what to hand over is said."""
    for call in (sessions.update_session(wrong), sessions.refresh(wrong)):
        told = await refused(call)
        assert told.path == "session"
        assert type(wrong).__name__ in told.reason
        assert "get_session" in told.reason


@pytest.mark.parametrize("wrong", NUMBERS)
async def test_a_number_is_a_whole_one(sessions, session, wrong):
    """Text, a fraction and a bool are none, wherever so many are asked for; None only where it means all."""
    sid = session.session_id
    calls = {
        "limit": [sessions.find(limit=wrong), sessions.claim(limit=wrong), sessions.keeper.start(limit=wrong)],
        "sample": [sessions.analytics(sample=wrong)],
    }
    if wrong is not None:
        calls["limit"] += [sessions.history(sid, limit=wrong), sessions.log(sid, limit=wrong)]
        calls["history"] = [sessions.get_session(sid, history=wrong)]
        calls["after"] = [anext(sessions.watch(sid, after=wrong))] if wrong != "1" else []
    for path, asked in calls.items():
        for call in asked:
            told = await refused(call)
            assert told.path == path
            assert "number" in told.reason


async def test_a_number_is_not_too_small(sessions, session):
    """A page and a claim are of 1 at least, what is kept of a history of 0; a seq is no negative one."""
    sid = session.session_id
    for path, call in [
        ("limit", sessions.find(limit=0)),
        ("limit", sessions.claim(limit=-1)),
        ("limit", sessions.history(sid, limit=-1)),
        ("limit", sessions.log(sid, limit=-1)),
        ("sample", sessions.analytics(sample=0)),
        ("history", sessions.get_session(sid, history=-1)),
        ("history", sessions.get_session("nobody", history="x")),
        ("after", anext(sessions.watch(sid, after=-1))),
        ("after", anext(sessions.watch(after=-1))),
    ]:
        assert (await refused(call)).path == path


async def test_a_number_beyond_all_there_is_means_all(sessions, session):
    """Every store answers, with everything."""
    sid = session.session_id
    await sessions.checkpoint(sid, "one", {"n": 1})
    assert [found.session_id for found in await sessions.find(limit=HUGE)] == [sid]
    assert (await sessions.find(limit=HUGE)).next is None
    assert len(await sessions.history(sid, limit=HUGE)) == len(await sessions.log(sid, limit=HUGE)) == 2
    found = await sessions.get_session(sid, history=HUGE)
    assert found is not None
    assert [made.data for made in found.checkpoints][1] == {"n": 1}
    assert (await sessions.analytics(sample=HUGE))["looked_at"]["sessions"] == 1
    assert await sessions.claim(limit=HUGE) == []


async def test_an_age_beyond_all_times_is_reached_by_nothing(sessions, others, clock):
    """The longest timedelta is an age like any other: nothing is as old, on every store."""
    await sessions.create_session("tutor", session_id="silent")
    done = await sessions.create_session("tutor", session_id="done")
    done.complete()
    await sessions.update_session(done)
    await sessions.create_session("tutor", session_id="deleted")
    await sessions.delete_session("deleted")
    clock.pass_hours(24 * 365)
    assert await others.cleanup_stale_sessions(timedelta.max) == 0
    assert (await others.gc(timedelta.max, grace=timedelta.max)).count == 0
    assert (await others.thin("silent", grace=timedelta.max)).emptied == 0


@pytest.mark.parametrize("wrong", [5, "1d", timedelta(-1)])
async def test_an_age_is_a_timedelta(sessions, session, wrong):
    """Of 0 or more, wherever one is asked for."""
    for path, call in [
        ("max_age", sessions.cleanup_stale_sessions(wrong)),
        ("older_than", sessions.gc(wrong)),
        ("grace", sessions.gc(grace=wrong)),
        ("grace", sessions.thin(session.session_id, grace=wrong)),
        ("grace", sessions.thin_all(grace=wrong)),
        ("stale_after", sessions.keeper.start(stale_after=wrong)),
        ("gc_after", sessions.keeper.start(gc_after=wrong)),
    ]:
        assert (await refused(call)).path == path


@pytest.mark.parametrize("wrong", ["1", None, True, float("nan"), -1])
async def test_seconds_are_a_number(sessions, session, fresh, wrong):
    """Of 0 or more, wherever so many are asked for; infinity is one, and means always."""

    async def opened(**options):
        return fresh(**options)

    for path, call in [
        ("wait", sessions.take(session, wait=wrong)),
        ("max_age", sessions.find(level="cached", max_age=wrong)),
        ("tidy_every", sessions.keeper.start(thin=True, tidy_every=wrong)),
        *((name, opened(**{name: wrong})) for name in ("worker_beat", "worker_ttl", "max_block", "session_ttl_hours")),
    ]:
        assert (await refused(call)).path == path
    ever = float("inf")
    other = fresh(worker_ttl=ever, max_block=ever, session_ttl_hours=ever)
    await (await other.take(session, wait=ever)).release()
    assert len(await other.find(level="cached", max_age=ever)) == 1
    await other.keeper.start(thin=True, tidy_every=ever)
    await other.keeper.stop()


@pytest.mark.parametrize("wrong", ["ab", ("a",), ("a", "b", "c")])
async def test_what_lies_between_has_two_ends(sessions, wrong):
    """A pair of names; a text of two letters is none."""
    assert (await refused(sessions.analytics(between=wrong))).path == "between"


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ({"text": 5}, "text"),
        ({"text": HALF}, "text"),
        ({"text": "a\0"}, "text"),
        ({"prefix": b"x"}, "prefix"),
        ({"prefix": HALF}, "prefix"),
        ({"user_id": ["x"]}, "user_id"),
        ({"user_id": HALF}, "user_id"),
        ({"agent_type": 5}, "agent_type"),
        ({"agent_type": HALF}, "agent_type"),
        ({"labels": [1]}, "labels"),
        ({"labels": {1: "x"}}, "labels"),
        ({"labels": {"team": 5}}, "labels.team"),
        ({"labels": {"team": HALF}}, "labels.team"),
        ({"labels": {HALF: "red"}}, "labels"),
    ],
)
async def test_a_filter_is_what_a_session_can_have(sessions, session, asked, path):
    """Whoever asks for something else is told which filter it is; a list, a count and figures say the same."""
    calls = [sessions.find(**asked), sessions.count(**asked)]
    calls += [] if "prefix" in asked else [sessions.analytics(**asked)]
    for call in calls:
        told = await refused(call)
        assert told.path == path
        assert "SQL" not in told.reason


async def test_who_claims_names_an_agent_type(sessions):
    """A claim and a keeper refuse what no agent type can be, at once."""
    for wrong in (5, HALF):
        assert (await refused(sessions.claim(wrong))).path == "agent_type"
        assert (await refused(sessions.keeper.start(agent_type=wrong))).path == "agent_type"


@pytest.mark.parametrize(
    "wrong", [5, "", "x", "1.00", "-.", *(f"{at}.{'0' * 32}" for at in ("f" * 40, "0x1", "1_0", " 1", "--1"))]
)
async def test_a_page_goes_on_behind_a_page(sessions, session, wrong):
    """Only `next` of a page is a cursor."""
    assert (await refused(sessions.find(after=wrong))).path == "after"


@pytest.mark.parametrize("wrong", ["-5", "", "x", " 1", "1_0", "9" * 40, "٣", HALF, 1.5, True, b"1"])
async def test_a_watch_goes_on_behind_an_event(sessions, session, wrong):
    """Only an event's cursor is one: not a negative number, which would lead to the end of a list."""
    for call in (anext(sessions.watch(after=wrong)), anext(sessions.watch(session.session_id, after=wrong))):
        assert (await refused(call)).path == "after"


@pytest.mark.parametrize("wrong", [HALF, f"one{HALF}", "a\0", 1.5, None, b"one"])
async def test_a_ref_is_text_or_a_number(sessions, session, wrong):
    """What no checkpoint can be called is refused, not looked for."""
    sid = session.session_id
    await sessions.checkpoint(sid, "one", {"n": 1})
    calls = [
        sessions.get_checkpoint(sid, wrong),
        sessions.get_data(sid, wrong),
        sessions.diff(sid, wrong, "latest"),
        sessions.rollback(sid, wrong),
        sessions.fork(sid, wrong),
        sessions.pin(sid, wrong),
    ]
    for call in calls:
        assert (await refused(call)).path == "ref"
    if wrong is not None:
        assert (await refused(sessions.history(sid, name=wrong))).path == "name"


async def test_a_rule_is_a_retention(sessions, session):
    """A number is none, for a new session and for a thinning."""
    assert (await refused(sessions.create_session("tutor", session_id="s", retention=5))).path == "retention"
    assert (await refused(sessions.thin(session.session_id, 5))).path == "retention"
    assert await sessions.get_session("s") is None


@pytest.mark.parametrize("wrong", ["x", -1, 0, 1.5, True, None])
def test_the_limit_of_a_state_is_a_number_of_bytes(stores, wrong):
    """One that would refuse every state later is refused when it is given."""
    with pytest.raises(InvalidInput) as told:
        SessionManager(store=stores[0], max_state_bytes=wrong)
    assert told.value.path == "max_state_bytes"


@pytest.mark.parametrize("wrong", [5, None, "print"])
async def test_a_step_runs_a_function(sessions, session, wrong):
    """What cannot be called is refused before the journal has an entry of it."""
    async with sessions.hold(session.session_id) as held:
        assert (await refused(held.step("s", wrong))).path == "fn"
        assert await held.steps() == []
        assert await held.step("s", lambda: 1) == 1


@pytest.mark.parametrize("wrong", [None, b"{}", {}, 5])
async def test_an_export_is_text(sessions, wrong):
    """Bytes, a parsed dict and nothing at all are refused in words."""
    assert str(await refused(sessions.import_session(wrong))).startswith("import: must be the text of an export, not ")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "nope"}, r"import\.entries\[1\]\.kind: 'nope' is in no export"),
        ({"kind": "tombstone"}, r"import\.entries\[1\]\.kind: 'tombstone' is in no export"),
        ({"kind": 5}, r"import\.entries\[1\]\.kind: 5 is in no export"),
        ({"state": {"n": {"$saveslot": ["nope", 1]}}}, "import: holds a value that has an unknown type"),
        ({"state": {"n": HALF}}, "import: holds a value that is not|import: holds half of a surrogate pair"),
    ],
)
async def test_a_forged_export_is_told_what_is_wrong(sessions, session, change, says):
    """Where and what, without advice for a damaged store."""
    sid = session.session_id
    await sessions.checkpoint(sid, "one", {"n": 1})
    told = json.loads(await sessions.export(sid))
    told["entries"][1].update(change)
    for text in (json.dumps(told), json.dumps(told, ensure_ascii=False)):
        with pytest.raises(InvalidInput, match=says) as caught:
            await sessions.import_session(text, session_id="copy")
        assert "backup" not in str(caught.value)
        assert "Error" not in str(caught.value)


async def test_a_state_is_named_with_its_article(sessions, session):
    """An active session, a completed one."""
    with pytest.raises(InvalidTransition, match="cannot recover an active session"):
        session.recover()
    session.complete()
    with pytest.raises(InvalidTransition, match="cannot pause a completed session"):
        session.pause()


async def test_a_session_made_anew_is_not_the_one_that_was_read(sessions, others):
    """Who updates, saves to or refreshes the old value is told so in the same words; it is not said to be missing."""
    old = await sessions.create_session("tutor", session_id="d1")
    await others.delete_session("d1")
    await others.create_session("tutor", session_id="d1")
    with pytest.raises(NotFound, match="read the new one"):  # this manager has not heard of the new one yet
        await sessions.update_session(old)
    for manager in (sessions, others):
        told = set()
        for call in (manager.update_session, manager.refresh, lambda one, to=manager: to.checkpoint(one, "x", {})):
            with pytest.raises(NotFound) as caught:
                await call(old)
            told.add(str(caught.value))
        assert told == {"session d1 was deleted and created anew; read the new one (get_session)"}


async def test_the_last_page_says_that_it_is(sessions):
    """`next` is None on it, also when it is exactly full; on every other page it leads to a page with something."""
    made = [(await sessions.create_session("tutor", user_id="anna")).session_id for _ in range(6)][::-1]
    for limit in range(1, 8):
        seen, after, pages = [], None, 0
        while True:
            page = await sessions.find(user_id="anna", limit=limit, after=after)
            assert 0 < len(page) <= limit
            seen += [found.session_id for found in page]
            pages, after = pages + 1, page.next
            if after is None:
                break
        assert seen == made
        assert pages == -(-6 // limit)
    assert (await sessions.find(user_id="nobody", limit=1)).next is None
