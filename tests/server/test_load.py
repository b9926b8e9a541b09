"""What the server does when more is asked of it than it can do."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import ExitStack, suppress
from http.client import HTTPConnection

import msgspec
import psutil
import pytest
import zstandard

import saveslot
from saveslot import TooLarge, Unavailable
from saveslot.cli import main
from saveslot.manager import SessionManager, rows
from saveslot.server import app, call, limits, load, measured, quotas, run, tokens
from saveslot.server.load import CALLS, Room
from saveslot.server.v1 import records
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.http import HttpStore, wire
from saveslot.stores.memory import MemoryStore
from saveslot.testing.pen import Pen
from saveslot.values.log import Query, Wanted
from tests.server.conftest import serving as serving_process


class Stuck(PassingStore):
    """Its counts wait until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.asked, self.free = threading.Event(), threading.Event()

    async def count(self, query, *, totals="store"):
        self.asked.set()
        while not self.free.is_set():  # noqa: ASYNC110  (set by another thread)
            await asyncio.sleep(0.01)
        return await super().count(query, totals=totals)


def post(url: str, verb: str, body: bytes, **headers: str):
    host, _, name = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=60)
    names = {"content-type": wire.MSGPACK, **{key.replace("_", "-"): value for key, value in headers.items()}}
    try:
        connection.request("POST", f"/{name}/store/1/{verb}", body, names)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


COUNT = wire.encode(wire.Count(Query(namespace="default")))


def stuck(serving, room: Room | None = None) -> tuple[str, Stuck]:
    store = Stuck()

    async def opened():
        return store

    return serving.serve(opened, room=room), store


def test_what_does_not_fit_is_refused_at_once(serving):
    """Beyond its limit of requests the server answers 503 and when to retry; the one under way is not disturbed."""
    url, store = stuck(serving, Room(calls=1))
    answers = []
    first = threading.Thread(target=lambda: answers.append(post(url, "count", COUNT)))
    first.start()
    assert store.asked.wait(60)
    status, headers, _ = post(url, "count", COUNT)
    assert (status, headers["retry-after"]) == (503, "1")
    store.free.set()
    first.join(60)
    assert answers[0][0] == 200
    assert post(url, "count", COUNT)[0] == 200
    serving.stop()


async def test_nothing_is_written_before_a_quota_was_counted(serving, monkeypatch):
    """As long as the store has not counted a namespace for its quota, writes of either door get 503 and when to retry,
    and nothing of them lands; deletions do. Then they are judged by what is there.
    """
    monkeypatch.setattr(limits, "PATIENCE", 0.2)
    store = Stuck()
    there = [Pen("small", name).begin() for name in ("one", "two")]

    async def opened():
        await store.append(there)
        await quotas.put(tokens.registry(SessionManager(store=store)), "small", bytes=600)
        return store

    url = serving.serve(opened)
    new = b'{"agent_type":"t"}'
    status, answer = save(url, new, "sessions?ns=small")
    assert (status, b"still being counted" in answer) == (503, True), answer
    status, headers, answer = post(url, "append", wire.encode(wire.Append([Pen("small", "more").begin()])))
    assert (status, headers["retry-after"], b"still being counted" in answer) == (503, "1", True), answer
    assert save(url, new, "sessions?ns=free")[0] == 201
    assert len(await store.find(Query(namespace="small"))) == 2
    assert send(url, "DELETE", "sessions/one?ns=small", if_match="*") == 204
    store.free.set()
    end = time.monotonic() + 60
    while (status := save(url, new, "sessions?ns=small")[0]) == 503:
        assert time.monotonic() < end
    assert status == 429
    serving.stop()


def test_slow_bodies_take_no_room(tmp_path, capsys):
    """Requests whose bodies do not arrive keep nobody out, and each is answered once its body has come."""
    store = str(tmp_path / "s.db")
    assert main(["token", "create", "slow", "--scope", "read", "--store", store]) == 0
    slow = capsys.readouterr().out.strip()
    with serving_process(store) as served, ExitStack() as open_sockets:
        host, port = served.address.split(":")
        head = f"POST /store/1/count HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {slow}\r\n"
        for _ in range(CALLS + 8):
            client = open_sockets.enter_context(socket.create_connection((host, int(port)), timeout=60))
            client.sendall(
                f"{head}content-type: {wire.MSGPACK}\r\ncontent-length: {len(COUNT)}\r\n\r\n".encode() + COUNT[:1]
            )
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/v1/count", 200), ("/v1/me", 200)):
            assert served.request("GET", path, authorization=f"Bearer {slow}").status == status
        client.sendall(COUNT[1:])
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


async def test_a_token_gets_a_share_of_the_room(serving):
    """A token with half of all requests under way is refused the next one; another token and /healthz are served."""
    store = Stuck()
    texts = []

    async def opened():
        registry = tokens.registry(SessionManager(store=store))
        texts.extend([await tokens.create(registry, name, "read") for name in ("greedy", "modest")])
        return store

    url = serving.serve(opened, room=Room(calls=4))
    greedy, modest = ({"authorization": f"Bearer {text}"} for text in texts)
    answers = [asyncio.create_task(asyncio.to_thread(post, url, "count", COUNT, **greedy)) for _ in range(3)]
    [refused], waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result()[0] == 503
    assert b"share" in refused.result()[2]
    more = asyncio.create_task(asyncio.to_thread(post, url, "count", COUNT, **modest))
    host, _, name = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=60)
    for _ in range(3):
        connection.request("GET", f"/{name}/healthz")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b'{"status":"ok"}')
    connection.close()
    store.free.set()
    assert [(await task)[0] for task in (*waiting, more)] == [200, 200, 200]
    serving.stop()


def test_bodies_of_all_requests_have_one_limit(serving):
    """A body that does not fit into memory beside the others is refused; the next one that fits is not."""
    url, _ = stuck(serving, Room(most=1 << 20))
    assert post(url, "find", bytes(2 << 20))[0] == 503
    assert post(url, "find", wire.encode(wire.Find(Query(namespace="default"), None, 1)))[0] == 200
    serving.stop()


def test_a_store_that_does_not_answer_is_given_up(serving, monkeypatch):
    """A request whose store is silent gets 503 by the deadline, not a connection that hangs."""
    monkeypatch.setattr(call, "WITHIN", 0.2)
    url, store = stuck(serving)
    status, headers, body = post(url, "count", COUNT)
    assert (status, headers["retry-after"]) == (503, "1")
    assert b"did not answer" in body
    store.free.set()
    serving.stop()


def test_a_body_that_does_not_arrive_is_given_up(serving, monkeypatch):
    """A request whose client does not send its body in time gets 408, and its connection is closed."""
    monkeypatch.setattr(call, "SENDING", 0.2)
    url, _ = stuck(serving)
    host, _, name = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=60)
    connection.putrequest("POST", f"/{name}/store/1/count")
    connection.putheader("content-type", wire.MSGPACK)
    connection.putheader("content-length", "100")
    connection.endheaders(b"half")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert b"did not arrive" in answer.read()
    connection.close()
    serving.stop()


async def test_clients_wait_for_a_busy_server(serving):
    """A client retries what was refused for want of room, and gets its answer once there is some."""
    url, store = stuck(serving, Room(calls=1))
    client = await HttpStore.open(url)
    calls = [asyncio.ensure_future(client.count(Query(namespace="default"))) for _ in range(3)]
    await asyncio.to_thread(store.asked.wait, 60)
    store.free.set()
    assert [counts.states for counts in await asyncio.gather(*calls)] == [{}, {}, {}]
    await client.close()
    serving.stop()


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_bodies(serving, encoding):
    """A compressed body is read; a bomb is refused before it is unpacked, and what is cut off or no such data too."""
    squeeze = gzip.compress if encoding == "gzip" else zstandard.ZstdCompressor().compress
    url, store = stuck(serving)
    store.free.set()
    body = squeeze(COUNT)
    assert post(url, "count", body, content_encoding=encoding)[0] == 200
    assert post(url, "count", squeeze(bytes(wire.LARGEST + 1)), content_encoding=encoding)[0] == 413
    assert post(url, "count", body[:-3], content_encoding=encoding)[0] == 400
    assert post(url, "count", COUNT, content_encoding=encoding)[0] == 400
    assert post(url, "count", body, content_encoding="br")[0] == 415
    serving.stop()


def test_a_client_that_sends_no_request_is_cut(serving, monkeypatch):
    """A connection on which the head of a request does not arrive in time is closed."""
    monkeypatch.setattr(run, "HEADING", 0.2)
    url, _ = stuck(serving)
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    for sent in (b"", b"POST /0/store"):
        with socket.create_connection((host, int(port)), timeout=60) as idle:
            idle.sendall(sent)
            with suppress(ConnectionResetError):
                assert idle.recv(100) == b""
    serving.stop()


def test_idle_connections_keep_nobody_out(serving, monkeypatch):
    """Of more connections than a process may have, those are cut that have been without a request for longest."""
    url, _ = stuck(serving)
    host = url.removeprefix("http://").partition("/")[0]
    address = host.split(":")[0], int(host.split(":")[1])
    with ExitStack() as sockets:
        idle = [sockets.enter_context(socket.create_connection(address, timeout=60)) for _ in range(5)]
        assert get(url, "me")[0] == 200  # the server has met them all
        monkeypatch.setattr(run.Protocol, "most", run.Protocol.open)
        for n in range(3):
            assert get(url, "me")[0] == 200
            with suppress(ConnectionResetError):
                assert idle[n].recv(1) == b""
    serving.stop()


def test_sigterm_ends_watches_at_once(tmp_path):
    """A server that is told to end answers its watchers that it ends, and does not wait for them."""
    with serving_process(str(tmp_path / "s.db")) as served:
        host = served.address
        answers = []

        def watch() -> None:
            connection = HTTPConnection(host, timeout=60)
            body = wire.encode(wire.Events("default", None, None, 10, 20))
            connection.request("POST", "/store/1/events", body, {"content-type": wire.MSGPACK})
            answers.append(connection.getresponse().status)
            connection.close()

        watching = threading.Thread(target=watch)
        watching.start()
        time.sleep(0.5)  # for the watch to arrive; one that comes later is refused in the same way
        served.process.send_signal(signal.SIGTERM)
        watching.join(60)
        assert answers == [503]
        assert served.process.wait(60) == 0


async def test_several_processes_share_a_port(tmp_path):
    """With `--workers`, killing one process with -9 loses nothing: the others answer, and it is replaced."""
    with serving_process(str(tmp_path / "s.db"), "--workers", "2") as served:
        client = await HttpStore.open(served.url)
        await client.find(Query(namespace="default"))
        await client.close()
        children = _children(served.process.pid)
        assert len(children) >= 2
        for child in children:
            os.kill(child, signal.SIGKILL)
        client = await HttpStore.open(served.url)
        await client.find(Query(namespace="default"))
        await client.close()
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(served.process.wait, 60) == 0
    with pytest.raises(Unavailable):
        await HttpStore.open(served.url, patient=False)


def test_processes_end_with_their_parent(tmp_path):
    """When the parent of `--workers` is killed with -9, its processes end their streams and themselves."""
    with serving_process(str(tmp_path / "s.db"), "--workers", "2") as served:
        children = [psutil.Process(pid) for pid in _children(served.process.pid)]
        assert len(children) == 2
        watching = HTTPConnection(served.address, timeout=60)
        watching.request("GET", "/v1/events")
        stream = watching.getresponse()
        assert stream.status == 200
        os.kill(served.process.pid, signal.SIGKILL)
        assert b"retry" in stream.read()  # to its end, which tells the client to connect again
        watching.close()
        assert psutil.wait_procs(children, timeout=60)[1] == []


def test_sockets_that_cannot_be_made_are_named(tmp_path):
    """If the path of temporary files is too long for sockets, `--workers` says so and ends."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    argv = [
        sys.executable,
        "-m",
        "saveslot",
        "serve",
        "--workers",
        "2",
        "--port",
        "0",
        "--store",
        str(tmp_path / "s.db"),
    ]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(folder)})
    assert done.returncode == 6
    assert "TMPDIR" in done.stderr


def _children(pid: int) -> list[int]:
    """Processes that serve: those that it started, but for multiprocessing's own tracker."""
    return [child.pid for child in psutil.Process(pid).children() if "spawn_main" in " ".join(child.cmdline())]


def send(url: str, method: str, path: str, **headers: str) -> int:
    host, _, name = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=60)
    try:
        connection.request(method, f"/{name}/v1/{path}", None, {key.replace("_", "-"): headers[key] for key in headers})
        return connection.getresponse().status
    finally:
        connection.close()


def save(url: str, body: bytes, verb: str = "sessions/big/checkpoints", **headers: str):
    host, _, name = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=60)
    names = {"content-type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
    prefix = f"/{name}" if name else ""
    try:
        connection.request("POST", f"{prefix}/v1/{verb}", body, {"prefer": "return=minimal", **names})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_small_json_that_takes_much_memory_is_refused(tmp_path):
    """A body that is heavier than the limit is refused before it is decoded; what stands in strings does not count."""
    with serving_process(str(tmp_path / "s.db")) as served:
        save(served.url, b'{"agent_type":"t","session_id":"big"}', "sessions")
        process = psutil.Process(served.process.pid)
        before = process.memory_info().rss
        for body in (
            b'{"name":"x","data":{"a":[' + b"{}," * 5_000_000 + b"{}]}}",
            b'{"name":"x","data":{"a":[' + b"{}," * 100_000 + b"{}]}}",
            b'{"name":"x","data":{"a":[' + b'"\\"[{\\\\",[],' * 200_000 + b"1]}}",
            b'{"name":"x","data":{"a":[' + b"1," * 8_000_000 + b"1]}}",
        ):
            status, answer = save(served.url, body)
            assert (status, b"the request is too large" in answer) == (413, True), answer[:300]
        status, answer = save(served.url, b'{"saveslot":1,"session":[' + b"[]," * 2_000_000 + b"1]}", "imports")
        assert (status, b"the request is too large" in answer) == (413, True), answer[:300]
        assert process.memory_info().rss - before < 300 << 20
        status, answer = save(served.url, b'{"saveslot":1,"session":[' + b"[]," * 200_000 + b"1]}", "imports")
        assert (status, b"too large" in answer) == (422, False), answer[:300]
        most = b'{"name":"x","data":{"a":[' + b"{}," * 99_000 + b"{}]}}"
        assert save(served.url, most)[0] == 201
        texts = b'{"name":"x","data":{"a":"' + b'[{\\"a\\\\' * 1_500_000 + b'"}}'
        assert save(served.url, texts)[0] == 201


async def test_long_sessions_pass_both_doors(tmp_path):
    """A state of 15 MB in 10,000 turns is saved, changed and read at either door, and comes back equal."""
    turns = [
        {"role": "user", "id": n, "content": [{"type": "text", "text": f"{n:06} " + "a word, and {more} of it " * 55}]}
        for n in range(10_000)
    ]
    with serving_process(str(tmp_path / "s.db")) as served:
        save(served.url, b'{"agent_type":"t","session_id":"big"}', "sessions")
        body = msgspec.json.encode({"name": "x", "data": {"turns": turns[:-2]}})
        assert len(body) > 14_000_000
        assert save(served.url, body)[0] == 201
        assert save(served.url, msgspec.json.encode({"name": "y", "append": {"turns": turns[-2:-1]}}))[0] == 201
        async with saveslot.open(served.url) as sessions:
            await sessions.checkpoint("big", "z", append={"turns": turns[-1:]})
            await sessions.create_session("t", session_id="other", data={"turns": turns})
            assert await sessions.get_data("big") == {"turns": turns}
        for session_id in ("big", "other"):
            answer = served.request("GET", f"/v1/sessions/{session_id}/data")
            assert (answer.status, answer.json == {"turns": turns}) == (200, True)
        answer = served.request("GET", "/v1/sessions/big?history=9")
        assert [one["name"] for one in answer.json["checkpoints"]] == ["z"]  # a page ends with what passes 4 MB
        [op] = served.request("GET", "/v1/sessions/big/diff?a=1&b=3").json["items"]
        assert op["path"] == "/turns"


async def test_states_too_heavy_to_look_into_come_whole(tmp_path):
    """Of a state that is too heavy to be decoded for a request the JSON door gives the whole text, and adds to it; what
    would have to decode it is refused with the limit.
    """
    data = {"numbers": list(range(500_000)), "n": 1}
    with serving_process(str(tmp_path / "s.db")) as served:
        async with saveslot.open(served.url) as sessions:
            await sessions.create_session("t", session_id="heavy", data=data)
            await sessions.checkpoint("heavy", "more", put={"n": 2})
        path = "/v1/sessions/heavy"
        assert served.request("GET", f"{path}/data").json == {**data, "n": 2}
        assert served.request("GET", f"{path}/checkpoints/latest").json["data"]["n"] == 2
        answer = served.request("POST", f"{path}/checkpoints", {"name": "x", "append": {"numbers": [1]}})
        assert answer.status == 201
        assert len(answer.json["data"]["numbers"]) == 500_001
        assert served.request("GET", f"{path}/data?key=n").json == {"n": 2}
        for refused in ("diff?a=1&b=4", "checkpoints/latest?path=/numbers", "data?key=numbers"):
            answer = served.request("GET", f"{path}/{refused}")
            assert (answer.status, answer.json["code"], answer.json["limit"]) == (413, "too_large", 400_000), refused
        assert served.request("GET", f"{path}/log").status == 200


def test_many_integers_of_thousands_of_digits_are_refused(tmp_path):
    """Integers that take a second to decode are refused before that; fewer, or as many digits in a text, are stored."""
    with serving_process(str(tmp_path / "s.db")) as served:
        save(served.url, b'{"agent_type":"t","session_id":"big"}', "sessions")
        number = b"7" * 4000
        for data, status in (
            (b",".join([number] * 1500), 413),
            (b",".join([number] * 100), 201),
            (b'"%b"' % (number * 1500), 201),
        ):
            assert save(served.url, b'{"name":"x","data":{"a":[%b]}}' % data)[0] == status


def test_a_body_that_grows_too_much_is_refused(tmp_path):
    """A body that becomes more than 200 times as long by decompression is refused, one that grows less is read."""
    with serving_process(str(tmp_path / "s.db")) as served:
        save(served.url, b'{"agent_type":"t","session_id":"big"}', "sessions")
        text = b'{"name":"x","data":{"a":"' + b"a" * 3_000_000 + b'"}}'
        assert save(served.url, gzip.compress(text), content_encoding="gzip")[0] == 413
        text = b'{"name":"x","data":{"a":"' + os.urandom(50_000).hex().encode() + b"a" * 3_000_000 + b'"}}'
        assert save(served.url, gzip.compress(text), content_encoding="gzip")[0] == 201


def get(url: str, path: str):
    host, _, name = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=60)
    try:
        connection.request("GET", f"/{name}/v1/{path}")
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read())
    finally:
        connection.close()


def noise(size: int) -> str:
    """Text that takes at least half of its length as stored."""
    return os.urandom(size // 2).hex()


async def freed(room: Room, left: int = 0) -> None:
    """Wait until the server has let go of what its requests had in memory."""
    end = time.monotonic() + 60
    while room.held != left or any(room.open.values()):
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def heavy(serving) -> tuple[str, Room, bytes]:
    """A server of 30 sessions with 50 KB of context, one of which has 40 records of as much; and that one's key."""
    store, room = MemoryStore(), Room()
    sessions = SessionManager(store=store)
    for n in range(30):
        await sessions.create_session("t", session_id=f"s{n}", context={"text": noise(100_000)})
    for n in range(40):
        await sessions.record("s0", f"r{n}", noise(100_000))

    async def opened():
        return store

    [head] = await store.heads([("default", "s0")])
    return serving.serve(opened, room=room), room, head.row.key


async def test_answers_have_a_limit(serving, monkeypatch):
    """What a request would read beyond the limit of bytes is refused, with the limit and what to ask for instead,
    whatever it consists of: entries with long notes, rows or heads with long contexts. A client asks for less at a
    time, and gets all of it.
    """
    monkeypatch.setattr(load, "READ", 1 << 20)
    monkeypatch.setattr(measured, "READ", 1 << 20)
    url, room, key = await heavy(serving)
    query, names = Query(namespace="default"), [("default", f"s{n}") for n in range(30)]
    for verb, request in (
        ("entries", wire.Entries(key, Wanted(frames=False))),
        ("find", wire.Find(query, None, 1000)),
        ("heads", wire.Heads([*names])),
    ):
        status, _, answer = post(url, verb, wire.encode(request))
        problem = msgspec.json.decode(answer)
        assert (status, problem["code"], problem["limit"]) == (413, "too_large", 1 << 20), verb
        assert "ask for fewer at a time" in problem["message"]
    client = await HttpStore.open(url)
    assert len(await client.entries(key, Wanted(frames=False))) == 41
    assert len(await client.entries(key)) == 41
    assert len(await client.find(query, None, 1000)) == 30
    assert all(await client.heads([*names]))
    await client.close()
    assert get(url, "sessions?limit=1000")[0] == 413
    assert len(get(url, "sessions?limit=2")[1]["items"]) == 2
    assert get(url, "sessions/s0/entries?newest=100")[0] == 413
    assert len(get(url, "sessions/s0/entries?newest=2")[1]["items"]) == 2
    await freed(room)
    serving.stop()


async def test_pages_end_with_what_is_large(serving, monkeypatch):
    """A page of sessions or records ends early once it has many bytes, and `next` leads on to the others."""
    monkeypatch.setattr(rows, "ROOM", 300_000)
    monkeypatch.setattr(records, "ROOM", 300_000)
    url, room, _ = await heavy(serving)
    for path, name, many in (("sessions", "session_id", 30), ("sessions/s0/records", "name", 40)):
        found, pages, after = [], 0, ""
        while after is not None:
            status, page = get(url, f"{path}?limit=100{after and f'&after={after}'}")
            assert status == 200
            found += [item[name] for item in page["items"]]
            pages, after = pages + 1, page["next"]
        assert (len(found), len(set(found))) == (many, many)
        assert pages > 3
    await freed(room)
    serving.stop()


async def test_long_notes_do_not_pass(serving):
    """A record or a context of more than 8 MB as stored is refused at either door; the agent's data may be longer."""
    url, room, _ = await heavy(serving)
    long = b64encode(os.urandom(9_000_000)).decode()
    for path, body in (
        ("sessions/s0/records", {"name": "x", "value": long}),
        ("sessions", {"agent_type": "t", "context": {"long": long}}),
        ("sessions/s0/checkpoints", {"name": "x", "metadata": {"long": long}, "data": {}}),
    ):
        status, answer = save(url, msgspec.json.encode(body), path)
        assert (status, b"keep what is larger in the agent's data" in answer) == (413, True), path
    client = SessionManager(store=await HttpStore.open(url))
    with pytest.raises(TooLarge, match="agent's data"):
        await client.record("s0", "x", long)
    await client.checkpoint("s0", "x", {"long": long})
    assert await client.get_data("s0") == {"long": long}
    await client.close()
    await freed(room)
    serving.stop()


async def test_memory_of_all_requests_has_a_limit(serving):
    """A read that has no room beside the others gets 503 and when to retry; nothing of it stays."""
    url, room, key = await heavy(serving)
    room.take("", load.BYTES - (1 << 20))
    status, headers, answer = post(url, "entries", wire.encode(wire.Entries(key, Wanted(frames=False))))
    assert (status, headers["retry-after"], b"in memory" in answer) == (503, "1", True)
    await freed(room, load.BYTES - (1 << 20))
    room.give("", load.BYTES - (1 << 20))
    assert post(url, "entries", wire.encode(wire.Entries(key, Wanted(frames=False))))[0] == 200
    serving.stop()


async def test_clients_that_do_not_take_their_answers_are_cut(serving, monkeypatch):
    """A client that reads nothing of a long answer is cut, and the answer is freed."""
    monkeypatch.setattr(app, "TAKING", 0.3)
    url, room, _ = await heavy(serving)
    writer = SessionManager(store=await HttpStore.open(url))
    await writer.checkpoint("s0", "long", {"text": noise(10_000_000)})
    await writer.close()
    host, _, name = url.removeprefix("http://").partition("/")
    for path in ("data", "export"):
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.settimeout(60)
            lazy.connect((host.split(":")[0], int(host.split(":")[1])))
            lazy.sendall(f"GET /{name}/v1/sessions/s0/{path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            assert lazy.recv(12) == b"HTTP/1.1 200"
            await freed(room)
            taken = 0
            with suppress(ConnectionResetError):
                while part := lazy.recv(1 << 20):
                    taken += len(part)
            assert taken < 9_000_000
    serving.stop()


@pytest.mark.parametrize("verb", ["imports", "sessions/none/checkpoints", "sessions/big/checkpoints"])
def test_nothing_of_a_refused_request_stays(serving, verb):
    """What a refused request brought is freed with its answer, not by a later collection."""

    def found() -> int:
        return sum(type(value) is list and len(value) == 54_321 for value in gc.get_objects())

    url, _ = stuck(serving)
    save(url, b'{"agent_type":"t","session_id":"big"}', "sessions")
    many = b",".join([b"{}"] * 54_321)
    body = b'{"saveslot":1,"session":[%b]}' if verb == "imports" else b'{"name":"x","patch":[],"data":{"a":[%b]}}'
    gc.collect()
    gc.disable()
    try:
        assert save(url, body % many, verb)[0] in {404, 422}
        end = time.monotonic() + 30
        while found() and time.monotonic() < end:
            time.sleep(0.01)
        assert not found()
    finally:
        gc.enable()
    serving.stop()
