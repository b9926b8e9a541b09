"""`/v1`: sessions and checkpoints as JSON, over a real server on a SQLite file."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

import saveslot
from saveslot.errors import BY_CODE, Conflict, InvalidTransition, LeaseHeld, NotFound, from_dict
from tests.server.conftest import Served

BOTH = {"if_match": "*"}


def created(served: Served, session_id: str, **more) -> dict:
    answer = served.request("POST", "/v1/sessions", {"agent_type": "tutor", "session_id": session_id, **more})
    assert answer.status == 201, answer.json
    return answer.json


def saved(served: Served, session_id: str, name: str, **more):
    return served.request("POST", f"/v1/sessions/{session_id}/checkpoints", {"name": name, **more})


def test_create_and_read(served):
    """A session comes back as it was created, its version as ETag, and where it is as Location."""
    answer = served.request(
        "POST",
        "/v1/sessions",
        {
            "agent_type": "tutor",
            "user_id": "anna",
            "context": {"a": 1},
            "labels": {"env": "prod"},
            "session_id": "a/b c",
        },
    )
    assert answer.status == 201
    assert answer.headers["location"] == "/v1/sessions/a%2Fb%20c"
    assert answer.headers["etag"] == f'"{answer.json["version"]}"'
    again = served.request("GET", answer.headers["location"])
    assert again.status == 200
    assert again.headers["etag"] == answer.headers["etag"]
    assert {**again.json, "last_heartbeat": ""} == {**answer.json, "last_heartbeat": ""}
    expected = {"session_id": "a/b c", "agent_type": "tutor", "user_id": "anna", "state": "active", "context": {"a": 1}}
    assert expected.items() <= again.json.items()
    assert again.json["labels"] == {"env": "prod"}
    assert (again.json["owner"], again.json["orphaned"], again.json["locked"]) == (None, False, False)
    taken = served.request("POST", "/v1/sessions", {"agent_type": "tutor", "session_id": "a/b c"})
    assert (taken.status, taken.json["code"]) == (409, "already_exists")
    there = served.request("POST", "/v1/sessions", {"agent_type": "other", "session_id": "a/b c", "exist_ok": True})
    assert (there.status, there.json["agent_type"]) == (200, "tutor")


def test_first_checkpoint_and_history(served):
    """`data` is a first checkpoint in the same write; `history` brings the newest checkpoints with the session."""
    created(served, "first", data={"n": 0}, name="begun")
    saved(served, "first", "next", put={"n": 1})
    assert "checkpoints" not in served.request("GET", "/v1/sessions/first").json
    checkpoints = served.request("GET", "/v1/sessions/first?history=2").json["checkpoints"]
    assert [(one["name"], one["data"]) for one in checkpoints] == [("begun", {"n": 0}), ("next", {"n": 1})]


def test_pages_of_sessions(served):
    """Pages follow each other without gap or repeat, newest first, under any filter."""
    for n in range(7):
        created(served, f"page-{n}", user_id=f"u{n % 2}", labels={"half": str(n % 2)})
    ids, after, pages = [], "", 0
    while True:
        page = served.request("GET", f"/v1/sessions?prefix=page-&limit=3{after}").json
        ids += [item["session_id"] for item in page["items"]]
        pages += 1
        if page["next"] is None:
            break
        after = f"&after={quote(page['next'])}"
    assert (ids, pages) == ([f"page-{n}" for n in reversed(range(7))], 3)

    def names(query: str) -> list[str]:
        items = served.request("GET", f"/v1/sessions?prefix=page-&{query}").json["items"]
        return sorted(item["session_id"][-1] for item in items)

    assert names("user_id=u1") == names("label=half%3D1") == ["1", "3", "5"]
    assert names("state=paused") == names("orphaned=true") == names("text=nothing") == []
    assert served.request("GET", "/v1/count?prefix=page-&user_id=u0").json == {"count": 4}
    saved(served, "page-0", "moved")
    first = served.request("GET", "/v1/sessions?prefix=page-&sort=changed&limit=1").json["items"][0]
    assert (first["session_id"], first["head"]["name"]) == ("page-0", "moved")
    for wrong in ("limit=0", "limit=x", "sort=size", "after=x", "colour=red", "label=x", "state=dead"):
        answer = served.request("GET", f"/v1/sessions?{wrong}")
        assert (answer.status, answer.json["code"]) == (422, "invalid_input"), wrong
        assert answer.json["path"], wrong


def test_checkpoint_and_read_back(served):
    """What a checkpoint saves is read back by every kind of ref; single keys can be changed, and read alone."""
    created(served, "cp")
    first = saved(served, "cp", "asked", data={"messages": ["hi"], "n": 1}, metadata={"by": "test"})
    assert first.status == 201
    assert first.json["data"] == {"messages": ["hi"], "n": 1}
    assert (first.json["seq"], first.json["id"], first.json["metadata"]) == (2, "cp:2", {"by": "test"})
    assert first.headers["etag"] == f'"{first.json["version"]}"'
    small = served.request(
        "POST",
        "/v1/sessions/cp/checkpoints",
        {"name": "answered", "append": {"messages": ["5/6"]}, "put": {"done": True}, "drop": ["n"]},
        prefer="return=minimal",
    )
    assert "data" not in small.json
    whole = {"messages": ["hi", "5/6"], "done": True}
    for ref in ("latest", "answered", "3", "cp:3", "~0"):
        assert served.request("GET", f"/v1/sessions/cp/checkpoints/{ref}").json["data"] == whole
    assert served.request("GET", "/v1/sessions/cp/checkpoints/~1").json["name"] == "asked"
    assert served.request("GET", "/v1/sessions/cp/data").json == whole
    part = served.request("GET", "/v1/sessions/cp/data?key=messages&last=messages%3D1").json
    assert part == {"messages": ["5/6"]}
    assert served.request("GET", "/v1/sessions/cp/data?ref=asked&key=n").json == {"n": 1}
    answer = served.request("GET", "/v1/sessions/cp/checkpoints/nothing")
    assert (answer.status, type(from_dict(answer.json))) == (404, NotFound)
    known = served.request("GET", "/v1/sessions/cp/checkpoints/asked", if_none_match=first.headers["etag"])
    assert (known.status, known.body) == (304, b"")


def test_pages_of_checkpoints(served):
    """A page holds the newest checkpoints, oldest first; `next` leads to older ones; large states make short pages."""
    created(served, "long")
    for n in range(7):
        saved(served, "long", f"n{n % 2}", data={"n": n})
    numbers, after = [], ""
    while True:
        page = served.request("GET", f"/v1/sessions/long/checkpoints?limit=3{after}").json
        numbers = [item["seq"] for item in page["items"]] + numbers
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert numbers == list(range(1, 9))
    odd = served.request("GET", "/v1/sessions/long/checkpoints?name=n1").json["items"]
    assert [item["data"] for item in odd] == [{"n": 1}, {"n": 3}, {"n": 5}]
    bare = served.request("GET", "/v1/sessions/long/checkpoints?data=false&limit=1").json["items"]
    assert "data" not in bare[0]
    since = odd[1]["timestamp"].replace("+", "%2B")
    assert [
        item["seq"] for item in served.request("GET", f"/v1/sessions/long/checkpoints?since={since}").json["items"]
    ] == [
        6,
        7,
        8,
    ]
    created(served, "large")
    for n in range(3):
        saved(served, "large", "big", data={"text": chr(65 + n) * 3_000_000})
    page = served.request("GET", "/v1/sessions/large/checkpoints").json
    assert [item["seq"] for item in page["items"]] == [3, 4]
    assert page["next"] == "3"


def test_tagged_values(served):
    """A datetime, bytes or UUID travels in its tagged form and is one again in Python."""
    data = {
        "at": {"$saveslot": ["datetime", "2026-01-02T03:04:05+00:00"]},
        "raw": {"$saveslot": ["bytes", base64.b64encode(b"\x00\xff").decode()]},
        "id": {"$saveslot": ["uuid", "01980000-0000-7000-8000-000000000000"]},
        "own": {"$saveslot": ["dict", {"$saveslot": 1}]},
    }
    created(served, "tagged", context=data)
    assert saved(served, "tagged", "x", data=data).json["data"] == data
    assert served.request("GET", "/v1/sessions/tagged").json["context"] == data
    assert served.request("GET", "/v1/sessions/tagged/data").json == data
    with saveslot.blocking.open(served.store) as sessions:
        read = sessions.get_data("tagged")
    assert (read["raw"], read["at"].year, read["own"]) == (b"\x00\xff", 2026, {"$saveslot": 1})


def test_if_match(served):
    """A write with the ETag of what the caller has seen follows that entry: 412, and nothing stored, once it is old."""
    old = created(served, "match")["version"]
    new = saved(served, "match", "one", data={"n": 1}).json["version"]
    path = "/v1/sessions/match"
    stale = {"if_match": f'"{old}"'}
    for method, rest, body in (
        ("PATCH", "", {"labels": {"a": "b"}}),
        ("DELETE", "", None),
        ("POST", "/checkpoints", {"name": "two", "data": {}}),
        ("POST", "/rollback", {"to": 1}),
        ("POST", "/fork", {}),
        ("POST", "/pause", None),
        ("POST", "/complete", {}),
        ("POST", "/fail", {"error": "x"}),
        ("POST", "/records", {"name": "r", "value": 1}),
        ("POST", "/drop", {"refs": [2]}),
    ):
        answer = served.request(method, path + rest, body, **stale)
        assert (answer.status, answer.json["code"]) == (412, "conflict"), (method, rest)
        assert isinstance(from_dict(answer.json), Conflict)
    for odd in ('W/"' + new + '"', '"x"', "", '"1-0000000000000000"'):
        assert served.request("POST", path + "/pause", if_match=odd).status == 412, odd
    assert served.request("GET", path).json["version"] == new
    either = served.request("POST", path + "/pause", if_match=f'"x", "{new}"')
    assert (either.status, either.json["state"]) == (200, "paused")


def test_precondition_is_required(served):
    """PATCH, DELETE and rollback need If-Match (428), after the session exists (404) and before the content counts."""
    version = created(served, "must", data={"n": 1})["version"]
    for method, rest, body in (("PATCH", "", {}), ("DELETE", "", None), ("POST", "/rollback", {"to": 1})):
        assert served.request(method, f"/v1/sessions/must{rest}", body).status == 428
        assert served.request(method, f"/v1/sessions/nobody{rest}", body).status == 404
        assert served.request(method, f"/v1/sessions/nobody{rest}", b"{", **BOTH).status == 404
    wrong = {"labels": 7}
    assert served.request("PATCH", "/v1/sessions/must", wrong).status == 428
    assert served.request("PATCH", "/v1/sessions/must", wrong, if_match='"9-0000000000000000"').status == 412
    assert served.request("PATCH", "/v1/sessions/must", wrong, if_match=f'"{version}"').status == 422
    assert served.request("POST", "/v1/sessions/must/rollback", {"to": "created"}, **BOTH).status == 200


def test_patch(served):
    """PATCH merges: keys are set, null removes one, the others stay."""
    version = created(served, "patched", context={"a": 1, "b": {"c": 1, "d": 2}}, labels={"x": "1"})["version"]
    changes = {"context": {"a": None, "b": {"c": 3}}, "labels": {"y": "2"}, "metadata": {"m": [1]}}
    answer = served.request("PATCH", "/v1/sessions/patched", changes, if_match=f'"{version}"')
    assert answer.status == 200
    assert answer.json["context"] == {"b": {"c": 3, "d": 2}}
    assert (answer.json["labels"], answer.json["metadata"]) == ({"x": "1", "y": "2"}, {"m": [1]})
    assert answer.json["version"] != version
    labelled = served.request("PATCH", "/v1/sessions/patched/labels", {"x": None, "z": "3"})
    assert labelled.json["labels"] == {"y": "2", "z": "3"}


def test_delete(served):
    """A deleted session is not found; its id may be created again."""
    created(served, "gone")
    assert served.request("DELETE", "/v1/sessions/gone", **BOTH).status == 204
    for answer in (served.request("GET", "/v1/sessions/gone"), served.request("DELETE", "/v1/sessions/gone", **BOTH)):
        assert (answer.status, answer.json["code"]) == (404, "not_found")
    created(served, "gone")


def test_a_session_may_be_called_like_a_route(served):
    """The session "facets" is created, changed and deleted like any other; to read it, a letter is escaped."""
    created(served, "facets")
    assert "by_state" in served.request("GET", "/v1/sessions/facets").json
    assert served.request("GET", "/v1/sessions/%66acets").json["session_id"] == "facets"
    changed = served.request("PATCH", "/v1/sessions/facets", {"labels": {"x": "1"}}, **BOTH)
    assert (changed.json["session_id"], changed.json["labels"]) == ("facets", {"x": "1"})
    assert served.request("GET", "/v1/sessions/facets?colour=red").status == 422
    assert served.request("POST", "/v1/sessions/facets").headers["allow"] == "DELETE, GET, PATCH"
    assert served.request("DELETE", "/v1/sessions/facets", **BOTH).status == 204
    assert served.request("GET", "/v1/sessions/%66acets").status == 404


def test_idempotency_key(served):
    """The same call with the same key gets the first answer and writes nothing; another one is refused."""
    key = {"idempotency_key": "k1"}
    first = served.request("POST", "/v1/sessions", {"agent_type": "tutor"}, **key)
    again = served.request("POST", "/v1/sessions", {"agent_type": "tutor"}, **key)
    assert first.json["session_id"] == again.json["session_id"]
    path = f"/v1/sessions/{first.json['session_id']}"
    for rest, body in (
        ("/checkpoints", {"name": "a", "data": {"n": 1}}),
        ("/rollback", {"to": "a"}),
        ("/records", {"name": "r", "value": 1}),
        ("/fork", {"at": "a"}),
        ("/copy", {"to": "a-copy"}),
    ):
        answers = [served.request("POST", path + rest, body, **key, **BOTH) for _ in range(2)]
        assert answers[0].status in {200, 201}
        stable = [{**answer.json, "last_heartbeat": None} for answer in answers]
        assert stable[0] == stable[1], rest
        key = {"idempotency_key": f"key-of{rest}"}
    other = served.request("POST", "/v1/sessions", {"agent_type": "coach"}, idempotency_key="k1")
    assert (other.status, other.json["code"]) == (422, "invalid_input")


def test_many_writers_without_a_version(served):
    """Checkpoints without If-Match follow whatever is newest: all of many concurrent ones land, none twice."""
    created(served, "busy", data={"items": []})
    with saveslot.blocking.open(served.store) as other, ThreadPoolExecutor(8) as pool:
        for n in range(3):  # another process writes in between, which this server has not read
            other.checkpoint("busy", "elsewhere", append={"items": [f"other-{n}"]}, seen=other.head("busy").version)
            answers = list(
                pool.map(
                    lambda n: saved(served, "busy", "here", append={"items": [n]}).status, range(10 * n, 10 * n + 10)
                )
            )
            assert answers == [201] * 10
    items = served.request("GET", "/v1/sessions/busy/data").json["items"]
    assert sorted(item for item in items if isinstance(item, int)) == list(range(30))
    assert [item for item in items if isinstance(item, str)] == ["other-0", "other-1", "other-2"]


def test_lifecycle(served):
    """Each verb changes the state as in Python, and refuses what the state does not allow."""
    created(served, "life")
    path = "/v1/sessions/life"
    for verb, body, state in (
        ("pause", None, "paused"),
        ("resume", None, "active"),
        ("fail", {"error": "no network", "details": {"code": 7}}, "failed"),
        ("recover", None, "active"),
        ("complete", {"result": {"grade": "A"}}, "completed"),
    ):
        answer = served.request("POST", f"{path}/{verb}", body)
        assert (answer.status, answer.json["state"]) == (200, state)
        assert answer.headers["etag"] == f'"{answer.json["version"]}"'
    refused = served.request("POST", f"{path}/pause")
    assert refused.status == 409
    error = from_dict(refused.json)
    assert isinstance(error, InvalidTransition)
    assert (error.source, error.target) == ("completed", "paused")
    names = [item["name"] for item in served.request("GET", f"{path}/checkpoints").json["items"]]
    assert names == [
        "session_created",
        *(f"session_{word}" for word in ("paused", "resumed", "failed", "recovered", "completed")),
    ]
    created(served, "stopped")
    answer = served.request("POST", "/v1/sessions/stopped/cancel", {"reason": "enough"})
    assert answer.json == {"session_id": "stopped", "state": "failed"}
    before = created(served, "beating")
    beat = served.request("POST", "/v1/sessions/beating/heartbeat").json
    assert beat["version"] == before["version"]
    assert beat["last_heartbeat"] >= before["last_heartbeat"]


def test_held_sessions_are_their_holders(served):
    """While a worker holds a session, others cannot checkpoint it, and see who holds it; `release` takes it away."""
    created(served, "held")
    with saveslot.blocking.open(served.store) as sessions, sessions.hold("held") as held:
        answer = saved(served, "held", "x", data={})
        assert answer.status == 409
        assert isinstance(from_dict(answer.json), LeaseHeld)
        shown = served.request("GET", "/v1/sessions/held").json
        assert shown["owner"]["fence"] == held.fence
        assert shown["orphaned"] is False
        assert served.request("GET", "/v1/sessions/held/head").json["owner"]["since"]
        assert served.request("POST", "/v1/sessions/held/release").json["released"] is True
        with pytest.raises(saveslot.LeaseLost):
            held.checkpoint("late", {})
    assert saved(served, "held", "x", data={}).status == 201


def test_diff_summary_and_entries(served):
    """Two checkpoints are compared, also across sessions; the summary and the entries of the log are as in Python."""
    created(served, "seen", data={"a": 1}, name="one")
    saved(served, "seen", "two", data={"a": 2, "b": 3})
    created(served, "seen-too", data={"a": 1})
    for b in ("two", "latest", "3"):
        items = served.request("GET", f"/v1/sessions/seen/diff?a=one&b={b}").json["items"]
        assert sorted(items, key=lambda item: item["path"]) == [
            {"op": "replace", "path": "/a", "value": 2},
            {"op": "add", "path": "/b", "value": 3},
        ]
    assert served.request("GET", "/v1/sessions/seen/diff?a=one&b=seen-too%3A2").json["items"] == []
    assert served.request("GET", "/v1/sessions/seen/diff?a=one").status == 422
    summary = served.request("GET", "/v1/sessions/seen/summary").json
    assert (summary["total_count"], summary["names"]) == (3, {"session_created": 1, "one": 1, "two": 1})
    entries = served.request("GET", "/v1/sessions/seen/entries?newest=2").json
    assert [item["name"] for item in entries["items"]] == ["one", "two"]
    older = served.request("GET", f"/v1/sessions/seen/entries?before={entries['next']}").json
    assert ([item["kind"] for item in older["items"]], older["next"]) == (["created"], None)
    assert served.request("GET", "/v1/sessions/seen/entries?kind=nothing").status == 422


def test_records_pins_and_drops(served):
    """Records come back in order; a pinned checkpoint cannot be dropped, an unpinned one can."""
    created(served, "kept", data={"n": 0})
    for n in range(3):
        saved(served, "kept", f"c{n}", data={"n": n + 1})
    path = "/v1/sessions/kept"
    numbers = [
        served.request("POST", f"{path}/records", {"name": "r", "value": value}).json["seq"] for value in (None, [1])
    ]
    page = served.request("GET", f"{path}/records?limit=1").json
    assert ([item["value"] for item in page["items"]], page["next"]) == ([None], str(numbers[0]))
    assert served.request("GET", f"{path}/records?after={page['next']}").json["items"][0]["value"] == [1]
    assert served.request("POST", f"{path}/pin", {"ref": "c0"}).json == {"id": "kept:3", "pinned": [3]}
    refused = served.request("POST", f"{path}/drop", {"refs": ["c0"]})
    assert (refused.status, refused.json["path"]) == (422, "refs")
    assert served.request("POST", f"{path}/unpin", {"ref": "c0"}).json["pinned"] == []
    assert served.request("POST", f"{path}/drop", {"refs": ["c0", 4]}).json == {"dropped": 2}
    assert served.request("GET", f"{path}/pins").json["items"] == []
    assert served.request("GET", f"{path}/checkpoints/c0").status == 404


def test_fork_and_copy(served):
    """A fork continues from a checkpoint in a session of its own; a copy has the whole log."""
    created(served, "trunk", data={"n": 1}, name="a")
    saved(served, "trunk", "b", data={"n": 2})
    fork = served.request("POST", "/v1/sessions/trunk/fork", {"at": "a", "session_id": "branch"})
    assert (fork.status, fork.headers["location"]) == (201, "/v1/sessions/branch")
    assert served.request("GET", "/v1/sessions/branch/data").json == {"n": 1}
    copy = served.request("POST", "/v1/sessions/trunk/copy", {"to": "twin"})
    assert copy.status == 201
    names = [item["name"] for item in served.request("GET", "/v1/sessions/twin/checkpoints").json["items"]]
    assert names == ["session_created", "a", "b"]
    assert served.request("POST", "/v1/sessions/trunk/copy", {"to": "twin"}).json["code"] == "already_exists"


def test_an_unknown_tagged_form_is_named(served):
    """A body that is JSON, but tags a value with a type that there is not, is not told that it is no JSON."""
    created(served, "untagged")
    for value in ({"$saveslot": ["unheard-of", 1]}, {"$saveslot": ["datetime", "x"]}):
        answer = saved(served, "untagged", "x", data={"a": value})
        assert (answer.status, answer.json["code"], answer.json["path"]) == (400, "invalid_input", "body")
        assert "`$saveslot` that is no tagged form" in answer.json["message"]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "path"),
    [
        (b"{", "application/json", 400, "body"),
        (b'{"name": "x", "data": {"a": "\xff"}}', "application/json", 400, "body"),
        (b"[" * 100_000, "application/json", 400, "body"),
        (b'{"name": "x"}', "text/plain", 415, "content-type"),
        (b'{"name": "x"}', "application/json; charset=utf-8", 201, None),
        (b"[]", "application/json", 422, "body"),
        (b'{"name": "x", "unknown": 1}', "application/json", 422, "body"),
        (b'{"name": 1}', "application/json", 422, "name"),
        (b'{"name": ""}', "application/json", 422, "name"),
        (b'{"name": "x", "data": {}, "put": {}}', "application/json", 422, "checkpoint"),
        (b'{"name": "x", "cut": {"list": 1}}', "application/json", 422, "cut.list"),
        (b'{"name": "x", "data": {"text": "' + b"x" * (16 << 20) + b'"}}', "application/json", 413, None),
        (b'{"name": "x", "data": {"text": "' + b"x" * (18 << 20) + b'"}}', "application/json", 413, None),
    ],
)
def test_content_is_checked(served, body, content_type, status, path):
    """What is wrong with a body is told by status, code and path; nothing is stored."""
    served.request("POST", "/v1/sessions", {"agent_type": "tutor", "session_id": "content", "exist_ok": True})
    answer = served.request("POST", "/v1/sessions/content/checkpoints", body, content_type=content_type)
    assert answer.status == status
    if status != 201:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json["code"] in BY_CODE
        assert answer.json.get("path") == path


def test_namespaces_are_apart(served):
    """A session is found in the namespace of the header, or of `ns`, only."""
    served.request("POST", "/v1/sessions", {"agent_type": "a", "session_id": "apart"}, saveslot_namespace="school-7")
    assert served.request("GET", "/v1/sessions/apart").status == 404
    assert served.request("GET", "/v1/sessions/apart", saveslot_namespace="school-7").status == 200
    assert served.request("GET", "/v1/sessions/apart?ns=school-7").status == 200


def test_state_as_deep_as_the_store_takes(served):
    """A state nested 100 levels deep comes back whole."""
    created(served, "deep")
    data: dict = {}
    for _ in range(99):
        data = {"a": data}
    assert saved(served, "deep", "x", data=data).json["data"] == data
    items = served.request("GET", "/v1/sessions/deep/checkpoints").json["items"]
    assert items[-1]["data"] == data
    assert json.dumps(items[-1]["data"]).count("a") == 99


@pytest.mark.parametrize(
    ("part", "body"), [("", {"metadata": {"a": 2}, "labels": {"x": None}}), ("/labels", {"y": "2", "x": None})]
)
def test_a_repeated_change_is_known_by_what_was_sent(served, part, body):
    """The key of a merge patch is known whatever was written since; with another patch it is refused."""
    session = "merged" + part.replace("/", "-")
    first = created(served, session, labels={"x": "1"})
    key = {"idempotency_key": "k", "if_match": f'"{first["version"]}"'}
    path = f"/v1/sessions/{session}"
    once = served.request("PATCH", path + part, body, **key)
    assert once.status == 200
    since = served.request("PATCH", path, {"context": {"z": 1}, "labels": {"since": "1"}}, **BOTH)
    again = served.request("PATCH", path + part, body, **key)
    assert (again.status, again.json["version"]) == (200, since.json["version"])
    other = served.request("PATCH", path, {"metadata": {"a": 3}}, **key)
    assert (other.status, other.json["code"]) == (422, "invalid_input")


def test_a_patch_has_a_limit(served):
    """A JSON patch of more operations than the limit is refused."""
    created(served, "patched-often", data={"n": 0})
    step = {"op": "replace", "path": "/n", "value": 1}
    assert saved(served, "patched-often", "many", patch=[step] * 5000).status == 201
    answer = saved(served, "patched-often", "more", patch=[step] * 5001)
    assert (answer.status, answer.json["path"]) == (422, "patch")


def test_a_record_without_a_value_is_not_imported(served):
    """An export whose record lacks its value is refused."""
    created(served, "recorded")
    served.request("POST", "/v1/sessions/recorded/records", {"name": "r", "value": 1})
    export = served.request("GET", "/v1/sessions/recorded/export").json
    export["entries"][-1]["data"] = {}
    answer = served.request("POST", "/v1/imports?session_id=unrecorded", export)
    assert (answer.status, answer.json["path"]) == (422, "import.entries[1].data.value")


def test_errors_name_requests(served):
    """What an error advises can be done over HTTP: no message names a call of the Python library."""
    created(served, "advised", data={"n": 1})
    created(served, "advised-done")
    served.request("POST", "/v1/sessions/advised-done/complete", {})
    refused = [
        served.request("GET", "/v1/sessions/nobody"),
        served.request("GET", "/v1/sessions/advised/checkpoints/never"),
        served.request("POST", "/v1/sessions", {"agent_type": "tutor", "session_id": "advised"}),
        saved(served, "advised-done", "late"),
        served.request("POST", "/v1/sessions/advised-done/lease", {"worker": "w"}),
        served.request("POST", "/v1/sessions/advised/steps/pay/1", {"retry": True}),
    ]
    said = [answer.json["message"] for answer in refused]
    assert [text for text in said if re.search(r"[a-z]\(|get_|`", text)] == []
    assert [text for text in said if "/v1/sessions" not in text] == []
    assert [answer.json["detail"] for answer in refused] == said
