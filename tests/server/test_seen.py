"""What operators see of a server: health, readiness, metrics and logs, without content."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from saveslot.stack import Postgres
from tests.server.conftest import serving

SECRET = "the-secret-word"  # noqa: S105
SAMPLE = re.compile(r'saveslot_\w+(\{(\w+="[^"\\\n]*",?)+\})? -?[0-9.e+-]+')


def test_metrics_are_prometheus_text(served):
    """Every line is a comment or a sample; requests are counted by route and status, with their times."""
    assert served.request("POST", "/v1/sessions", {"agent_type": "tutor", "data": {"text": SECRET}}).status == 201
    assert served.request("GET", "/v1/sessions/unknown").status == 404
    answer = served.request("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    for line in text.splitlines():
        assert line.startswith(("# HELP saveslot_", "# TYPE saveslot_")) or SAMPLE.fullmatch(line), line
    assert 'saveslot_http_requests_total{method="POST",route="/v1/sessions",status="201"} 1' in text
    assert 'route="/v1/sessions/{id}",status="404"' in text
    assert 'saveslot_http_request_seconds_bucket{method="POST",route="/v1/sessions",le="+Inf"} 1' in text
    assert 'saveslot_store_outcomes_total{outcome="appended"} 1' in text
    assert SECRET not in text


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
