"""Who may call: host and origin, token (401), scope and namespace (403), in this order and before the body is read.

Without tokens the server listens on loopback only, and everybody on this machine may do everything. Then the danger is
a web page in a browser on this machine. Its requests carry an Origin, or `Sec-Fetch-Site`; and a page that bound its
own name to 127.0.0.1 (DNS rebinding) sends that name as Host. All three are refused.
"""

from __future__ import annotations

from starlette.datastructures import Headers

from saveslot.errors import Forbidden, InvalidInput
from saveslot.server.call import Call, Caller
from saveslot.server.routes import SCOPES
from saveslot.values.checks import as_name

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
# Tokens and the like are sessions of this namespace, which no request may name.
RESERVED = "$saveslot"


def admit(call: Call) -> None:
    """Set the caller and the namespace of a call, or raise why it may not be made."""
    _require_this_machine(call.headers, open_route=call.route.scope == "open")
    if call.route.scope == "open":
        return
    call.caller = Caller("", "admin")
    if SCOPES.index(call.caller.scope) < SCOPES.index(call.route.scope):
        raise Forbidden(f"token {call.caller.name} has scope {call.caller.scope}; this needs {call.route.scope}")
    if call.route.namespaced:
        call.namespace = _namespace(call)


def _namespace(call: Call) -> str:
    name = call.request.query_params.get("ns") or call.headers.get("saveslot-namespace") or "default"
    try:
        name = as_name(name, "Saveslot-Namespace")
    except InvalidInput as exc:
        raise Forbidden(str(exc)) from None
    if name == RESERVED:
        raise Forbidden(f"namespace {RESERVED} is the server's own")
    allowed = call.caller.namespaces
    if allowed is not None and name not in allowed:
        raise Forbidden(f"token {call.caller.name} does not include namespace {name}")
    return name


def _require_this_machine(headers: Headers, *, open_route: bool) -> None:
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if name.lower() not in LOOPBACK:
        raise Forbidden(f"host {host!r} is not this machine: without tokens the server answers on loopback names only")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise Forbidden(f"origin {origin!r} is another one: web pages of other origins may not call this server")
    if not open_route and headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise Forbidden("web pages of other origins may not call this server")
