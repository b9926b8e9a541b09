"""Exports, imports, retention, erasing and audit over `/v1`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import saveslot
from saveslot.server.load import IMPORTS
from saveslot.session.model import SessionCheckpoint
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.memory import MemoryStore
from saveslot.values.log import Group, Verdict
from tests.server.conftest import request


def created(served, session_id: str, *names: str, **more) -> None:
    body = {"agent_type": "tutor", "session_id": session_id, **more}
    assert served.request("POST", "/v1/sessions", body).status == 201
    for n, name in enumerate(names):
        saved = served.request("POST", f"/v1/sessions/{session_id}/checkpoints", {"name": name, "data": {"n": n}})
        assert saved.status == 201


def test_export_and_import(served):
    """An export is what Python exports, and comes in under another id with all its checkpoints, once per key."""
    created(served, "out", "a", "b", "c", context={"at": {"$saveslot": ["datetime", "2026-01-02T03:04:05+00:00"]}})
    answer = served.request("GET", "/v1/sessions/out/export")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    with saveslot.blocking.open(served.store) as sessions:
        assert json.loads(sessions.export("out")) == answer.json
    brought = [
        served.request("POST", "/v1/imports?session_id=in", answer.body, idempotency_key="import-1") for _ in range(2)
    ]
    assert [one.status for one in brought] == [201, 201]
    assert brought[0].headers["location"] == "/v1/sessions/in"
    assert brought[0].json["context"] == served.request("GET", "/v1/sessions/out").json["context"]
    for part in ("checkpoints", "data"):
        ours, theirs = (served.request("GET", f"/v1/sessions/{one}/{part}").json for one in ("in", "out"))
        text = json.dumps(ours).replace("in:", "out:")
        assert [item["data"] for item in json.loads(text)["items"]] if part == "checkpoints" else ours == theirs
    assert served.request("POST", "/v1/imports", answer.body).json["code"] == "already_exists"
    for body, status in ((b"{}", 422), (b"{", 422), (b"\xff", 400)):
        assert served.request("POST", "/v1/imports", body).status == status
    assert served.request("GET", "/v1/sessions/nobody/export").status == 404


def test_gc_takes_the_number_that_was_shown(served):
    """`gc` is a dry run by default; it purges only with the count of one, and nothing if that has changed."""
    ns = {"saveslot_namespace": "gc"}
    for n in range(3):
        served.request("POST", "/v1/sessions", {"agent_type": "a", "session_id": f"g{n}"}, **ns)
        served.request("POST", f"/v1/sessions/g{n}/complete", {}, **ns)
    wanted = {"older_than": 0, "grace": 0}
    seen = served.request("POST", "/v1/gc", wanted, **ns).json
    assert (seen["dry_run"], sorted(seen["sessions"]), seen["count"]) == (True, ["g0", "g1", "g2"], 3)
    assert served.request("POST", "/v1/gc", {**wanted, "dry_run": False}, **ns).status == 422
    assert served.request("POST", "/v1/gc", {**wanted, "dry_run": False, "count": 2}, **ns).status == 409
    assert served.request("GET", "/v1/count", **ns).json == {"count": 3}
    done = served.request("POST", "/v1/gc", {**wanted, "dry_run": False, "count": 3}, **ns).json
    assert (done["dry_run"], done["count"]) == (False, 3)
    assert served.request("GET", "/v1/count", **ns).json == {"count": 0}


def test_thin(served):
    """`thin` shows what a rule drops, then drops it."""
    created(served, "thinned", *(f"c{n}" for n in range(6)))
    path, rule = "/v1/sessions/thinned/thin", {"keep_first": 0, "keep_last": 2, "keep_latest_per_name": False}
    seen = served.request("POST", path, rule).json
    assert (seen["dry_run"], seen["marked"]) == (True, 4)
    done = served.request("POST", path, {**rule, "dry_run": False}).json
    assert (done["dry_run"], done["marked"]) == (False, 4)
    names = [item["name"] for item in served.request("GET", "/v1/sessions/thinned/checkpoints").json["items"]]
    assert names == ["session_created", "c4", "c5"]


def test_thin_takes_the_number_that_was_shown(served):
    """Thinning of many sessions is a dry run by default; it takes its count, and leaves out what a worker holds."""
    ns = {"saveslot_namespace": "thin"}
    rule = {"keep_first": 0, "keep_last": 1, "keep_latest_per_name": False}
    for one in ("idle", "held"):
        body = {"agent_type": "a", "session_id": one, "metadata": {"saveslot.retention": rule}}
        assert served.request("POST", "/v1/sessions", body, **ns).status == 201
        for n in range(3):
            path = f"/v1/sessions/{one}/checkpoints"
            assert served.request("POST", path, {"name": f"c{n}", "data": {"n": n}}, **ns).status == 201
    assert served.request("POST", "/v1/sessions/held/lease", {}, **ns).status == 201
    shown = served.request("GET", "/v1/thin", **ns).json
    assert (shown["sessions"], shown["checkpoints"]) == (2, 4)
    assert shown["rules"]["*"]["keep_last"] == 20
    seen = served.request("POST", "/v1/thin", {}, **ns).json
    assert (seen["dry_run"], sorted(seen["sessions"]), seen["count"], seen["checkpoints"]) == (
        True,
        ["held", "idle"],
        2,
        4,
    )
    assert served.request("POST", "/v1/thin", {"dry_run": False}, **ns).status == 422
    assert served.request("POST", "/v1/thin", {"dry_run": False, "count": 3}, **ns).status == 409
    assert served.request("GET", "/v1/thin", **ns).json["checkpoints"] == 4
    done = served.request("POST", "/v1/thin", {"dry_run": False, "count": 2}, **ns).json
    assert (done["sessions"], done["checkpoints"]) == (["idle"], 2)
    assert [(one["id"], one["code"]) for one in done["refused"]] == [("held", "lease_held")]
    names = [item["name"] for item in served.request("GET", "/v1/sessions/idle/checkpoints", **ns).json["items"]]
    assert names == ["session_created", "c2"]


def test_thin_walks_all_sessions_in_pages(served):
    """Each page has a count of its own, shown and applied, and `next` leads on until every session was looked at."""
    ns = {"saveslot_namespace": "pages"}
    rule = {"keep_first": 0, "keep_last": 1, "keep_latest_per_name": False}
    for n in range(7):
        body = {"agent_type": "a", "session_id": f"p{n}", "metadata": {"saveslot.retention": rule} if n % 2 else {}}
        assert served.request("POST", "/v1/sessions", body, **ns).status == 201
        for turn in range(3):
            body = {"name": "turn", "data": {"turn": turn}}
            assert served.request("POST", f"/v1/sessions/p{n}/checkpoints", body, **ns).status == 201
    shown, done, after = [], [], None
    while True:
        page = {"looked": 3} if after is None else {"looked": 3, "after": after}
        query = "&".join(f"{name}={value}" for name, value in page.items())
        preview = served.request("GET", f"/v1/thin?{query}", **ns).json
        seen = served.request("POST", "/v1/thin", page, **ns).json
        assert (preview["sessions"], preview["next"]) == (seen["count"], seen["next"])
        shown.append(seen["sessions"])
        applied = served.request("POST", "/v1/thin", {**page, "dry_run": False, "count": seen["count"]}, **ns).json
        assert (applied["checkpoints"], applied["next"]) == (2 * seen["count"], seen["next"])
        done += applied["sessions"]
        if (after := seen["next"]) is None:
            break
    assert (shown, done) == ([["p5"], ["p3", "p1"], []], ["p5", "p3", "p1"])
    assert served.request("GET", "/v1/thin", **ns).json["sessions"] == 0
    assert served.request("POST", "/v1/thin", {"after": "x"}, **ns).status == 422


def test_erase_and_audit(served):
    """What is erased cannot be read; its audit trail stays, verified, and says that it was erased."""
    created(served, "private", "secret", user_id="anna-to-erase")
    before = served.request("GET", "/v1/sessions/private/audit").json
    assert (before["state"], before["misfit"], before["head"]) == ("active", None, before["lines"][-1]["link"])
    seen = served.request("POST", "/v1/erase", {"user_id": "anna-to-erase"}).json
    assert (seen["dry_run"], seen["sessions"]) == (True, ["private"])
    assert served.request("GET", "/v1/sessions/private").status == 200
    for wrong in ({}, {"user_id": "x", "session_id": "y"}):
        assert served.request("POST", "/v1/erase", wrong).status == 422
    done = served.request("POST", "/v1/erase", {"session_id": "private", "dry_run": False}).json
    assert (done["dry_run"], done["sessions"]) == (False, ["private"])
    assert served.request("GET", "/v1/sessions/private").status == 404
    after = served.request("GET", f"/v1/sessions/private/audit?link={before['head']}").json
    assert (after["state"], after["misfit"]) == ("erased", None)
    assert served.request("GET", "/v1/sessions/nobody/audit").status == 404


def test_lifecycle_with_a_key(served):
    """A lifecycle change repeated with its key changes nothing, also with the version that it was made after."""
    created(served, "once")
    version = served.request("GET", "/v1/sessions/once").json["version"]
    for verb, body in (("pause", None), ("fail", {"error": "x"})):
        headers = {"idempotency_key": verb, "if_match": f'"{version}"'}
        first, again = (served.request("POST", f"/v1/sessions/once/{verb}", body, **headers) for _ in range(2))
        assert (first.status, again.status) == (200, 200)
        assert first.json["version"] == again.json["version"] != version
        version = first.json["version"]


def test_the_answer_to_an_import_or_a_copy_decodes_no_state(serving, monkeypatch):
    """It has no checkpoints, so their states, 15 MB each perhaps, are not turned into objects for it."""

    async def opened() -> MemoryStore:
        return MemoryStore()

    def decoded(_: SessionCheckpoint) -> None:
        raise AssertionError

    url = serving.serve(opened) + "/v1"

    def post(path: str, body: Any, status: int = 201) -> None:
        answer = request(url, "POST", path, body)
        assert (answer.status, answer.json.get("checkpoints")) == (status, None), answer.body

    post("/sessions", {"agent_type": "a", "session_id": "s", "data": {"n": 0}})
    post("/sessions/s/checkpoints", {"name": "c", "put": {"n": 1}})
    export = request(url, "GET", "/sessions/s/export").json
    monkeypatch.setattr(SessionCheckpoint, "data", property(decoded))
    post("/imports?session_id=imported", export)
    post("/sessions/s/copy", {"to": "copied"})
    post("/sessions/s/pause", {}, 200)


class Counting(PassingStore):
    """Counts how many sessions are being created at once."""

    now = most = 0

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        self.now += 1
        self.most = max(self.now, self.most)
        await asyncio.sleep(0.05)  # the others come meanwhile, unless they wait
        try:
            return await self._inner.append(groups, together=together)
        finally:
            self.now -= 1


def test_few_imports_are_worked_on_at_a_time(serving):
    """Of many that come at once, the others wait, since each takes several times its bytes; all of them land."""
    stores: list[Counting] = []

    async def opened() -> Counting:
        stores.append(Counting(MemoryStore()))
        return stores[0]

    url = serving.serve(opened) + "/v1"
    assert request(url, "POST", "/sessions", {"agent_type": "a", "session_id": "s"}).status == 201
    export = request(url, "GET", "/sessions/s/export").body

    def load(n: int) -> int:
        return request(url, "POST", f"/imports?session_id=s{n}", export, content_type="application/json").status

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(load, range(8))] == [201] * 8
    assert stores[0].most == IMPORTS
