"""`checkpoint(put= drop= append= cut= patch=)`: changes of some keys, on a manager and on `held`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings, strategies as st

from saveslot import InvalidInput, SessionManager, TooLarge
from saveslot.codec import text
from saveslot.codec.items import WINDOW, tail

START = {"items": [1, "two", {"three": [3, "],[\\"]}], "turn": 1, "draft": "…", "meta": {"a": [1, 2], "b": None}}


@pytest.fixture(params=["manager", "held", "cold"])
async def save(request, sessions, fresh):
    """Save a checkpoint of a session that starts with `START`, and return the data as stored."""
    await sessions.create_session("tutor", session_id="s", data=START)
    if request.param == "held":
        async with sessions.hold("s") as held:
            assert held.data == START

            async def kept(name, **changes):
                answer = await held.checkpoint(name, **changes)
                assert held.data == answer.data
                return await fresh().get_data("s")

            yield kept
        return

    async def saved(name, **changes):
        manager = fresh() if request.param == "cold" else sessions
        answer = await manager.checkpoint("s", name, **changes)
        assert answer.data == await fresh().get_data("s")
        return answer.data

    yield saved


async def test_a_state_has_at_most_so_many_keys(sessions, monkeypatch):
    """A state gets no more keys at its top than the limit; one that has more may change and lose them."""
    await sessions.create_session("t", session_id="s", data={str(n): n for n in range(8)})
    monkeypatch.setattr(text, "MAX_KEYS", 5)
    for change in ({"put": {"new": 1}}, {"append": {"new": [1]}}, {"data": {str(n): n for n in range(9)}}):
        with pytest.raises(TooLarge, match="keys at its top; keep them in an object"):
            await sessions.checkpoint("s", "x", **change)
    await sessions.checkpoint("s", "x", put={"1": 0, "new": 1}, drop=["2"])
    await sessions.checkpoint("s", "x", drop=["3", "4", "5", "6"])
    await sessions.checkpoint("s", "x", put={"last": 1})
    with pytest.raises(TooLarge):
        await sessions.checkpoint("s", "x", put={"more": 1})
    assert len(await sessions.get_data("s")) == 5


async def test_changes_combine(save):
    """Values are put, keys dropped, items added and taken off; the others stay, and the order of keys too."""
    data = await save(
        "all",
        put={"turn": 2, "new": [0]},
        drop=["draft"],
        append={"items": [4], "more": ["x"]},
        cut={"items": 2},
    )
    assert data == {"items": [1, 4], "turn": 2, "meta": START["meta"], "new": [0], "more": ["x"]}
    assert list(data) == ["items", "turn", "meta", "new", "more"]
    assert await save("empty", cut={"items": 2}) == {**data, "items": []}
    assert await save("again", append={"items": [[]]}) == {**data, "items": [[]]}
    assert await save("none", append={"items": []}, cut={"items": 0}, put={}, drop=()) == {**data, "items": [[]]}
    assert await save("keep") == {**data, "items": [[]]}


async def test_special_values_stay_exact(save):
    """A datetime, bytes and a key that looks like a tag come back as they were put."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    put = {"at": at, "raw": b"\x00", "$saveslot": ["datetime", "no"], "in": {"$saveslot": 1}}
    assert await save("special", put=put, append={"items": [at]}) == {**START, **put, "items": [*START["items"], at]}
    assert (await save("cut", cut={"items": 1}))["items"] == START["items"]


WRONG = {
    "drop.nobody": {"drop": ["turn", "nobody"]},
    "cut.items": {"cut": {"items": 4}},
    "cut.turn": {"cut": {"turn": 1}},
    "cut.nobody": {"cut": {"nobody": 1}},
    "cut.draft": {"cut": {"draft": True}},
    "cut.meta": {"cut": {"meta": 1}},
    "append.turn": {"append": {"turn": [1]}},
    "append.items": {"append": {"items": "text"}},
    "put.turn": {"put": {"turn": float("nan")}},
    "put.meta": {"put": {"meta": {"x y": object()}}},
    "drop.turn": {"put": {"turn": 2}, "drop": ["turn"]},
    "append.new": {"put": {"new": []}, "append": {"new": [1]}},
    "cut.draft ": {"drop": ["draft"], "cut": {"draft": 1}},
    "drop: must be a list": {"drop": "turn"},
    "drop": {"drop": [1]},
    "put: must be a dict": {"put": [1]},
    "cut: must be a dict": {"cut": 2},
    "checkpoint": {"patch": [], "put": {"turn": 2}},
    "checkpoint: pass only one": {"data": {}, "drop": ["turn"]},
}


@pytest.mark.parametrize("path", WRONG)
async def test_wrong_changes_are_refused_whole(save, path):
    """The error names the argument and the key, and nothing of the call is stored."""
    with pytest.raises(InvalidInput, match=path.strip()):
        await save("wrong", **WRONG[path])
    assert await save("after", append={"items": [5]}) == {**START, "items": [*START["items"], 5]}


async def test_negative_cut_is_refused(save):
    """A cut is a number of items, 0 or more."""
    for count in (-1, 1.0, "1", None):
        with pytest.raises(InvalidInput, match=r"cut\.items"):
            await save("wrong", cut={"items": count})


async def test_state_limit_counts_changes(fresh):
    """What the whole state would weigh is limited, not only what is put."""
    manager = fresh(max_state_bytes=2000)
    await manager.create_session("tutor", session_id="s", data={"a": "x" * 900, "b": "x" * 900})
    for changes in ({"put": {"c": "x" * 300}}, {"append": {"c": ["x" * 300]}}, {"put": {"a": "y" * 1200}}):
        with pytest.raises(TooLarge):
            await manager.checkpoint("s", "more", **changes)
    await manager.checkpoint("s", "swap", put={"c": "x" * 900}, drop=["a"])


async def test_other_keys_are_neither_decoded_nor_encoded(fresh, monkeypatch):
    """A put, an append, a cut and a patch of small keys beside a large one touch only the small ones."""
    manager = fresh()
    large = [{"text": "x" * 1000, "n": n} for n in range(2000)]
    await manager.create_session("tutor", session_id="s", data={"large": large, "small": [1, 2], "n": 1})
    coded = 0
    encode, decode = text._encode, text._decode  # noqa: SLF001  (all that is coded passes here)

    def count(use):
        def counted(value):
            nonlocal coded
            result = use(value)
            coded += len(result if isinstance(result, bytes) else value)
            return result

        return counted

    monkeypatch.setattr(text, "_encode", count(encode))
    monkeypatch.setattr(text, "_decode", count(decode))
    await manager.checkpoint("s", "put", put={"n": 2})
    await manager.checkpoint("s", "edit", append={"small": [3]}, drop=["n"])
    await manager.checkpoint("s", "cut", cut={"small": 1})
    await manager.checkpoint("s", "patch", patch=[{"op": "add", "path": "/small/0", "value": 0}])
    await manager.checkpoint("s", "move", patch=[{"op": "move", "from": "/small", "path": "/other"}])
    assert coded < 1000
    monkeypatch.undo()
    assert await fresh().get_data("s") == {"large": large, "other": [0, 1, 2]}


async def test_unsaved_changes_of_the_working_copy_wait(sessions, others):
    """On `held`, named changes are saved and made to the working copy; its other changes are saved by the next one."""
    await sessions.create_session("tutor", session_id="s", data={"items": [1, 2], "turn": 1, "draft": "x"})
    async with sessions.hold("s") as held:
        held.data["unsaved"] = True
        held.data["items"].append(3)
        items = held.data["items"]
        await held.checkpoint("some", put={"turn": 2}, drop=["draft"], cut={"items": 1}, append={"items": [4]})
        assert await others.get_data("s") == {"items": [1, 4], "turn": 2}
        assert held.data == {"items": [1, 2, 4], "turn": 2, "unsaved": True}
        assert held.data["items"] is items
        held.data["items"] = "no list"
        for changes in ({"append": {"items": [5]}}, {"cut": {"items": 1}}):
            with pytest.raises(InvalidInput, match=r"held\.data"):
                await held.checkpoint("refused", **changes)
        held.data["items"] = [9]
        await held.checkpoint("rest")
        assert await others.get_data("s") == {"items": [9], "turn": 2, "unsaved": True}


KEYS = st.sampled_from(["a", "b", "ü c", "d"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(['"', "\\", "],[", '\\"']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=8,
)
EDIT = st.tuples(st.sampled_from(["put", "drop", "append", "cut", "patch"]), KEYS, VALUES, st.integers(0, 3))


@given(st.dictionaries(KEYS, st.lists(VALUES, max_size=4), max_size=4), st.lists(EDIT, max_size=40))
@settings(max_examples=60)
async def test_random_changes_equal_a_plain_dict(start, edits):
    """Any sequence of changes leaves what the same changes of a dict leave, read by a manager that knows nothing."""
    sessions = SessionManager()
    await sessions.create_session("tutor", session_id="s", data=start)
    model = dict(start)
    for verb, key, value, count in edits:
        old = model.get(key)
        if verb == "put":
            changes, model[key] = {"put": {key: value}}, value
        elif verb == "drop" and key in model:
            changes = {"drop": {key}}
            del model[key]
        elif verb == "append" and isinstance(model.get(key, []), list):
            changes, model[key] = {"append": {key: [value, value]}}, [*(old or []), value, value]
        elif verb == "cut" and isinstance(old, list) and count <= len(old):
            changes, model[key] = {"cut": {key: count}, "append": {key: [value]}}, [*old[: len(old) - count], value]
        elif verb == "patch":
            changes, model[key] = {"patch": [{"op": "add", "path": f"/{key}", "value": value}]}, value
        else:
            continue
        await sessions.checkpoint("s", verb, **changes)
        assert await sessions.get_data("s") == model
    assert await SessionManager(store=sessions.engine.metered).get_data("s") == model


@given(st.lists(VALUES | st.text(alphabet='"\\[]{},x', max_size=3 * WINDOW), max_size=6), st.integers(0, 8))
def test_tail_finds_the_last_items(items, count):
    """The last items of a list start where its text says, however long they are and whatever they hold."""
    encoded, _ = text.encode(items, "items")
    start, found = tail(bytearray(encoded), count)
    assert found == min(count, len(items))
    rest, _ = text.encode(items[len(items) - found :], "items")
    assert b"[" + encoded[start:] == rest
