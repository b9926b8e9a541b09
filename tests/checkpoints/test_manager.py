"""CheckpointManager, in memory and on a SQLite file: the same behaviour, and one log with the session manager."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from itertools import islice

import apsw
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from saveslot import (
    CheckpointManager,
    Conflict,
    InvalidInput,
    InvalidTransition,
    NotFound,
    Retention,
    Unavailable,
    blocking,
)
from saveslot.stores import open_store
from saveslot.stores.around.wrapper import PassingStore
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture
def durable(tmp_path):
    return f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture
def make():
    """Managers that are closed when the test ends."""
    items = []

    def start(session_id="s", **how):
        items.append(CheckpointManager(session_id, **how))
        return items[-1]

    yield start
    for manager in items:
        manager.close()


def ids(checkpoints):
    return [checkpoint.id for checkpoint in checkpoints]


class LosesAnswers(PassingStore):
    """A store whose writes land; while it is `deaf`, their answers are lost."""

    deaf = False

    async def append(self, groups, **how):
        verdicts = await self._inner.append(groups, **how)
        if LosesAnswers.deaf:
            LosesAnswers.deaf = False
            raise Unavailable("the answer was lost")
        return verdicts


@pytest.mark.parametrize("verb", ["create", "rollback_to", "clear", "import_checkpoints"])
def test_call_repeated_after_a_lost_answer_is_stored_once(make, durable, monkeypatch, verb):
    """The same call again stores nothing more, and returns what the first would have."""

    async def opened(url):
        return LosesAnswers(await open_store(url))

    monkeypatch.setattr("saveslot.checkpoints.manager.open_store", opened)
    manager = make(url=durable)
    first, export = manager.create("one", {"n": 1}), make(url=durable).export()
    manager.create("two", {"n": 2})
    call, answer, names = {
        "create": (lambda: manager.create("three", {"n": 3}).name, "three", ["one", "two", "three"]),
        "rollback_to": (lambda: manager.rollback_to(first.id), {"n": 1}, ["one", "two", "session_rolled_back"]),
        "clear": (manager.clear, 2, []),
        "import_checkpoints": (lambda: manager.import_checkpoints(export), 1, ["one", "two", "one"]),
    }[verb]
    LosesAnswers.deaf = True
    with pytest.raises(Unavailable, match="lost"):
        call()
    assert call() == answer
    assert [checkpoint.name for checkpoint in manager.get_all()] == names
    assert make(url=durable).export() == manager.export()


def test_what_was_created_comes_back(make, url):
    """A checkpoint has the next number, its name, time, data and metadata, and equals what every reader returns."""
    manager = make(url=url)
    before = datetime.now(UTC)
    first = manager.create("plan", {"n": 1, "when": before, "raw": b"\x00"}, {"model": "m"})
    second = manager.create("act")
    assert ids([first, second]) == ["s:1", "s:2"]
    assert (first.name, first.data, first.metadata) == (
        "plan", {"n": 1, "when": before, "raw": b"\x00"}, {"model": "m"},
    )  # fmt: skip
    assert before <= first.timestamp <= second.timestamp <= datetime.now(UTC)
    assert manager.get_all() == list(manager) == [first, second]
    assert manager.get("s:1") == first
    assert (second.data, second.metadata, len(manager)) == ({}, {}, 2)


def test_what_is_not_there_is_none(make, url):
    """An unknown id, name or session is None or empty, never an error; an empty history has an empty summary."""
    manager = make(url=url)
    assert manager.get_latest() is None
    assert manager.get_summary() == {
        "total_count": 0, "unique_names": 0, "names": {},
        "first_checkpoint": None, "last_checkpoint": None, "duration_seconds": 0,
    }  # fmt: skip
    manager.create("a")
    for unknown in ("s:2", "s:0", "t:1", "s", "", "s:01", "a", "s:x"):
        assert manager.get(unknown) is None
        assert manager.rollback_to(unknown) is None
    assert manager.get_by_name("b") == []
    assert manager.get_latest("b") is None
    assert len(manager) == 1


def test_they_are_found_by_name_and_time(make, url):
    """By name newest first; since a time without it, between two times with both."""
    manager = make(url=url)
    a, b, c = manager.create("x", {"n": 1}), manager.create("y", {"n": 2}), manager.create("x", {"n": 3})
    assert manager.get_by_name("x") == [c, a]
    assert (manager.get_latest(), manager.get_latest("y")) == (c, b)
    assert manager.get_since(a.timestamp) == [checkpoint for checkpoint in (b, c) if checkpoint.timestamp > a.timestamp]
    assert manager.get_since(c.timestamp) == []
    assert manager.get_since(a.timestamp - timedelta(microseconds=1)) == [a, b, c]
    assert manager.get_between(a.timestamp, c.timestamp) == [a, b, c]
    assert manager.get_between(c.timestamp, c.timestamp + timedelta(1))[-1:] == [c]
    assert manager.get_since(datetime(2020, 1, 1)) == [a, b, c]  # noqa: DTZ001  (one without a zone is UTC)


def test_the_callers_dicts_stay_the_callers(make, url):
    """Nothing of the caller's is kept or changed, and changing what is returned changes nothing here."""
    manager = make(url=url)
    data, metadata = {"items": [1]}, {"tags": ["a"]}
    checkpoint = manager.create("a", data, metadata)
    data["items"].append(2)
    metadata["tags"].append("b")
    manager.get("s:1").data["items"].append(3)
    manager.get("s:1").metadata["tags"].append("c")
    assert checkpoint.data == manager.get_latest().data == {"items": [1]}
    assert manager.get_latest().metadata == {"tags": ["a"]}
    manager.rollback_to("s:1")["items"].append(4)
    assert manager.get_latest().data == {"items": [1]}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["a", "b", "c", "clear", "roll back", "again"]), max_size=70),
    st.integers(1, 40),
    st.integers(0, 30),
)
def test_both_kinds_behave_like_a_list(tmp_path_factory, moves, most, after):
    """Whatever is done in whatever order, memory and SQLite show what a plain list thinned by the rule would show."""
    file = tmp_path_factory.mktemp("both") / "s.db"
    both = [CheckpointManager("s", most, after, url) for url in ("memory:", f"sqlite:///{file}")]
    model: list[tuple[str, dict[str, int]]] = []
    for n, move in enumerate(moves):
        if move == "again":
            both[1].close()
            both[1] = CheckpointManager("s", most, after, f"sqlite:///{file}")
            continue
        if move == "clear":
            model = []
        elif move != "roll back":
            model.append((move, {"n": n, "same": 1}))
        elif model:
            model.append(("session_rolled_back", model[len(model) // 2][1]))
        for manager in both:
            if move == "clear":
                manager.clear()
            elif move != "roll back":
                manager.create(move, {"n": n, "same": 1})
            elif len(manager):
                assert manager.rollback_to(manager.get_all()[len(manager) // 2].id) == model[-1][1]
        rule = Retention(max_checkpoints=most) if move == "roll back" else Retention.parity(most, after)
        entries = [Entry(place, b"", Kind.CHECKPOINT, name) for place, (name, _) in enumerate(model)]
        for place in reversed(rule.drops(entries, 0)):
            del model[place]
        for manager in both:
            assert [(checkpoint.name, checkpoint.data) for checkpoint in manager] == model
        assert ids(both[0]) == ids(both[1])
        assert len(both[0]) <= most
    both[1].close()


def test_thinning_leaves_the_numbers_alone(make, url):
    """60 checkpoints have the numbers 1 to 60; the first, the newest of each name and the last 20 stay."""
    manager = make(url=url)
    checkpoints = [manager.create(f"n{n % 3}", {"n": n}) for n in range(51)]
    assert ids(checkpoints) == [f"s:{n}" for n in range(1, 52)]
    assert ids(manager) == ["s:1", "s:29", "s:30", "s:31", *(f"s:{n}" for n in range(32, 52))]
    assert [kept.data["n"] for kept in manager] == [0, 28, 29, 30, *range(31, 51)]
    assert manager.get("s:2") is None
    for n in range(51, 500):
        manager.create(f"n{n}", {"n": n})
    assert len(manager) <= 100
    assert (manager.get_all()[0].id, manager.get_latest().id) == ("s:1", "s:500")


def test_clearing_hides_everything_and_no_number_comes_back(make, url):
    """After clear() the history is empty, and the next checkpoint has an unused number."""
    manager = make(url=url)
    old = [manager.create("a", {"n": n}) for n in range(3)]
    manager.clear()
    manager.clear()
    assert (len(manager), manager.get_all(), manager.get("s:1"), manager.get_latest("a")) == (0, [], None, None)
    new = manager.create("a", {"n": 9})
    assert new.seq > max(checkpoint.seq for checkpoint in old)
    assert manager.get_all() == [new]


def test_rolling_back_is_a_new_entry(make, url):
    """The data is returned and is the newest again; nothing of the history is lost."""
    manager = make(url=url)
    a = manager.create("a", {"n": 1})
    b = manager.create("b", {"n": 2})
    assert manager.rollback_to(a.id) == {"n": 1}
    assert manager.get_latest().data == {"n": 1}
    assert manager.get_latest().metadata == {"to": "s:1", "name": "a"}
    assert manager.get_all()[:2] == [a, b]


def test_the_summary_counts(make, url):
    """How many, under which names, the first and the last as dicts, and the time between them."""
    manager = make(url=url)
    a, b = manager.create("a", {"n": 1}), manager.create("b")
    manager.create("a")
    summary = manager.get_summary()
    assert (summary["total_count"], summary["unique_names"], summary["names"]) == (3, 2, {"a": 2, "b": 1})
    assert summary["first_checkpoint"] == a.to_dict()
    assert summary["last_checkpoint"]["id"] == "s:3"
    assert summary["duration_seconds"] >= (b.timestamp - a.timestamp).total_seconds()
    assert json.loads(json.dumps(summary)) == summary


def test_a_callback_gets_each_one_after_it_is_stored(make, url):
    """It may read the manager; a second replaces it; what it raises reaches the caller, and nothing is lost."""
    manager = make(url=url)
    got, others = [], []
    manager.on_checkpoint(lambda result: got.append((result.id, manager.get_latest().id)))
    manager.create("a")
    manager.on_checkpoint(others.append)
    second = manager.create("b")
    assert (got, others) == ([("s:1", "s:1")], [second])

    def refuse(_):
        raise ZeroDivisionError

    manager.on_checkpoint(refuse)
    with pytest.raises(ZeroDivisionError):
        manager.create("c", {"n": 3})
    assert manager.get_latest().data == {"n": 3}
    manager.on_checkpoint(None)
    assert manager.create("d").id == "s:4"


def test_an_export_comes_back(make, url):
    """Into a new history with ids, names, times, data and metadata; into itself under new numbers."""
    manager = make(url=url)
    for n in range(53):
        manager.create(f"n{n % 3}", {"n": n, "when": datetime.now(UTC), "raw": b"\xff"}, {"n": n})
    text = manager.export()
    assert [item["id"] for item in json.loads(text)] == ids(manager)
    copy = CheckpointManager("s")
    assert copy.import_checkpoints(text) == len(manager)
    assert copy.get_all() == manager.get_all()
    assert copy.create("next").id == "s:54"
    before = manager.get_all()
    assert manager.import_checkpoints(text) == len(before)
    after = manager.get_all()
    assert after[: len(before)] == before
    assert [checkpoint.data for checkpoint in after[len(before) :]] == [checkpoint.data for checkpoint in before]
    assert len(set(ids(after))) == len(after) == 2 * len(before)


def test_numbers_are_kept_where_they_are_free(make, url):
    """Taken, doubled, missing and foreign numbers become the next free ones; none is ever used twice."""
    manager = make(url=url)
    manager.create("mine")
    manager.create("mine")
    manager.clear()
    answer = [
        ("s:7", "kept"),
        ("s:2", "taken"),
        ("s:7", "twice"),
        (None, "none"),
        ("t:5", "other"),
        ("odd", "no number"),
    ]
    items = [{"id": own, "name": name, "timestamp": "2020-01-01T00:00:00", "data": {}} for own, name in answer]
    assert manager.import_checkpoints(json.dumps(items)) == 6
    numbers = {checkpoint.name: checkpoint.seq for checkpoint in manager}
    assert numbers == {"kept": 7, "other": 5, "taken": 8, "twice": 9, "none": 10, "no number": 11}
    assert manager.create("next").id == "s:12"
    assert manager.get("s:7").timestamp == datetime(2020, 1, 1, tzinfo=UTC)
    far = [{"id": "s:9000000000", "name": "far"}]
    assert manager.import_checkpoints(json.dumps(far)) == 1
    assert manager.get_latest().id == "s:13"


@pytest.mark.parametrize(
    "bad",
    [
        "", "nonsense", "{}", "3", '{"id": 1}', "[1]", "[{}]", '[{"name": ""}]', '[{"name": 3}]', "[null]",
        '[{"name": "a", "timestamp": "soon"}]', '[{"name": "a", "data": [1]}]', '[{"name": "a", "data": {"x": NaN}}]',
        '[{"name": "a", "timestamp": "1969-12-31T23:59:59Z"}]', '[{"name": "a", "timestamp": "1960-01-01"}]',
        '[{"name": "a", "data": {"x": 1, "x": 2}}]', '[{"name": "a", "metadata": 3}]', '[{"name": "a\\u0000"}]',
        "[" * 5000 + "]" * 5000, '[{"name": "a", "data": {"x": {"$saveslot": ["nope", 1]}}}]',
        '[{"name": "a", "data": {"x": "\\ud800"}}]', '[{"name": "a", "data": {"x": "\ud800"}}]', b"[]", None,
    ],
)  # fmt: skip
def test_a_bad_import_changes_nothing(make, url, bad):
    """It raises InvalidInput, also when only its last item is wrong, and the history and its numbers are as before."""
    manager = make(url=url)
    manager.create("a")
    good = '[{"name": "good"}, '
    for text in (bad, good + bad[1:] if isinstance(bad, str) and bad.startswith("[{") else bad):
        with pytest.raises(InvalidInput, match=r"^import"):
            manager.import_checkpoints(text)
    assert manager.import_checkpoints("[]") == 0
    assert ids(manager) == ["s:1"]
    assert manager.create("b").id == "s:2"


def test_an_import_keeps_to_the_maximum(make, url):
    """Of 30 imported into room for 10 the first and the newest are shown, and all 30 are counted."""
    items = [{"name": f"n{n}", "data": {"n": n}} for n in range(30)]
    manager = make(max_checkpoints=10, url=url)
    assert manager.import_checkpoints(json.dumps(items)) == 30
    assert [checkpoint.data["n"] for checkpoint in manager] == [0, *range(21, 30)]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"session_id": ""}, "session_id"),
        ({"max_checkpoints": 0}, "max_checkpoints"),
        ({"max_checkpoints": "5"}, "max_checkpoints"),
        ({"compress_after": -1}, "compress_after"),
        ({"compress_after": True}, "compress_after"),
        ({"url": "nonsense"}, "url"),
        ({"url": ""}, "url"),
        ({"url": 5}, "url"),
    ],
)
def test_wrong_arguments_are_refused(arguments, path):
    """What makes no sense raises InvalidInput that names the argument."""
    with pytest.raises(InvalidInput) as error:
        CheckpointManager(**{"session_id": "s", **arguments})
    assert error.value.path == path


def test_what_cannot_be_stored_is_refused_everywhere(make, url):
    """Memory takes what a file takes: a value that would not come back as it was raises, and uses no number."""
    manager = make(url=url)
    for bad in ({"x": {1, 2}}, {"x": float("nan")}, {1: 2}, [1]):
        with pytest.raises(InvalidInput):
            manager.create("a", bad)
    with pytest.raises(InvalidInput):
        manager.create("")
    assert manager.create("a").id == "s:1"


def test_a_few_of_ten_thousand_are_found_by_time(make, url):
    """Of 10,000 checkpoints get_since and get_between give exactly those within their bounds."""
    manager = make(max_checkpoints=20_000, compress_after=20_000, url=url)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    items = [
        {"name": f"n{n % 7}", "timestamp": (start + timedelta(seconds=n)).isoformat(), "data": {"n": n}}
        for n in range(10_000)
    ]
    assert manager.import_checkpoints(json.dumps(items)) == len(manager) == 10_000
    since = manager.get_since(start + timedelta(seconds=9_990))
    assert [checkpoint.data["n"] for checkpoint in since] == [*range(9_991, 10_000)]
    between = manager.get_between(start + timedelta(seconds=5_000), start + timedelta(seconds=5_009))
    assert [checkpoint.data["n"] for checkpoint in between] == [*range(5_000, 5_010)]


def test_threads_may_share_one(make, url):
    """Checkpoints from eight threads all land, each under a number of its own, and each reads back its own data."""
    manager = make(max_checkpoints=1000, compress_after=1000, url=url)
    wrong = []

    def work(thread):
        for n in range(25):
            checkpoint = manager.create("x", {"thread": thread, "n": n})
            if checkpoint.data != {"thread": thread, "n": n} or manager.get(checkpoint.id) != checkpoint:
                wrong.append(checkpoint)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert ids(manager) == [f"s:{n}" for n in range(1, 201)]
    assert len({(checkpoint.data["thread"], checkpoint.data["n"]) for checkpoint in manager}) == 200


# On a durable url


def test_another_one_goes_on_where_it_ended(make, durable):
    """A manager that opens the same log shows the same, and continues after its head."""
    first = make(url=durable)
    for n in range(60):
        first.create(f"n{n % 3}", {"n": n}, {"n": n})
    shown = first.get_all()
    first.close()
    second = make(url=durable)
    assert second.get_all() == shown
    assert second.create("next").id == "s:61"
    second.clear()
    assert len(make(url=durable)) == 0


def test_the_session_manager_sees_the_same_log(make, durable):
    """Its history, session, refs and latest data are what the checkpoint manager shows; a hidden one is nowhere."""
    manager = make(url=durable)
    for n in range(51):
        manager.create(f"n{n % 3}", {"n": n}, {"n": n})
    with blocking.open(durable) as sessions:
        assert sessions.history("s") == manager.get_all()
        session = sessions.get_session("s")
        assert [checkpoint.id for checkpoint in session.checkpoints] == ids(manager)
        assert sessions.get_checkpoint("s") == manager.get_latest()
        assert sessions.get_checkpoint("s", "~23") == manager.get("s:1")
        assert sessions.get_checkpoint("s", "n0").id == "s:49"
        assert ids(sessions.history("s", name="n0", limit=8)) == ids(manager.get_by_name("n0"))[7::-1]
        assert sessions.summary("s")["names"] == manager.get_summary()["names"]
        assert [line.id for line in sessions.log("s")] == ids(manager)
        assert {line.kind for line in sessions.log("s")} == {"checkpoint"}
        assert len(sessions.history("s", all=True)) == 51
        for hidden in (2, "s:2", "~24"):
            with pytest.raises(NotFound):
                sessions.get_checkpoint("s", hidden)
        with pytest.raises(NotFound):
            sessions.rollback("s", 2)
        assert [event.kind for event in islice(sessions.watch("s", after=0), 51)] == ["checkpoint"] * 51
        manager.rollback_to("s:1")
        assert sessions.get_data("s") == {"n": 0}
        manager.clear()
        assert sessions.history("s") == sessions.get_session("s").checkpoints == []
        assert sessions.get_data("s") == {}
        assert sessions.summary("s")["total_count"] == 0
        with pytest.raises(NotFound):
            sessions.get_checkpoint("s")
        sessions.checkpoint(sessions.get_session("s"), "theirs", {"n": 1})
    assert [checkpoint.name for checkpoint in manager] == ["theirs"]


def test_a_thinned_and_cleared_log_can_be_moved(make, durable):
    """Export and import of the session keep what is hidden hidden, and a session that begins with a checkpoint."""
    manager = make(url=durable)
    for n in range(55):
        manager.create(f"n{n % 3}", {"n": n})
    manager.rollback_to("s:1")
    with blocking.open(durable) as sessions:
        moved = sessions.import_session(sessions.export("s"), session_id="t")
        expected = [(checkpoint.seq, checkpoint.name, checkpoint.data) for checkpoint in manager]
        assert [(checkpoint.seq, checkpoint.name, checkpoint.data) for checkpoint in sessions.history("t")] == expected
        assert [checkpoint.name for checkpoint in moved.checkpoints] == [name for _, name, _ in expected]
        moved.context["topic"] = "fractions"
        sessions.update_session(moved)
        assert sessions.get_session("t").context == {"topic": "fractions"}
        manager.clear()
        manager.create("after", {"n": 99})
        sessions.import_session(sessions.export("s"), session_id="u")
        assert [checkpoint.name for checkpoint in sessions.history("u")] == ["after"]
        assert sessions.fork("u").checkpoints[-1].data == {"n": 99}


def test_an_existing_session_is_taken_up(make, durable):
    """Its checkpoints are shown, its lifecycle is respected, and clear() leaves that alone."""
    with blocking.open(durable) as sessions:
        session = sessions.create_session("tutor", session_id="s")
        sessions.checkpoint(session, "theirs", {"n": 1})
        manager = make(url=durable)
        assert [checkpoint.name for checkpoint in manager] == ["theirs"]
        assert manager.create("mine", {"n": 2}).id == "s:3"
        manager.clear()
        assert [checkpoint.name for checkpoint in sessions.history("s")] == ["session_created"]
        sessions.refresh(session)
        session.complete()
        sessions.update_session(session)
        assert len(manager) == 0
        with pytest.raises(InvalidTransition):
            manager.create("late")


def test_a_late_writer_is_refused_and_can_look(make, durable):
    """A manager that has not seen the newest entry gets one `Conflict`; after a read it continues."""
    one, two = make(url=durable), make(url=durable)
    one.create("a", {"n": 1})
    with pytest.raises(Conflict, match=r"read the history again \(get_all\), then decide again"):
        two.create("b", {"n": 2})
    assert two.create("b", {"n": 2}).id == "s:2"
    with pytest.raises(Conflict):
        one.create("c", {"n": 3})
    assert [checkpoint.name for checkpoint in one] == ["a", "b"]
    assert one.create("c", {"n": 3}).id == "s:3"
    assert two.get_latest().data == {"n": 3}


def test_a_retry_after_an_unknown_outcome_stores_once(make, durable, monkeypatch):
    """While another program holds the file's lock a write raises Unavailable; done again, it is there exactly once."""
    monkeypatch.setattr("saveslot.stores.sqlite.writer.PATIENCE", 0.05)
    manager = make(url=durable)
    other = apsw.Connection(durable.removeprefix("sqlite:///"))
    for n in (1, 2):
        other.execute("begin immediate")
        with pytest.raises(Unavailable):
            manager.create("a", {"n": n}, {"n": n})
        other.execute("rollback")
        assert manager.create("a", {"n": n}, {"n": n}).data == {"n": n}
    other.execute("begin immediate")
    with pytest.raises(Unavailable):
        manager.create("b", {"n": 3})
    other.execute("rollback")
    other.close()
    assert manager.create("c", {"n": 4}).id == "s:4"
    assert [(checkpoint.id, checkpoint.name, checkpoint.data["n"]) for checkpoint in manager] == [
        ("s:1", "a", 1), ("s:2", "a", 2), ("s:3", "b", 3), ("s:4", "c", 4),
    ]  # fmt: skip


def test_nothing_shown_needs_what_a_clear_hid(make, durable):
    """Once the bytes of cleared checkpoints are gone, those made since still read, and can be built on."""
    manager = make(url=durable)
    for n in range(5):
        manager.create("a", {"n": n, "long": "text " * 100})
    manager.clear()
    manager.create("b", {"n": 9, "long": "text " * 100})
    manager.create("b", {"n": 10, "long": "text " * 100})
    shown = [checkpoint.data for checkpoint in manager]

    async def empty():
        store = await open_store(durable)
        [head] = await store.heads([("default", "s")])
        assert await store.empty(head.row.key, range(1, 7)) == 5
        await store.close()

    asyncio.run(empty())
    again = make(url=durable)
    assert [checkpoint.data for checkpoint in again] == shown
    assert again.create("c", {"n": 11}).data == {"n": 11}


def test_a_deleted_session_does_not_come_back(make, durable):
    """The manager of a deleted session raises NotFound; a new one starts at 1."""
    manager = make(url=durable)
    manager.create("a")
    with blocking.open(durable) as sessions:
        sessions.delete_session("s")
    for call in (lambda: len(manager), lambda: manager.create("b"), manager.get_latest):
        with pytest.raises(NotFound):
            call()
    assert make(url=durable).create("new").id == "s:1"
    with pytest.raises(NotFound):
        manager.create("b")


def test_a_closed_one_says_so(durable):
    """After close every verb raises Unavailable; closing again does nothing."""
    with CheckpointManager("s", url=durable) as manager:
        manager.create("a")
    manager.close()
    for call in (lambda: manager.create("b"), manager.get_all, manager.clear):
        with pytest.raises(Unavailable, match="closed"):
            call()
