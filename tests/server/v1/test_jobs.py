"""One verb on many sessions: jobs, over a real server."""

from __future__ import annotations

import time

from tests.server.conftest import serving

NS = {"saveslot_namespace": "bulk"}


def finished(served, answer, **headers):
    assert answer.status == 202, answer.json
    path = answer.headers["location"]
    ends = time.monotonic() + 60
    while (job := served.request("GET", path, **headers).json)["state"] == "running":
        assert time.monotonic() < ends
        time.sleep(0.05)
    return job


def test_bulk(served):
    """A job does one thing to all sessions of a filter or a list, and names those that refused and why."""
    for n in range(150):
        body = {"agent_type": "a", "session_id": f"b{n}", "labels": {"half": str(n % 2)}}
        assert served.request("POST", "/v1/sessions", body, **NS).status == 201
    served.request("POST", "/v1/sessions/b1/complete", {}, **NS)
    odd = {"verb": "pause", "filter": {"label": ["half=1"]}}
    seen = served.request("POST", "/v1/bulk", {**odd, "dry_run": True}, **NS)
    assert (seen.status, seen.json["state"], seen.json["of"], seen.json["job_id"]) == (200, "dry_run", 75, None)
    assert served.request("GET", "/v1/count?state=paused", **NS).json == {"count": 0}
    job = finished(served, served.request("POST", "/v1/bulk", odd, **NS), **NS)
    assert (job["state"], job["of"], job["done"], job["refused_count"]) == ("finished", 75, 74, 1)
    assert [(one["id"], one["code"]) for one in job["refused"]] == [("b1", "invalid_transition")]
    assert served.request("GET", "/v1/count?state=paused", **NS).json == {"count": 74}
    label = {"verb": "label", "ids": ["b0", "b2", "nobody"], "labels": {"half": None, "new": "x"}}
    job = finished(served, served.request("POST", "/v1/bulk", label, **NS), **NS)
    assert (job["done"], [one["code"] for one in job["refused"]]) == (2, ["not_found"])
    assert served.request("GET", "/v1/sessions/b0", **NS).json["labels"] == {"new": "x"}
    assert served.request("GET", f"/v1/jobs/{job['job_id']}").status == 404  # of another namespace
    with serving(served.store) as other:
        assert other.request("GET", f"/v1/jobs/{job['job_id']}", **NS).json == job
    job = finished(served, served.request("POST", "/v1/bulk", {"verb": "delete", "filter": {}}, **NS), **NS)
    assert (job["done"], job["refused"]) == (150, [])
    assert served.request("GET", "/v1/count", **NS).json == {"count": 0}
    for wrong in ({"verb": "pause"}, {"verb": "pause", "ids": [], "filter": {}}, {"verb": "label", "ids": ["b0"]}):
        assert served.request("POST", "/v1/bulk", wrong, **NS).status == 422
