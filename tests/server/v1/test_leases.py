"""Leases by requests: sessions held by programs elsewhere, at any server of the store."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import saveslot
from saveslot.errors import Cancelled, Conflict, LeaseHeld, LeaseLost, from_dict
from tests.server.conftest import Served, serving


def lease(served: Served, session: str, **body) -> dict:
    answer = served.request("POST", f"/v1/sessions/{session}/lease", body)
    assert answer.status == 201, answer.json
    return answer.json


def save(served: Served, session: str, items: list, **headers):
    body = {"name": "saved", "append": {"items": items}}
    return served.request("POST", f"/v1/sessions/{session}/checkpoints", body, **headers)


def error(answer) -> saveslot.SaveslotError:
    assert answer.headers["content-type"] == "application/problem+json", answer.body
    return from_dict(answer.json)


def test_only_the_lease_saves(served, session):
    """While a session is leased, only requests that name the lease save checkpoints; after its end everyone does."""
    given = lease(served, session, worker="runner-1")
    assert (given["session_id"], given["worker"], given["fence"], given["ttl"]) == (session, "runner-1", 1, 20.0)
    path = f"/v1/sessions/{session}"
    assert isinstance(error(served.request("POST", f"{path}/lease")), LeaseHeld)
    assert isinstance(error(save(served, session, [0])), LeaseHeld)
    assert isinstance(error(save(served, session, [0], saveslot_lease="00" * 16)), LeaseLost)
    assert served.request("GET", path).json["owner"]["worker"] == "runner-1"
    held = {"saveslot_lease": given["lease_id"]}
    saved = save(served, session, [1], **held, if_match=f'"{given["version"]}"')
    assert saved.status == 201
    assert save(served, session, [2], **held).status == 201
    stale = save(served, session, [3], **held, if_match=f'"{given["version"]}"')
    assert (stale.status, type(error(stale))) == (412, Conflict)
    for rest, body, status in (
        ("records", {"name": "r", "value": 1}, 201),
        ("heartbeat", None, 200),
        ("pause", None, 200),
        ("resume", None, 200),
    ):
        assert served.request("POST", f"{path}/{rest}", body, **held).status == status, rest
    back = served.request("POST", f"{path}/rollback", {"to": "created"}, **held, if_match="*")
    assert back.json["data"] == {"items": []}
    assert save(served, session, [4], **held).json["data"] == {"items": [4]}
    done = served.request("POST", f"{path}/complete", {"result": 1}, **held)
    assert (done.json["state"], done.json["owner"]) == ("completed", None)
    assert isinstance(error(served.request("PUT", f"{path}/lease/{given['lease_id']}")), LeaseLost)


def test_idempotency_under_a_lease(served, session):
    """The same write with the same key gets its first answer under a lease, too."""
    held = {"saveslot_lease": lease(served, session)["lease_id"], "idempotency_key": "k"}
    first, again = (save(served, session, [1], **held) for _ in range(2))
    assert (first.status, first.json) == (201, again.json)
    assert served.request("GET", f"/v1/sessions/{session}/data").json == {"items": [1]}


def test_lifecycle_under_a_lease_is_repeated_safely(served, other, session):
    """The same pause, resume, complete or fail with its key changes nothing, at any server, also once it has ended the
    lease; another call with the key is refused.
    """
    path, headers = f"/v1/sessions/{session}", {"saveslot_lease": lease(served, session)["lease_id"]}
    for verb, state in (("pause", "paused"), ("resume", "active"), ("pause", "active"), ("resume", "active")):
        answer = served.request("POST", f"{path}/{verb}", **headers, idempotency_key=verb)
        assert (answer.status, answer.json["state"]) == (200, state)
    for server in (served, other, served):
        done = server.request("POST", f"{path}/complete", {"result": 1}, **headers, idempotency_key="c")
        assert (done.status, done.json["state"]) == (200, "completed")
    for verb, body in (("complete", {"result": 2}), ("fail", {"error": "x"})):
        refused = other.request("POST", f"{path}/{verb}", body, **headers, idempotency_key="c")
        assert (refused.status, error(refused).code) == (422, "invalid_input")


def test_a_lease_counts_at_any_server(served, other, session):
    """Renewal, writes and release of a lease work at another server of the store, in any mixture."""
    given = lease(served, session)
    held = {"saveslot_lease": given["lease_id"]}
    for n in range(12):
        where = other if n % 3 else served
        assert save(where, session, [n], **held).status == 201
        renewed = where.request("PUT", f"/v1/sessions/{session}/lease/{given['lease_id']}")
        assert renewed.status == 200
        assert renewed.json["version"] == where.request("GET", f"/v1/sessions/{session}").json["version"]
        here = {"if_match": f'"{renewed.json["version"]}"'}
        last = served if n % 2 else other
        assert save(last, session, [-n], **held, **here).status == 201
    assert served.request("GET", f"/v1/sessions/{session}/data").json == {
        "items": [m for n in range(12) for m in (n, -n)]
    }
    ended = other.request("DELETE", f"/v1/sessions/{session}/lease/{given['lease_id']}")
    assert ended.status == 204
    assert isinstance(error(save(served, session, [99], **held)), LeaseLost)
    assert save(served, session, [100]).status == 201


def test_a_lease_outlives_its_server(tmp_path):
    """A lease counts after the server that gave it was killed and started again."""
    store = str(tmp_path / "agents.db")
    with serving(store) as served:
        served.request("POST", "/v1/sessions", {"agent_type": "a", "session_id": "s", "data": {"items": []}})
        given = lease(served, "s")
        served.process.kill()
    with serving(store) as served:
        assert isinstance(error(save(served, "s", [0])), LeaseHeld)
        assert served.request("PUT", f"/v1/sessions/s/lease/{given['lease_id']}").status == 200
        assert save(served, "s", [1], saveslot_lease=given["lease_id"]).status == 201


def test_renew_many(served, session):
    """One request renews many leases and says of each what became of it."""
    given = lease(served, session)
    lost = {"session_id": session, "lease_id": "00" * 16}
    gone = {"session_id": "nobody", "lease_id": given["lease_id"]}
    mine = {"session_id": session, "lease_id": given["lease_id"]}
    answer = served.request("POST", "/v1/leases", {"leases": [mine, lost, gone]})
    found = [(item["renewed"], item["code"]) for item in answer.json["items"]]
    assert found == [(True, None), (False, "lease_lost"), (False, "lease_lost")]
    left = served.request("GET", f"/v1/sessions/{session}").json["owner"]["left"]
    assert left > 10


def test_claims(served, other, session):
    """A lease that ends by an error leaves a session that can be claimed, by one claimer, with its own lease."""
    given = lease(served, session, worker="first")
    none = served.request("POST", "/v1/claims", {"agent_type": session})
    assert none.json["items"] == []
    path = f"/v1/sessions/{session}/lease/{given['lease_id']}"
    assert other.request("DELETE", f"{path}?error=TypeError%3A%20x").status == 204
    released = served.request("GET", f"/v1/sessions/{session}/entries?newest=1").json["items"][-1]
    assert released["metadata"] == {"error": "TypeError: x", "attempts": 1}
    answers = [
        where.request("POST", "/v1/claims", {"agent_type": session, "worker": "second"}) for where in (served, other)
    ]
    [claimed] = [item for answer in answers for item in answer.json["items"]]
    assert (claimed["session_id"], claimed["worker"], claimed["fence"]) == (session, "second", 2)
    assert isinstance(error(served.request("PUT", path)), LeaseLost)
    assert isinstance(error(save(served, session, [1], saveslot_lease=given["lease_id"])), LeaseLost)
    assert save(other, session, [2], saveslot_lease=claimed["lease_id"]).status == 201
    assert other.request("DELETE", f"/v1/sessions/{session}/lease/{claimed['lease_id']}").status == 204
    [released] = served.request("POST", "/v1/claims", {"agent_type": session, "released": True}).json["items"]
    assert released["fence"] == 3


def test_python_workers_and_leases_see_each_other(served, session):
    """A worker cannot take a leased session, nor a request one that a worker holds."""
    given = lease(served, session)
    with saveslot.blocking.open(served.store) as sessions:
        with pytest.raises(LeaseHeld), sessions.hold(session):
            pass
        served.request("DELETE", f"/v1/sessions/{session}/lease/{given['lease_id']}")
        with sessions.hold(session):
            assert isinstance(error(served.request("POST", f"/v1/sessions/{session}/lease")), LeaseHeld)
    waited = lease(served, session, wait=5)
    assert waited["fence"] == 3


def test_cancelled_lease(served, session):
    """A renewal says that the session was cancelled; then its lease saves and ends it, and nothing else."""
    given = lease(served, session)
    served.request("POST", f"/v1/sessions/{session}/cancel", {"reason": "enough"})
    renewed = served.request("PUT", f"/v1/sessions/{session}/lease/{given['lease_id']}").json
    assert renewed["cancelled"] is True
    held = {"saveslot_lease": given["lease_id"]}
    refused = served.request("POST", f"/v1/sessions/{session}/pause", **held)
    assert isinstance(error(refused), Cancelled)
    assert save(served, session, [1], **held).status == 201
    assert served.request("POST", f"/v1/sessions/{session}/complete", {}, **held).json["state"] == "completed"


@pytest.mark.long
def test_a_lease_that_is_not_renewed_ends(served, session):
    """20 seconds after its last renewal a lease has ended, and others claim the session."""
    given = lease(served, session)
    began = time.monotonic()
    while not (items := served.request("POST", "/v1/claims", {"agent_type": session, "wait": 5}).json["items"]):
        assert time.monotonic() - began < 120
    assert time.monotonic() - began > 15
    assert items[0]["fence"] == 2
    assert isinstance(error(served.request("PUT", f"/v1/sessions/{session}/lease/{given['lease_id']}")), LeaseLost)


def test_a_key_outlives_its_lease(served, session, other):
    """A checkpoint, record or rollback repeated with its key gets the first answer at any server, after its lease."""
    lease_id = lease(served, session)["lease_id"]
    path = f"/v1/sessions/{session}"
    calls = [
        ("checkpoints", {"name": "saved", "append": {"items": [1]}}),
        ("records", {"name": "r", "value": 1}),
        ("rollback", {"to": "saved"}),
    ]
    headers = {"saveslot_lease": lease_id, "if_match": "*"}
    first = [served.request("POST", f"{path}/{verb}", body, **headers, idempotency_key=verb) for verb, body in calls]
    assert [answer.status for answer in first] == [201, 201, 200]
    assert served.request("DELETE", f"{path}/lease/{lease_id}").status == 204
    for server in (served, other):
        for (verb, body), answer in zip(calls, first, strict=True):
            again = server.request("POST", f"{path}/{verb}", body, **headers, idempotency_key=verb)
            assert (again.status, again.json) == (answer.status, answer.json), verb
    assert isinstance(error(save(served, session, [2], **headers, idempotency_key="new")), LeaseLost)


def test_a_lease_is_taken_once_for_its_key(served, session, other):
    """The same request with its key gets the same lease at any server, as long as that counts, and then lease_lost."""
    path, key = f"/v1/sessions/{session}/lease", {"idempotency_key": "k"}
    given = served.request("POST", path, {"worker": "r"}, **key).json
    for server in (served, other):
        again = server.request("POST", path, {"worker": "r"}, **key)
        assert (again.status, again.json["lease_id"], again.json["fence"]) == (201, given["lease_id"], 1)
    assert served.request("POST", path, {"worker": "other"}, **key).status == 422
    assert isinstance(error(served.request("POST", path, {"worker": "r"})), LeaseHeld)
    ended = [server.request("DELETE", f"{path}/{given['lease_id']}", **key) for server in (served, other)]
    assert [answer.status for answer in ended] == [422, 422]  # the key was of another call
    ended = [server.request("DELETE", f"{path}/{given['lease_id']}", idempotency_key="e") for server in (served, other)]
    assert [answer.status for answer in ended] == [204, 204]
    assert isinstance(error(served.request("DELETE", f"{path}/{given['lease_id']}", idempotency_key="f")), LeaseLost)
    assert isinstance(error(other.request("POST", path, {"worker": "r"}, **key)), LeaseLost)
    assert lease(served, session)["fence"] == 2


def test_requests_with_one_key_race_for_one_lease(served, session, other):
    """Of requests with the same key that arrive together at two servers, all get the same lease, taken once."""
    path = f"/v1/sessions/{session}/lease"

    def take(n: int) -> dict:
        return (served, other)[n % 2].request("POST", path, {"worker": "r"}, idempotency_key="k").json

    with ThreadPoolExecutor(8) as pool:
        leases = list(pool.map(take, range(8)))
    assert {(one["lease_id"], one["fence"]) for one in leases} == {(leases[0]["lease_id"], 1)}


def test_cancelled_once(served, session, other):
    """The same cancellation with its key is in the log once, with a holder and without one."""
    path, key = f"/v1/sessions/{session}", {"idempotency_key": "k"}
    given = lease(served, session)
    for server in (served, other):
        assert server.request("POST", f"{path}/cancel", {"reason": "r"}, **key).json["state"] == "active"
    kinds = [entry["kind"] for entry in served.request("GET", f"{path}/entries").json["items"]]
    assert kinds.count("cancelled") == 1
    assert served.request("DELETE", f"{path}/lease/{given['lease_id']}").status == 204
    assert served.request("POST", f"{path}/cancel", {"reason": "r"}, **key).json["state"] == "failed"
    assert served.request("POST", f"{path}/cancel", {"reason": "other"}, **key).status == 422
    free = f"{path}-free"
    served.request("POST", "/v1/sessions", {"agent_type": "a", "session_id": f"{session}-free"})
    for server in (served, other):
        assert server.request("POST", f"{free}/cancel", {}, **key).json["state"] == "failed"
