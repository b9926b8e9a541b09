"""Sessions: created, read, updated, found, swept, deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import saveslot
from saveslot import AlreadyExists, Conflict, InvalidInput, InvalidTransition, NotFound, SessionState, Unavailable


async def test_a_created_session_is_read_back_equal(sessions, others):
    """Everything set at creation is read back by any manager, metadata and labels too."""
    made = await sessions.create_session(
        "grader", user_id="ben", context={"a": [1, 2]}, metadata={"run": 7}, labels={"team": "red"}
    )
    read = await others.get_session(made.session_id)
    assert read == made
    assert (read.agent_type, read.user_id, read.metadata, read.labels) == ("grader", "ben", {"run": 7}, {"team": "red"})
    assert [(c.name, c.data) for c in read.checkpoints] == [
        ("session_created", {"agent_type": "grader", "user_id": "ben"})
    ]
    assert read.created_at == read.last_heartbeat == read.checkpoints[0].timestamp


async def test_an_unknown_session_is_none_to_get_and_not_found_elsewhere(sessions):
    """get_session answers None; every other verb says NotFound."""
    assert await sessions.get_session("nobody") is None
    assert await sessions.get_session("../x") is None
    for call in (
        sessions.checkpoint("nobody", "x", {}),
        sessions.history("nobody"),
        sessions.get_checkpoint("nobody"),
        sessions.rollback("nobody", "x"),
        sessions.fork("nobody"),
        sessions.diff("nobody", 1, 2),
        sessions.summary("nobody"),
        sessions.export("nobody"),
        sessions.refresh(saveslot.AgentSession(session_id="nobody")),
        sessions.update_session(saveslot.AgentSession(session_id="nobody")),
    ):
        with pytest.raises(NotFound, match="nobody"):
            await call
    assert await sessions.delete_session("nobody") is False


@pytest.mark.parametrize("bad", ["", "x" * 1000, "a\nb", "nul\0", "\ud800", 7])
async def test_impossible_ids_are_refused_by_name(sessions, bad):
    """An id that no store could keep raises InvalidInput and stores nothing."""
    with pytest.raises(InvalidInput, match="session_id"):
        await sessions.create_session("tutor", session_id=bad)
    with pytest.raises(InvalidInput, match="session_id"):
        await sessions.get_session(bad)
    assert await sessions.count() == 0


@pytest.mark.parametrize("odd", ["../x", "a:7", "a b", "日本", "x" * 200, "'; drop table sessions", "%_", "@latest"])
async def test_odd_but_possible_ids_are_kept_exactly(sessions, others, odd):
    """Any other text is an id like any other, and never a path or a piece of SQL."""
    await sessions.create_session("tutor", session_id=odd)
    await sessions.checkpoint(odd, "one", {"n": 1})
    assert (await others.get_checkpoint(odd, f"{odd}:2")).data == {"n": 1}
    assert [found.session_id for found in await others.find()] == [odd]


async def test_an_id_is_taken_once(sessions, others, session):
    """A second session with the same id is refused and the first is untouched."""
    with pytest.raises(AlreadyExists, match=session.session_id):
        await others.create_session("grader", session_id=session.session_id)
    assert await others.get_session(session.session_id) == session


async def test_update_appends_what_was_staged_in_one_step(sessions, others, session):
    """Checkpoints, lifecycle and changed dicts land together, in order, and the same object goes on."""
    session.checkpoint("one", {"n": 1})
    session.context["more"] = {"deep": [1]}
    session.context["more"]["deep"].append(2)
    session.metadata["seen"] = True
    session.checkpoint("two", {"n": 2})
    session.pause()
    await sessions.update_session(session)
    assert session.staged == []
    read = await others.get_session(session.session_id)
    assert read == session
    assert read.state is SessionState.PAUSED
    assert read.context == {"topic": "fractions", "more": {"deep": [1, 2]}}
    assert [c.name for c in read.checkpoints] == ["session_created", "one", "two", "session_paused"]
    session.resume()
    session.complete({"grade": "A"})
    await sessions.update_session(session)
    read = await others.get_session(session.session_id)
    assert read == session
    assert read.checkpoints[-1].data == {"result": {"grade": "A"}}


async def test_an_update_with_nothing_staged_is_a_heartbeat_and_no_checkpoint(sessions, others, session, clock):
    """update_session always moves last_heartbeat; alone it adds nothing to the log."""
    clock.pass_hours(3)
    before = session.last_heartbeat
    await sessions.update_session(session)
    assert session.last_heartbeat >= before + timedelta(hours=3)
    read = await others.get_session(session.session_id)
    assert read.last_heartbeat == session.last_heartbeat
    assert len(await others.history(session.session_id, all=True)) == 1


async def test_a_late_writer_is_refused_and_loses_nothing(sessions, others, session):
    """On Conflict nothing of either side is lost: staged stays staged, refresh takes the news in, then it lands."""
    theirs = await others.get_session(session.session_id)
    theirs.checkpoint("theirs", {"by": "them"})
    theirs.context["theirs"] = 1
    await others.update_session(theirs)

    session.checkpoint("mine", {"by": "me"})
    session.context["mine"] = 1
    for _ in range(2):
        with pytest.raises(Conflict) as caught:
            await sessions.update_session(session)
        assert (caught.value.seen, caught.value.head) == (1, 3)
    assert [item.checkpoint.name for item in session.staged] == ["mine"]

    assert await sessions.refresh(session) is session
    assert [c.name for c in session.checkpoints] == ["session_created", "theirs", "mine"]
    assert session.context == {"topic": "fractions", "theirs": 1, "mine": 1}
    await sessions.update_session(session)
    read = await others.get_session(session.session_id)
    assert read == session
    assert read.context == {"topic": "fractions", "theirs": 1, "mine": 1}


async def test_a_value_that_no_store_gave_must_be_refreshed_first(sessions, session):
    """A session from a dict has seen nothing: its update is a Conflict until it was refreshed."""
    value = saveslot.AgentSession.from_dict(session.to_dict())
    value.checkpoint("one", {})
    with pytest.raises(Conflict, match="refresh"):
        await sessions.update_session(value)
    await sessions.refresh(value)
    await sessions.update_session(value)
    assert [c.name for c in await sessions.history(session.session_id)] == ["session_created", "one"]


async def test_an_ended_session_takes_nothing_more(sessions, others, session):
    """A session that someone completed refuses checkpoints and transitions, naming both states."""
    theirs = await others.get_session(session.session_id)
    theirs.complete()
    await others.update_session(theirs)
    with pytest.raises(Conflict):
        await sessions.checkpoint(session.session_id, "late", {})
    with pytest.raises(InvalidTransition, match="completed"):
        await sessions.checkpoint(session.session_id, "late", {})
    session.pause()
    await sessions.refresh(session)
    with pytest.raises(InvalidTransition, match=r"completed.*paused"):
        await sessions.update_session(session)
    with pytest.raises(InvalidTransition, match="fork"):
        await sessions.rollback(session.session_id, 1)


async def test_a_deleted_session_never_comes_back(sessions, others, session):
    """Deleting is true once; the session is gone for everybody, and a stale value cannot revive it."""
    await sessions.checkpoint(session.session_id, "one", {"n": 1})
    stale = await others.get_session(session.session_id)
    assert await sessions.delete_session(session.session_id) is True
    assert await sessions.delete_session(session.session_id) is False
    assert await others.delete_session(session.session_id) is False
    assert await others.get_session(session.session_id) is None
    assert await others.find() == []
    stale.checkpoint("late", {})
    with pytest.raises(NotFound):
        await others.update_session(stale)
    with pytest.raises(NotFound):
        await others.checkpoint(session.session_id, "late", {})


async def test_a_new_incarnation_shares_nothing_with_the_old_one(sessions, others):
    """A deleted id can be created again; values and knowledge of the former one are refused."""
    old = await sessions.create_session("tutor", session_id="s", context={"old": True})
    await sessions.checkpoint("s", "old", {"n": 1})
    await others.get_session("s")
    old_value = await others.get_session("s")
    await sessions.delete_session("s")
    new = await sessions.create_session("grader", session_id="s")
    assert [c.name for c in await others.history("s", all=True)] == ["session_created"]
    assert (await others.get_session("s")).context == {}
    for value, manager in ((old, sessions), (old_value, others)):
        value.checkpoint("ghost", {})
        with pytest.raises(NotFound):
            await manager.update_session(value)
    await others.checkpoint("s", "fresh", {"n": 2})
    assert [c.name for c in await sessions.history("s")] == ["session_created", "fresh"]
    assert new.agent_type == (await sessions.get_session("s")).agent_type == "grader"


async def test_namespaces_never_see_each_other(sessions, session, fresh):
    """The same id lives in two namespaces; lists, counts and events stay inside."""
    other = fresh(namespace="other")
    assert await other.get_session(session.session_id) is None
    twin = await other.create_session("grader", session_id=session.session_id)
    await other.checkpoint(twin.session_id, "theirs", {})
    assert [s.agent_type for s in await sessions.find()] == ["tutor"]
    assert await other.count() == await sessions.count() == 1
    assert [c.name for c in await sessions.history(session.session_id)] == ["session_created"]
    assert await other.delete_session(twin.session_id)
    assert await sessions.get_session(session.session_id) is not None


async def test_find_filters_and_pages_newest_first(sessions, clock):
    """Every filter narrows, pages neither overlap nor skip, and sessions made meanwhile do not disturb them."""
    made = [
        await sessions.create_session(
            "tutor" if n % 2 else "grader",
            user_id=f"u{n % 3}",
            labels={"n": str(n), "team": "red" if n < 5 else "blue"},
        )
        for n in range(25)
    ]
    ids = [s.session_id for s in reversed(made)]
    seen, after = [], None
    while True:
        page = await sessions.find(limit=7, after=after)
        seen += [s.session_id for s in page]
        after = page.next
        if after is None:
            break
        await sessions.create_session("intruder")
    assert seen == ids
    found = await sessions.find(agent_type="tutor", user_id="u1")
    assert {s.session_id for s in found} == {made[n].session_id for n in range(25) if n % 2 and n % 3 == 1}
    assert [s.labels["n"] for s in await sessions.find(labels={"team": "red"})] == ["4", "3", "2", "1", "0"]
    assert await sessions.count(labels={"team": "blue"}) == 20
    assert await sessions.count(text="GRAD") == 13
    assert await sessions.count(text="red") == 5
    assert await sessions.count(prefix=made[3].session_id) == 1
    between = await sessions.find(created_after=made[2].created_at, created_before=made[5].created_at)
    assert [s.session_id for s in between] == [made[4].session_id, made[3].session_id]
    assert all(s.checkpoints == [] for s in found)
    with pytest.raises(InvalidInput, match="after"):
        await sessions.find(after="nonsense")
    with pytest.raises(InvalidInput, match="state"):
        await sessions.find(state="sleeping")
    with pytest.raises(InvalidInput, match="limit"):
        await sessions.find(limit=0)


async def test_the_duration_of_an_ended_session_stands_still_in_a_list(sessions, session, clock):
    """Without its history loaded, an ended session's duration still ends with it."""
    session.complete()
    await sessions.update_session(session)
    clock.pass_hours(5)
    [listed] = await sessions.find()
    assert abs(listed.get_duration() - session.get_duration()) < timedelta(seconds=5)


async def test_a_listed_session_can_be_updated(sessions, others, session):
    """What a list shows has been seen: its update lands without a read in between."""
    [listed] = await others.get_active_sessions(agent_type="tutor", user_id="anna")
    listed.pause()
    await others.update_session(listed)
    assert await sessions.get_active_sessions() == []
    assert (await sessions.get_session(session.session_id)).state is SessionState.PAUSED


async def test_the_sweep_fails_only_what_gave_no_sign_of_life(sessions, others, clock):
    """Sessions silent for max_age become failed for everybody, with the reason; a beat or a checkpoint saves one."""
    silent, beating, working, paused, fresh = [await sessions.create_session("tutor") for _ in range(5)]
    clock.pass_hours(30)
    paused.pause()
    await sessions.update_session(paused)
    clock.pass_hours(19)
    await sessions.update_session(beating)
    await sessions.checkpoint(working.session_id, "one", {"n": 1})
    fresh = await sessions.create_session("tutor")
    assert await others.cleanup_stale_sessions() == 1 + 1  # `silent` and the fifth, which nobody touched
    assert await others.cleanup_stale_sessions() == 0
    read = await sessions.get_session(silent.session_id)
    assert read.state is SessionState.FAILED
    assert read.context["failure_reason"] == "heartbeat_timeout"
    assert read.get_last_checkpoint("session_failed").data == {"error": "heartbeat_timeout", "details": {}}
    for alive in (beating, working, fresh):
        assert (await sessions.get_session(alive.session_id)).state is SessionState.ACTIVE
    assert (await sessions.get_session(paused.session_id)).state is SessionState.PAUSED
    with pytest.raises(Conflict):
        await sessions.update_session(silent)
    await sessions.refresh(silent)
    assert silent.state is SessionState.FAILED
    silent.recover()
    await sessions.update_session(silent)
    assert (await others.get_session(silent.session_id)).state is SessionState.ACTIVE
    assert await others.cleanup_stale_sessions() == 0


async def test_what_a_sweep_writes_vouches_for_what_stood_before(sessions, others, clock):
    """Whether a session was only created, saved a checkpoint last, or several entries together."""
    created, saved, together = [await sessions.create_session("tutor") for _ in range(3)]
    await sessions.checkpoint(saved.session_id, "one", {"n": 1})
    together.pause()
    together.resume()
    await sessions.update_session(together)
    clock.pass_hours(72)
    assert await others.cleanup_stale_sessions() == 3
    for session in (created, saved, together):
        trail = await others.audit(session.session_id)
        assert (trail.state, trail.misfit, trail.unlinked) == ("failed", None, 0)
        covered = sum(bytes.fromhex(line.link)[0] >> 1 for line in trail.lines)  # times, as the marks say
        assert covered == len(trail.lines) - 2  # all but the sweep's own


async def test_a_rollback_is_no_sign_of_life_but_taking_up_again_is(sessions, session, clock):
    """Somebody else's rollback does not keep a silent session alive; of a failed one it starts the clock anew."""
    await sessions.checkpoint(session.session_id, "one", {"n": 1})
    clock.pass_hours(49)
    await sessions.rollback(session.session_id, "one")
    assert await sessions.cleanup_stale_sessions() == 1
    await sessions.rollback(session.session_id, "one")
    assert (await sessions.get_session(session.session_id)).state is SessionState.ACTIVE
    assert await sessions.cleanup_stale_sessions() == 0


async def test_a_sweep_works_through_many_batches(sessions):
    """More stale sessions than one batch holds are all failed, each once."""
    for _ in range(450):
        await sessions.create_session("tutor")
    assert await sessions.cleanup_stale_sessions(timedelta(0)) == 450
    assert await sessions.count(state="failed") == 450
    with pytest.raises(InvalidInput):
        await sessions.cleanup_stale_sessions(timedelta(seconds=-1))


async def test_stats_and_summary_count(sessions, session):
    """Sessions are counted by state and type; one session's checkpoints by name."""
    await sessions.create_session("grader")
    session.checkpoint("turn", {"n": 1})
    session.checkpoint("turn", {"n": 2})
    session.complete()
    await sessions.update_session(session)
    stats = await sessions.stats()
    assert stats["sessions"] == 2
    assert stats["by_state"] == {"active": 1, "paused": 0, "completed": 1, "failed": 0}
    assert stats["by_agent_type"] == {"grader": 1, "tutor": 1}
    assert stats["entries"] == 5
    summary = await sessions.summary(session.session_id)
    assert summary["names"] == {"session_created": 1, "turn": 2, "session_completed": 1}
    assert (summary["total_count"], summary["unique_names"]) == (4, 3)
    assert summary["first_checkpoint"]["name"] == "session_created"
    assert summary["last_checkpoint"]["data"] == {"result": {}}
    assert summary["duration_seconds"] >= 0


async def test_times_are_the_stores_and_aware(sessions, clock):
    """created_at and last_heartbeat come from the store's clock, in UTC."""
    session = await sessions.create_session("tutor")
    assert session.created_at.tzinfo is UTC
    assert abs(session.created_at - datetime.fromtimestamp(clock.now / 1e6, UTC)) < timedelta(seconds=1)


async def test_the_callers_dicts_stay_the_callers(sessions):
    """create_session and update_session neither keep nor change what they are given."""
    context = {"list": [1]}
    session = await sessions.create_session("tutor", context=context)
    session.context["list"].append(2)
    await sessions.update_session(session)
    assert context == {"list": [1]}
    read = await sessions.get_session(session.session_id)
    read.context["list"].append(3)
    assert (await sessions.get_session(session.session_id)).context == {"list": [1, 2]}


async def test_refresh_takes_both_sides_of_a_nested_dict(sessions, others):
    """Changes of two writers inside one dict of the context are both kept; of the same key mine."""
    nested = {"x": 0, "y": 0, "z": {"deep": 0}, "gone": 1}
    mine = await sessions.create_session("tutor", context={"a": nested, "l": [1]})
    theirs = await others.get_session(mine.session_id)
    theirs.context["a"].update(y=2, new=3)
    theirs.context["a"]["z"]["theirs"] = 4
    await others.update_session(theirs)
    mine.context["a"]["x"] = 1
    mine.context["a"]["z"]["deep"] = 5
    del mine.context["a"]["gone"]
    await sessions.refresh(mine)
    await sessions.update_session(mine)
    want = {"a": {"x": 1, "y": 2, "z": {"deep": 5, "theirs": 4}, "new": 3}, "l": [1]}
    assert (await others.get_session(mine.session_id)).context == want


async def test_a_value_of_a_deleted_session_stays_with_it(sessions, others):
    """Refreshing a value of a former session with the same id is NotFound: nothing of it gets into the new one."""
    old = await sessions.create_session("tutor", session_id="s")
    old.checkpoint("ghost", {})
    old.context["ghost"] = 1
    await others.delete_session("s")
    await others.create_session("grader", session_id="s")
    for _ in range(2):
        with pytest.raises(NotFound):
            await sessions.refresh(old)
    await sessions.checkpoint("s", "fresh", {})
    read = await others.get_session("s")
    assert (read.context, [c.name for c in read.checkpoints]) == ({}, ["session_created", "fresh"])


@pytest.fixture
async def swept(sessions, others, session, clock) -> saveslot.AgentSession:
    """A value with work staged, of a session that was swept meanwhile; refreshed since."""
    session.checkpoint("work", {"n": 1})
    clock.pass_hours(49)
    assert await others.cleanup_stale_sessions() == 1
    with pytest.raises(Conflict):
        await sessions.update_session(session)
    await sessions.refresh(session)
    assert session.state is SessionState.FAILED
    with pytest.raises(InvalidTransition, match="recover"):
        await sessions.update_session(session)
    return session


async def test_what_was_staged_on_a_swept_session_lands_once_it_is_recovered(sessions, others, swept):
    """The recovery comes first, and no entry is shown as older than the one before it."""
    swept.recover()
    assert (swept.state, [c.name for c in swept.checkpoints][-2:]) == (
        SessionState.ACTIVE,
        ["session_recovered", "work"],
    )
    await sessions.update_session(swept)
    history = await others.history(swept.session_id)
    assert [c.name for c in history][-3:] == ["session_failed", "session_recovered", "work"]
    assert [c.id for c in swept.checkpoints] == [c.id for c in history]
    assert [c.timestamp for c in history] == sorted(c.timestamp for c in history)
    read = await others.get_session(swept.session_id)
    assert (read.state, swept.state, swept.staged) == (SessionState.ACTIVE, SessionState.ACTIVE, [])
    assert await others.get_data(swept.session_id) == {"n": 1}


@pytest.mark.parametrize("how", ["rollback", "by another"])
async def test_who_wants_to_recover_a_session_that_is_recovered_goes_on(sessions, others, swept, how):
    """A rollback of one's own or another's recovery did it already: the rest that was staged lands."""
    swept.recover()
    if how == "rollback":
        await sessions.rollback(swept, 1)
    else:
        theirs = await others.get_session(swept.session_id)
        theirs.recover()
        await others.update_session(theirs)
        with pytest.raises(Conflict):
            await sessions.update_session(swept)
        await sessions.refresh(swept)
    await sessions.update_session(swept)
    names = [c.name for c in await others.history(swept.session_id)]
    assert names[-1] == "work"
    assert names.count("session_recovered") == (how == "by another")


async def test_what_is_staged_can_be_taken_back(sessions, others, session):
    """As if it had not been asked for; what was changed in a dict stays, and is stored by the next update."""
    session.context["topic"] = "decimals"
    session.checkpoint("a", {})
    session.complete()
    assert [c.name for c in session.unstage()] == ["a", "session_completed"]
    assert (session.state, [c.name for c in session.checkpoints]) == (SessionState.ACTIVE, ["session_created"])
    await sessions.update_session(session)
    assert await others.get_session(session.session_id) == session
    assert (session.context, len(session.checkpoints)) == ({"topic": "decimals"}, 1)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("user_id", lambda session: setattr(session, "user_id", "ben")),
        ("agent_type", lambda session: setattr(session, "agent_type", "grader")),
        ("created_at", lambda session: setattr(session, "created_at", datetime(2026, 1, 2, tzinfo=UTC))),
        ("state", lambda session: setattr(session, "state", SessionState.COMPLETED)),
        ("checkpoints", lambda session: session.checkpoints.append(saveslot.SessionCheckpoint("mine"))),
        ("checkpoints", lambda session: session.checkpoints.insert(-1, saveslot.SessionCheckpoint("mine"))),
    ],
)
async def test_what_an_update_would_not_store_is_refused_by_name(sessions, others, session, part, change):
    """Nobody believes that it is saved; nothing is stored, and put right it goes on."""
    session.checkpoint("a", {})
    before = await others.get_session(session.session_id)
    change(session)
    with pytest.raises(InvalidInput) as caught:
        await sessions.update_session(session)
    assert caught.value.path == part
    assert await others.get_session(session.session_id) == before
    await sessions.refresh(session)
    await sessions.update_session(session)
    assert [c.name for c in await others.history(session.session_id)] == ["session_created", "a"]


async def test_a_refresh_that_fails_changes_nothing(sessions, others, session, stores, monkeypatch):
    """After a refresh that raised the value is as it was: its update still says Conflict."""
    await others.checkpoint(session.session_id, "theirs", {"n": 1})

    async def fail(*_, **__):
        raise Unavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(stores[0], "entries", fail)
        with pytest.raises(Unavailable):
            await sessions.refresh(session)
    session.context["mine"] = 1
    with pytest.raises(Conflict):
        await sessions.update_session(session)


async def test_a_list_of_active_sessions_holds_active_ones(sessions, others, session, stores, monkeypatch):
    """A session that ends or changes its labels while it is being listed is not shown for what it was."""
    heads = stores[0].heads
    theirs = await others.get_session(session.session_id)
    theirs.complete()

    async def late(refs):
        monkeypatch.setattr(stores[0], "heads", heads)
        await others.update_session(theirs)
        return await heads(refs)

    monkeypatch.setattr(stores[0], "heads", late)
    assert await sessions.get_active_sessions() == []


async def test_a_sweep_is_not_stopped_by_a_full_context(stores, clock):
    """A silent session whose context has no room left becomes failed with the others."""
    sessions = saveslot.SessionManager(store=stores[0], max_state_bytes=1000)
    await sessions.create_session("tutor")
    await sessions.create_session("tutor", context={"k": "x" * 940})
    clock.pass_hours(72)
    assert await sessions.cleanup_stale_sessions() == 2
    assert await sessions.get_active_sessions() == []
