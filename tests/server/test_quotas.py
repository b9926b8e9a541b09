"""Quotas: what a namespace may hold and write, through whatever verb, at either door."""

from __future__ import annotations

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import msgspec
import pytest

import saveslot
from saveslot import QuotaExceeded
from saveslot.stores.http import HttpStore
from saveslot.testing.pen import Pen
from saveslot.values.kinds import Kind
from saveslot.values.log import Outcome
from tests.server.conftest import serving

FREE = "school-8"


@pytest.fixture
def space() -> str:
    return f"school-{os.urandom(4).hex()}"


def limit(served, space: str, **limits) -> None:
    assert served.request("PUT", f"/v1/quotas/{space}", limits).status == 204


def create(served, space: str, session_id: str, **more):
    made = {"agent_type": "tutor", "session_id": session_id, **more}
    return served.request("POST", f"/v1/sessions?ns={space}", made)


def count(served, space: str) -> int:
    return served.request("GET", f"/v1/count?ns={space}").json["count"]


def refused(answer, quota: str) -> bool:
    return (answer.status, answer.json["code"], answer.json["quota"]) == (429, "quota_exceeded", quota)


def until(condition, seconds=60):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_no_verb_creates_a_session_too_many(served, space):
    """A creation, fork, copy or import, and a hold that creates, are refused at the limit, and nothing is there."""
    limit(served, space, sessions=2)
    for name in ("a", "b"):
        assert create(served, space, name).status == 201
    exported = served.request("GET", f"/v1/sessions/a/export?ns={space}").body
    for path, body in (
        ("/v1/sessions", {"agent_type": "tutor"}),
        ("/v1/sessions/a/fork", {"session_id": "c"}),
        ("/v1/sessions/a/copy", {"to": "c"}),
        ("/v1/imports?session_id=c", exported),
    ):
        ns = f"{'&' if '?' in path else '?'}ns={space}"
        answer = served.request("POST", f"{path}{ns}", body)
        assert refused(answer, "sessions"), (path, answer.body)
        assert answer.json["limit"] == answer.json["used"] == 2
    assert count(served, space) == 2
    assert create(served, FREE, "free").status in {201, 409}  # another namespace is not concerned


async def test_no_verb_of_the_store_door_creates_a_session_too_many(served, space):
    """The same for a manager through the server: also `together` and creations that share a request."""
    limit(served, space, sessions=2)
    async with saveslot.open(served.url, namespace=space) as sessions:
        await sessions.create_session("tutor", session_id="a", data={"n": 1})
        answers = await asyncio.gather(
            *(sessions.create_session("tutor", session_id=f"s{n}") for n in range(20)), return_exceptions=True
        )
        assert [isinstance(answer, QuotaExceeded) for answer in answers].count(False) == 1
        [error] = {(one.namespace, one.quota, one.limit) for one in answers if isinstance(one, QuotaExceeded)}
        assert error == (space, "sessions", 2)
        for refused_call in (
            lambda: sessions.fork("a", session_id="c"),
            lambda: sessions.copy_session("a", "c"),
            lambda: sessions.create_session("tutor", session_id="c"),
        ):
            with pytest.raises(QuotaExceeded):
                await refused_call()
        with pytest.raises(QuotaExceeded):
            async with sessions.hold("c", create="tutor"):
                pass

        async def both() -> None:
            async with sessions.together() as t:
                t.checkpoint("a", "changed", {"n": 2})
                t.create_session("tutor", session_id="c")

        with pytest.raises(QuotaExceeded):
            await both()
        assert await sessions.get_data("a") == {"n": 1}
        text = await sessions.export("a")
        with pytest.raises(QuotaExceeded):
            await sessions.import_session(text, session_id="c")
        assert await sessions.count() == 2
        await sessions.checkpoint("a", "fine", {"n": 3})  # what is there goes on


def test_racing_creations_stop_at_the_limit(served, space):
    """Of forty creations at once on one server exactly as many land as there is room for."""
    limit(served, space, sessions=7)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: create(served, space, f"s{n}"), range(40)))
    assert sorted(answer.status for answer in answers) == [201] * 7 + [429] * 33
    assert count(served, space) == 7


def test_room_that_is_made_can_be_used(served, space):
    """A deleted session makes room for another one, within seconds."""
    limit(served, space, sessions=1)
    assert create(served, space, "a").status == 201
    assert create(served, space, "b").status == 429
    assert served.request("DELETE", f"/v1/sessions/a?ns={space}", if_match="*").status == 204
    until(lambda: create(served, space, "b").status == 201)
    assert count(served, space) == 1


def test_no_verb_stores_bytes_too_many(served, space):
    """Checkpoints, context, records, forks and imports are refused; deleting is not, and erasing makes room."""
    assert create(served, space, "a", data={"text": os.urandom(60_000).hex()}).status == 201
    exported = served.request("GET", f"/v1/sessions/a/export?ns={space}").body
    limit(served, space, bytes=20_000)
    large = os.urandom(50_000).hex()
    for method, path, body, headers in (
        ("POST", "/v1/sessions/a/checkpoints", {"name": "more", "put": {"more": large}}, {}),
        ("PATCH", "/v1/sessions/a", {"context": {"more": large}}, {"if_match": "*"}),
        ("POST", "/v1/sessions/a/records", {"name": "note", "value": large}, {}),
        ("POST", "/v1/sessions/a/fork", {"session_id": "b"}, {}),
        ("POST", "/v1/imports?session_id=b", exported, {}),
        ("POST", "/v1/sessions", {"agent_type": "tutor"}, {}),
        ("POST", "/v1/sessions/a/complete", {"result": {"more": large}}, {}),
    ):
        ns = f"{'&' if '?' in path else '?'}ns={space}"
        answer = served.request(method, f"{path}{ns}", body, **headers)
        assert refused(answer, "bytes"), (path, answer.body)
        assert answer.json["used"] > answer.json["limit"]
    assert len(served.request("GET", f"/v1/sessions/a/checkpoints?ns={space}").json["items"]) == 2
    limit(served, space, bytes=200_000)
    assert served.request("POST", f"/v1/sessions/a/checkpoints?ns={space}", {"name": "x"}).status == 201
    limit(served, space, bytes=20_000)
    assert served.request("DELETE", f"/v1/sessions/a?ns={space}", if_match="*").status == 204
    time.sleep(1.5)  # for another count
    assert create(served, space, "b").status == 429  # deleted sessions take room until they are purged
    assert served.request("POST", f"/v1/erase?ns={space}", {"session_id": "a", "dry_run": False}).status == 200
    until(lambda: create(served, space, "b").status == 201)


async def test_a_body_cannot_be_swapped_for_a_larger_one(served, space):
    """Nor can an entry carry in its recipe, name or labels what its frame may not."""
    store = await HttpStore.open(served.url)
    pen = Pen(space, "a")
    begin = pen.begin(body=b"small")
    await store.append([begin])
    pen.saw(begin)
    limit(served, space, bytes=100_000)
    with pytest.raises(QuotaExceeded):
        await store.swap(pen.key, b"small", os.urandom(200_000))
    with pytest.raises(QuotaExceeded):
        await store.swap(pen.key, b"small", b"still", {1: {f"l{n}": "x" * 900 for n in range(200)}})
    for how in ({"recipe": bytes(60_000)}, {"labels": {f"l{n}": "x" * 900 for n in range(60)}}):
        group = pen.group(2)
        for entry in group.entries:
            for name, value in how.items():
                setattr(entry, name, value)
        with pytest.raises(QuotaExceeded):
            await store.append([group])
    leaving = pen.group(kind=Kind.RELEASED, note=bytes(200_000))
    with pytest.raises(QuotaExceeded):
        await store.append([leaving])
    assert len(await store.entries(pen.key)) == 1
    await store.close()


def test_entries_of_a_minute(served, space):
    """Beyond the limit a write is refused, with the seconds to wait; a lease can still be given up."""
    assert create(served, space, "a").status == 201
    limit(served, space, checkpoints_per_minute=5)
    lease = served.request("POST", f"/v1/sessions/a/lease?ns={space}", {"worker": "w"}).json["lease_id"]
    held = {"saveslot_lease": lease}
    path = f"/v1/sessions/a/checkpoints?ns={space}"
    answers = [served.request("POST", path, {"name": "x", "data": {"n": n}}, **held) for n in range(10)]
    assert [answer.status for answer in answers] == [201] * 4 + [429] * 6
    assert refused(answers[-1], "checkpoints_per_minute")
    assert 0 < int(answers[-1].headers["retry-after"]) <= 61
    assert int(answers[-1].headers["retry-after"]) == answers[-1].json["retry_after"]
    assert served.request("POST", f"/v1/sessions/a/records?ns={space}", {"name": "n", "value": 1}).status == 429
    assert served.request("DELETE", f"/v1/sessions/a/lease/{lease}?ns={space}").status == 204
    use = served.request("GET", f"/v1/quota?ns={space}").json
    assert use["checkpoints_per_minute"] == {"limit": 5, "used": 6}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_all_processes_together_keep_to_the_entries_of_a_minute(tmp_path, servers, space, kind):
    """Two servers, one of two processes, under load from many clients: no more get through than the limit says."""
    url, most = str(tmp_path / "agents.db") if kind == "sqlite" else servers.database().url, 40
    with serving(url, "--workers", "2") as one, serving(url) as two:
        served = [one, two, one] * 3
        for number, server in enumerate(served):
            assert create(server, space, f"s{number}").status == 201
        limit(one, space, checkpoints_per_minute=most)
        until(lambda: two.request("GET", f"/v1/quota?ns={space}").json["checkpoints_per_minute"]["limit"] == most)
        answers: list[list[int]] = [[] for _ in range(9)]

        def work(number: int) -> None:
            path = f"/v1/sessions/s{number}/checkpoints?ns={space}"
            for n in range(10):
                answer = served[number].request("POST", path, {"name": "x", "data": {"n": n}})
                answers[number].append(answer.status)

        began = time.monotonic()
        threads = [Thread(target=work, args=(number,)) for number in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = [status for part in answers for status in part]
        landed = statuses.count(201)
        assert landed + statuses.count(429) == len(statuses) == 90
        assert landed >= most - 3  # a process may keep one that it took, and did not use
        if time.monotonic() - began < 50:
            assert landed <= most
        items = two.request("GET", "/v1/quotas").json["items"]
        assert items[0]["used"] == {
            "sessions": None,
            "bytes": None,
            "checkpoints_per_minute": pytest.approx(landed, abs=3),
        }


def test_entries_of_a_minute_on_valkey_alone(servers, space):
    """Valkey cannot count for all processes, so each counts for itself."""
    with serving(servers.valkey()) as served:
        assert create(served, space, "a").status == 201
        limit(served, space, checkpoints_per_minute=3)
        path = f"/v1/sessions/a/checkpoints?ns={space}"
        answers = [served.request("POST", path, {"name": "x", "data": {"n": n}}).status for n in range(5)]
        assert answers == [201] * 3 + [429] * 2


def test_what_ends_a_session_at_the_limit(served, space):
    """At the limit a session can be cancelled, with or without a worker, and its worker can give it up."""
    assert create(served, space, "idle").status == create(served, space, "held").status == 201
    lease = served.request("POST", f"/v1/sessions/held/lease?ns={space}", {"worker": "w"}).json["lease_id"]
    limit(served, space, checkpoints_per_minute=0)
    assert served.request("POST", f"/v1/sessions/idle/cancel?ns={space}", {}).json["state"] == "failed"
    assert served.request("POST", f"/v1/sessions/held/cancel?ns={space}", {}).json["state"] == "active"
    assert served.request("DELETE", f"/v1/sessions/held/lease/{lease}?ns={space}").status == 204
    assert served.request("GET", f"/v1/sessions/held?ns={space}").json["state"] == "failed"
    changed = served.request("PATCH", f"/v1/sessions/held?ns={space}", {"labels": {"a": "b"}}, if_match="*")
    assert refused(changed, "checkpoints_per_minute")


def test_what_ends_a_session_far_over_the_limit(served, space):
    """Once the limit is below what is there, sessions can still be ended and given up, but not with much text."""
    names = ("done", "failed", "cancelled", "held", "active")
    assert {create(served, space, name, data={"x": os.urandom(50_000).hex()}).status for name in names} == {201}
    lease = served.request("POST", f"/v1/sessions/held/lease?ns={space}", {}).json["lease_id"]
    limit(served, space, bytes=1000)
    result = {"result": os.urandom(5000).hex()}
    assert refused(served.request("POST", f"/v1/sessions/active/complete?ns={space}", result), "bytes")
    for name, verb, body in (("done", "complete", {}), ("failed", "fail", {"error": "x"}), ("cancelled", "cancel", {})):
        assert served.request("POST", f"/v1/sessions/{name}/{verb}?ns={space}", body).status == 200
    assert served.request("DELETE", f"/v1/sessions/held/lease/{lease}?ns={space}").status == 204
    assert refused(
        served.request("POST", f"/v1/sessions/active/records?ns={space}", {"name": "r", "value": 1}), "bytes"
    )


async def test_result_of_a_step_at_the_limit(served, space):
    """A step that began before the limit was reached keeps its result; one that must begin by an entry is refused."""
    async with saveslot.open(served.url, namespace=space) as sessions:
        await sessions.create_session("tutor", session_id="a")

        async def book():
            await asyncio.to_thread(limit, served, space, checkpoints_per_minute=0)
            return "booked"

        async with sessions.hold("a") as held:
            assert await held.step("book", book) == "booked"
            with pytest.raises(QuotaExceeded):
                await held.step("pay", book, mode="at_most_once")
            assert [step.name for step in await held.steps() if step.state == "finished"] == ["book"]


async def test_entries_that_do_not_land_do_not_count(served, space):
    """Refused and repeated writes use nothing up, and one call cannot bring more than a minute's entries."""
    limit(served, space, checkpoints_per_minute=8)
    store = await HttpStore.open(served.url)
    pen = Pen(space, "a")
    begin = pen.begin()
    await store.append([begin])
    pen.saw(begin)
    late = pen.group()
    await store.append([now := pen.group()])
    for _ in range(20):
        assert [verdict.outcome for verdict in await store.append([late])] == [Outcome.CONFLICT]
        assert [verdict.outcome for verdict in await store.append([now])] == [Outcome.ALREADY]
    pen.saw(now)
    with pytest.raises(QuotaExceeded):
        await store.append([pen.group(9)])
    await store.append([pen.group(6)])
    await store.close()


async def test_what_was_refused_does_not_land_later(served, space):
    """A refused write is not sent again once there is room; the next one follows what was there, held or not."""
    with saveslot.blocking.open(served.store, namespace=space) as direct:
        direct.create_session("tutor", session_id="a", data={"n": 0})
    limit(served, space, bytes=3000)
    large = os.urandom(9000).hex()
    async with saveslot.open(served.url, namespace=space) as sessions:
        session = await sessions.get_session("a")
        with pytest.raises(QuotaExceeded):
            await sessions.checkpoint("a", "refused", {"large": large})
        session.checkpoint("refused", {"large": large})
        with pytest.raises(QuotaExceeded):
            await sessions.update_session(session)
        async with sessions.hold("a") as held:
            with pytest.raises(QuotaExceeded):
                await held.checkpoint("refused", put={"large": large})
            limit(served, space, bytes=3_000_000)
            await held.checkpoint("fine", put={"n": 1})
            assert await sessions.get_data("a") == {"n": 1}
        await sessions.checkpoint("a", "fine", put={"n": 2})
        assert await sessions.get_data("a") == {"n": 2}
        assert "refused" not in [entry.name for entry in await sessions.entries("a")]


async def test_groups_of_one_request_are_judged_each_by_itself(served, space):
    """A group that a quota refuses keeps no other out, unless they have to land together."""
    limit(served, space, sessions=0)
    store = await HttpStore.open(served.url)
    here, there = Pen(space, "a").begin(), Pen(f"{space}-free", "a").begin()
    with pytest.raises(QuotaExceeded):
        await store.append([here, there], together=True)
    assert await store.heads([here.key, there.key]) == [None, None]
    answers = await asyncio.gather(store.append([here]), store.append([there]), return_exceptions=True)
    assert isinstance(answers[0], QuotaExceeded)
    assert [verdict.outcome for verdict in answers[1]] == [Outcome.APPENDED]
    await store.close()


async def test_a_refused_creation_moves_no_session(served, space):
    """Naming the key of another namespace's session in a creation does not charge that session's writes elsewhere."""
    store = await HttpStore.open(served.url)
    mine = Pen(space, "a")
    begin = mine.begin()
    await store.append([begin])
    mine.saw(begin)
    limit(served, space, bytes=1000)
    false = msgspec.structs.replace(begin, create=Pen(FREE, "x", key=mine.key).begin().create)
    false.entries = [msgspec.structs.replace(begin.entries[0], append_id=os.urandom(16))]
    [verdict] = await store.append([false])
    assert verdict.outcome is not Outcome.APPENDED
    with pytest.raises(QuotaExceeded):
        await store.append([mine.group(frame=bytes(5000))])
    await store.close()


def test_all_servers_keep_to_a_quota(tmp_path, space):
    """A quota set at one counts at the other within moments; together they go over only by what neither counted yet."""
    url = str(tmp_path / "agents.db")
    with serving(url) as one, serving(url) as other:
        limit(one, space, sessions=10)
        until(lambda: other.request("GET", f"/v1/quota?ns={space}").json["sessions"]["limit"] == 10)
        for n in range(10):
            assert create((one, other)[n % 2], space, f"s{n}").status == 201
        until(lambda: create(one, space, "more").status == create(other, space, "more-2").status == 429)
        settled = count(one, space)
        assert settled <= 20
        for n in range(20):
            assert create((one, other)[n % 2], space, f"late-{n}").status == 429
        assert count(one, space) == settled
        assert one.request("DELETE", f"/v1/quotas/{space}").status == 204
        until(lambda: create(other, space, f"free-{os.urandom(4).hex()}").status == 201)
        assert one.request("DELETE", f"/v1/quotas/{space}").status == 404


def test_what_was_there_before_the_server_counts(tmp_path, space):
    """A server that starts counts first: its first write is judged by what the store holds."""
    url = str(tmp_path / "agents.db")
    with saveslot.blocking.open(url, namespace=space) as sessions:
        for n in range(3):
            sessions.create_session("tutor", session_id=f"s{n}")
    with serving(url) as served:
        limit(served, space, sessions=3)
        assert create(served, space, "more").status == 429
    with serving(url) as served:
        assert create(served, space, "more").status == 429
        assert served.request("GET", f"/v1/quota?ns={space}").json["sessions"] == {"limit": 3, "used": 3}


def test_quotas_are_listed_and_changed(served, space):
    """A change replaces all limits; what cannot be a quota is refused."""
    limit(served, space, sessions=3, bytes=1000)
    limit(served, space, checkpoints_per_minute=60)
    [listed] = [one for one in served.request("GET", "/v1/quotas").json["items"] if one["namespace"] == space]
    assert (listed["sessions"], listed["bytes"], listed["checkpoints_per_minute"]) == (None, None, 60)
    for path, body, status in (
        (space, {}, 422),
        (space, {"sessions": -1}, 422),
        (space, {"session": 1}, 422),
        ("$saveslot", {"sessions": 1}, 403),
    ):
        assert served.request("PUT", f"/v1/quotas/{path}", body).status == status


def test_quotas_from_the_command_line(tmp_path, space, capsys):
    """`quota set`, `ls` and `rm` work on the store, and a server of it keeps to them."""
    from saveslot.cli import main

    url = str(tmp_path / "agents.db")

    def run(*argv: str) -> tuple[int, str]:
        capsys.readouterr()
        return main(["quota", *argv, "--store", url]), capsys.readouterr().out

    assert run("set", space, "--sessions", "1", "--bytes", "2GB")[0] == 0
    [listed] = json.loads(run("ls", "--json")[1])
    assert (listed["namespace"], listed["sessions"], listed["bytes"]) == (space, 1, 2_000_000_000)
    assert listed["used"] == {"sessions": 0, "bytes": 0, "checkpoints_per_minute": None}
    assert "0 of 1  0 B of 2 GB    no limit" in run("ls")[1]
    with serving(url) as served:
        assert [create(served, space, name).status for name in ("a", "b")] == [201, 429]
        assert "1 of 1 " in run("ls")[1]
        assert run("rm", space)[0] == 0
        until(lambda: create(served, space, "b").status == 201)
    assert run("rm", space)[0] == 5
    for wrong in (
        ["set", space],
        ["set"],
        ["ls", space],
        ["rm"],
        ["set", space, "--bytes", "2 apples"],
        ["ls", "--sessions", "1"],
    ):
        assert run(*wrong)[0] == 2
