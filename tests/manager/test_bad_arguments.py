"""Invalid arguments raise `InvalidInput` that names the argument, in the same words on every store."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

import saveslot
from saveslot import InvalidInput, InvalidTransition, NotFound, SessionManager

HALF = "\ud800"  # of a surrogate pair: no database holds it
HUGE = 2**70
NUMBERS = ["1", 1.5, True, None, [1]]


async def refused(call) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        async with asyncio.timeout(60):  # a watch that takes a wrong cursor waits
            await call
    return error.value


@pytest.mark.parametrize("wrong", [[1], 5, "x", b"x", [("messages", [1])]])
async def test_append_requires_a_dict(sessions, session, wrong):
    """Anything else is refused, for an id, a value and a holder alike, and nothing is saved."""
    sid = session.session_id
    for which in (sid, session):
        error = await refused(sessions.checkpoint(which, "one", append=wrong))
        assert str(error) == f"append: must be a dict of lists, not {type(wrong).__name__}"
    async with sessions.hold(sid) as held:
        assert (await refused(held.checkpoint("one", append=wrong))).path == "append"
    assert await sessions.get_data(sid) == {}


@pytest.mark.parametrize(
    "verb", ["delete_session", "history", "get_data", "get_session", "fork", "export", "pin", "log"]
)
async def test_a_value_where_an_id_is_expected(sessions, session, verb):
    """The error says what to pass, and the session is as it was."""
    error = await refused(getattr(sessions, verb)(session))
    assert str(error).endswith("must be text, not AgentSession; pass its session_id")
    assert len(await sessions.history(session.session_id)) == 1


@pytest.mark.parametrize("wrong", [None, "a-name", 5, {}])
async def test_update_and_refresh_require_a_session_value(sessions, wrong):
    """An id has nothing staged: it is refused, and the error says what to pass."""
    for call in (sessions.update_session(wrong), sessions.refresh(wrong)):
        error = await refused(call)
        assert error.path == "session"
        assert type(wrong).__name__ in error.reason
        assert "get_session" in error.reason


@pytest.mark.parametrize("wrong", NUMBERS)
async def test_counts_must_be_integers(sessions, session, wrong):
    """Text, fractions and bools are refused wherever a count is expected; None is allowed only where it means all."""
    sid = session.session_id
    calls = {
        "limit": [sessions.find(limit=wrong), sessions.claim(limit=wrong), sessions.keeper.start(limit=wrong)],
        "sample": [sessions.analytics(sample=wrong)],
    }
    if wrong is not None:
        calls["limit"] += [sessions.history(sid, limit=wrong), sessions.log(sid, limit=wrong)]
        calls["history"] = [sessions.get_session(sid, history=wrong)]
        calls["after"] = [anext(sessions.watch(sid, after=wrong))] if wrong != "1" else []
    for path, query in calls.items():
        for call in query:
            error = await refused(call)
            assert error.path == path
            assert "number" in error.reason


async def test_counts_have_a_minimum(sessions, session):
    """Page sizes and claim limits are at least 1, retention counts at least 0, and a seq is not negative."""
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


async def test_huge_limits_return_everything(sessions, session):
    """Every store answers a huge limit with everything."""
    sid = session.session_id
    await sessions.checkpoint(sid, "one", {"n": 1})
    assert [session.session_id for session in await sessions.find(limit=HUGE)] == [sid]
    assert (await sessions.find(limit=HUGE)).next is None
    assert len(await sessions.history(sid, limit=HUGE)) == len(await sessions.log(sid, limit=HUGE)) == 2
    loaded = await sessions.get_session(sid, history=HUGE)
    assert loaded is not None
    assert [checkpoint.data for checkpoint in loaded.checkpoints][1] == {"n": 1}
    assert (await sessions.analytics(sample=HUGE))["looked_at"]["sessions"] == 1
    assert await sessions.claim(limit=HUGE) == []


async def test_longest_timedelta_matches_nothing(sessions, others, clock):
    """The longest timedelta is a valid age that no session reaches, on every store."""
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


async def test_durations_are_seconds_or_timedeltas(clock, fresh, others):
    """Wherever a duration is expected, seconds and a timedelta mean the same."""
    for hour in (3600, 3600.0, timedelta(hours=1)):
        sessions = fresh(worker_ttl=hour, worker_beat=timedelta(seconds=1), session_ttl_hours=timedelta(hours=2))
        assert sessions.session_ttl_hours == 2
        session = await sessions.create_session("tutor")
        assert await others.cleanup_stale_sessions(hour) == 0
        clock.pass_hours(1.1)
        assert len(await sessions.find(level="cached", max_age=hour)) >= 1
        assert await others.cleanup_stale_sessions(hour) == 1
        assert session.session_id not in (await others.gc(hour, grace=hour)).sessions
        clock.pass_hours(1.1)
        assert session.session_id in (await others.gc(hour, grace=hour)).sessions
        assert (await sessions.analytics(bucket=hour))["sessions"] == 0
        await sessions.thin_all(grace=hour)
        assert saveslot.Retention(max_age=hour) == saveslot.Retention(max_age=timedelta(hours=1))
        await sessions.keeper.start(stale_after=hour, gc_after=hour, tidy_every=hour)
        await sessions.keeper.stop()


@pytest.mark.parametrize("wrong", [-5, "1d", True, float("nan"), timedelta(-1)])
async def test_a_wrong_duration_is_refused(sessions, session, wrong):
    """A duration is seconds or a timedelta of 0 or more, wherever one is expected."""
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
async def test_seconds_must_be_a_number(sessions, session, fresh, wrong):
    """Seconds are a number of 0 or more; infinity is allowed, and means always."""

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
async def test_between_requires_a_pair(sessions, wrong):
    """`between` is a pair of names; a two-letter string is refused."""
    assert (await refused(sessions.analytics(between=wrong))).path == "between"


@pytest.mark.parametrize(
    ("query", "path"),
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
        ({"labels": {str(n): "x" for n in range(2000)}}, "labels"),
    ],
)
async def test_filters_must_be_valid_session_values(sessions, session, query, path):
    """The error names the invalid filter; find, count and analytics check it alike."""
    calls = [sessions.find(**query), sessions.count(**query)]
    calls += [] if "prefix" in query else [sessions.analytics(**query)]
    for call in calls:
        error = await refused(call)
        assert error.path == path
        assert "SQL" not in error.reason


async def test_claim_requires_an_agent_type(sessions):
    """Claims and keepers refuse an invalid agent type at once."""
    for wrong in (5, HALF):
        assert (await refused(sessions.claim(wrong))).path == "agent_type"
        assert (await refused(sessions.keeper.start(agent_type=wrong))).path == "agent_type"


@pytest.mark.parametrize(
    "wrong", [5, "", "x", "1.0", "-.", *(f"{at}.{'0' * 32}" for at in ("f" * 40, "0x1", "1_0", " 1", "--1"))]
)
async def test_page_cursor_must_come_from_a_page(sessions, session, wrong):
    """Only a page's `next` is a cursor."""
    assert (await refused(sessions.find(after=wrong))).path == "after"


@pytest.mark.parametrize("wrong", ["-5", "", "x", " 1", "1_0", "9" * 40, "٣", HALF, 1.5, True, b"1"])
async def test_watch_cursor_must_come_from_an_event(sessions, session, wrong):
    """Only an event's cursor is valid, not a negative number, which would index from the end of a list."""
    for call in (anext(sessions.watch(after=wrong)), anext(sessions.watch(session.session_id, after=wrong))):
        assert (await refused(call)).path == "after"


@pytest.mark.parametrize("wrong", [HALF, f"one{HALF}", "a\0", 1.5, None, b"one"])
async def test_ref_must_be_text_or_a_number(sessions, session, wrong):
    """A ref of any other type is refused without a lookup."""
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


async def test_rule_must_be_a_retention(sessions, session):
    """A number is refused, for a new session and for thinning."""
    assert (await refused(sessions.create_session("tutor", session_id="s", retention=5))).path == "retention"
    assert (await refused(sessions.thin(session.session_id, 5))).path == "retention"
    assert await sessions.get_session("s") is None


@pytest.mark.parametrize("wrong", ["x", -1, 0, 1.5, True, None])
def test_max_state_bytes_must_be_usable(stores, wrong):
    """A limit that would refuse every state is refused when it is set."""
    with pytest.raises(InvalidInput) as error:
        SessionManager(store=stores[0], max_state_bytes=wrong)
    assert error.value.path == "max_state_bytes"


@pytest.mark.parametrize("wrong", [5, None, "print"])
async def test_step_requires_a_callable(sessions, session, wrong):
    """A value that cannot be called is refused before the journal has an entry for it."""
    async with sessions.hold(session.session_id) as held:
        assert (await refused(held.step("s", wrong))).path == "fn"
        assert await held.steps() == []
        assert await held.step("s", lambda: 1) == 1


@pytest.mark.parametrize("wrong", [None, b"{}", {}, 5])
async def test_import_requires_text(sessions, wrong):
    """Bytes, a parsed dict and None are refused with a clear error."""
    assert str(await refused(sessions.import_session(wrong))).startswith("import: must be the text of an export, not ")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "nope"}, r"import\.entries\[1\]\.kind: 'nope' is not a kind that exports contain"),
        ({"kind": "tombstone"}, r"import\.entries\[1\]\.kind: 'tombstone' is not a kind that exports contain"),
        ({"kind": 5}, r"import\.entries\[1\]\.kind: 5 is not a kind that exports contain"),
        ({"state": {"n": {"$saveslot": ["nope", 1]}}}, "import: contains a value that has an unknown type"),
        ({"state": {"n": HALF}}, "import: contains a value that is not|import: contains half of a surrogate pair"),
    ],
)
async def test_forged_export_error_says_where(sessions, session, change, says):
    """The error says where and what is wrong, without advice for a damaged store."""
    sid = session.session_id
    await sessions.checkpoint(sid, "one", {"n": 1})
    answer = json.loads(await sessions.export(sid))
    answer["entries"][1].update(change)
    for text in (json.dumps(answer), json.dumps(answer, ensure_ascii=False)):
        with pytest.raises(InvalidInput, match=says) as caught:
            await sessions.import_session(text, session_id="copy")
        assert "backup" not in str(caught.value)
        assert "Error" not in str(caught.value)


async def test_state_names_take_the_right_article(sessions, session):
    """Messages say "an active session" and "a completed session"."""
    with pytest.raises(InvalidTransition, match="cannot recover an active session"):
        session.recover()
    session.complete()
    with pytest.raises(InvalidTransition, match="cannot pause a completed session"):
        session.pause()


async def test_recreated_session_refuses_old_values(sessions, others):
    """Updating, saving to or refreshing an old value raises the same error each time, and not that the session is
    missing.
    """
    old = await sessions.create_session("tutor", session_id="d1")
    await others.delete_session("d1")
    await others.create_session("tutor", session_id="d1")
    with pytest.raises(NotFound, match=r"load the new one|reload it"):  # this manager has not heard of the new one yet
        await sessions.update_session(old)
    for manager in (sessions, others):
        messages = set()
        for call in (manager.update_session, manager.refresh, lambda one, to=manager: to.checkpoint(one, "x", {})):
            with pytest.raises(NotFound) as caught:
                await call(old)
            messages.add(str(caught.value))
        assert messages == {"session d1 was deleted and recreated; reload it with get_session"}


async def test_last_page_has_no_next(sessions):
    """The last page's `next` is None, even if it is exactly full; every other `next` leads to a non-empty page."""
    created_sessions = [(await sessions.create_session("tutor", user_id="anna")).session_id for _ in range(6)][::-1]
    for limit in range(1, 8):
        seen, after, pages = [], None, 0
        while True:
            page = await sessions.find(user_id="anna", limit=limit, after=after)
            assert 0 < len(page) <= limit
            seen += [result.session_id for result in page]
            pages, after = pages + 1, page.next
            if after is None:
                break
        assert seen == created_sessions
        assert pages == -(-6 // limit)
    assert (await sessions.find(user_id="nobody", limit=1)).next is None
