"""`/store`: what a client may do there, and what the server does with requests that no client of ours makes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

import saveslot
from saveslot import Forbidden, InvalidInput, TooLarge, Unauthorized, Unavailable
from saveslot.errors import SaveslotError
from saveslot.server import tokens
from saveslot.stores import open_store
from saveslot.stores.http import HttpStore, wire
from saveslot.stores.sqlite import SqliteStore
from saveslot.testing.conformance.malformed import malformed
from saveslot.testing.pen import Pen
from saveslot.values.log import NO_WORKER, Outcome, Query, Wanted, Worker
from tests.harness.served import Serving


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """The URL of a server, and tokens for it: one for all namespaces, one for school-7, one that reads.

    An admin's entries need no stamp, so that tests may write their own.
    """
    path = tmp_path_factory.mktemp("door") / "s.db"

    async def prepared() -> dict[str, str]:
        async with saveslot.open(str(path)) as sessions:
            registry = tokens.registry(sessions)
            return {
                "all": await tokens.create(registry, "all", "admin"),
                "school": await tokens.create(registry, "school", "admin", ["school-7"]),
                "reader": await tokens.create(registry, "reader", "read"),
            }

    texts = asyncio.run(prepared())
    with Serving() as serving:
        yield serving.serve(lambda: SqliteStore.open(str(path))), texts, str(path)


async def test_other_namespaces_are_refused_by_id_and_by_key(door):
    """A token for one namespace reaches no session of another one, whatever names it, and nothing is written."""
    url, texts, _ = door
    everything, school = await HttpStore.open(url, texts["all"]), await HttpStore.open(url, texts["school"])
    pen = Pen("school-8", "theirs")
    begin = pen.begin()
    await everything.append([begin])
    pen.saw(begin)
    forged = pen.group(2)
    for refused in (
        lambda: school.append([forged]),
        lambda: school.append([Pen("school-8", "new").begin()]),
        lambda: school.append([forged, Pen("school-7", "b").begin()], together=True),
        lambda: school.heads([pen.key]),
        lambda: school.heads([("school-8", "theirs")]),
        lambda: school.entries(pen.key, Wanted()),
        lambda: school.find(Query(namespace="school-8")),
        lambda: school.count(Query(namespace="school-8")),
        lambda: school.beat([(pen.key, None)]),
        lambda: school.events("school-8", None),
        lambda: school.events("school-7", "@0", pen.key),
        lambda: school.empty(pen.key, [1]),
        lambda: school.swap(pen.key, b"", b"x"),
        lambda: school.purge([pen.key]),
        lambda: everything.find(Query(namespace="$saveslot")),
        lambda: everything.heads([("$saveslot", "all")]),
        lambda: everything.append([Pen("$saveslot", "mine").begin()]),
        school.scrub,
    ):
        with pytest.raises(Forbidden):
            await refused()
    assert len(await everything.entries(pen.key, Wanted())) == 1
    assert await everything.heads([("school-7", "b"), ("school-8", "new")]) == [None, None]
    deleted = pen.delete()
    await everything.append([deleted])
    with pytest.raises(Forbidden):
        await school.entries(pen.key, Wanted())
    await everything.close()
    await school.close()


async def test_an_erase_that_may_not_end_does_not_begin(door):
    """Without the right to erase nothing is written, a dry run says so, and `/v1/erase` does it for one namespace."""
    url, texts, _ = door
    async with (
        saveslot.open(url, token=texts["school"], namespace="school-7") as school,
        saveslot.open(url, token=texts["all"], namespace="school-7") as everything,
    ):
        await school.create_session("tutor", user_id="anna", session_id="kept", data={"n": 1})
        before = await everything.head("kept")
        for more in ({"session_id": "kept"}, {"user_id": "anna"}, {"session_id": "kept", "dry_run": True}):
            with pytest.raises(Forbidden, match="POST /v1/erase"):
                await school.erase(**more)
        with pytest.raises(Forbidden):
            await school.erase_all()
        assert await everything.head("kept") == before
        assert await everything.get_data("kept") == {"n": 1}
        assert (await everything.erase("kept"))["entries"] == 2
        assert await everything.get_session("kept") is None


@pytest.mark.parametrize("same_entry", [False, True])
@pytest.mark.parametrize("together", [False, True])
async def test_a_refused_creation_does_not_make_a_key_ones_own(door, together, same_entry):
    """A token that creates a session under the key of another namespace's is refused, and reaches nothing by it."""
    url, texts, path = door
    everything, school = await HttpStore.open(url, texts["all"]), await HttpStore.open(url, texts["school"])
    direct = await SqliteStore.open(path)
    theirs = Pen("school-8", os.urandom(8).hex())  # the server has not heard of it
    begin = theirs.begin()
    await direct.append([begin])
    theirs.saw(begin)
    claim = msgspec.structs.replace(begin, create=Pen("school-7", os.urandom(8).hex(), key=theirs.key).begin().create)
    if not same_entry:
        claim.entries = [msgspec.structs.replace(begin.entries[0], append_id=os.urandom(16))]
    for refused in (
        lambda: school.append([claim], together=together),
        lambda: school.entries(theirs.key, Wanted()),
        lambda: school.append([theirs.group(1)]),
        lambda: school.purge([theirs.key]),
    ):
        with pytest.raises(Forbidden):
            await refused()
    fine = Pen("school-7", os.urandom(8).hex()).begin()
    assert [verdict.outcome for verdict in await school.append([fine])] == [Outcome.APPENDED]
    assert [verdict.outcome for verdict in await school.append([fine])] == [Outcome.ALREADY]
    taken = Pen("school-7", fine.create.session_id).begin()
    [verdict] = await school.append([taken])
    assert (verdict.outcome, verdict.head.append_id) == (Outcome.CONFLICT, fine.entries[0].append_id)
    assert len(await everything.entries(theirs.key, Wanted())) == 1
    for store in (direct, everything, school):
        await store.close()


async def test_a_token_speaks_for_its_own_workers_only(door):
    """A token neither renews nor ends a worker of another one, nor names it as an owner; its own it does both."""
    url, texts, _ = door
    async with (
        saveslot.open(url, token=texts["all"], namespace="school-7") as theirs,
        saveslot.open(url, token=texts["school"], namespace="school-7") as mine,
        theirs.hold("held", create="tutor") as held,
        mine.hold("my own", create="tutor"),
    ):
        store, everything = mine.engine.metered, theirs.engine.metered
        [row] = [row for row in await store.find(Query(namespace="school-7")) if row.session_id == "held"]
        for ttl, first in ((0, False), (1, False), (0, True)):
            with pytest.raises(Forbidden, match="worker"):
                await store.beat([], Worker(row.owner, "evil", ttl, first=first))
        with pytest.raises(InvalidInput, match="worker"):  # sessions that errors left would never be orphans
            await store.beat([], Worker(NO_WORKER, "evil", 1 << 40, first=True))
        with pytest.raises(InvalidInput, match="name"):
            await store.beat([], Worker(os.urandom(16), "x" * 1001, 1 << 20, first=True))
        taking = Pen("school-7", "imitated", fence=1, lease=os.urandom(16)).begin()
        taking.owner = row.owner
        with pytest.raises(Forbidden, match="worker"):
            await store.append([taking])
        await held.checkpoint("still", {"n": 1})
        [again] = [row for row in await everything.find(Query(namespace="school-7")) if row.session_id == "held"]
        assert again.left > 0


async def test_unknown_keys_are_as_if_there_was_nothing(door):
    """For a token of one namespace, a key that names no session of its own has no entries, and takes none."""
    url, texts, path = door
    school = await HttpStore.open(url, texts["school"])
    direct = await SqliteStore.open(path)
    theirs = Pen("school-8", "gone")  # deleted before the server ever heard of it
    begin = theirs.begin()
    await direct.append([begin])
    theirs.saw(begin)
    await direct.append([theirs.delete()])
    for key in (os.urandom(16), theirs.key):
        assert await school.heads([key]) == [None]
        assert await school.entries(key, Wanted()) == []
        assert await school.beat([(key, None)]) == [0]
        assert await school.empty(key, [1]) == 0
        assert await school.swap(key, b"", b"") is False
        assert await school.purge([key]) == [0]
    [verdict] = await school.append([theirs.group(1)])
    assert (verdict.outcome, verdict.head) == (Outcome.MISSING, None)
    assert len(await direct.entries(theirs.key, Wanted())) == 2
    own = Pen("school-7", "own")
    begin = own.begin()
    await direct.append([begin])
    own.saw(begin)
    await direct.append([own.delete()])
    assert len(await school.entries(own.key, Wanted())) == 2  # found among its own deleted ones
    assert await school.purge([own.key]) == [2]
    await direct.close()
    await school.close()


async def test_scopes(door):
    """A token with scope read reads, and writes nothing; without a token nothing is told."""
    url, texts, _ = door
    async with saveslot.open(url, token=texts["all"]) as sessions:
        await sessions.create_session("tutor", session_id="seen", data={"n": 1})
    async with saveslot.open(url, token=texts["reader"]) as sessions:
        assert await sessions.get_data("seen") == {"n": 1}
        with pytest.raises(Forbidden, match="read"):
            await sessions.checkpoint("seen", "mine", {"n": 2})
        with pytest.raises(Forbidden):
            await sessions.create_session("tutor")
    for token in (None, "saveslot_nonsense"):
        with pytest.raises(Unauthorized):
            await open_store(url, token=token)


@pytest.mark.parametrize("path", malformed())
async def test_malformed_groups_are_refused_alone(door, path):
    """A group that is not well formed is refused with what is wrong; one of another caller in its request lands."""
    url, texts, _ = door
    store = await HttpStore.open(url, texts["all"])
    fine = Pen("default", os.urandom(8).hex()).begin()
    bad = malformed()[path]
    if path in {"create.labels.a", "entries[1].kind"}:  # these cannot be sent, or not be read
        with pytest.raises(InvalidInput):
            await store.append([bad])
    else:
        answers = await asyncio.gather(store.append([bad]), store.append([fine]), return_exceptions=True)
        assert isinstance(answers[0], InvalidInput)
        assert answers[0].path == path
        assert answers[1][0].outcome is Outcome.APPENDED
    await store.close()


VERBS = sorted(wire.ANSWERS)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


def _requests() -> st.SearchStrategy[bytes]:
    """Bytes, msgpack of anything, and requests of ours with a part replaced, cut off, or with odd bytes."""
    pen = Pen("default", "fuzz")
    begin = pen.begin()
    key, odd = pen.key, st.binary(max_size=40)
    ours = [
        wire.Append([begin]),
        wire.Heads([key, ("default", "fuzz")]),
        wire.Entries(key, Wanted(labelled=True)),
        wire.Find(Query(namespace="default"), None, 10),
        wire.Count(Query(namespace="default")),
        wire.Beat([(key, None)], None),
        wire.Events("default", "0", None, 10, 0),
        wire.Empty(key, [1], notes=False),
        wire.Swap(key, b"", b"", {1: {"run": "r1"}}),
        wire.Purge([key], None),
    ]
    plain = [msgspec.msgpack.decode(wire.encode(each)) for each in ours]

    @st.composite
    def altered(draw):
        value = draw(st.sampled_from(plain))
        target, name = value, None
        copy = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
        target = copy
        while True:  # descend somewhere, and replace what is there
            if isinstance(target, dict) and target:
                name = draw(st.sampled_from(sorted(target, key=str)))
            elif isinstance(target, list) and target:
                name = draw(st.integers(0, len(target) - 1))
            else:
                return msgspec.msgpack.encode(copy)
            if draw(st.booleans()) and isinstance(target[name], dict | list) and target[name]:
                target = target[name]
                continue
            target[name] = draw(VALUES)
            return msgspec.msgpack.encode(copy)

    cut = st.tuples(st.sampled_from(ours), st.integers(0, 60)).map(lambda pair: wire.encode(pair[0])[: -pair[1] - 1])
    return odd | VALUES.map(msgspec.msgpack.encode) | altered() | cut


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(VERBS), _requests())
@example("append", b"\x81\xa6groups" + b"\x91" * 100_000)
@example("find", wire.encode(wire.Find(Query(namespace="default", text="\0"), None, 10)))
def test_garbage_is_refused_with_a_type(door, verb, request):
    """Whatever is sent, the answer is one of ours or a typed error that is not the server's fault; all goes on."""
    url, texts, _ = door

    refused: list[SaveslotError] = []

    async def send() -> None:
        store = await HttpStore.open(url, texts["all"])
        try:
            await asyncio.wait_for(store._servers.call(verb, request, waits=0), 30)  # noqa: SLF001
        except SaveslotError as exc:
            refused.append(exc)
        finally:
            await store.close()

    asyncio.run(send())
    assert not [exc for exc in refused if isinstance(exc, Unavailable) or type(exc) is SaveslotError]


async def test_too_large_requests_are_refused_before_they_are_read(door):
    """A request over the limit is refused by its declared length, and by what arrives without one."""
    url, texts, _ = door
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    prefix = url.rpartition("/")[2]
    for length in (f"content-length: {wire.LARGEST + 1}\r\n\r\n", "transfer-encoding: chunked\r\n\r\n"):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /{prefix}/store/1/heads HTTP/1.1\r\nhost: {host}\r\ncontent-type: {wire.MSGPACK}\r\n"
        writer.write(f"{head}authorization: Bearer {texts['all']}\r\n{length}".encode())
        sent = 0
        while "chunked" in length and sent <= wire.LARGEST:
            writer.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
            await writer.drain()
            sent += 1 << 20
        assert b" 413 " in await reader.readline()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.fixture
async def long_log(door):
    """A session with more than the server tells in one answer, as the tests set it: its store, and the one behind."""
    url, texts, path = door
    direct, store = await SqliteStore.open(path), await HttpStore.open(url, texts["all"])
    pen = Pen("default", os.urandom(8).hex())
    groups = [pen.begin()]
    pen.saw(groups[0])
    for n in range(40):
        groups.append(
            pen.group(frame=bytes([n]) * (300 if n % 7 else 2000), note=b"n" * (n % 5), base=n if n % 3 else 0)
        )
        pen.saw(groups[-1])
    for group in groups:
        await direct.append([group])
    yield pen.key, store, direct
    assert await direct.purge([pen.key], [pen.prev]) == [41]  # no state can be rebuilt from these frames
    await store.close()
    await direct.close()


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"frames": False},
        {"newest": 25},
        {"newest": 7},
        {"newest": 5, "ranges": [(1, 30)]},
        {"ranges": [(1, 3), (20, 22), (38, 99)]},
        {"ranges": [(30, 41)], "chain": 29},
        {"ranges": [], "chain": 29},
        {"room": 5000},
        {"room": 0},
        {"room": 700, "ranges": [(5, 35)]},
        {"kinds": frozenset({0})},
        {"name": "step", "newest": 30},
    ],
)
async def test_long_logs_come_in_parts(long_log, monkeypatch, how):
    """More entries or bytes than one answer has are the same as from the store itself."""
    key, store, direct = long_log
    monkeypatch.setattr(wire, "PAGE", 6)
    monkeypatch.setattr(wire, "ROOM", 2500)
    wanted = Wanted(**how)
    assert await store.entries(key, wanted) == await direct.entries(key, wanted)


async def test_no_answer_has_more(long_log, monkeypatch):
    """A client that asks for all at once is refused, before that is in memory."""
    key, store, _ = long_log
    monkeypatch.setattr(wire, "PAGE", 20)
    with pytest.raises(TooLarge, match="entries"):
        await store._call("entries", wire.Entries(key, Wanted(frames=False)))  # noqa: SLF001
    monkeypatch.setattr(wire, "PAGE", 10_000)
    monkeypatch.setattr(wire, "ROOM", 2500)
    with pytest.raises(TooLarge, match="bytes"):
        await store._call("entries", wire.Entries(key, Wanted()))  # noqa: SLF001
    with pytest.raises(TooLarge, match="items"):
        await store._call("heads", wire.Heads([key] * (wire.LIST + 1)))  # noqa: SLF001


async def test_long_lists_go_in_parts(long_log, monkeypatch):
    """What is more than one request carries is sent in several, and answered as if it were one."""
    key, store, _ = long_log
    monkeypatch.setattr(wire, "LIST", 3)
    pens = [Pen("default", f"part-{n}") for n in range(8)]
    begun = [pen.begin() for pen in pens]
    await store.append(begun)
    keys = [pen.key for pen in pens]
    assert [head.row.key for head in await store.heads([*keys, key])] == [*keys, key]
    times = await store.beat([(one, None) for one in [*keys, os.urandom(16)]])
    assert [time > 0 for time in times] == [True] * 8 + [False]
    for pen, group in zip(pens, begun, strict=True):
        pen.saw(group)
    await store.append([pen.group(frame=bytes(10)) for pen in pens[:1]])
    assert await store.empty(keys[0], [1, 5, 6, 7, 2]) == 2
    assert await store.purge(keys, [group.entries[-1].append_id for group in begun]) == [0] + [1] * 7


@pytest.mark.parametrize("value", [0, b"", "", [], {}, None, 1.5, "x" * 40, -7, 1 << 40])
async def test_requests_of_too_many_values_are_refused(door, value):
    """A body of a few megabytes that would take a hundred times as much is refused before it is decoded."""
    url, texts, _ = door
    store = await HttpStore.open(url, texts["all"])
    body = msgspec.msgpack.encode({"key": bytes(16), "seqs": [value] * 1_100_000, "notes": False})
    with pytest.raises(TooLarge, match="values"):
        await store._servers.call("empty", body)  # noqa: SLF001
    await store.close()


async def test_a_large_frame_is_not_too_many_values(door):
    """What counts are values, not bytes."""
    url, texts, _ = door
    store = await HttpStore.open(url, texts["all"])
    pen = Pen("default", os.urandom(8).hex())
    begin = pen.begin()
    begin.entries[0].frame = os.urandom(3 << 20)
    [verdict] = await store.append([begin])
    assert verdict.outcome is Outcome.APPENDED
    assert (await store.entries(pen.key))[0].frame == begin.entries[0].frame
    assert await store.purge([pen.key], [begin.entries[0].append_id]) == [1]
    await store.close()


async def test_errors_keep_their_type_and_fields(door):
    """An error that the store behind the server raises arrives with its type, message and fields."""
    url, texts, _ = door
    store = await HttpStore.open(url, texts["all"])
    with pytest.raises(InvalidInput) as caught:
        await store.events("default", "nonsense")
    assert caught.value.path == "after"
    for labels, where in (({0: {}}, "labels"), ({2: {"run": "\0"}}, "labels[2].run")):
        with pytest.raises(InvalidInput) as caught:
            await store.swap(os.urandom(16), b"", b"", labels)
        assert caught.value.path == where
    with pytest.raises(TooLarge):
        await store._call("swap", wire.Swap(os.urandom(16), b"", bytes(wire.LARGEST)))  # noqa: SLF001
    await store.close()


async def test_with_a_key_the_server_sees_no_plain_text(door, monkeypatch):
    """A session that its client seals is stored sealed: neither the server nor its store ever has the text."""
    url, texts, path = door
    key = saveslot.codec.new_key()
    async with saveslot.open(url, token=texts["all"], encryption_key=key, namespace="sealed") as sessions:
        await sessions.create_session("tutor", session_id="secret", data={"text": "the secret word"})
        assert (await sessions.get_data("secret"))["text"] == "the secret word"
    direct = await SqliteStore.open(path)
    [head] = await direct.heads([("sealed", "secret")])
    for entry in await direct.entries(head.row.key, Wanted()):
        assert b"secret word" not in (entry.frame or b"") + (entry.note or b"")
    assert b"secret word" not in head.row.body
    await direct.close()


def test_commands_work_with_a_server(tmp_path):
    """Commands take the URL of a server as their store, with the token from the environment."""
    path = tmp_path / "s.db"
    text = asyncio.run(_created(str(path)))
    with Serving() as serving:
        url = serving.serve(lambda: SqliteStore.open(str(path)))
        env = {**os.environ, "SAVESLOT_TOKEN": text, "SAVESLOT_URL": url, "SAVESLOT_NAMESPACE": "cli"}

        def run(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "saveslot", *argv]
            return subprocess.run(
                command, capture_output=True, text=True, input=stdin, env=env, timeout=120, check=False
            )

        session_id = run("create", "tutor", "--id", "lesson-1").stdout.strip()
        assert session_id == "lesson-1"
        for argv in (
            ["ls"],
            ["show", "lesson-1"],
            ["log", "lesson-1"],
            ["stats"],
            ["pause", "lesson-1"],
            ["audit", "lesson-1", "--verify"],
            ["export", "lesson-1"],
            ["gc"],
            ["doctor"],
            ["workers"],
            ["key", "list"],
            ["copy", url, str(path) + ".copy.db"],
        ):
            done = run(*argv)
            assert done.returncode == 0, (argv, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr
        assert run("ls", "--store", url + "0").returncode != 0
        refused = run("migrate")
        assert refused.returncode == 2
        assert "no tables" in refused.stderr
        refused = run("token", "ls")
        assert refused.returncode == 2
        assert "/v1/tokens" in refused.stderr
        env["SAVESLOT_TOKEN"] = "saveslot_wrong"  # noqa: S105
        assert run("ls").returncode == 4
        env["SAVESLOT_URL"] = "http://127.0.0.1:9"
        assert run("ls").returncode == 6


async def _created(path: str) -> str:
    """A token for all."""
    async with saveslot.open(path) as sessions:
        return await tokens.create(tokens.registry(sessions), "all", "admin")
