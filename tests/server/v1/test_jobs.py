"""One verb on many sessions: jobs, over a real server."""

from __future__ import annotations

import asyncio
import time

import pytest

import saveslot
from tests.server.conftest import serving as serving_process

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
    with serving_process(served.store) as other:
        assert other.request("GET", f"/v1/jobs/{job['job_id']}", **NS).json == job
    job = finished(served, served.request("POST", "/v1/bulk", {"verb": "delete", "filter": {}}, **NS), **NS)
    assert (job["done"], job["refused"]) == (150, [])
    assert served.request("GET", "/v1/count", **NS).json == {"count": 0}
    for wrong in ({"verb": "pause"}, {"verb": "pause", "ids": [], "filter": {}}, {"verb": "label", "ids": ["b0"]}):
        assert served.request("POST", "/v1/bulk", wrong, **NS).status == 422


def test_a_job_is_one_for_its_key(served):
    """The same request with its key gets the same job, whatever the number of requests; another one is refused."""
    space = {"saveslot_namespace": "keyed"}
    for n in range(3):
        served.request("POST", "/v1/sessions", {"agent_type": "a", "session_id": f"k{n}"}, **space)
    pause = {"verb": "pause", "filter": {"agent_type": ["a"]}}
    first = served.request("POST", "/v1/bulk", pause, **space, idempotency_key="k")
    with serving_process(served.store) as other:
        again = other.request("POST", "/v1/bulk", pause, **space, idempotency_key="k")
    assert (again.status, again.headers["location"]) == (202, first.headers["location"])
    job = finished(served, first, **space)
    assert (job["of"], job["done"], job["refused_count"], job["error"]) == (3, 3, 0, None)
    assert served.request("POST", "/v1/bulk", pause, **space, idempotency_key="k").json == job
    assert served.request("POST", "/v1/bulk", {**pause, "verb": "resume"}, **space, idempotency_key="k").status == 422
    elsewhere = {"saveslot_namespace": "elsewhere"}
    assert served.request("POST", "/v1/bulk", pause, **elsewhere, idempotency_key="k").json["of"] == 0


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_a_job_goes_on_at_another_server(tmp_path, killed):
    """When its server ends, or is killed, the other one finishes the job, and nothing happens twice."""
    store, ids = str(tmp_path / "agents.db"), [f"s{n}" for n in range(1500)]
    with serving_process(store) as served, serving_process(store) as other:
        for start in range(0, len(ids), 50):
            asyncio.run(create(store, ids[start : start + 50]))
        path = served.request("POST", "/v1/bulk", {"verb": "complete", "ids": ids}).headers["location"]
        while served.request("GET", "/v1/count?state=completed").json["count"] == 0:
            pass
        if killed:
            served.process.kill()
        else:
            served.process.terminate()
        served.process.wait(60)
        job = other.request("GET", path).json
        assert job["state"] == "running"
        assert job["done"] < len(ids)
        ends = time.monotonic() + 120
        while (job := other.request("GET", path).json)["state"] != "finished":
            assert job["state"] == "running"
            assert time.monotonic() < ends, job
            time.sleep(0.1)
        assert (job["done"], job["refused"], job["error"]) == (len(ids), [], None)
        for one in ids[::50]:
            kinds = [entry["kind"] for entry in other.request("GET", f"/v1/sessions/{one}/entries").json["items"]]
            assert kinds == ["created", "completed"]


async def create(store: str, ids: list[str]) -> None:
    async with saveslot.open(store) as sessions:
        await asyncio.gather(*(sessions.create_session("a", session_id=one) for one in ids))


def test_old_jobs_are_purged(tmp_path):
    """Of a namespace the newest hundred stay; jobs of another one, and tokens, are not touched."""
    url = str(tmp_path / "agents.db")
    with serving_process(url) as served:
        job = {"verb": "pause", "ids": ["nobody"]}
        there = {"saveslot_namespace": "other"}
        other = finished(served, served.request("POST", "/v1/bulk", job, **there), **there)
        ids = [finished(served, served.request("POST", "/v1/bulk", job, **NS), **NS)["job_id"] for _ in range(110)]
        answers = [served.request("GET", f"/v1/jobs/{job_id}", **NS).status for job_id in ids]
        assert answers == [404] * 10 + [200] * 100
        kept = served.request("GET", f"/v1/jobs/{other['job_id']}", **there)
        assert kept.status == 200
