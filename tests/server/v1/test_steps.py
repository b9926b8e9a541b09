"""Steps under a lease: a program in any language runs one exactly once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import saveslot
from saveslot.errors import Cancelled, InvalidInput, LeaseLost, StepFailed, StepUnknown
from tests.server.v1.test_leases import error, lease

PAY = {"name": "pay", "key": "7/a"}
ONCE = {"name": "charge", "mode": "at_most_once"}


def begin(served, session, given, step, **headers):
    body = step if isinstance(step, dict) else {"name": step}
    return served.request("POST", f"/v1/sessions/{session}/steps", body, saveslot_lease=given["lease_id"], **headers)


def end(served, session, given, path, body, **headers):
    held = {"saveslot_lease": given["lease_id"]}
    return served.request("POST", f"/v1/sessions/{session}/steps/{path}", body, **held, **headers)


def passed_on(served, session, given) -> dict:
    """The lease of the next worker, after this one left by an error."""
    path = f"/v1/sessions/{session}/lease/{given['lease_id']}"
    assert served.request("DELETE", f"{path}?error=died").status == 204
    [claimed] = served.request("POST", "/v1/claims", {"agent_type": session, "wait": 5}).json["items"]
    return claimed


def test_a_finished_step_is_not_run_again(served, other, session):
    """Whoever begins a finished step gets its result: the same lease at any server, the next owner, a Python worker."""
    given = lease(served, session)
    first = begin(served, session, given, PAY)
    assert (first.status, first.json["state"], first.json["attempt"]) == (200, "run", 1)
    assert begin(other, session, given, PAY).json["idempotency_key"] == first.json["idempotency_key"]
    assert end(other, session, given, "pay/7%2Fa", {"result": {"paid": [1, None]}}).status == 200
    for server in (served, other):  # neither goes by what it knew before
        again = begin(server, session, given, PAY).json
        assert (again["state"], again["result"]) == ("finished", {"paid": [1, None]})
    given = passed_on(served, session, given)
    assert begin(served, session, given, PAY).json["result"] == {"paid": [1, None]}
    assert begin(served, session, given, "pay").json["state"] == "run"  # without the key it is another step
    served.request("DELETE", f"/v1/sessions/{session}/lease/{given['lease_id']}")

    async def worker() -> object:
        async with saveslot.open(served.store) as sessions, sessions.hold(session) as held:
            return await held.step("pay", print, key="7/a")

    assert asyncio.run(worker()) == {"paid": [1, None]}


def test_at_most_once(served, session):
    """A step that was begun and not ended is unknown to the next owner, which says what to do with it."""
    given = lease(served, session)
    first = begin(served, session, given, ONCE, idempotency_key="k1")
    assert first.json["state"] == "run"
    assert begin(served, session, given, ONCE, idempotency_key="k1").json == first.json  # its answer was lost
    assert isinstance(error(begin(served, session, given, ONCE, idempotency_key="k2")), StepUnknown)
    assert isinstance(error(begin(served, session, given, {"name": "x"}, idempotency_key="k1")), InvalidInput)
    given = passed_on(served, session, given)
    assert isinstance(error(begin(served, session, given, ONCE)), StepUnknown)
    assert isinstance(error(begin(served, session, given, ONCE, idempotency_key="k1")), StepUnknown)  # another's key
    again = begin(served, session, given, {**ONCE, "on_unknown": "retry"}).json
    assert (again["state"], again["attempt"]) == ("run", 2)
    assert again["idempotency_key"] == first.json["idempotency_key"]
    given = passed_on(served, session, given)
    skipped = begin(served, session, given, {**ONCE, "on_unknown": "skip"}).json
    assert (skipped["state"], skipped["result"]) == ("finished", None)


def test_only_one_of_many_runs_it(served, other, session):
    """Of requests that begin a step at the same time at two servers, with the same lease, one is to run it."""
    given = lease(served, session)

    def ask(n: int):
        return begin((served, other)[n % 2], session, given, ONCE, idempotency_key=f"k{n}")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert sorted(answer.status for answer in answers) == [200, *[409] * 7]
    assert {answer.json["code"] for answer in answers if answer.status == 409} == {"step_unknown"}


def test_failures_and_attempts(served, session):
    """Attempts are counted, with pauses; a failed step says why, until it is begun again with `retry`."""
    given = lease(served, session)
    step = {"name": "mail", "retries": 1, "backoff": 8}
    assert begin(served, session, given, step).json["attempt"] == 1
    assert end(served, session, given, "mail", {"error": "busy", "again": True}).status == 200
    second = begin(served, session, given, step).json
    assert second["attempt"] == 2
    assert 6 < second["pause"] < 10
    assert end(served, session, given, "mail", {"error": "gone"}).status == 200
    failed = begin(served, session, given, step)
    assert isinstance(error(failed), StepFailed)
    assert failed.json["error"] == "gone"
    assert begin(served, session, given, {**step, "retry": True}).json["attempt"] == 1
    assert end(served, session, given, "mail", {"result": 1}).status == 200
    shown = served.request("GET", f"/v1/sessions/{session}/steps").json["items"]
    assert [(one["name"], one["state"], one["result"], one["attempts"]) for one in shown] == [
        ("mail", "finished", 1, 3)
    ]


def test_ending_it_twice(served, other, session):
    """The same end with its key gets the first answer at any server; another one is refused, and changes nothing."""
    given = lease(served, session)
    begin(served, session, given, "pay")
    ended = [end(server, session, given, "pay", {"result": 1}, idempotency_key="k") for server in (served, other)]
    assert [one.status for one in ended] == [200, 200]
    assert ended[0].json == ended[1].json
    for server in (served, other):
        assert end(server, session, given, "pay", {"result": 2}).status == 422
        assert end(server, session, given, "pay", {"error": "x"}).status == 422
    assert begin(served, session, given, "pay").json["result"] == 1


def test_steps_need_the_lease(served, session):
    """Without a lease, with a lost one, and in a cancelled session nothing begins; what runs by then can be ended."""
    path = f"/v1/sessions/{session}/steps"
    assert isinstance(error(served.request("POST", path, {"name": "pay"})), InvalidInput)
    given = lease(served, session)
    assert isinstance(error(begin(served, session, {"lease_id": "00" * 16}, "pay")), LeaseLost)
    assert begin(served, session, given, "pay").json["state"] == "run"
    for body in ({"error": "x"}, {"result": 1, "error": "x"}, {"result": 1, "again": True}, {}):
        assert served.request("POST", f"{path}/pay", body).status == 422
    assert end(served, session, given, "pay", {"retry": True}).status == 422
    served.request("POST", f"/v1/sessions/{session}/cancel", {})
    served.request("PUT", f"/v1/sessions/{session}/lease/{given['lease_id']}")
    assert isinstance(error(begin(served, session, given, "mail")), Cancelled)
    assert end(served, session, given, "pay", {"result": 1}).status == 200
