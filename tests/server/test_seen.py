"""What operators see of a server: health, readiness, metrics and logs, without content."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from http.client import HTTPConnection
from urllib.parse import urlencode

from prometheus_client.parser import text_string_to_metric_families

from saveslot.stack import Postgres
from tests.harness.proxy import Proxy
from tests.server.conftest import Served, serving

SECRET = "the-secret-word"  # noqa: S105


def read(served: Served, **headers: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples of a scrape, by name and then by labels, as Prometheus's own parser reads them."""
    answer = served.request("GET", "/metrics", **headers)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        assert family.documentation
        assert family.type != "unknown", family.name
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            known = samples.setdefault(sample.name, {})
            assert labels not in known, (sample.name, labels)
            known[labels] = sample.value
            if sample.name.endswith("_bucket"):
                assert float(sample.labels["le"]) > 0
    return samples


def total(samples: dict, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    return sum(value for known, value in samples[name].items() if labels.items() <= dict(known).items())


def test_scrapes_leave_nothing_in_the_log(tmp_path):
    """A server that is scraped has nothing to report."""
    with (tmp_path / "log").open("w+") as log:
        with serving(str(tmp_path / "agents.db"), stderr=log) as served:
            assert served.request("POST", "/v1/sessions", {"agent_type": "tutor"}).status == 201
            assert total(read(served), "saveslot_sessions", namespace="default") == 1
        log.seek(0)
        assert [line for line in log if not line.startswith("store: ")] == []


def test_metrics_are_prometheus_text(served):
    """Prometheus's parser reads every line; requests, the store's calls and entries are counted, without content."""
    assert served.request("POST", "/v1/sessions", {"agent_type": "tutor", "data": {"text": SECRET}}).status == 201
    assert served.request("GET", "/v1/sessions/unknown").status == 404
    samples = read(served)
    created = {"method": "POST", "route": "/v1/sessions"}
    assert total(samples, "saveslot_http_requests_total", **created, status="201") == 1
    assert total(samples, "saveslot_http_requests_total", route="/v1/sessions/{id}", status="404") == 1
    assert total(samples, "saveslot_http_request_seconds_bucket", **created, le="+Inf") == 1
    assert total(samples, "saveslot_http_request_seconds_count", **created) == 1
    assert total(samples, "saveslot_http_received_bytes_total") > len(SECRET)
    assert total(samples, "saveslot_http_sent_bytes_total") > len(SECRET)
    append = {"store": "sqlite", "verb": "append"}
    assert total(samples, "saveslot_store_seconds_bucket", **append, le="+Inf") == 1
    assert 0 < total(samples, "saveslot_store_seconds_sum", **append) < 60
    assert total(samples, "saveslot_store_outcomes_total", outcome="appended") == 1
    assert total(samples, "saveslot_store_entries_total", kind="checkpoint") == 1
    assert total(samples, "saveslot_store_batch_groups_sum") == 1
    assert total(samples, "saveslot_sessions", namespace="default", state="active") == 1
    assert SECRET not in str(samples)


async def test_metrics_of_what_happens(servers, database):
    """Leases, orphans, takeovers, streams, the pool and the hot tier are in it, with namespaces of any spelling."""
    odd = 'a "school"\\7'
    with serving(database.url, SAVESLOT_HOT=servers.valkey()) as served:
        namespace = {"ns": odd}
        path = f"?{urlencode(namespace)}"
        for name in ("one", "two"):
            served.request("POST", f"/v1/sessions{path}", {"agent_type": "tutor", "session_id": name})
        lease = served.request("POST", f"/v1/sessions/one/lease{path}", {}).json["lease_id"]
        before = read(served)
        assert total(before, "saveslot_sessions_held", namespace=odd) == 1
        assert total(before, "saveslot_sessions_orphaned", namespace=odd) == 0
        served.request("DELETE", f"/v1/sessions/one/lease/{lease}{path}&error=x")
        assert len(served.request("POST", f"/v1/claims{path}", {"wait": 5}).json["items"]) == 1
        watching = HTTPConnection(served.address, timeout=60)
        watching.request("GET", f"/v1/events{path}")
        assert watching.getresponse().readline()
        after = read(served)
        watching.close()
    assert total(after, "saveslot_store_entries_total", kind="claimed") == 1  # a takeover
    assert total(after, "saveslot_event_listeners") == 1
    assert 0 < total(after, "saveslot_store_pool_connections") <= total(after, "saveslot_store_pool_limit")
    assert total(after, "saveslot_store_seconds_count", store="postgresql", verb="append") >= 5
    assert total(after, "saveslot_hot_up") == 1


async def test_one_scrape_has_all_processes(tmp_path):
    """With `--workers`, whichever process a scrape reaches, it has what all of them counted, each under its label."""
    with serving(str(tmp_path / "s.db"), "--workers", "3") as served:
        for n in range(60):
            assert served.request("GET", f"/v1/sessions/unknown-{n}").status == 404
        scrapes = [read(served) for _ in range(8)]
    for samples in scrapes:
        assert total(samples, "saveslot_http_requests_total", route="/v1/sessions/{id}") == 60
        assert {dict(labels)["worker"] for labels in samples["saveslot_info"]} == {"0", "1", "2"}


def test_ready_while_the_store_answers(tmp_path):
    """A server is ready while its database answers; without it, it says 503 within 10 s, and is ready again after."""
    with Postgres() as postgres, serving(postgres.url) as served:
        assert served.request("GET", "/readyz").status == 200
        postgres.stop()
        answer = served.request("GET", "/readyz")
        assert answer.status == 503
        assert answer.json["code"] == "unavailable"
        assert served.request("GET", "/healthz").status == 200
        postgres.start()
        while served.request("GET", "/readyz").status != 200:
            pass


async def test_probes_share_a_check(database):
    """While the database is silent, probes that come together are all answered 503, by one read of the store."""
    with Proxy(database.url) as way, serving(way.url) as served:
        assert served.request("GET", "/readyz").status == 200
        before = total(read(served), "saveslot_store_seconds_count", verb="heads")
        way.drop()
        answers = await asyncio.gather(*(asyncio.to_thread(served.request, "GET", "/readyz") for _ in range(12)))
        assert {(answer.status, answer.json["code"]) for answer in answers} == {(503, "unavailable")}
        way.heal()
        reads = total(read(served), "saveslot_store_seconds_count", verb="heads") - before
        assert 0 < reads <= 3  # one, unless the machine is so slow that a probe comes after its end


def test_logs_name_the_request_and_not_its_content(tmp_path):
    """With `--log json` each request is one line of JSON with its id, route, token and time; no saved data is in it."""
    log = tmp_path / "log"
    store = str(tmp_path / "agents.db")
    argv = [sys.executable, "-m", "saveslot", "token", "create", "ada", "--scope", "write", "--store", store]
    token = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    with log.open("w") as stderr, serving(store, "--log", "json", stderr=stderr) as served:
        sent = {"authorization": f"Bearer {token}", "x_request_id": "r-1"}
        body = {"agent_type": "tutor", "data": {"text": SECRET}}
        assert served.request("POST", "/v1/sessions?ns=default", body, **sent).status == 201
        served.request("GET", f"/v1/sessions/{SECRET}-id?text={SECRET}", **sent)
    text = log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    [created] = [line for line in lines if line.get("status") == 201]
    assert (created["request_id"], created["route"], created["token"]) == ("r-1", "/v1/sessions", "ada")
    assert created["ms"] > 0
    assert token not in text
    assert f"text={SECRET}" not in text
    assert f'"{SECRET}"' not in text
