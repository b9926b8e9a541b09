"""Sessions: create, read, update, find, sweep and delete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import saveslot
from saveslot import AlreadyExists, Conflict, InvalidInput, InvalidTransition, NotFound, SessionState, Unavailable


async def test_created_session_is_read_back_equal(sessions, others):
    """Any manager reads back everything set at creation, including metadata and labels."""
    session = await sessions.create_session(
        "grader", user_id="ben", context={"a": [1, 2]}, metadata={"run": 7}, labels={"team": "red"}
    )
    read = await others.get_session(session.session_id)
    assert read == session
    assert (read.agent_type, read.user_id, read.metadata, read.labels) == ("grader", "ben", {"run": 7}, {"team": "red"})
    assert [(c.name, c.data) for c in read.checkpoints] == [
        ("session_created", {"agent_type": "grader", "user_id": "ben"})
    ]
    assert read.created_at == read.last_heartbeat == read.checkpoints[0].timestamp


async def test_unknown_session_is_none_or_not_found(sessions):
    """get_session returns None; every other call raises NotFound."""
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
async def test_impossible_ids_are_refused(sessions, bad):
    """An id that no store could keep raises InvalidInput and stores nothing."""
    with pytest.raises(InvalidInput, match="session_id"):
        await sessions.create_session("tutor", session_id=bad)
    with pytest.raises(InvalidInput, match=r"^id: "):
        await sessions.get_session(bad)
    assert await sessions.count() == 0


@pytest.mark.parametrize("odd", ["../x", "a:7", "a b", "日本", "x" * 200, "'; drop table sessions", "%_", "@latest"])
async def test_odd_ids_are_kept_exactly(sessions, others, odd):
    """Any other text is a valid id, and is never treated as a path or SQL."""
    await sessions.create_session("tutor", session_id=odd)
    await sessions.checkpoint(odd, "one", {"n": 1})
    assert (await others.get_checkpoint(odd, f"{odd}:2")).data == {"n": 1}
    assert [session.session_id for session in await others.find()] == [odd]


async def test_duplicate_id_is_refused(sessions, others, session):
    """A second session with the same id is refused and the first is unchanged."""
    with pytest.raises(AlreadyExists, match=session.session_id):
        await others.create_session("grader", session_id=session.session_id)
    assert await others.get_session(session.session_id) == session


async def test_update_appends_staged_entries_together(sessions, others, session):
    """Checkpoints, lifecycle changes and changed dicts land together, in order, and the value stays usable."""
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


async def test_empty_update_is_only_a_heartbeat(sessions, others, session, clock):
    """update_session always moves last_heartbeat; with nothing staged it adds nothing to the log."""
    clock.pass_hours(3)
    before = session.last_heartbeat
    await sessions.update_session(session)
    assert session.last_heartbeat >= before + timedelta(hours=3)
    read = await others.get_session(session.session_id)
    assert read.last_heartbeat == session.last_heartbeat
    assert len(await others.history(session.session_id, all=True)) == 1


async def test_stale_update_conflicts_and_loses_nothing(sessions, others, session):
    """A Conflict loses neither side's changes: staged entries stay staged, and land after a refresh."""
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


@pytest.mark.parametrize(
    ("before", "mine"), [(True, 1), (1, 1.0), (0, False), (0.0, -0.0), ([1], [True]), ({"a": [1]}, {"a": [1.0]})]
)
async def test_refresh_keeps_a_change_to_an_equal_value_of_another_type(sessions, others, before, mine):
    """Python's == calls 1, 1.0 and True equal, and 0.0 and -0.0; as stored they differ."""
    session = await sessions.create_session("tutor", context={"x": before}, metadata={"x": before})
    theirs = await others.get_session(session.session_id)
    theirs.context["theirs"] = 1
    await others.update_session(theirs)
    session.context["x"] = session.metadata["x"] = mine
    await sessions.refresh(session)
    await sessions.update_session(session)
    read = await others.get_session(session.session_id)
    assert repr(read.context) == repr({"x": mine, "theirs": 1})
    assert repr(read.metadata) == repr({"x": mine})


async def test_refresh_keeps_a_change_that_cannot_be_stored(sessions, others, session):
    """The update names it."""
    theirs = await others.get_session(session.session_id)
    theirs.context["theirs"] = 1
    await others.update_session(theirs)
    session.context["topic"] = {1, 2}
    await sessions.refresh(session)
    with pytest.raises(InvalidInput, match=r"context\.topic"):
        await sessions.update_session(session)


async def test_value_from_a_dict_must_be_refreshed(sessions, session):
    """A session built from a dict has seen no entries: its update is a Conflict until it is refreshed."""
    value = saveslot.AgentSession.from_dict(session.to_dict())
    value.checkpoint("one", {})
    with pytest.raises(Conflict, match="refresh"):
        await sessions.update_session(value)
    await sessions.refresh(value)
    await sessions.update_session(value)
    assert [c.name for c in await sessions.history(session.session_id)] == ["session_created", "one"]


async def test_ended_session_refuses_writes(sessions, others, session):
    """A completed session refuses checkpoints and transitions, and the error names both states."""
    theirs = await others.get_session(session.session_id)
    theirs.complete()
    await others.update_session(theirs)
    with pytest.raises(Conflict):
        await sessions.checkpoint(session.session_id, "late", {})
    await sessions.head(session.session_id)
    with pytest.raises(InvalidTransition, match="completed"):
        await sessions.checkpoint(session.session_id, "late", {})
    session.pause()
    await sessions.refresh(session)
    with pytest.raises(InvalidTransition, match=r"completed.*paused"):
        await sessions.update_session(session)
    with pytest.raises(InvalidTransition, match="fork"):
        await sessions.rollback(session.session_id, 1)


async def test_deleted_session_stays_deleted(sessions, others, session):
    """Delete returns True once; every manager sees the session gone, and a stale value cannot revive it."""
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


async def test_recreated_id_shares_nothing(sessions, others):
    """A deleted id can be created again; values and cached state of the old session are refused."""
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


async def test_namespaces_are_isolated(sessions, session, fresh):
    """The same id can exist in two namespaces; lists, counts and events stay in their own."""
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
    """Every filter narrows, pages neither overlap nor skip, and concurrent creations do not disturb them."""
    result = [
        await sessions.create_session(
            "tutor" if n % 2 else "grader",
            user_id=f"u{n % 3}",
            labels={"n": str(n), "team": "red" if n < 5 else "blue"},
        )
        for n in range(25)
    ]
    ids = [s.session_id for s in reversed(result)]
    seen, after = [], None
    while True:
        page = await sessions.find(limit=7, after=after)
        seen += [s.session_id for s in page]
        after = page.next
        if after is None:
            break
        await sessions.create_session("intruder")
    assert seen == ids
    sessions_found = await sessions.find(agent_type="tutor", user_id="u1")
    assert {s.session_id for s in sessions_found} == {result[n].session_id for n in range(25) if n % 2 and n % 3 == 1}
    assert [s.labels["n"] for s in await sessions.find(labels={"team": "red"})] == ["4", "3", "2", "1", "0"]
    assert await sessions.count(labels={"team": "blue"}) == 20
    assert await sessions.count(text="GRAD") == 13
    assert await sessions.count(text="red") == 5
    assert await sessions.count(prefix=result[3].session_id) == 1
    between = await sessions.find(created_after=result[2].created_at, created_before=result[5].created_at)
    assert [s.session_id for s in between] == [result[4].session_id, result[3].session_id]
    assert all(s.checkpoints == [] for s in sessions_found)
    with pytest.raises(InvalidInput, match="after"):
        await sessions.find(after="nonsense")
    with pytest.raises(InvalidInput, match="state"):
        await sessions.find(state="sleeping")
    with pytest.raises(InvalidInput, match="limit"):
        await sessions.find(limit=0)


async def test_listed_duration_stops_at_the_end(sessions, session, clock):
    """Without its history loaded, an ended session's duration still stops at its end."""
    session.complete()
    await sessions.update_session(session)
    clock.pass_hours(5)
    [listed] = await sessions.find()
    assert abs(listed.get_duration() - session.get_duration()) < timedelta(seconds=5)


async def test_listed_session_can_be_updated(sessions, others, session):
    """A listed value counts as read: its update lands without another read."""
    [listed] = await others.get_active_sessions(agent_type="tutor", user_id="anna")
    listed.pause()
    await others.update_session(listed)
    assert await sessions.get_active_sessions() == []
    assert (await sessions.get_session(session.session_id)).state is SessionState.PAUSED


async def test_sweep_fails_only_silent_sessions(sessions, others, clock):
    """Sessions silent for max_age become failed, with the reason; a heartbeat or a checkpoint prevents it."""
    silent, beating, working, paused, fresh = [await sessions.create_session("tutor") for _ in range(5)]
    clock.pass_hours(30)
    paused.pause()
    await sessions.update_session(paused)
    clock.pass_hours(19)
    await sessions.update_session(beating)
    await sessions.checkpoint(working.session_id, "one", {"n": 1})
    fresh = await sessions.create_session("tutor")
    assert await others.cleanup_stale_sessions() == 1 + 1  # `silent` and the fifth, which no one touched
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


async def test_sweep_links_cover_earlier_times(sessions, others, clock):
    """A sweep covers the earlier times of sessions just created, ending with a checkpoint or ending with a group."""
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


async def test_only_recovery_rollback_counts_as_heartbeat(sessions, session, clock):
    """Another caller's rollback does not keep a silent session alive; rolling back a failed one restarts its clock."""
    await sessions.checkpoint(session.session_id, "one", {"n": 1})
    clock.pass_hours(49)
    await sessions.rollback(session.session_id, "one")
    assert await sessions.cleanup_stale_sessions() == 1
    await sessions.rollback(session.session_id, "one")
    assert (await sessions.get_session(session.session_id)).state is SessionState.ACTIVE
    assert await sessions.cleanup_stale_sessions() == 0


async def test_sweep_spans_batches(sessions):
    """More stale sessions than one batch holds are all failed, each once."""
    for _ in range(450):
        await sessions.create_session("tutor")
    assert await sessions.cleanup_stale_sessions(timedelta(0)) == 450
    assert await sessions.count(state="failed") == 450
    with pytest.raises(InvalidInput):
        await sessions.cleanup_stale_sessions(timedelta(seconds=-1))


async def test_stats_and_summary_count(sessions, session):
    """Stats count sessions by state and type; a summary counts one session's checkpoints by name."""
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
    assert summary["stored_bytes"] == sum(entry.size for entry in await sessions.entries(session.session_id))


async def test_times_come_from_the_store_in_utc(sessions, clock):
    """created_at and last_heartbeat come from the store's clock, in UTC."""
    session = await sessions.create_session("tutor")
    assert session.created_at.tzinfo is UTC
    assert abs(session.created_at - datetime.fromtimestamp(clock.now / 1e6, UTC)) < timedelta(seconds=1)


async def test_callers_dicts_are_not_kept_or_changed(sessions):
    """create_session and update_session neither keep nor change the dicts they are given."""
    context = {"list": [1]}
    session = await sessions.create_session("tutor", context=context)
    session.context["list"].append(2)
    await sessions.update_session(session)
    assert context == {"list": [1]}
    read = await sessions.get_session(session.session_id)
    read.context["list"].append(3)
    assert (await sessions.get_session(session.session_id)).context == {"list": [1, 2]}


async def test_refresh_merges_nested_dicts(sessions, others):
    """Two writers' changes inside one dict of the context are both kept; for the same key the local one wins."""
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


async def test_refresh_never_crosses_incarnations(sessions, others):
    """Refreshing a value of a former session with the same id is NotFound: none of it reaches the new one."""
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
    """A value with staged entries, whose session was swept meanwhile, then refreshed."""
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


async def test_staged_entries_land_after_recovery(sessions, others, swept):
    """The recovery lands first, and no entry appears older than the one before it."""
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
async def test_recovering_twice_is_not_an_error(sessions, others, swept, how):
    """If this caller's rollback or another's recovery already revived it, the other staged entries land."""
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


async def test_unstage_discards_staged_entries(sessions, others, session):
    """Discarded entries are never stored; changes in a dict stay, and the next update stores them."""
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
async def test_update_refuses_changes_it_would_not_store(sessions, others, session, part, change):
    """The error names the field so that no caller believes it is saved; nothing is stored, and after a correction the
    update lands.
    """
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


async def test_failed_refresh_changes_nothing(sessions, others, session, stores, monkeypatch):
    """After a refresh that raised, the value is as it was: its update still raises Conflict."""
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


async def test_list_rechecks_filters(sessions, others, session, stores, monkeypatch):
    """A session that ends or changes its labels during the listing is not shown with its old state."""
    heads = stores[0].heads
    theirs = await others.get_session(session.session_id)
    theirs.complete()

    async def late(refs, **how):
        monkeypatch.setattr(stores[0], "heads", heads)
        await others.update_session(theirs)
        return await heads(refs, **how)

    monkeypatch.setattr(stores[0], "heads", late)
    assert await sessions.get_active_sessions() == []


async def test_full_context_does_not_stop_a_sweep(stores, clock):
    """A silent session whose context has no room left is failed with the others."""
    sessions = saveslot.SessionManager(store=stores[0], max_state_bytes=1000)
    await sessions.create_session("tutor")
    await sessions.create_session("tutor", context={"k": "x" * 940})
    clock.pass_hours(72)
    assert await sessions.cleanup_stale_sessions() == 2
    assert await sessions.get_active_sessions() == []


async def test_session_that_was_only_read_writes_nothing(sessions):
    """Whatever its context needs: tags for a datetime beside a key that looks like one, long numbers, escapes."""
    odd = [
        {"at": datetime.now(UTC)},
        {"$saveslot": ["x", 1]},
        {"n": 10**30, "f": -0.0},
        {"ü": "\u2028", "list": [1.5, None]},
    ]
    for context in odd:
        for metadata in odd:
            session = await sessions.create_session("tutor", context=context, metadata=metadata, labels={"k": "v"})
            session = await sessions.get_session(session.session_id)
            await sessions.update_session(session)
            assert (session.context, session.metadata) == (context, metadata)
            assert len(await sessions.history(session.session_id, all=True)) == 1
