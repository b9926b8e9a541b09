"""Who may call: host and origin, token (401), scope and namespace (403), rate (429), before the body is read.

Without tokens the server listens on loopback only, and everybody on this machine may do everything. Then the danger is
a web page in a browser on this machine. Its requests carry an Origin, or `Sec-Fetch-Site`; and a page that bound its
own name to 127.0.0.1 (DNS rebinding) sends that name as Host. All three are refused.

A browser of a person who signed in sends the token as a cookie on its own accord, so it counts only in requests from
this server's own pages. Browsers do not let pages set Origin or `Sec-Fetch-Site`, and send each once: a request that
repeats one of the headers is refused, since programs in between may read the other one.
"""

from __future__ import annotations

from math import ceil

from saveslot.errors import Forbidden, InvalidInput, Unauthorized, Unavailable
from saveslot.server.call import Call
from saveslot.server.problem import Problem
from saveslot.server.tokens import Caller
from saveslot.stores.wire.loops import running
from saveslot.values.checks import RESERVED, as_name

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
COOKIE = "saveslot"
# Requests per second and token: far more than a busy worker makes, whose appends share requests.
RATE = 1000.0
HERE = Caller("", "admin")


class Rates:
    """Requests per second of each token, with room for those of two seconds at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left: dict[str, tuple[float, float]] = {}  # by token: requests left, and when that was so

    def spend(self, caller: Caller) -> None:
        """Count a request; raise 429 once there were too many."""
        now, most = running().time(), max(1.0, 2 * self._rate)
        left, since = self._left.get(caller.token, (most, now))
        left = min(most, left + (now - since) * self._rate)
        if left < 1:
            wait = ceil((1 - left) / self._rate)
            error = Unavailable(f"token {caller.name} made more than {self._rate:g} requests per second; retry later")
            raise Problem(429, error, {"retry-after": str(wait)})
        self._left[caller.token] = (left - 1, now)


def admit(call: Call, rates: Rates) -> None:
    """Set the caller and the namespace of a call, or raise why it may not be made."""
    if not call.tokens.required:
        _require_this_machine(call)
    if call.route.scope == "open":
        return
    call.caller = caller = _caller(call)
    if not caller.may(call.route.scope):
        raise Forbidden(f"token {caller.name} has scope {caller.scope}; this needs {call.route.scope}")
    if call.route.namespaced:
        call.namespace = _namespace(call)
    elif call.route.scope == "admin" and caller.namespaces is not None:
        raise Forbidden(f"token {caller.name} has only some namespaces; this needs a token for all")
    if caller.token:
        rates.spend(caller)


def _caller(call: Call) -> Caller:
    if not call.tokens.required:
        return HERE
    given = call.headers.get("authorization")
    if given is not None:
        kind, _, text = given.partition(" ")
        if kind.lower() != "bearer":
            raise Unauthorized("Authorization must be `Bearer TOKEN`")
        return call.tokens.caller(text.strip())
    if (cookie := call.request.cookies.get(COOKIE)) is not None:
        require_same_origin(call)
        return call.tokens.caller(cookie)
    raise Unauthorized("this server needs a token: send it as `Authorization: Bearer TOKEN`")


def _namespace(call: Call) -> str:
    given = call.request.query_params.get("ns") if call.request.scope["query_string"] else None
    name = given or call.headers.get("saveslot-namespace") or "default"
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


def _require_this_machine(call: Call) -> None:
    host = _only(call, b"host") or ""
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if name.lower() not in LOOPBACK:
        raise Forbidden(f"host {host!r} is not this machine: without tokens the server answers on loopback names only")
    if call.route.scope != "open" or call.request.method not in {"GET", "HEAD"}:
        _require_no_other_site(call)


def require_same_origin(call: Call) -> None:
    """Raise unless a page of this server made the request; to change something, it must say so."""
    origin, site = _require_no_other_site(call)
    if call.request.method not in {"GET", "HEAD"} and origin is None and site != "same-origin":
        raise Forbidden("a cookie counts only from pages of this server; send Authorization instead")


def _require_no_other_site(call: Call) -> tuple[str | None, str | None]:
    """Raise if a page of another origin made the request; return its Origin and `Sec-Fetch-Site`."""
    origin, site = _only(call, b"origin"), _only(call, b"sec-fetch-site")
    here = f"{call.request.scope['scheme']}://{_only(call, b'host') or ''}"
    if origin is not None and origin != here:
        raise Forbidden(
            f"origin {origin!r} is another one than {here!r}: web pages of other origins may not call this server; "
            "behind a proxy that ends TLS, name it with --proxy"
        )
    if site not in {None, "none", "same-origin"}:
        raise Forbidden("web pages of other origins may not call this server")
    return origin, site


def _only(call: Call, name: bytes) -> str | None:
    values = [value for key, value in call.request.scope["headers"] if key == name]
    if len(values) > 1:
        raise Forbidden(f"the request has {len(values)} headers {name.decode()}; send one")
    return values[0].decode("latin-1") if values else None
