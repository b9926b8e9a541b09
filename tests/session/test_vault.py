"""Everything works the same with an encryption key, and nothing saved can be read without it."""

from __future__ import annotations

import base64
import itertools
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
from saveslot.codec.frame import CHECKSUM, add_checksum
from saveslot.manager import rotate
from saveslot.manager.log_pages import forks_of
from saveslot.session.vault import Vault
from saveslot.stack import Postgres
from saveslot.stores import open_store
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite.file import connect
from saveslot.testing import Pen
from saveslot.values.log import Query, Wanted

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = "the crown jewels are under the third stair"  # noqa: S105
AT = datetime(2026, 1, 2, tzinfo=UTC)


def raw(file: Path) -> bytes:
    """Return all bytes of a SQLite database, as stored in its folder."""
    return b"".join(path.read_bytes() for path in sorted(file.parent.glob(f"{file.name}*")))


async def story(sessions: SessionManager) -> list[object]:
    """Make every call once; return what a caller sees, without generated ids and times."""
    answer: list[object] = []
    session = await sessions.create_session(
        "tutor", "anna", {"topic": SECRET}, {"at": AT}, labels={"env": "prod"}, session_id="s"
    )
    session.checkpoint("asked", {"messages": [SECRET]})
    session.context["step"] = 2
    await sessions.update_session(session)
    await sessions.checkpoint("s", "more", append={"messages": [SECRET + "!"]}, metadata={"why": SECRET})
    async with sessions.hold("s") as held:
        await held.checkpoint("held", {**held.data, "n": 1})
        answer.append(await held.step("ask", lambda: {"answer": SECRET}, key="1"))
        answer.append(await held.step("ask", lambda: {"answer": "another"}, key="1"))
        await held.update_context(mood="good")
        await held.rollback("more")
        answer.append(held.data)
    fork = await sessions.fork("s", "asked", session_id="fork")
    answer.append(fork.context)
    answer.append(await sessions.diff("s", "asked", "held"))
    copy = await sessions.import_session(await sessions.export("s"), session_id="copy")
    await sessions.import_session(await sessions.export("s", plain=True), session_id="plain-copy")
    answer += [copy.context, copy.metadata, await sessions.get_data("copy"), await sessions.get_data("plain-copy")]
    session = await sessions.refresh(session)
    session.fail("no more", {"why": SECRET})
    await sessions.update_session(session)
    for name in ("s", "fork", "copy", "plain-copy"):
        loaded = await sessions.get_session(name)
        answer.append((loaded.context, loaded.metadata, loaded.labels, loaded.state))
        answer.append([(c.name, c.data, c.metadata) for c in await sessions.history(name, all=True)])
        answer.append([(line.name, line.kind, line.changed) for line in await sessions.log(name)])
        answer.append((await sessions.summary(name))["names"])
    answer.append([(s.session_id, s.context) for s in await sessions.find(text="prod")])
    return json.loads(json.dumps(answer, default=str).replace(sessions.worker["name"], "worker"))


async def test_sealed_sessions_behave_like_plain_ones(opened):
    """The same calls, with and without a key, return the same, also to a manager that reopens the store."""
    async with SessionManager() as sessions:
        expected = await story(sessions)
    async with opened(encryption_key=KEY) as sessions:
        assert await story(sessions) == expected
    async with opened(encryption_key=base64.b64encode(KEY).decode()) as sessions:
        session = await sessions.get_session("s")
        assert (session.context["topic"], session.metadata) == (SECRET, {"at": AT})
        assert await sessions.get_data("s") == {"messages": [SECRET, SECRET + "!"]}
        async with sessions.hold("fork") as held:
            assert held.data == {"messages": [SECRET]}
        assert (await sessions.rotate_keys())["rotated"] == 0


async def test_sealed_orphans_need_the_key_to_be_claimed(opened):
    """A worker that takes over a sealed session can read it; one without the key leaves it to workers that have it."""
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


async def test_checkpoint_manager_seals(url):
    """The history of one session is sealed by the same key, and a SessionManager with that key reads it."""
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
async def test_sealed_values_round_trip(states, metadata):
    """Another manager with the key reads back any state, context and metadata exactly."""
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


# The bytes of the files


async def test_sqlite_files_contain_no_plaintext(file):
    """Neither the database nor its log contains any, during the session and after; names and labels are plain."""
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        await story(sessions)
        assert SECRET.encode() not in raw(file)
    assert SECRET.encode() not in raw(file)
    assert b"anna" in raw(file)
    assert b"tutor" in raw(file)
    assert KEY not in raw(file)


@pytest.fixture
def database() -> Iterator[Postgres]:
    """A dedicated server, whose files are all searched."""
    with Postgres() as server:
        yield server


async def test_servers_contain_no_plaintext(database, valkey_url, monkeypatch):
    """Neither PostgreSQL's folder, including its log, nor Valkey's memory contains any. The same grep
    finds plain data.
    """
    monkeypatch.setattr("saveslot.stores.hot.connection.BUDGET", 30)  # however busy the machine is: copies are made
    url = f"{database.url}&schema=grep"
    with valkey.Valkey.from_url(valkey_url) as client:
        for key, result in ((KEY, False), (None, True)):
            secret = SECRET if key else SECRET.upper()
            async with saveslot.open(url, hot=valkey_url, encryption_key=key) as sessions:
                await sessions.create_session("tutor", context={"topic": secret}, session_id=f"s{result}")
                for n in range(3):
                    await sessions.checkpoint(f"s{result}", "asked", {"secret": secret, "n": n}, {"why": secret})
                assert await sessions.get_data(f"s{result}") == {"secret": secret, "n": 2}
                connection = await asyncpg.connect(database.url)
                await connection.execute("checkpoint")
                await connection.close()
                files = [path for path in database.folder.rglob("*") if path.is_file()]
                assert any(secret.encode() in path.read_bytes() for path in files) is result
            values = [value for name in client.keys("saveslot:*") for value in client.hvals(name)]
            assert values
            assert any(secret.encode() in value for value in values) is result


async def test_equal_states_look_unrelated(file):
    """Equal states of two sessions have no bytes in common on disk: not even their digests show that they are equal."""
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        for name in ("a", "b"):
            await sessions.create_session("tutor", context={"yes": True}, session_id=name)
            await sessions.checkpoint(name, "asked", {"yes": True}, {"yes": True})
    with saveslot.blocking.open(f"sqlite:///{file.with_name('plain.db')}") as plain:
        plain.create_session("tutor", context={"yes": True}, session_id="a")
        plain.checkpoint("a", "asked", {"yes": True}, {"yes": True})
    columns = "select digest, frame, substr(note, 1, 16) from checkpoints"
    with connect(str(file), None) as one, connect(str(file.with_name("plain.db")), None) as two:
        items = [value for row in [*one.execute(columns), *two.execute(columns)] for value in row if value]
    assert len(items) == len(set(items)) == 6 * 3


# Without the key


async def test_sealed_sessions_need_the_key(opened):
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
    """A session stays as it was created: adding a key neither makes plain sessions unreadable nor seals them."""
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
def test_invalid_key_is_refused(key):
    """A key is 32 bytes; anything else is refused when the store is opened, and never shown."""
    with pytest.raises(InvalidInput, match="encryption_key") as caught:
        SessionManager(encryption_key=key)
    assert "short" not in str(caught.value)


def test_missing_encryption_package_is_reported_on_open(monkeypatch):
    """Encryption needs an extra; opening fails without it, not the first write."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InvalidInput, match=r"saveslot\[crypto\]"):
        SessionManager(encryption_key=KEY)


async def test_key_from_the_environment(file, monkeypatch):
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
    """Read everything a session holds."""
    session = await sessions.get_session(name)
    contents = [(c.data, c.metadata) for c in await sessions.history(name, all=True)]
    async with sessions.hold(name) as held:
        return session.context, contents, held.data, await held.step("ask", lambda: 2)


@pytest.mark.parametrize("column", ["frame", "note", "digest", "body"])
async def test_any_flipped_byte_is_corrupt(file, column):
    """One changed byte anywhere in the stored data makes reads raise `Corrupt`, and never returns other data."""
    await small(file)
    where = "sessions where id = 's'"
    if column != "body":
        where = "checkpoints where kind = 1 and seq = 3 and key = (select key from sessions where id = 's')"
    change = f"update {where.replace('where', f'set {column} = ? where', 1)}"
    connection = connect(str(file), None)
    [[before]] = connection.execute(f"select {column} from {where}")  # noqa: S608
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        expected = await read(sessions, "s")
    # After the digest comes the entry's link, which `audit` checks.
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


async def test_sealed_bytes_do_not_open_elsewhere(file):
    """Frames, notes and bodies moved to another row, column or session are refused."""
    await small(file)
    with connect(str(file), None) as connection:
        rows = list(connection.execute("select feed, frame, note, digest from checkpoints where kind in (1, 17)"))
        bodies = list(connection.execute("select key, body from sessions"))
    for (feed, *mine), (other, *theirs) in itertools.permutations(rows, 2):
        if feed > rows[3][0]:
            continue
        connection = connect(str(file), None)
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
    connection = connect(str(file), None)
    connection.execute("update sessions set body = ? where key = ?", (bodies[1][1], bodies[0][0]))
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        with pytest.raises((Corrupt, KeyMissing)):
            await sessions.get_session("s")
    connection.close()


# Other keys


async def test_rotation_does_not_disturb_holders(opened):
    """Only wrapped keys change: a hold continues, and afterwards the new key alone opens every session."""
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


async def test_interrupted_rotation_can_be_resumed(opened, monkeypatch):
    """After a kill half-way every session is readable, and the next rotation does the rest."""
    async with opened(encryption_key={"old": KEY}) as sessions:
        for n in range(5):
            await sessions.create_session("tutor", context={"n": n}, session_id=f"s{n}")
    keys = {"new": OTHER, "old": KEY}
    async with opened(encryption_key=keys) as sessions:
        store, left = sessions.engine.vault, iter(range(2))
        swap = store.swap

        async def failing(*args):
            next(left)
            return await swap(*args)

        monkeypatch.setattr(store, "swap", failing)
        with pytest.raises(RuntimeError):
            await sessions.rotate_keys()
    async with opened(encryption_key=keys) as sessions:
        assert await sessions.key_ids() == {"new": 2, "old": 3}
        assert {s.context["n"] for s in await sessions.find()} == set(range(5))
        assert (await sessions.rotate_keys())["rotated"] == 3
    async with opened(encryption_key={"new": OTHER}) as sessions:
        assert {s.context["n"] for s in await sessions.find()} == set(range(5))


async def labelled(sessions: SessionManager) -> None:
    """Sessions with labelled entries: more than are read at once, a fork, one whose body has the newest key already."""
    await sessions.create_session("tutor", session_id="s")
    for n in range(5):
        await sessions.checkpoint("s", "turn", {"n": n}, {"labels": {"run": f"r{n % 2}", "topic": SECRET}})
    await sessions.record("s", "thought", SECRET)
    await sessions.fork("s", "~1", "fork")
    await sessions.create_session("tutor", session_id="plain")
    await sessions.checkpoint("plain", "turn", {"n": 0}, {"labels": {"run": "r0"}})


async def found(sessions: SessionManager, **labels: str) -> list[str]:
    return sorted(session.session_id for session in await sessions.find(entry=labels))


async def as_before(sessions: SessionManager) -> None:
    """Assert that what `labelled` wrote is found and read."""
    assert await found(sessions, run="r0") == ["plain", "s"]
    assert await found(sessions, run="r1", topic=SECRET) == ["fork", "s"]
    assert await found(sessions, run="r1", topic="other") == []
    assert await sessions.count(entry={"run": "r1"}) == 2
    assert [record.value for record in await sessions.records("s")] == [SECRET]
    forks = await forks_of(sessions, "s")
    assert [fork.id for lines in forks.values() for fork in lines] == ["fork"]


@pytest.mark.parametrize("part", [2, 1000])
async def test_entries_are_found_by_their_labels_after_a_rotation(fresh, monkeypatch, part):
    """With the new key alone, and not with the old one alone; also those of a session that needed no other wrap."""
    monkeypatch.setattr(rotate, "LABELLED", part)
    old, both = fresh(encryption_key={"old": KEY}), fresh(encryption_key={"new": OTHER, "old": KEY})
    await labelled(old)
    await as_before(old)
    async with both.hold("plain") as held:
        await held.update_context(more=1)
        assert (await both.key_ids()) == {"old": 2, "new": 1}
        await as_before(both)
        assert (await both.rotate_keys()) == {"rotated": 3, "changed_meanwhile": 0, "locked": {}}
        await held.checkpoint("turn", {"n": 1}, {"labels": {"run": "r0"}})
    assert (await both.rotate_keys())["rotated"] == 0
    await as_before(fresh(encryption_key={"new": OTHER}))
    assert await found(fresh(encryption_key={"old": KEY}), run="r1") == []


async def test_labels_are_rotated_below_a_hot_tier(servers):
    url, hot = servers.schema(), servers.valkey()
    async with saveslot.open(url, hot=hot, encryption_key={"old": KEY}) as sessions:
        await labelled(sessions)
    async with saveslot.open(url, hot=hot, encryption_key={"new": OTHER, "old": KEY}) as sessions:
        assert (await sessions.rotate_keys())["rotated"] == 3
    async with saveslot.open(url, hot=hot, encryption_key={"new": OTHER}) as sessions:
        await as_before(sessions)
        copy = await sessions.copy_session("fork", "copy")
        assert await found(sessions, run="r1", topic=SECRET) == ["copy", "fork", "s"]
        assert copy.metadata["forked_from"].startswith("s:")


async def test_context_write_rewraps_with_the_newest_key(opened):
    """After a manager with the new key writes a context, the session no longer needs the old key."""
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


async def test_export_is_sealed_by_default(opened):
    """It contains nothing readable, opens with the key in any namespace, and any change or truncation is detected."""
    async with opened(encryption_key=KEY) as sessions:
        await story(sessions)
        sealed, plain = await sessions.export("s"), await sessions.export("s", plain=True)
    assert SECRET not in sealed
    assert SECRET in plain
    assert json.loads(sealed)["session"]["user_id"] == "anna"
    async with opened(encryption_key=KEY, namespace="elsewhere") as sessions:
        session = await sessions.import_session(sealed)
        assert session.context["topic"] == SECRET
        cut = json.loads(sealed)
        for spoil in (cut["parts"].pop, cut["parts"].reverse, lambda: cut["parts"].insert(1, cut["parts"][0])):
            spoil()
            with pytest.raises(InvalidInput, match="import"):
                await sessions.import_session(json.dumps(cut), session_id="x")
    async with opened(namespace="third") as sessions:
        with pytest.raises(KeyMissing, match=saved_id(KEY)):
            await sessions.import_session(sealed)


@pytest.mark.parametrize(
    "change",
    [
        {"key": "AAAA"},
        {"key": ""},
        {"key": 5},
        {"namespace": 5},
        {"namespace": None},
        {"namespace": "n" * 70_000},
        {"namespace": "\ud800"},
        {"key_id": ["a"]},
        {"key_id": {}},
        {"key_id": None},
    ],
)
async def test_changed_sealed_export_is_refused(change):
    """Whatever its header contains, with and without a key."""
    for key in (KEY, None):
        async with saveslot.open("memory:", encryption_key=KEY) as sessions:
            await sessions.create_session("tutor", session_id="s")
            export = json.loads(await sessions.export("s"))
        export["sealed"] |= change
        async with saveslot.open("memory:", encryption_key=key) as sessions:
            with pytest.raises((InvalidInput, KeyMissing, WrongKey)):
                await sessions.import_session(json.dumps(export))


async def test_key_id_that_is_not_text_is_corrupt(file):
    """Every verb raises `Corrupt` and names the session; the others are listed."""
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        for name in ("s", "other"):
            await sessions.create_session("tutor", session_id=name)
    connection = connect(str(file), None)
    body = connection.execute("select body from sessions where id = 's'").get
    body = add_checksum(body[CHECKSUM : CHECKSUM + 3] + b"\xff" + body[CHECKSUM + 4 :])
    connection.execute("update sessions set body = ? where id = 's'", (body,))
    connection.close()
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        with pytest.raises(Corrupt, match="session s"):
            await sessions.checkpoint("s", "x", {})
        with pytest.raises(Corrupt, match="session s"):
            _ = (await sessions.get_session("s")).context
        assert {session.session_id for session in await sessions.find()} == {"s", "other"}


async def pinned(sessions: SessionManager) -> None:
    await sessions.checkpoint("s", "asked", {"n": 1})
    await sessions.pin("s", "asked")


async def left(sessions: SessionManager) -> None:
    await (await sessions.take("s")).release()


async def saved(sessions: SessionManager) -> None:
    await sessions.checkpoint("s", "asked", {"n": 1})


@pytest.mark.parametrize("live", [None, saved, pinned, left])
async def test_sealed_session_with_a_plain_body_is_never_written_in_plain_text(file, live):
    """Its first entry is sealed, so a row that says otherwise was changed, whatever the newest entry is."""
    async with saveslot.open(f"sqlite:///{file}", encryption_key=KEY) as sessions:
        await sessions.create_session("tutor", context={"a": 1}, session_id="s")
        if live is not None:
            await live(sessions)
    async with saveslot.open(f"sqlite:///{file}") as sessions:
        await sessions.create_session("tutor", session_id="plain")
    connection = connect(str(file), None)
    connection.execute("update sessions set body = (select body from sessions where id = 'plain') where id = 's'")
    connection.close()
    for key in (KEY, None):
        async with saveslot.open(f"sqlite:///{file}", encryption_key=key) as sessions:
            if key is not None or live is None:  # without a key nothing is sealed anyway
                with pytest.raises(Corrupt, match="session s"):
                    await sessions.checkpoint("s", "x", {"secret": SECRET})
                with pytest.raises(Corrupt, match="session s"):
                    await sessions.cancel("s", SECRET)
            await sessions.checkpoint("plain", "x", {"n": 1})
            assert {session.session_id for session in await sessions.find()} == {"s", "plain"}
    assert SECRET.encode() not in raw(file)


@pytest.mark.parametrize("key", [KEY, None])
async def test_an_older_context_in_its_place_is_corrupt(file, key):
    """A row's context names the entry that wrote it: an older one, put back, is not shown as the newest."""
    async with saveslot.open(f"sqlite:///{file}", encryption_key=key) as sessions:
        session = await sessions.create_session("tutor", context={"a": 1}, session_id="s")
        connection = connect(str(file), None)
        body = connection.execute("select body from sessions").get
        session.context["a"] = 2
        await sessions.update_session(session)
    connection.execute("update sessions set body = ?", (body,))
    connection.close()
    async with saveslot.open(f"sqlite:///{file}", encryption_key=key) as sessions:
        session = await sessions.get_session("s")
        with pytest.raises(Corrupt, match="its context is of entry 1"):
            _ = session.context
        await sessions.cancel("s")  # does not write it anew
        with pytest.raises(Corrupt, match="its context is of entry 1"):
            _ = (await sessions.get_session("s")).context


# What others do with sealed sessions


async def test_thinning_sealed_history_keeps_the_chain(opened):
    """A sealed history is marked, and emptied exactly once; kept checkpoints stay readable, and the audit passes."""
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


async def test_analytics_need_the_key_for_failure_reasons(opened):
    """With the key analytics counts sealed sessions' failure reasons; without it, it reports them as sealed."""
    async with opened(encryption_key=KEY) as sessions:
        session = await sessions.create_session("tutor", session_id="s")
        session.fail("no teacher")
        await sessions.update_session(session)
        assert (await sessions.analytics())["failures"] == {"read": 1, "reasons": {"no teacher": 1}}
    async with opened(encryption_key=KEY) as sessions:
        assert (await sessions.analytics())["failures"]["reasons"] == {"no teacher": 1}
    async with opened() as sessions:
        assert (await sessions.analytics())["failures"]["reasons"] == {"(sealed)": 1}


async def test_gc_needs_no_key(opened):
    """An operator without the key can remove sealed sessions that ended."""
    async with opened(encryption_key=KEY) as sessions:
        session = await sessions.create_session("tutor", session_id="s")
        session.complete("done")
        await sessions.update_session(session)
    async with opened() as sessions:
        assert (await sessions.gc(timedelta(0), grace=timedelta(0))).sessions == ["s"]
        assert await sessions.get_session("s") is None


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
async def test_writes_beyond_the_cache_lose_nothing(monkeypatch, key):
    """A write to cached and evicted sessions stores all of its entries, and breaks no chain."""
    monkeypatch.setattr("saveslot.session.vault.REMEMBERED", 3)
    monkeypatch.setattr("saveslot.session.links.REMEMBERED", 2)
    async with SessionManager(encryption_key=key) as sessions:
        ids = [(await sessions.create_session("tutor", context={"n": n})).session_id for n in range(6)]
        assert await sessions.cleanup_stale_sessions(timedelta(0)) == 6
        for n, name in enumerate(ids):
            session = await sessions.get_session(name)
            assert session.context == {"n": n, "failure_reason": "heartbeat_timeout"}
            assert (await sessions.get_checkpoint(name, "session_failed")).data["error"] == "heartbeat_timeout"
            assert (await sessions.audit(name)).misfit is None


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_labels_and_requests_of_a_sealed_session(backend, tmp_path):
    """No label of its entries is stored readable, and no digest that a guess at a call's content could be tested
    against; sessions are found by them with the key, whichever was the newest, and beside plain ones.
    """
    path = tmp_path / "sealed.db"
    inner = MemoryStore() if backend == "memory" else await open_store(path)
    old, both = Keyring.of({"old": bytes(32)}), Keyring.of({"new": bytes(range(32)), "old": bytes(32)})
    request = b"call".ljust(16) + b"its content".ljust(16)
    for n, keyring in enumerate((None, old, both)):
        vault, pen = Vault(inner, keyring), Pen("ns", f"s{n}")
        body = add_checksum(b"body")
        for group in (pen.begin(request=bytes([n]) + request[1:], body=body), pen.group(labels={"run": "secret"})):
            group.entries[0].request = bytes([n]) + request[1:]
            if group.create is None:
                group.prev, group.entries[0].seq, group.entries[0].request = pen.prev, pen.seq + 1, request
            assert [verdict.outcome for verdict in await vault.append([group])] == ["appended"]
            pen.saw(group)
    query = Query(namespace="ns", entry={"run": "secret"})

    async def found(keyring):
        return [row.session_id for row in await Vault(inner, keyring).find(query)]

    assert {*await found(None)} == {"s0"}
    assert {*await found(old)} == {"s0", "s1"}
    assert {*await found(both)} == {"s0", "s1", "s2"}
    assert len(await Vault(inner, both).find(query, limit=2)) == 2
    [head] = await Vault(inner, both).heads([("ns", "s2")])
    assert (head.last.request, head.row.request) == (request, b"\x02" + request[1:])
    [stored] = await inner.heads([("ns", "s2")])
    assert (stored.last.request[:16], stored.row.request[:16]) == (request[:16], (b"\x02" + request[1:])[:16])
    assert request[16:] not in {stored.last.request[16:], stored.row.request[16:]}
    [entry] = await Vault(inner, both).entries(head.row.key, Wanted(request=request[:16]))
    assert entry.request == request
    counts = await Vault(inner, both).count(query)
    assert (sum(counts.states.values()), sum(counts.agent_types.values())) == (3, 3)
    await inner.close()
    if backend == "sqlite":
        stored = path.read_bytes()
        assert stored.count(b"secret") == 2  # of the plain session: the label's row, and its index
