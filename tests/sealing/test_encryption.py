"""With a key everything works as without one, and nothing that was saved can be read without it."""

from __future__ import annotations

import base64
import itertools
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import asyncpg
import pytest
import valkey
from hypothesis import HealthCheck, given, settings, strategies as st

import saveslot
from saveslot import (
    CheckpointManager,
    Corrupt,
    InvalidInput,
    KeyMissing,
    Retention,
    SessionManager,
    Thinned,
    WrongKey,
)
from saveslot.codec import Keyring, new_key
from saveslot.stores.memory import MemoryStore

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = "the crown jewels are under the third stair"  # noqa: S105
AT = datetime(2026, 1, 2, tzinfo=UTC)


def raw(file: Path) -> bytes:
    """All bytes of a SQLite database, as they lie in its folder."""
    return b"".join(path.read_bytes() for path in sorted(file.parent.glob(f"{file.name}*")))


async def story(sessions: SessionManager) -> list[object]:
    """Every verb once; what a caller saw of it, without ids and times of its own."""
    told: list[object] = []
    session = await sessions.create_session(
        "tutor", "anna", {"topic": SECRET}, {"at": AT}, labels={"env": "prod"}, session_id="s"
    )
    session.checkpoint("asked", {"messages": [SECRET]})
    session.context["step"] = 2
    await sessions.update_session(session)
    await sessions.checkpoint("s", "more", append={"messages": [SECRET + "!"]}, metadata={"why": SECRET})
    async with sessions.hold("s") as held:
        await held.checkpoint("held", {**held.data, "n": 1})
        told.append(await held.step("ask", lambda: {"answer": SECRET}))
        told.append(await held.step("ask", lambda: {"answer": "another"}))
        await held.update_context(mood="good")
        await held.rollback("more")
        told.append(held.data)
    fork = await sessions.fork("s", "asked", session_id="fork")
    told.append(fork.context)
    told.append(await sessions.diff("s", "asked", "held"))
    copy = await sessions.import_session(await sessions.export("s"), session_id="copy")
    await sessions.import_session(await sessions.export("s", plain=True), session_id="plain-copy")
    told += [copy.context, copy.metadata, await sessions.get_data("copy"), await sessions.get_data("plain-copy")]
    session = await sessions.refresh(session)
    session.fail("no more", {"why": SECRET})
    await sessions.update_session(session)
    for name in ("s", "fork", "copy", "plain-copy"):
        found = await sessions.get_session(name)
        told.append((found.context, found.metadata, found.labels, found.state))
        told.append([(c.name, c.data, c.metadata) for c in await sessions.history(name, all=True)])
        told.append([(line.name, line.kind, line.changed) for line in await sessions.log(name)])
        told.append((await sessions.summary(name))["names"])
    told.append([(s.session_id, s.context) for s in await sessions.find(text="prod")])
    return json.loads(json.dumps(told, default=str).replace(sessions.worker["name"], "worker"))


async def test_everything_works_sealed(opened):
    """The same story, told with and without a key, reads the same, also by a manager that opens the store anew."""
    async with SessionManager() as sessions:
        expected = await story(sessions)
    async with opened(encryption_key=KEY) as sessions:
        assert await story(sessions) == expected
    async with opened(encryption_key=base64.b64encode(KEY).decode()) as sessions:
        found = await sessions.get_session("s")
        assert (found.context["topic"], found.metadata) == (SECRET, {"at": AT})
        assert await sessions.get_data("s") == {"messages": [SECRET, SECRET + "!"]}
        async with sessions.hold("fork") as held:
            assert held.data == {"messages": [SECRET]}
        assert (await sessions.rotate_keys())["rotated"] == 0


async def test_orphans_are_claimed_sealed(opened):
    """Who takes over a dead worker's session reads it; a worker without the key leaves it to those who have it."""
    async with opened(encryption_key=KEY) as ann:
        await ann.create_session("tutor", session_id="s")
        held = await ann.take("s")
        await held.checkpoint("asked", {"secret": SECRET})
    async with opened() as bob:
        assert await bob.claim() == []
    async with opened(encryption_key=KEY) as carl:
        [held] = await carl.claim()
        async with held:
            assert held.data == {"secret": SECRET}


async def test_a_checkpoint_manager_seals(url):
    """The history of one session is sealed by the same key, and read by a SessionManager that has it."""
    if url == "memory:":
        return
    with CheckpointManager("s", url=url, encryption_key=KEY) as history:
        history.create("asked", {"secret": SECRET}, {"why": SECRET})
        history.create("told", {"secret": SECRET, "n": 2})
        assert history.rollback_to("s:1") == {"secret": SECRET}
    with CheckpointManager("s", url=url, encryption_key=KEY) as history:
        assert [c.data for c in history.get_all()][-1] == {"secret": SECRET}
    async with saveslot.open(url, encryption_key=KEY) as sessions:
        assert await sessions.get_data("s") == {"secret": SECRET}
    with pytest.raises(KeyMissing), CheckpointManager("s", url=url) as history:
        history.get_all()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=5), min_size=1, max_size=5), st.dictionaries(st.text(), JSON))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_what_goes_in_comes_out(states, metadata):
    """Any state, context and metadata is read back exactly by another manager with the key."""
    store = MemoryStore()
    sessions = SessionManager(store=store, encryption_key=KEY)
    await sessions.create_session("tutor", context=metadata, session_id="s")
    for state in states:
        await sessions.checkpoint("s", "step", state, metadata)
    fresh = SessionManager(store=store, encryption_key={"old": OTHER, saved_id(KEY): KEY})
    assert [c.data for c in await fresh.history("s", name="step")] == states
    assert [c.metadata for c in await fresh.history("s", name="step")] == [metadata] * len(states)
    assert (await fresh.get_session("s")).context == metadata


def saved_id(key: bytes) -> str:
    return Keyring.of(key).newest


# What lies in the files


async def test_no_secret_lies_in_a_sqlite_file(file):
    """Neither in the database nor in its log, while the session lives and after; names and labels do."""
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        await story(sessions)
        assert SECRET.encode() not in raw(file)
    assert SECRET.encode() not in raw(file)
    assert b"anna" in raw(file)
    assert b"tutor" in raw(file)
    assert KEY not in raw(file)


async def test_no_secret_lies_in_the_servers(database, valkey_server, monkeypatch):
    """Neither in PostgreSQL's folder, its log included, nor in Valkey's memory. The same grep finds what is plain."""
    monkeypatch.setattr("saveslot.stores.tiered.SMALL", 0)  # all frames are lent
    monkeypatch.setattr("saveslot.stores.hot.BUDGET", 30)  # however busy the machine is: copies are made
    url = f"{database.url}&schema=grep"
    with valkey.Valkey.from_url(valkey_server.url) as client:
        for key, found in ((KEY, False), (None, True)):
            secret = SECRET if key else SECRET.upper()
            async with saveslot.open(url, hot=valkey_server.url, encryption_key=key) as sessions:
                await sessions.create_session("tutor", context={"topic": secret}, session_id=f"s{found}")
                for n in range(3):
                    await sessions.checkpoint(f"s{found}", "asked", {"secret": secret, "n": n}, {"why": secret})
                assert await sessions.get_data(f"s{found}") == {"secret": secret, "n": 2}
                connection = await asyncpg.connect(database.url)
                await connection.execute("checkpoint")
                await connection.close()
                files = [path for path in database.folder.rglob("*") if path.is_file()]
                assert any(secret.encode() in path.read_bytes() for path in files) is found
            values = [client.get(name) for name in client.keys("saveslot:*")]
            assert values
            assert any(secret.encode() in (value or b"") for value in values) is found


async def test_guesses_cannot_be_tried(file):
    """Equal states of two sessions have nothing in common on disk: not even their digests tell that they are equal."""
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        for name in ("a", "b"):
            await sessions.create_session("tutor", context={"yes": True}, session_id=name)
            await sessions.checkpoint(name, "asked", {"yes": True}, {"yes": True})
    with saveslot.blocking.open(f"sqlite:///{file.with_name('plain.db')}") as plain:
        plain.create_session("tutor", context={"yes": True}, session_id="a")
        plain.checkpoint("a", "asked", {"yes": True}, {"yes": True})
    columns = "select digest, frame, substr(note, 1, 16) from checkpoints"
    with apsw.Connection(str(file)) as one, apsw.Connection(str(file.with_name("plain.db"))) as two:
        found = [value for row in [*one.execute(columns), *two.execute(columns)] for value in row if value]
    assert len(found) == len(set(found)) == 6 * 3


# Without the key


async def test_without_the_key_nothing_is_read_or_written(opened):
    """Reading and writing raise a typed error that names the key; lists show the session without its context."""
    async with opened(encryption_key={"march": KEY}) as sessions:
        await sessions.create_session("tutor", "anna", {"topic": SECRET}, labels={"env": "prod"}, session_id="s")
        await sessions.checkpoint("s", "asked", {"secret": SECRET})
    for keys, error in ((None, KeyMissing), ({"april": OTHER}, KeyMissing), ({"march": OTHER}, WrongKey)):
        async with opened(encryption_key=keys) as sessions:
            for verb in (
                lambda s: s.get_session("s"),
                lambda s: s.get_data("s"),
                lambda s: s.get_checkpoint("s"),
                lambda s: s.checkpoint("s", "asked", {"n": 1}),
                lambda s: s.fork("s"),
                lambda s: s.rollback("s", "asked"),
                lambda s: s.export("s"),
                lambda s: s.take("s"),
                lambda s: s.summary("s"),
                lambda s: s.log("s"),
            ):
                with pytest.raises(KeyMissing, match="march") as caught:
                    await verb(sessions)
                assert type(caught.value) is error
                assert caught.value.key_id == "march"
            [listed] = await sessions.find(labels={"env": "prod"})
            assert (listed.session_id, listed.user_id, listed.context, listed.locked) == ("s", "anna", {}, True)
            listed.context["topic"] = "mine"
            with pytest.raises(KeyMissing):
                await sessions.update_session(listed)
    async with opened(encryption_key={"march": KEY}) as sessions:
        assert (await sessions.get_session("s")).context == {"topic": SECRET}
    async with opened() as sessions:
        assert await sessions.delete_session("s")


async def test_plain_and_sealed_sessions_share_a_store(opened):
    """A session stays as it was made: a key makes none unreadable, and none of those that were plain secret."""
    async with opened() as sessions:
        await sessions.create_session("tutor", context={"topic": "open"}, session_id="plain")
    async with opened(encryption_key=KEY) as sessions:
        await sessions.create_session("tutor", context={"topic": SECRET}, session_id="sealed")
        await sessions.checkpoint("plain", "asked", {"n": 1})
        assert await sessions.key_ids() == {"": 1, saved_id(KEY): 1}
    async with opened() as sessions:
        assert await sessions.get_data("plain") == {"n": 1}
        assert {s.session_id: s.locked for s in await sessions.find()} == {"plain": False, "sealed": True}


@pytest.mark.parametrize(
    "key", ["", "short", b"short", "x" * 44, {}, {"no spaces": KEY}, {"a": "b"}, f"a:{'A' * 43}=,a:{'B' * 42}A="]
)
def test_what_is_no_key_is_refused(key):
    """A key is 32 bytes; anything else is refused when the store is opened, and never shown."""
    with pytest.raises(InvalidInput, match="encryption_key") as caught:
        SessionManager(encryption_key=key)
    assert "short" not in str(caught.value)


def test_without_the_package_opening_says_so(monkeypatch):
    """Encryption needs an extra; its lack is told at once, not with the first write."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InvalidInput, match=r"saveslot\[crypto\]"):
        SessionManager(encryption_key=KEY)


async def test_the_key_may_come_from_the_environment(file, monkeypatch):
    """SAVESLOT_ENCRYPTION_KEY holds one key, or several by id, the one for new sessions first."""
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", base64.urlsafe_b64encode(KEY).decode())
    async with saveslot.open(f"sqlite:///{file}") as sessions:
        await sessions.create_session("tutor", context={"topic": SECRET}, session_id="s")
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", f"new:{new_key()}, {base64.b64encode(KEY).decode()}")
    async with saveslot.open(f"sqlite:///{file}") as sessions:
        assert (await sessions.get_session("s")).context == {"topic": SECRET}
        await sessions.rotate_keys()
        assert await sessions.key_ids() == {"new": 1}


# Damage


async def small(file) -> None:
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        for name in ("s", "t"):
            await sessions.create_session("tutor", context={"a": 1}, session_id=name)
            for n in range(3):
                await sessions.checkpoint(name, "asked", {"n": n, "name": name}, {"m": n})
            async with sessions.hold(name) as held:
                await held.step("ask", lambda: 1)


async def read(sessions: SessionManager, name: str) -> object:
    """All that a session holds."""
    session = await sessions.get_session(name)
    found = [(c.data, c.metadata) for c in await sessions.history(name, all=True)]
    async with sessions.hold(name) as held:
        return session.context, found, held.data, await held.step("ask", lambda: 2)


@pytest.mark.parametrize("column", ["frame", "note", "digest", "body"])
async def test_any_flipped_byte_is_noticed(file, column):
    """One changed byte of what is stored, wherever it is, is `Corrupt` to whoever reads it, never other data."""
    await small(file)
    where = "sessions where id = 's'"
    if column != "body":
        where = "checkpoints where kind = 1 and seq = 3 and key = (select key from sessions where id = 's')"
    change = f"update {where.replace('where', f'set {column} = ? where', 1)}"
    connection = apsw.Connection(str(file))
    [[before]] = connection.execute(f"select {column} from {where}")  # noqa: S608
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        expected = await read(sessions, "s")
    # Behind the digest stands the entry's link, which `audit` looks at.
    for place in range(32 if column == "digest" else len(before)):
        changed = bytearray(before)
        changed[place] ^= 1 << place % 8
        connection.execute(change, (bytes(changed),))
        async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
            with pytest.raises((Corrupt, KeyMissing)) as caught:  # the wrapped key and its id are in the body, too
                await read(sessions, "s")
            assert column == "body" or type(caught.value) is Corrupt
    connection.execute(change, (before,))
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        assert (await read(sessions, "s"))[0] == expected[0]
    connection.close()


async def test_bytes_do_not_open_in_another_place(file):
    """Frames, notes and bodies put elsewhere (another row, column or session) are refused, not shown there."""
    await small(file)
    with apsw.Connection(str(file)) as connection:
        rows = list(connection.execute("select feed, frame, note, digest from checkpoints where kind in (1, 17)"))
        bodies = list(connection.execute("select key, body from sessions"))
    for (feed, *mine), (other, *theirs) in itertools.permutations(rows, 2):
        if feed > rows[3][0]:
            continue
        connection = apsw.Connection(str(file))
        for columns in ([0], [1], [0, 2], [0, 1, 2]):
            put = [theirs[n] if n in columns else mine[n] for n in range(3)]
            if put == mine or put[0] is None:
                continue
            connection.execute("update checkpoints set frame = ?, note = ?, digest = ? where feed = ?", (*put, feed))
            async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
                with pytest.raises(Corrupt):
                    await read(sessions, "s")
        connection.execute("update checkpoints set frame = ?, note = ?, digest = ? where feed = ?", (*mine, feed))
        connection.close()
        assert other != feed
    connection = apsw.Connection(str(file))
    connection.execute("update sessions set body = ? where key = ?", (bodies[1][1], bodies[0][0]))
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        with pytest.raises((Corrupt, KeyMissing)):
            await sessions.get_session("s")
    connection.close()


# Other keys


async def test_rotating_disturbs_nobody(opened):
    """Only wraps change: a holder goes on without noticing, and afterwards the new key alone opens every session."""
    old, new = {"old": KEY}, {"new": OTHER, "old": KEY}
    async with opened(encryption_key=new) as ann, opened(encryption_key=old) as bob:
        await bob.create_session("tutor", context={"topic": SECRET}, session_id="s")
        await bob.create_session("tutor", session_id="deleted")
        await bob.delete_session("deleted")
        async with bob.hold("s") as held:
            await held.checkpoint("asked", {"n": 1})
            assert (await ann.rotate_keys()) == {"rotated": 2, "changed_meanwhile": 0, "locked": {}}
            await held.checkpoint("asked", {"n": 2})
            await held.step("ask", lambda: SECRET)
        assert (await bob.get_session("s")).context == {"topic": SECRET}
        assert (await ann.rotate_keys())["rotated"] == 0
        assert await ann.key_ids() == {"new": 2}
        assert [line.kind for line in await ann.log("s", all=True)][:3] == ["created", "taken", "checkpoint"]
    async with opened(encryption_key={"new": OTHER}) as sessions:
        assert await sessions.get_data("s") == {"n": 2}
    async with opened(encryption_key=old) as sessions:
        with pytest.raises(KeyMissing, match="new"):
            await sessions.get_session("s")


async def test_an_interrupted_rotation_goes_on(opened, monkeypatch):
    """Killed half-way every session is readable, and the next rotation does the rest."""
    async with opened(encryption_key={"old": KEY}) as sessions:
        for n in range(5):
            await sessions.create_session("tutor", context={"n": n}, session_id=f"s{n}")
    keys = {"new": OTHER, "old": KEY}
    async with opened(encryption_key=keys) as sessions:
        store, left = sessions._store, iter(range(2))  # noqa: SLF001
        empty = store.empty

        async def failing(*args, **how):
            next(left)
            return await empty(*args, **how)

        monkeypatch.setattr(store, "empty", failing)
        with pytest.raises(RuntimeError):
            await sessions.rotate_keys()
    async with opened(encryption_key=keys) as sessions:
        assert await sessions.key_ids() == {"new": 2, "old": 3}
        assert {s.context["n"] for s in await sessions.find()} == set(range(5))
        assert (await sessions.rotate_keys())["rotated"] == 3
    async with opened(encryption_key={"new": OTHER}) as sessions:
        assert {s.context["n"] for s in await sessions.find()} == set(range(5))


async def test_a_changed_context_is_wrapped_by_the_newest_key(opened):
    """Whoever has the new key and writes a context leaves nothing behind that needs the old one."""
    async with opened(encryption_key={"old": KEY}) as sessions:
        await sessions.create_session("tutor", session_id="s")
    async with opened(encryption_key={"new": OTHER, "old": KEY}) as sessions:
        session = await sessions.get_session("s")
        session.context["topic"] = SECRET
        await sessions.update_session(session)
        assert await sessions.key_ids() == {"new": 1}
    async with opened(encryption_key={"new": OTHER}) as sessions:
        assert (await sessions.get_session("s")).context == {"topic": SECRET}


# Exports


async def test_an_export_is_sealed_unless_asked(opened):
    """It holds nothing readable, opens with the key in any namespace, and tells when it was changed or cut."""
    async with opened(encryption_key=KEY) as sessions:
        await story(sessions)
        sealed, plain = await sessions.export("s"), await sessions.export("s", plain=True)
    assert SECRET not in sealed
    assert SECRET in plain
    assert json.loads(sealed)["session"]["user_id"] == "anna"
    async with opened(encryption_key=KEY, namespace="elsewhere") as sessions:
        made = await sessions.import_session(sealed)
        assert made.context["topic"] == SECRET
        cut = json.loads(sealed)
        for spoil in (cut["parts"].pop, cut["parts"].reverse, lambda: cut["parts"].insert(1, cut["parts"][0])):
            spoil()
            with pytest.raises(InvalidInput, match="import"):
                await sessions.import_session(json.dumps(cut), session_id="x")
    async with opened(namespace="third") as sessions:
        with pytest.raises(KeyMissing, match=saved_id(KEY)):
            await sessions.import_session(sealed)


# What others do with sealed sessions


async def test_thinning_gives_back_all_of_it_and_breaks_no_chain(opened):
    """A sealed history is marked, emptied once and never again; what stays reads on, and the audit fits."""
    async with opened(encryption_key=KEY) as sessions:
        await sessions.create_session("tutor", session_id="s")
        for n in range(40):
            await sessions.checkpoint("s", "asked", {"secret": SECRET, "n": n}, {"why": SECRET})
        await sessions.pin("s", 3)
        rule = Retention(keep_last=2, keep_latest_per_name=False)
        first = await sessions.thin("s", rule, grace=timedelta(0))
        assert (first.marked, first.emptied > 0) == (36, True)
        assert await sessions.thin("s", rule, grace=timedelta(0)) == Thinned()
        assert [one.data["n"] for one in await sessions.history("s") if one.name == "asked"] == [0, 1, 38, 39]
        assert (await sessions.audit("s")).misfit is None
    async with opened() as sessions:  # the keeper of a process without the key passes over it
        assert await sessions.thin_all(grace=timedelta(0)) == Thinned()
        with pytest.raises(KeyMissing):
            await sessions.thin("s")


async def test_failures_are_counted_by_their_reasons(opened):
    """With the key analytics tells why sealed sessions failed; without it that they are sealed."""
    async with opened(encryption_key=KEY) as sessions:
        session = await sessions.create_session("tutor", session_id="s")
        session.fail("no teacher")
        await sessions.update_session(session)
        assert (await sessions.analytics())["failures"] == {"read": 1, "reasons": {"no teacher": 1}}
    async with opened(encryption_key=KEY) as sessions:
        assert (await sessions.analytics())["failures"]["reasons"] == {"no teacher": 1}
    async with opened() as sessions:
        assert (await sessions.analytics())["failures"]["reasons"] == {"(sealed)": 1}


async def test_garbage_needs_no_key(opened):
    """Whoever looks after the store removes sealed sessions that ended, without being able to read them."""
    async with opened(encryption_key=KEY) as sessions:
        session = await sessions.create_session("tutor", session_id="s")
        session.complete("done")
        await sessions.update_session(session)
    async with opened() as sessions:
        assert (await sessions.gc(timedelta(0), grace=timedelta(0))).sessions == ["s"]
        assert await sessions.get_session("s") is None


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
async def test_nothing_is_lost_of_more_sessions_than_are_remembered(monkeypatch, key):
    """A write to some that are remembered and some that are not stores all that it was given, and breaks no chain."""
    monkeypatch.setattr("saveslot.sealing.REMEMBERED", 3)
    monkeypatch.setattr("saveslot.stores.chained.REMEMBERED", 2)
    async with SessionManager(encryption_key=key) as sessions:
        ids = [(await sessions.create_session("tutor", context={"n": n})).session_id for n in range(6)]
        assert await sessions.cleanup_stale_sessions(timedelta(0)) == 6
        for n, name in enumerate(ids):
            found = await sessions.get_session(name)
            assert found.context == {"n": n, "failure_reason": "heartbeat_timeout"}
            assert (await sessions.get_checkpoint(name, "session_failed")).data["error"] == "heartbeat_timeout"
            assert (await sessions.audit(name)).misfit is None
