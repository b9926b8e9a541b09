"""`saveslot serve`: it starts, answers this machine only, and every refusal is a problem with a stable code."""

from __future__ import annotations

import signal
import time

import pytest

import saveslot
from saveslot.cli import main
from saveslot.errors import Forbidden, InvalidInput, NotFound, from_dict
from tests.server.conftest import serving


def test_it_answers_and_ends_when_told(tmp_path):
    """The server says where it listens once it answers, and ends with 0 on SIGTERM. It created no file."""
    with serving(str(tmp_path / "agents.db")) as served:
        answer = served.request("GET", "/healthz")
        assert (answer.status, answer.json) == (200, {"status": "ok"})
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []


def test_me_without_tokens(served):
    """Without tokens, a caller on this machine may do everything; the answer also says what the server is."""
    me = served.request("GET", "/v1/me").json
    assert (me["name"], me["scope"], me["namespaces"]) == ("", "admin", None)
    assert (me["version"], me["store"], me["hot"], me["worker_ttl"]) == (saveslot.__version__, "sqlite", False, 20)
    assert me["streams"] < me["limits"]["streams"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:7788"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
    ],
)
def test_other_hosts_and_origins_are_refused(served, headers):
    """A web page cannot call the server, neither by its own name for 127.0.0.1 nor by a cross-origin request."""
    answer = served.request("GET", "/v1/me", **headers)
    assert answer.status == 403
    assert isinstance(from_dict(answer.json), Forbidden)


def test_refusals_are_problems(served):
    """A refusal is problem+json: status, code and message, and the error that it names can be rebuilt."""
    answer = served.request("GET", "/nowhere", x_request_id="my-id")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.json["request_id"] == "my-id"
    assert (answer.status, answer.json["status"], answer.json["title"]) == (404, 404, "Not Found")
    assert answer.json["type"] == "urn:saveslot:error:not_found"
    assert isinstance(from_dict(answer.json), NotFound)
    answer = served.request("POST", "/healthz")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert isinstance(from_dict(answer.json), InvalidInput)


def test_answers_forbid_browsers_the_rest_of_the_web(served):
    """Every answer lets a page load from and send to this server only, and be framed nowhere."""
    for path in ("/healthz", "/nowhere"):
        headers = served.request("GET", path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_it_listens_on_this_machine_only(capsys):
    """An address that other machines reach is refused, with the reason."""
    assert main(["serve", "--host", "0.0.0.0", "--store", "memory:"]) == 2  # noqa: S104
    assert "token" in capsys.readouterr().err


def test_a_taken_port_is_named(served, capsys):
    """If the port is taken, the command says so and fails as for a store that is out of reach."""
    port = served.address.rpartition(":")[2]
    assert main(["serve", "--port", port, "--store", "memory:"]) == 6
    assert port in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_its_keeper_thins_and_purges_by_rules(tmp_path, workers):
    """With --retention it thins each namespace by the rule of the agent type, and with --gc-after purges what ended."""
    rules = tmp_path / "rules.json"
    rules.write_text('{"tutor": {"keep_last": 1, "keep_latest_per_name": false}, "grader": null}')
    options = ("--retention", str(rules), "--gc-after", "0d", "--tidy-every", "1s", "--workers", workers)
    store = str(tmp_path / "agents.db")
    with saveslot.blocking.open(store) as sessions:
        for name in ("default", "school-7"):
            for agent in ("tutor", "grader"):
                sessions.of(name).create_session(agent, session_id=agent)
                for n in range(5):
                    sessions.of(name).checkpoint(agent, "turn", {"n": n})
            sessions.of(name).create_session("tutor", session_id="done")
            sessions.of(name).complete("done")
    with serving(store, *options) as served:
        assert served.request("GET", "/v1/thin").json["rules"]["tutor"]["keep_last"] == 1
        ends = time.monotonic() + 60
        while True:
            kept = []
            for ns in ("default", "school-7"):
                ids = [one["session_id"] for one in served.request("GET", f"/v1/sessions?ns={ns}").json["items"]]
                counts = [
                    len(served.request("GET", f"/v1/sessions/{one}/entries?kind=checkpoint&ns={ns}").json["items"])
                    for one in ("tutor", "grader")
                ]
                kept.append((sorted(ids), counts))
            if kept == [(["grader", "tutor"], [2, 5])] * 2:
                break
            assert time.monotonic() < ends, kept
            time.sleep(0.1)


def test_rules_that_are_none_are_named(tmp_path, capsys):
    """What is not a rule of retention is a usage error before anything is opened."""
    for rules in (
        "[]",
        "{",
        '{"a": {"keep": 1}}',
        '{"a": {"keep_last": -1}}',
        '{"a": {"max_age": "soon"}}',
        "gone.json",
    ):
        assert main(["serve", "--retention", rules, "--store", str(tmp_path / "a.db")]) == 2
        assert "--retention" in capsys.readouterr().err
