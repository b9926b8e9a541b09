"""Idempotency-Key: every request that writes can be repeated, at any server, and happens once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from saveslot.errors import Unavailable
from saveslot.server.routes import table
from saveslot.server.v1.conditions import KEY
from saveslot.stores import Store
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.memory import MemoryStore
from tests.server.conftest import Answer, Served, request, serving

NO_ENTRY = "a heartbeat is not an entry: the next one is as good as the last one"
SAME = "a repeat leaves things as the first one did, and HTTP calls it idempotent"
SHOWN = "its answer is a secret, which is nowhere stored; a repeat is refused by the name"
# Routes that write and take no key, and why.
EXCEPTIONS = {
    "POST /v1/sessions/{id}/heartbeat": NO_ENTRY,
    "PUT /v1/sessions/{id}/lease/{lease_id}": NO_ENTRY,
    "POST /v1/leases": NO_ENTRY,
    "DELETE /v1/sessions/{id}": "deleting frees the keys of a session; If-Match says what it is about",
    "DELETE /v1/namespaces/{name}": SAME,
    "PUT /v1/quotas/{name}": SAME,
    "DELETE /v1/quotas/{name}": SAME,
    "POST /v1/tokens": SHOWN,
    "POST /v1/tokens/{name}/rotate": SHOWN,
    "DELETE /v1/tokens/{name}": SAME,
    "POST /v1/me": "it writes nothing but a cookie",
    "DELETE /v1/me": "it writes nothing but a cookie",
}
KEYED = [f"{route.method} {route.path}" for route in table() if KEY in route.headers]


def test_every_writing_route_takes_a_key():
    """Each route of /v1 that writes takes an Idempotency-Key, but for a short list with reasons."""
    writing = [route for route in table() if route.path.startswith("/v1/") and route.method != "GET"]
    without = {f"{route.method} {route.path}" for route in writing if KEY not in route.headers}
    assert without == EXCEPTIONS.keys()


class Sample(NamedTuple):
    """A request to repeat. `other` is another body that its key must not serve."""

    body: Any
    other: Any
    before: Callable[[Served, str], dict[str, str] | None] | None = None  # returns parts of path and headers
    headers: Mapping[str, str] = MappingProxyType({})


def created(served: Served, space: str, name: str = "s", agent: str = "a") -> None:
    body = {"agent_type": agent, "session_id": name, "data": {"n": 0}, "name": "begun"}
    assert served.request("POST", f"/v1/sessions?ns={space}", body).status == 201
    for n in range(3):
        path = f"/v1/sessions/{name}/checkpoints?ns={space}"
        answer = served.request("POST", path, {"name": "c", "data": {"n": n}})
        assert answer.status == 201


def did(served: Served, space: str, verb: str, body: Any = None) -> None:
    assert served.request("POST", f"/v1/sessions/s/{verb}?ns={space}", body or {}).status == 200


def leased(served: Served, space: str, name: str = "s") -> dict[str, str]:
    return {"lease_id": served.request("POST", f"/v1/sessions/{name}/lease?ns={space}", {}).json["lease_id"]}


def stepping(served: Served, space: str) -> dict[str, str]:
    return {"saveslot_lease": leased(served, space)["lease_id"]}


def begun(served: Served, space: str, key: str | None = None) -> dict[str, str]:
    headers = stepping(served, space)
    body = {"name": "mail", "key": key, "mode": "at_most_once"}
    answer = served.request("POST", f"/v1/sessions/s/steps?ns={space}", body, **headers)
    assert (answer.status, answer.json["state"]) == (200, "run")
    return {**headers, "name": "mail", "key": key or ""}


def orphaned(served: Served, space: str) -> None:
    for name in ("one", "two"):
        created(served, space, name, "orphans")
        lease = leased(served, space, name)["lease_id"]
        assert served.request("DELETE", f"/v1/sessions/{name}/lease/{lease}?error=stopped&ns={space}").status == 204


def shortened(served: Served, space: str) -> None:
    rule = {"saveslot.retention": {"keep_last": 1, "keep_latest_per_name": False}}
    assert served.request("PATCH", f"/v1/sessions/s?ns={space}", {"metadata": rule}, if_match="*").status == 200


ANY = {"if_match": "*"}
ID = "/v1/sessions/{id}"
LAST = {"keep_first": 0, "keep_last": 1, "keep_latest_per_name": False, "dry_run": False}
SAMPLES: dict[str, Sample] = {
    "POST /v1/sessions": Sample({"agent_type": "a"}, {"agent_type": "b"}),
    f"PATCH {ID}": Sample({"metadata": {"m": 1}}, {"metadata": {"m": 2}}, headers=ANY),
    f"PATCH {ID}/labels": Sample({"l": "1"}, {"l": "2"}),
    f"POST {ID}/fork": Sample({"at": "begun"}, {"at": "latest"}),
    f"POST {ID}/copy": Sample({"to": "copy"}, {"to": "another"}),
    f"POST {ID}/checkpoints": Sample({"name": "x", "append": {"l": [1]}}, {"name": "x", "append": {"l": [2]}}),
    f"POST {ID}/rollback": Sample({"to": "begun"}, {"to": 2}, headers=ANY),
    f"POST {ID}/drop": Sample({"refs": [2]}, {"refs": [3]}),
    f"POST {ID}/pin": Sample({"ref": "~1"}, {"ref": "~2"}),
    f"POST {ID}/unpin": Sample(
        {"ref": "~1"}, {"ref": "~2"}, lambda served, space: did(served, space, "pin", {"ref": "~1"})
    ),
    f"POST {ID}/thin": Sample(LAST, {**LAST, "keep_last": 2}),
    f"POST {ID}/records": Sample({"name": "r", "value": 1}, {"name": "r", "value": 2}),
    f"POST {ID}/pause": Sample({}, None),
    f"POST {ID}/resume": Sample({}, None, lambda served, space: did(served, space, "pause")),
    f"POST {ID}/complete": Sample({"result": 1}, {"result": 2}),
    f"POST {ID}/fail": Sample({"error": "x"}, {"error": "y"}),
    f"POST {ID}/recover": Sample({}, None, lambda served, space: did(served, space, "fail", {"error": "x"})),
    f"POST {ID}/cancel": Sample({"reason": "x"}, {"reason": "y"}),
    f"POST {ID}/release": Sample(
        {"reason": "x"}, {"reason": "y"}, lambda served, space: leased(served, space) and None
    ),
    f"POST {ID}/lease": Sample({"worker": "w"}, {"worker": "v"}),
    f"DELETE {ID}/lease/{{lease_id}}": Sample(None, None, leased),
    f"POST {ID}/steps": Sample({"name": "s", "mode": "at_most_once"}, {"name": "t", "mode": "at_most_once"}, stepping),
    f"POST {ID}/steps/{{name}}": Sample({"result": 1}, {"result": 2}, begun),
    f"POST {ID}/steps/{{name}}/{{key}}": Sample(
        {"result": 1}, {"result": 2}, lambda served, space: begun(served, space, "k")
    ),
    "POST /v1/claims": Sample({"agent_type": "orphans", "limit": 1}, {"agent_type": "orphans", "limit": 2}, orphaned),
    "POST /v1/gc": Sample(
        {"older_than": 0, "count": 1, "dry_run": False},
        {"dry_run": False, "count": 0},
        lambda served, space: did(served, space, "complete"),
    ),
    "POST /v1/thin": Sample({"dry_run": False, "count": 1}, {"dry_run": False, "count": 2}, shortened),
    "POST /v1/erase": Sample({"session_id": "s", "dry_run": False}, {"session_id": "t", "dry_run": False}),
    "POST /v1/bulk": Sample({"verb": "pause", "ids": []}, {"verb": "resume", "ids": []}),
    "POST /v1/imports": Sample(None, None),
}


def test_every_route_with_a_key_is_tried():
    """The table of samples has each of them."""
    assert sorted(SAMPLES) == sorted(KEYED)


class Request(NamedTuple):
    method: str
    path: str
    body: Any
    headers: dict[str, str]
    other: Any


def prepared(served: Served, route: str) -> Request:
    """Have a session in a namespace of the route's own, and return the request."""
    sample, space = SAMPLES[route], f"space-{KEYED.index(route)}"
    method, path = route.split()
    created(served, space)
    more = (sample.before(served, space) if sample.before else None) or {}
    for part in ("lease_id", "name", "key"):
        path = path.replace(f"{{{part}}}", more.pop(part, ""))
    body = sample.body
    if route == "POST /v1/imports":
        path, body = f"{path}?session_id=imported", served.request("GET", f"/v1/sessions/s/export?ns={space}").body
    headers = {**sample.headers, **more, "idempotency_key": "k", "saveslot_namespace": space}
    return Request(method, path.replace("{id}", "s"), body, headers, sample.other)


def entries(served: Served, one: Request) -> int:
    """How many entries there are in all sessions of the namespace; deleted ones aside."""
    space = one.headers["saveslot_namespace"]
    return sum(item["entries"] for item in served.request("GET", f"/v1/sessions?ns={space}").json["items"])


def asked(served: Served, one: Request) -> tuple[int, Any]:
    answer = served.request(one.method, one.path, one.body, **one.headers)
    content = answer.json if answer.body else None
    if answer.headers.get("location", "").startswith("/v1/jobs/"):
        content.pop("state")  # it goes on meanwhile
    return answer.status, content


@pytest.mark.parametrize("route", KEYED)
def test_a_repeat_gets_the_first_answer(served, route):
    """At the same server: nothing is written, and another body under the key is refused."""
    one = prepared(served, route)
    first = asked(served, one)
    assert first[0] < 300, first
    before = entries(served, one)
    assert asked(served, one) == first
    assert entries(served, one) == before
    if one.other is not None:
        refused = asked(served, one._replace(body=one.other))
        assert (refused[0], refused[1]["code"], refused[1]["path"]) in {
            (422, "invalid_input", "idempotency_key"),
            (422, "invalid_input", "key"),
        }, refused
        assert entries(served, one) == before


def test_a_repeat_after_a_crash_gets_the_first_answer(tmp_path):
    """At another server, once the first one was killed: the same answers, and nothing is written."""
    store = str(tmp_path / "agents.db")
    with serving(store) as served:
        requests = {route: prepared(served, route) for route in KEYED}
        first = {route: asked(served, one) for route, one in requests.items()}
        before = {route: entries(served, one) for route, one in requests.items()}
        served.process.kill()
        served.process.wait()
    with serving(store) as other:
        for route, one in requests.items():
            assert first[route][0] < 300, (route, first[route])
            assert asked(other, one) == first[route], route
            assert entries(other, one) == before[route], route


class StopsAtTheSecondPurge(PassingStore):
    """Answers only the first purge, until it is `whole`."""

    purges = 0
    whole = False

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        self.purges += 1
        if self.purges > 1 and not self.whole:
            raise Unavailable("the store is away; retry")
        return await self._inner.purge(keys, seen)


def test_a_repeat_goes_on_where_the_first_request_stopped(serving):
    """A gc that was carried out in part is not refused for the number of sessions; another number or body is."""
    stores: list[StopsAtTheSecondPurge] = []

    async def opened() -> Store:
        stores.append(StopsAtTheSecondPurge(MemoryStore()))
        return stores[0]

    url = serving.serve(opened)

    def post(path: str, body: Any, **headers: str) -> Answer:
        return request(url, "POST", path, body, **headers)

    for name in ("one", "two"):  # what completed and what failed is purged one after the other
        assert post("/v1/sessions", {"agent_type": "a", "session_id": name}).status == 201
    assert post("/v1/sessions/one/complete", {}).status == 200
    assert post("/v1/sessions/two/fail", {"error": "x"}).status == 200
    body, key = {"older_than": 0, "grace": 0, "dry_run": False, "count": 2}, {"idempotency-key": "k"}
    assert post("/v1/gc", {**body, "count": 1}, **key).status == 409
    assert post("/v1/gc", body, **key).status == 503
    stores[0].whole = True
    assert post("/v1/gc", {**body, "count": 1}, **key).json["path"] == "idempotency_key"
    assert post("/v1/gc", body).status == 409
    done = post("/v1/gc", body, **key)
    assert (done.status, done.json["sessions"]) == (200, ["two"])
    assert post("/v1/gc", body, **key).json == done.json
