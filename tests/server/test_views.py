"""What lists, tapes and charts show, over HTTP."""

from __future__ import annotations

import pytest

import saveslot
from tests.server.conftest import serving


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A server over a file with one session of six entries."""
    path = tmp_path_factory.mktemp("views") / "agents.db"
    with saveslot.blocking.open(str(path)) as sessions:
        sessions.create_session("tutor", session_id="a/b", data={"n": 0})
        with sessions.hold("a/b") as held:
            held.checkpoint("one", {"n": 1}, {"m": [1]})
            held.step("ask", lambda: 1)
    with serving(str(path)) as served:
        yield served


def test_log_pages(filled):
    """Rows as `LogEntry` names them, with an ETag that answers 304."""
    answer = filled.request("GET", "/v1/sessions/a%2Fb/log?limit=2&after=3")
    assert answer.status == 200
    assert [(row["seq"], row["kind"], row["metadata"]) for row in answer.json["items"]] == [
        (4, "checkpoint", {"m": [1]}),
        (5, "step_finished", {}),
    ]
    assert {"from", "to", "step", "forks", "lease_change"} <= set(answer.json["items"][0])
    assert (answer.json["next"], answer.json["previous"], answer.json["entries"]) == (5, 4, 6)
    again = filled.request("GET", "/v1/sessions/a%2Fb/log", if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")


def test_outlook_and_shapes(filled):
    """One session's outlook; shapes of known ids."""
    outlook = filled.request("GET", "/v1/sessions/a%2Fb/outlook").json
    assert (outlook["goes_on_from"]["name"], outlook["steps"]["finished"]) == ("one", 1)
    shapes = filled.request("GET", "/v1/shapes?ids=a%2Fb&ids=none").json
    assert [(shape["id"], len(shape["marks"])) for shape in shapes["items"]] == [("a/b", 5)]


def test_mistakes_are_named(filled):
    """Unknown sessions and parameters, and numbers out of range."""
    assert filled.request("GET", "/v1/sessions/none/log").status == 404
    for query in ("limit=0", "limit=501", "around=x", "nonsense=1", "around=1&after=2"):
        assert filled.request("GET", f"/v1/sessions/a%2Fb/log?{query}").status == 422
    assert filled.request("GET", "/v1/shapes").status == 422


def test_lists_and_facets(filled):
    """Several values of one condition; what each row shows; counts beside them."""
    listed = filled.request("GET", "/v1/sessions?state=active&state=failed&agent_type=tutor").json
    [row] = listed["items"]
    assert (row["session_id"], row["entries"], row["newest"]["name"], row["failure"]) == ("a/b", 6, "one", None)
    assert filled.request("GET", "/v1/count?state=active&state=failed").json == {"count": 1}
    assert filled.request("GET", "/v1/sessions?state=failed").json["items"] == []
    [row] = filled.request("GET", "/v1/sessions?outlook=1&limit=1").json["items"]
    assert row["outlook"]["goes_on_from"]["name"] == "one"
    assert filled.request("GET", "/v1/sessions?outlook=1").status == 422
    facets = filled.request("GET", "/v1/sessions/facets?state=failed").json
    assert (facets["sessions"], facets["by_state"]["active"]) == (0, 1)
    assert filled.request("GET", "/v1/sessions?seen_before=2020-01-01T00:00:00Z").json["items"] == []


def test_failures(filled):
    """What needs a person, within a time."""
    failed = filled.request("GET", "/v1/failures?since=3600").json
    assert (failed["items"], failed["looked_at"]["most"]) == ([], 1000)


def test_parts_of_states(filled):
    """A part of a state by path, its recipe, and a 304 while the data is the same."""
    path = "/v1/sessions/a%2Fb/checkpoints/5"
    answer = filled.request("GET", f"{path}?depth=1&recipe=1")
    assert (answer.json["value"], answer.json["name"], answer.json["data_seq"]) == ({"n": 1}, "ask", 4)
    assert answer.json["recipe"]["frames"][0]["kind"] == "keyframe"
    assert filled.request("GET", f"{path}?path=/n").json["value"] == 1
    assert filled.request("GET", f"{path}?path=/m").status == 404
    again = filled.request("GET", f"{path}?depth=1", if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")


def test_comparisons(filled):
    """Old values and a summary beside the operations."""
    found = filled.request("GET", "/v1/sessions/a%2Fb/diff?a=2&b=latest&old=1").json
    assert found["items"] == [{"op": "replace", "path": "/n", "value": 1, "old": 0}]
    assert (found["summary"]["operations"], found["truncated"], found["next"]) == (1, False, None)
    other = filled.request("GET", "/v1/sessions/a%2Fb/diff?a=2&b=latest&session_b=none")
    assert other.status == 404


def test_figures(filled):
    """Overview, stats, buckets, storage and analytics answer, and refuse what makes no sense."""
    assert filled.request("GET", "/v1/sessions/a%2Fb/buckets?n=3").json["entries"] == 6
    stats = filled.request("GET", "/v1/stats").json
    assert (stats["sessions"], stats["by_state"]["active"], stats["workers"], stats["late"]) == (1, 1, [], 0)
    assert {"60s", "1h", "24h"} == set(stats["rates"])
    assert sum(bucket["checkpoints"] for bucket in filled.request("GET", "/v1/stats/buckets").json["items"]) == 2
    assert filled.request("GET", "/v1/stats/buckets?bucket=1&since=86400").status == 422
    assert filled.request("GET", "/v1/storage").json["by_agent_type"][0]["agent_type"] == "tutor"
    analytics = filled.request("GET", "/v1/analytics?first=created&then=one").json
    assert analytics["between"]["count"] == 1
    assert filled.request("GET", "/v1/analytics?first=created").status == 422


def test_previews(filled):
    """What a rollback would do, with the ETag that makes it so; and what retention would drop."""
    answer = filled.request("GET", "/v1/sessions/a%2Fb/rollback?to=2")
    assert (answer.json["allowed"], answer.json["diff"]["items"][0]["old"]) == (True, 1)
    assert answer.headers["etag"] == f'"{answer.json["version"]}"'
    assert [effect["name"] for effect in answer.json["effects"]] == ["ask"]
    assert filled.request("GET", "/v1/thin").json["checkpoints"] == 0


def test_newest_entries(filled, served):
    """Newest first over all sessions, with the fields of an event, narrowed by kind, name, agent type and session."""
    whole = filled.request("GET", "/v1/entries").json
    assert [(item["session_id"], item["seq"]) for item in whole["items"]] == [("a/b", n) for n in range(6, 0, -1)]
    newest = whole["items"][0]
    assert (newest["kind"], newest["agent_type"], newest["state"]) == ("released", "tutor", "active")
    owners = {}  # each entry has its own, also after the session was released
    for item in filled.request("GET", "/v1/sessions/a%2Fb/entries").json["items"]:
        owners[item["seq"]] = item["owner"] and item["owner"]["worker"]
    assert {item["seq"]: item["owner"] for item in whole["items"]} == owners
    assert len({*owners.values()}) == 2
    ns = {"saveslot_namespace": "newest"}
    for one, agent in (("x", "tutor"), ("y", "booker")):
        served.request("POST", "/v1/sessions", {"agent_type": agent, "session_id": one}, **ns)
    for one, name in (("x", "a"), ("y", "b"), ("x", "c")):
        served.request("POST", f"/v1/sessions/{one}/checkpoints", {"name": name}, **ns)

    def seen(query: str) -> list[tuple[str, int, str]]:
        items = served.request("GET", f"/v1/entries?{query}", **ns).json["items"]
        return [(item["session_id"], item["seq"], item["name"]) for item in items]

    assert seen("kind=checkpoint") == [("x", 3, "c"), ("y", 2, "b"), ("x", 2, "a")]
    assert seen("kind=checkpoint&limit=1") == [("x", 3, "c")]
    assert seen("name=a&name=b") == [("y", 2, "b"), ("x", 2, "a")]
    assert seen("agent_type=booker&kind=checkpoint") == seen("session_id=y&kind=checkpoint") == [("y", 2, "b")]
    assert served.request("GET", "/v1/entries?kind=nothing", **ns).status == 422
