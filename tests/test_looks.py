"""What a user sees in a REPL: reprs, hints, and errors that name the cause."""

from __future__ import annotations

import pydoc
import re

import pytest

import saveslot
from saveslot import (
    CheckpointManager,
    CheckpointStore,
    Conflict,
    InvalidTransition,
    LeaseHeld,
    SessionManager,
    blocking,
)


async def test_reprs_name_session_and_store(place):
    """A manager's repr names namespace and store, a held session's its id, entry and fence."""
    async with saveslot.open(place, namespace="school") as sessions:
        session = await sessions.create_session("tutor", session_id="lesson-1")
        async with sessions.hold(session) as held:
            await held.checkpoint("asked", {"n": 1})
            assert repr(held) == "<Held lesson-1 seq=3 fence=1>"
            assert held.id == "lesson-1"
        assert repr(held) == "<Held lesson-1 seq=4 fence=1 ended>"
        kind = {"memory": "Memory", "sqlite": "Sqlite", "postgresql": "Postgres", "http": "Http"}[
            place.partition(":")[0]
        ]
        assert re.fullmatch(rf"<SessionManager school on <{kind}Store.*>>", repr(sessions))
        assert repr(sessions.of("other")).startswith("<SessionManager other on <")
        assert repr(sessions.keeper) == "<Keeper school>"
        await sessions.keeper.start()
        assert repr(sessions.keeper) == "<Keeper school running>"


async def test_repr_of_a_hot_tier_names_the_store_below(valkey_url):
    """A tiered store's repr shows the durable store; a Valkey store's its URL."""
    async with saveslot.open("memory:", hot=valkey_url) as sessions:
        assert repr(sessions) == "<SessionManager default on <TieredStore on <MemoryStore>>>"
    async with saveslot.open(valkey_url) as sessions:
        assert repr(sessions) == f"<SessionManager default on <ValkeyStore {valkey_url}>>"


def test_reprs_hide_passwords(tmp_path):
    """No repr shows a URL's password."""
    assert "secret" not in repr(saveslot.open("postgresql://anna:secret@db/x"))


def test_blocking_reprs(tmp_path):
    """The blocking ones read alike, and have `held.id` too."""
    with blocking.open(tmp_path / "s.db") as sessions:
        assert repr(sessions) == f"<blocking SessionManager default on <SqliteStore {tmp_path / 's.db'}>>"
        sessions.create_session("tutor", session_id="lesson-1")
        with sessions.hold("lesson-1") as held:
            assert held.id == "lesson-1"
            assert repr(held) == "<blocking Held lesson-1 seq=2 fence=1>"
        assert repr(sessions.keeper) == "<blocking Keeper default>"
    assert dir(blocking) == ["Held", "Keeper", "SessionManager", "open"]


def public(value) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


async def test_dir_lists_what_users_call():
    """`dir`, which a REPL completes from, has the same names in both APIs, and none that only the package uses."""
    with blocking.open("memory:") as sessions, sessions.hold("s", create="tutor") as held:
        names, verbs = public(sessions), public(held)
        session = public(held.session)
    async with saveslot.open("memory:") as sessions, sessions.hold("s", create="tutor") as held:
        assert public(sessions) == names
        assert public(held) == verbs
        assert {"hold", "namespace", "worker"} <= names
        assert {"checkpoint", "data", "lost", "step"} <= verbs
        await held.checkpoint("asked", {})
    assert session == {
        *saveslot.AgentSession("s").to_dict(),
        "owner",
        "head",
        "version",
        "from_dict",
        "to_dict",
        "unstage",
    } | {
        *("checkpoint", "complete", "fail", "get_duration", "get_last_checkpoint"),
        *("heartbeat", "pause", "recover", "resume"),
    }


def test_checkpoint_manager_and_store(tmp_path):
    """Both say what they are of; an empty manager is true; a store says which file a session is in."""
    manager = CheckpointManager("s")
    assert manager
    assert repr(manager) == "<CheckpointManager s on memory, 0 checkpoints>"
    manager.create("a", {})
    assert repr(manager) == "<CheckpointManager s on memory, 1 checkpoint>"
    with CheckpointManager("s", url=tmp_path / "s.db") as stored:
        assert repr(stored) == f"<CheckpointManager s on sqlite:///{tmp_path}/s.db, 0 checkpoints>"
    store = CheckpointStore(tmp_path)
    assert repr(store) == f"<CheckpointStore {tmp_path}>"
    store.write("a/b", {"task": "t"})
    assert store.path("a/b") == tmp_path / "a%2Fb.yaml"
    assert store.path("a/b").is_file()
    assert store.path("none") == tmp_path / "none.yaml"


def test_unopened_manager_says_how_to_open_it():
    """An attribute of `saveslot.open(…)` that was not awaited raises an error that names `await` and `async with`."""
    opening = saveslot.open("memory:")
    with pytest.raises(AttributeError, match=r"no 'create_session': write `async with .* await saveslot\.open"):
        opening.create_session("tutor")
    assert "memory:" in repr(opening)
    assert "await" in repr(opening)
    assert not hasattr(opening, "close")


async def test_hold_without_its_block_says_how_to_write_it():
    """Forgotten `async`, `with` or both: the error has the line to write; nothing is taken."""
    async with saveslot.open("memory:") as sessions:
        hold = sessions.hold("lesson-1", create="tutor")
        assert repr(hold).startswith("<hold of lesson-1: write `async with")
        with pytest.raises(AttributeError, match="has no 'checkpoint': write `async with"):
            hold.checkpoint("asked")
        with pytest.raises(TypeError, match="write `async with"):
            await hold
        with pytest.raises(TypeError, match="write `async with"), hold:
            pass
        assert await sessions.count() == 0
    with blocking.open("memory:") as sessions:
        hold = sessions.hold("lesson-1", create="tutor")
        assert repr(hold).startswith("<blocking hold of lesson-1: write `with")
        with pytest.raises(AttributeError, match="has no 'checkpoint': write `with"):
            hold.checkpoint("asked")
        assert sessions.count() == 0


def test_open_without_async_names_the_blocking_one():
    """`with saveslot.open(…)` points to `saveslot.blocking.open` and to `async with`."""
    with pytest.raises(TypeError, match=r"with saveslot\.blocking\.open.*async with saveslot\.open"), saveslot.open():
        pass


def test_help_starts_with_an_example():
    """`help(saveslot)` shows a program that can be pasted."""
    text = pydoc.plain(pydoc.render_doc(saveslot))
    assert "async with saveslot.open(" in text[:1500]
    assert "asyncio.run(main())" in text[:1500]


async def test_held_by_this_process_says_so(place):
    """LeaseHeld names this process if it is the holder, whichever manager it asks."""
    async with saveslot.open(place) as sessions:
        await sessions.create_session("tutor", session_id="a")
        async with sessions.hold("a") as held:
            for call in (sessions.take("a"), sessions.checkpoint("a", "mine", {})):
                with pytest.raises(
                    LeaseHeld, match=r"is held by this process \(.*:\d+\) since .*; use that `held`"
                ) as hit:
                    await call
                assert hit.value.owner == held.session.owner.worker


async def test_write_after_completion_says_completed(place):
    """A write to a session that ended since says how it ended, and not that another writer wrote."""
    async with saveslot.open(place) as sessions:
        await sessions.create_session("tutor", session_id="a")
        async with sessions.hold("a") as held:
            await held.checkpoint("asked", {"n": 1})
            await held.complete({"grade": "A"})
        with pytest.raises(InvalidTransition, match="cannot checkpoint a completed session"):
            await sessions.checkpoint("a", "more", {"n": 2})
        await sessions.create_session("tutor", session_id="b")
        value = await sessions.get_session("b")
        async with sessions.hold("b") as held:
            await held.fail("out of money")
        value.pause()
        with pytest.raises(Conflict, match="it was failed"):
            await sessions.update_session(value)


@pytest.mark.parametrize("given", ["agents.db", "./agents", "data/agents.db", "~/agents.db"])
async def test_plain_paths_are_sqlite_files(given, tmp_path, monkeypatch):
    """A relative or absolute path, as text or `Path`, is a SQLite file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / given.replace("~", "home")
    async with saveslot.open(given) as sessions:
        await sessions.create_session("tutor")
    assert file.is_file()
    async with saveslot.open(file) as sessions:
        assert await sessions.count() == 1
    with CheckpointManager("s", url=given) as checkpoints:
        checkpoints.create("a", {})
    with blocking.open(str(file)) as sessions:
        assert sessions.count() == 2


async def test_special_characters_in_a_path_are_kept(tmp_path):
    """A plain path is taken as it is: percent signs, question marks and spaces are part of its name."""
    async with saveslot.open(tmp_path / "50% of? it.db") as sessions:
        await sessions.create_session("tutor")
    assert (tmp_path / "50% of? it.db").is_file()


@pytest.mark.parametrize("given", ["agents", "localhost", ".hidden", ":memory:"])
async def test_a_bare_name_is_refused(given):
    """A name without folder or suffix could be anything: the error says how to write a file."""
    with pytest.raises(saveslot.InvalidInput, match=r"names no store: for a file write \./.*sqlite:///file\.db"):
        await saveslot.open(given)


async def test_paths_in_the_environment_and_settings(tmp_path, monkeypatch):
    """SAVESLOT_URL takes a path relative to the working folder, saveslot.toml one relative to itself."""
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.delenv("SAVESLOT_URL", raising=False)
    (tmp_path / "saveslot.toml").write_text('url = "data/agents.db"\n')
    async with saveslot.open() as sessions:
        await sessions.create_session("tutor")
    assert (tmp_path / "data" / "agents.db").is_file()
    monkeypatch.setenv("SAVESLOT_URL", "here.db")
    async with saveslot.open() as sessions:
        await sessions.create_session("tutor")
    assert (tmp_path / "below" / "here.db").is_file()


def test_manager_classes_are_documented():
    """`SessionManager()` needs no arguments, and says that it is in memory."""
    assert repr(SessionManager()) == "<SessionManager default on <MemoryStore>>"
