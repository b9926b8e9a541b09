"""`saveslot serve`: it starts, answers this machine only, and every refusal is a problem with a stable code."""

from __future__ import annotations

import signal

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
