"""Tokens: who may call what, in which namespace, and until when."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection

import pytest

import saveslot
from saveslot.cli import main
from saveslot.server.routes import SCOPES, table
from saveslot.stores.http import wire
from tests.server.conftest import serving

ROUTES = [pytest.param(route, id=f"{route.method} {route.path}") for route in table()]


@pytest.fixture
def cli(capsys):
    def run(*argv: str) -> str:
        capsys.readouterr()
        assert main(["token", *argv]) == 0
        return capsys.readouterr().out.strip()

    return run


def until(condition, seconds=60):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with a token of each scope for namespace school-7, and one of each for all namespaces."""
    url = str(tmp_path_factory.mktemp("guarded") / "agents.db")
    with serving(url, "--token-required") as served:
        tokens = {}
        for scope in SCOPES[1:]:
            for where in ("school-7", None):
                name = f"{scope}-{where}"
                argv = ["token", "create", name, "--scope", scope, "--store", url]
                tokens[scope, where] = _printed([*argv, "--namespace", where] if where else argv)
        until(lambda: status(served, "GET", "/v1/me", tokens["admin", None]) == 200)  # the newest of them
        yield served, tokens


def _printed(argv: list[str]) -> str:
    done = subprocess.run([sys.executable, "-m", "saveslot", *argv], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def status(served, method, path, token=None, namespace=None, body=None, **more) -> int:
    """The status alone: an answer may be a stream without end."""
    headers = {**more}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if namespace is not None:
        headers["Saveslot-Namespace"] = namespace
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection = HTTPConnection(served.address, timeout=60)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_asks_who_may(guarded, route):
    """Each route of the table refuses callers without token, scope or namespace, and lets all others in."""
    served, tokens = guarded
    path = re.sub(r"\{\w+\}", "unknown", route.path)
    body = b"{}" if route.method in {"POST", "PUT", "PATCH"} else None

    def ask(token=None, namespace=None) -> int:
        return status(served, route.method, path, token, namespace, body)

    if route.scope == "open":
        assert ask() not in {401, 403}
        return
    assert ask() == 401
    assert ask("saveslot_000000000000_wrong") == 401
    assert ask("") == 401
    for (scope, where), token in tokens.items():
        enough = SCOPES.index(scope) >= SCOPES.index(route.scope)
        if not route.namespaced:
            fits = enough and (where is None or route.scope != "admin")
            assert (ask(token) in {401, 403}) == (not fits), (scope, where)
            continue
        for namespace in ("school-7", "school-8", None, "$saveslot"):
            fits = enough and where in {None, namespace} and namespace != "$saveslot"
            assert (ask(token, namespace) in {401, 403}) == (not fits), (scope, where, namespace)


def test_the_first_token_closes_the_server(tmp_path, cli):
    """A server on loopback asks for tokens once there is one, and goes on asking when it was revoked."""
    url = str(tmp_path / "agents.db")
    with serving(url) as served:
        assert status(served, "GET", "/v1/me") == 200
        text = cli("create", "ada", "--scope", "write", "--store", url)
        until(lambda: status(served, "GET", "/v1/me") == 401)
        assert status(served, "GET", "/v1/me", text) == 200
        cli("revoke", "ada", "--store", url)
        until(lambda: status(served, "GET", "/v1/me", text) == 401)
        assert status(served, "GET", "/v1/me") == 401


def test_revoked_and_rotated_tokens_are_refused_everywhere(tmp_path, cli):
    """What one server revokes or rotates, the other refuses without being asked; the new text works at both."""
    url = str(tmp_path / "agents.db")
    root = cli("create", "root", "--scope", "admin", "--store", url)
    with serving(url) as one, serving(url) as other:
        bearer = {"authorization": f"Bearer {root}"}
        created = one.request("POST", "/v1/tokens", {"name": "ada", "scope": "read"}, **bearer)
        assert created.status == 201
        first = created.json["token"]
        assert status(one, "GET", "/v1/me", first) == 200  # at once where it was created
        until(lambda: status(other, "GET", "/v1/me", first) == 200)
        second = one.request("POST", "/v1/tokens/ada/rotate", **bearer).json["token"]
        assert status(one, "GET", "/v1/me", first) == 401
        until(lambda: status(other, "GET", "/v1/me", first) == 401)
        assert status(other, "GET", "/v1/me", second) == 200
        listed = other.request("GET", "/v1/tokens", **bearer).json["items"]
        assert [(token["name"], token["scope"]) for token in listed] == [("ada", "read"), ("root", "admin")]
        assert one.request("DELETE", "/v1/tokens/ada", **bearer).status == 204
        assert status(one, "GET", "/v1/me", second) == 401
        until(lambda: status(other, "GET", "/v1/me", second) == 401)


def test_nothing_leaves_after_a_revocation(tmp_path, cli):
    """Watches of a revoked token end at once, at every server, and carry nothing that was appended afterwards."""
    url = str(tmp_path / "agents.db")
    root = {"authorization": f"Bearer {cli('create', 'root', '--scope', 'admin', '--store', url)}"}
    with serving(url) as one, serving(url) as other:
        text = one.request("POST", "/v1/tokens", {"name": "ada", "scope": "read"}, **root).json["token"]
        until(lambda: status(other, "GET", "/v1/me", text) == 200)
        ada = {"authorization": f"Bearer {text}"}
        streams = [open_stream(served, ada) for served in (one, other)]
        watch = wire.encode(wire.Events("default", None, None, 10, wire.WATCH))
        answers: list[tuple[int, bytes]] = []

        def watching(served) -> None:
            answer = served.request("POST", "/store/1/events", watch, **ada, content_type=wire.MSGPACK)
            answers.append((answer.status, answer.body))

        threads = [threading.Thread(target=watching, args=(served,)) for served in (one, other)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)  # for the watches to arrive; those that come later are refused as well
        assert one.request("DELETE", "/v1/tokens/ada", **root).status == 204
        until(lambda: status(other, "GET", "/v1/me", text) == 401)
        began = time.monotonic()
        for n in range(20):
            one.request("POST", "/v1/sessions", {"agent_type": "tutor", "session_id": f"secret-{n}"}, **root)
        for thread in threads:
            thread.join(60)
        assert [status for status, _ in answers] == [401, 401]
        assert time.monotonic() - began < wire.WATCH - 1
        assert b"secret" not in b"".join(body for _, body in answers)
        for connection, answer in streams:
            assert b"secret" not in answer.read()  # to its end
            connection.close()


def open_stream(served, headers):
    connection = HTTPConnection(served.address, timeout=60)
    connection.request("GET", "/v1/events", headers=headers)
    answer = connection.getresponse()
    assert answer.readline() == b"retry: 1000\n"
    return connection, answer


def test_a_token_that_ends_itself_is_answered(tmp_path, cli):
    """A token that rotates itself gets the new text, and one that revokes itself the word that it did."""
    url = str(tmp_path / "agents.db")
    text = cli("create", "root", "--scope", "admin", "--store", url)
    cli("create", "second", "--scope", "admin", "--store", url)
    with serving(url) as served:
        answer = served.request("POST", "/v1/tokens/root/rotate", authorization=f"Bearer {text}")
        assert answer.status == 200
        text = answer.json["token"]
        assert served.request("DELETE", "/v1/tokens/root", authorization=f"Bearer {text}").status == 204
        assert status(served, "GET", "/v1/me", text) == 401


def test_the_last_admin_token_stays(tmp_path, cli, capsys):
    """The last token that can create others cannot be revoked, nor does one for a namespace stand in for it; with a
    second one, each can be, but not both.
    """
    url = str(tmp_path / "agents.db")
    cli("create", "root", "--scope", "admin", "--store", url)
    assert main(["token", "revoke", "root", "--store", url]) == 4
    cli("create", "local", "--scope", "admin", "--namespace", "school-7", "--store", url)
    assert main(["token", "revoke", "root", "--store", url]) == 4
    cli("revoke", "local", "--store", url)
    cli("create", "second", "--scope", "admin", "--store", url)
    cli("revoke", "root", "--store", url)
    assert main(["token", "revoke", "second", "--store", url]) == 4
    assert "last token" in capsys.readouterr().err


def test_expired_tokens_are_refused(tmp_path, cli):
    """A token is refused from its expiry on, and the list says that it expired."""
    url = str(tmp_path / "agents.db")
    text = cli("create", "ada", "--scope", "read", "--expires", "2s", "--store", url)
    with serving(url) as served:
        until(lambda: status(served, "GET", "/v1/me", text) == 401)
    [listed] = json.loads(cli("ls", "--json", "--store", url))
    assert (listed["name"], listed["expired"]) == ("ada", True)


async def test_only_the_hash_is_stored(tmp_path, monkeypatch):
    """The store never holds a token's text, and a token is readable without the key that seals sessions."""
    url, key = tmp_path / "agents.db", "k" * 43 + "="
    monkeypatch.setenv("SAVESLOT_ENCRYPTION_KEY", key)
    text = _printed(["token", "create", "ada", "--scope", "read", "--store", str(url)])
    monkeypatch.delenv("SAVESLOT_ENCRYPTION_KEY")
    for path in tmp_path.iterdir():
        assert text.split("_", 2)[2].encode() not in path.read_bytes()
    async with saveslot.open(str(url), namespace="$saveslot") as sessions:
        session = await sessions.get_session("ada")
        assert session.context["scope"] == "read"


def test_tokens_may_not_name_the_reserved_namespace(tmp_path, capsys):
    """No token can be created for the namespace of the tokens."""
    argv = ["token", "create", "ada", "--scope", "read", "--namespace", "$saveslot", "--store", str(tmp_path / "a.db")]
    assert main(argv) == 2
    assert "$saveslot" in capsys.readouterr().err


def test_no_namespaces_are_not_all(guarded):
    """A token for an empty list of namespaces is refused; leaving the list out means all of them."""
    served, tokens = guarded
    bearer = {"authorization": f"Bearer {tokens['admin', None]}"}
    for names, status in (([], 422), ([""], 422), (None, 201)):
        new = {"name": f"none-{names}", "scope": "read", "namespaces": names}
        assert served.request("POST", "/v1/tokens", new, **bearer).status == status


def test_a_cookie_counts_from_this_servers_pages_only(guarded):
    """Signing in sets a cookie that scripts cannot read; it works for same-origin requests and for no others."""
    served, tokens = guarded
    answer = served.request("POST", "/v1/me", authorization=f"Bearer {tokens['write', None]}")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    sent = {"cookie": cookie.partition(";")[0]}
    here = f"http://{served.address}"
    assert served.request("GET", "/v1/me", **sent).status == 200
    assert served.request("GET", "/v1/me", **sent, sec_fetch_site="same-origin").status == 200
    assert served.request("GET", "/v1/me", **sent, sec_fetch_site="same-site").status == 403
    assert served.request("GET", "/v1/me", **sent, origin="http://localhost:3000").status == 403
    assert served.request("POST", "/v1/me", **sent).status == 403  # a write must say where it comes from
    assert served.request("DELETE", "/v1/me", **sent, origin="http://evil.example").status == 403
    gone = served.request("DELETE", "/v1/me", **sent, origin=here)
    assert gone.status == 204
    assert "Max-Age=0" in gone.headers["set-cookie"]


@pytest.mark.parametrize("cookie", [False, True])
def test_origins_are_compared_whole(guarded, tmp_path_factory, cookie):
    """Scheme, host and port of the Origin count, and a header that comes twice is refused, whichever is first."""
    served, tokens = guarded
    here = f"http://{served.address}"
    sent = [("Cookie", f"saveslot={tokens['write', None]}")]
    refused = [
        [("Origin", f"x-evil://{served.address}")],
        [("Origin", f"https://{served.address}")],
        [("Origin", served.address)],
        [("Origin", "null")],
        [("Origin", here), ("Origin", "http://evil.example")],
        [("Origin", "http://evil.example"), ("Origin", here)],
        [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")],
        [("Origin", here), ("Sec-Fetch-Site", "cross-site")],
    ]
    fine = [[("Origin", here)], [("Sec-Fetch-Site", "same-origin")], [("Origin", here), ("Sec-Fetch-Site", "none")]]
    if cookie:
        refused.append([("Sec-Fetch-Site", "none")])
        answers = [_sent(served, [*sent, *headers]) for headers in (*refused, *fine)]
    else:
        url = str(tmp_path_factory.mktemp("open") / "agents.db")
        with serving(url) as opened:
            answers = [
                _sent(opened, [(name, value.replace(served.address, opened.address)) for name, value in headers])
                for headers in (*refused, *fine)
            ]
    assert answers == [403] * len(refused) + [201] * len(fine)


def _sent(served, headers: list[tuple[str, str]]) -> int:
    """The status of a creation with these headers, of which some come twice."""
    connection = HTTPConnection(served.address, timeout=60)
    body = b'{"agent_type": "tutor"}'
    connection.putrequest("POST", "/v1/sessions")
    for name, value in (*headers, ("Content-Type", "application/json"), ("Content-Length", str(len(body)))):
        connection.putheader(name, value)
    connection.endheaders(body)
    status = connection.getresponse().status
    connection.close()
    return status


def test_totals_of_the_store_are_for_tokens_of_all_namespaces(guarded):
    """A token of one namespace sees neither entries, bytes and tiers of the whole store nor what the server holds."""
    served, tokens = guarded
    created = {"agent_type": "tutor", "data": {"n": list(range(100))}}
    write = {"authorization": f"Bearer {tokens['write', None]}"}
    assert served.request("POST", "/v1/sessions?ns=school-8", created, **write).status == 201
    for where in ("school-7", None):
        for path in ("stats", "storage"):
            bearer = {"authorization": f"Bearer {tokens['read', where]}"}
            answer = served.request("GET", f"/v1/{path}?ns=school-7", **bearer).json
            totals = [answer[name] for name in ("entries", "stored_bytes")]
            assert all(totals) if where is None else totals == [0, 0]
            assert where is None or (not answer.get("worker") and not answer.get("tiers"))


def test_too_many_requests(tmp_path, cli):
    """Beyond its rate a token gets 429 and when to retry; another token is served."""
    url = str(tmp_path / "agents.db")
    ada, bo = (cli("create", name, "--scope", "read", "--store", url) for name in ("ada", "bo"))
    with serving(url, "--rate", "0.01") as served:
        bearer = {"authorization": f"Bearer {ada}"}
        assert served.request("GET", "/v1/me", **bearer).status == 200
        answer = served.request("GET", "/v1/me", **bearer)
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json["code"] == "unavailable"
        assert status(served, "GET", "/v1/me", bo) == 200


def test_last_use_is_shown(tmp_path, cli):
    """A token that was used says when; one that was not says never."""
    url = str(tmp_path / "agents.db")
    text = cli("create", "ada", "--scope", "read", "--store", url)
    assert json.loads(cli("ls", "--json", "--store", url))[0]["last_used"] is None
    with serving(url) as served:
        assert status(served, "GET", "/v1/me", text) == 200
    assert json.loads(cli("ls", "--json", "--store", url))[0]["last_used"] is not None  # recorded when it ended


def test_other_machines_need_tokens(tmp_path, cli):
    """With a token in the store the server listens on all addresses, and this machine gets no exception."""
    url = str(tmp_path / "agents.db")
    text = cli("create", "ada", "--scope", "read", "--store", url)
    with serving(url, "--host", "0.0.0.0") as served:  # noqa: S104
        served.url = served.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        assert status(served, "GET", "/v1/me") == 401
        assert status(served, "GET", "/v1/me", text, Host="saveslot.example") == 200


def test_metrics_of_a_token_of_some_namespaces_are_of_their_sessions(guarded):
    """It sees neither other namespaces nor what the server and its store do for all; a token for all sees both."""
    served, tokens = guarded
    for space in ("school-7", "school-8"):
        bearer = {"authorization": f"Bearer {tokens['write', None]}"}
        assert served.request("POST", f"/v1/sessions?ns={space}", {"agent_type": "tutor"}, **bearer).status == 201
    for where in ("school-7", None):
        text = served.request("GET", "/metrics", authorization=f"Bearer {tokens['read', where]}").body.decode()
        assert 'namespace="school-7"' in text
        for foreign in ('namespace="school-8"', "saveslot_http_requests_total", "saveslot_store_written_bytes_total"):
            assert (foreign in text) == (where is None), foreign
