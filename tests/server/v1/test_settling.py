"""Steps over HTTP, and what a failed If-Match says."""

from __future__ import annotations

import asyncio

import saveslot
from tests.server.v1.test_sessions import created, saved


def test_unknown_steps_are_settled(served):
    """With a result, or to run again; once settled, or while a worker lives, that is refused."""
    created(served, "steps", data={})

    async def begin() -> None:
        async with saveslot.open(served.store) as sessions:
            held = await sessions.take("steps")
            for name, key in (("pay", "7/a"), ("mail", None)):
                run = await held.runs.begin(held.call(name, print, key=key, mode="at_most_once"))
                run.end()
            answer = await asyncio.to_thread(served.request, "POST", f"{path}/mail", {"retry": True})
            assert (answer.status, answer.json["code"]) == (409, "lease_held")

    path = "/v1/sessions/steps/steps"
    asyncio.run(begin())
    steps = served.request("GET", path).json["items"]
    assert [(step["name"], step["key"], step["state"]) for step in steps] == [
        ("pay", "7/a", "unknown"),
        ("mail", None, "unknown"),
    ]
    settled = served.request("POST", f"{path}/pay/7%2Fa", {"result": {"paid": True}})
    assert (settled.status, settled.json["name"], settled.json["key"]) == (200, "pay", "7/a")
    assert served.request("POST", f"{path}/mail", {"retry": True}).status == 200
    after = {step["name"]: (step["state"], step["result"]) for step in served.request("GET", path).json["items"]}
    assert after == {"pay": ("finished", {"paid": True}), "mail": ("retry", None)}
    for body in ({}, {"result": 1, "retry": True}):
        assert served.request("POST", f"{path}/mail", body).status == 422
    assert served.request("POST", f"{path}/pay/7%2Fa", {"retry": True}).status == 422
    assert served.request("POST", f"{path}/none", {"retry": True}).status == 404
    stale = served.request("POST", f"{path}/mail", {"retry": True}, if_match='"1-0000000000000000"')
    assert stale.status == 412


def test_settling_again_with_its_key(served, other):
    """Whoever settles a step again with the same key gets the first answer, and nothing is written."""
    name = created(served, "settled-twice", data={})["session_id"]
    lease = served.request("POST", f"/v1/sessions/{name}/lease", {}).json["lease_id"]
    path = f"/v1/sessions/{name}/steps"
    for step in ("pay", "mail"):
        served.request("POST", path, {"name": step, "mode": "at_most_once"}, saveslot_lease=lease)
    ended = {"error": "x"}
    first = served.request("POST", f"{path}/mail", ended, saveslot_lease=lease, idempotency_key="end")
    served.request("DELETE", f"/v1/sessions/{name}/lease/{lease}")
    version = served.request("GET", f"/v1/sessions/{name}").json["version"]
    for server in (served, other):  # the lease has ended
        again = server.request("POST", f"{path}/mail", ended, saveslot_lease=lease, idempotency_key="end")
        assert (again.status, again.json) == (200, first.json)
    for step, body, another in (("pay", {"result": 1}, {"result": 2}), ("mail", {"retry": True}, {"result": 1})):
        headers = {"if_match": f'"{version}"', "idempotency_key": step}
        first = served.request("POST", f"{path}/{step}", body, **headers)
        version = served.request("GET", f"/v1/sessions/{name}").json["version"]
        for server in (served, other):
            again = server.request("POST", f"{path}/{step}", body, **headers)
            assert (again.status, again.json) == (first.status, first.json) == (200, first.json)
        assert served.request("POST", f"{path}/{step}", another, **headers).status == 422
        assert served.request("GET", f"/v1/sessions/{name}").json["version"] == version


def test_a_failed_condition_shows_what_came(served):
    """The version of now, and the entries after the one that If-Match names; nothing was done."""
    before = created(served, "came", data={"n": 0})
    for n in range(3):
        saved(served, "came", f"c{n}", data={"n": n})
    answer = served.request("POST", "/v1/sessions/came/rollback", {"to": 2}, if_match=f'"{before["version"]}"')
    assert (answer.status, answer.json["code"]) == (412, "conflict")
    assert [entry["name"] for entry in answer.json["came"]] == ["c0", "c1", "c2"]
    assert (answer.json["seen"], answer.json["head"]) == (2, 5)
    now = served.request("GET", "/v1/sessions/came")
    assert answer.json["version"] == now.json["version"]
    again = served.request("POST", "/v1/sessions/came/rollback", {"to": 2}, if_match=f'"{answer.json["version"]}"')
    assert again.status == 200


def test_existence_and_condition_come_before_the_content(served):
    """What is wrong with a request is said only if its session exists, and is at the version that it names."""
    created(served, "ordered", data={"n": 0})
    both, stale = {"name": "x", "data": {}, "put": {}}, {"if_match": '"1-0000000000000000"'}
    assert served.request("POST", "/v1/sessions/nope/checkpoints", both).status == 404
    assert served.request("POST", "/v1/sessions/nope/steps/a", {}).status == 404
    for verb, body in (("checkpoints", both), ("recover", None), ("steps/a", {})):
        assert served.request("POST", f"/v1/sessions/ordered/{verb}", body, **stale).status == 412, verb
    assert served.request("POST", "/v1/sessions/ordered/checkpoints", both).status == 422
