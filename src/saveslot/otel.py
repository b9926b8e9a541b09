"""OpenTelemetry traces of the verbs: `saveslot.otel.instrument()`, once, in a process with an OpenTelemetry SDK.

    saveslot.hold                                     saveslot.session_id=lesson-1 saveslot.store=http …
    saveslot.held.checkpoint                          the same
    └── POST /store/1/append                          at the server, if that traces, too

A span has the verb, store, namespace and session id, how many values a list or a stream has, and the code of an error.
What agents
save, names, and the text of errors, which may repeat that of the caller's own exceptions, are never in it.

`instrument` replaces the verbs of the classes by traced ones, so a process without it runs not one line more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, signature
from typing import Any, cast

from saveslot import __version__, blocking, errors
from saveslot.manager import SessionManager, claims
from saveslot.session.held import INTERNAL, Held
from saveslot.stores.http.servers import Servers

try:
    from opentelemetry import trace
    from opentelemetry.trace import Span, SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as exc:
    if not (exc.name or "").startswith("opentelemetry"):
        raise
    raise errors.InvalidInput("otel", "traces need the extra: pip install 'saveslot[otel]'") from None

__all__ = ["instrument", "uninstrument"]

Verb = Callable[..., Any]

# What asks nothing of the store.
UNTRACED = frozenset({"close", "metrics"})
# What a verb calls the session that it is about: its first argument.
SESSIONS = ("id", "session", "session_id")
# Stands for the end of a stream.
END = object()
W3C = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("saveslot", __version__)
_replaced: list[tuple[type, str, Any]] = []


def instrument() -> None:
    """Trace every verb of managers and held sessions in this process, also of those that are open.

    Requests to a server carry the trace on (W3C Trace Context). Calling it again changes nothing.
    """
    if _replaced:
        return
    for kind, prefix in ((SessionManager, ""), (Held, "held.")):
        for name in dir(kind):
            verb = getattr(kind, name)
            if name[0] == "_" or name in UNTRACED | INTERNAL:
                continue
            if iscoroutinefunction(verb):
                _replace(kind, name, _traced(prefix + name, verb))
            elif isasyncgenfunction(verb):
                _replace(kind, name, _traced_stream(prefix + name, verb))
    _replace(SessionManager, "hold", _holding())
    _replace(blocking.Held, "step", _traced_step(blocking.Held.step))
    _replace(Servers, "headers", staticmethod(_headers))


def uninstrument() -> None:
    """Undo `instrument`."""
    while _replaced:
        kind, name, before = _replaced.pop()
        if before is None:
            delattr(kind, name)
        else:
            setattr(kind, name, before)


def _replace(kind: type, name: str, verb: Any) -> None:
    _replaced.append((kind, name, vars(kind).get(name)))  # None: it is inherited
    setattr(kind, name, verb)


def _about(verb: Verb) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Return what finds the session that a call is about among its arguments."""
    about = next((one for one in list(signature(verb).parameters)[1:2] if one in SESSIONS), None)
    return lambda args, kwargs: None if about is None else args[0] if args else kwargs.get(about)


def _traced(name: str, verb: Verb) -> Verb:
    about = _about(verb)

    @wraps(verb)
    async def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = about(args, kwargs)
        with span(f"saveslot.{name}", _attributes(self, name, target)) as current:
            result = await verb(self, *args, **kwargs)
            _describe(current, result, new=target is None)
            return result

    return traced


def _traced_stream(name: str, verb: Verb) -> Verb:
    """Of `watch`, `walk` and `claims`: one span from the first value that is asked for until the caller stops.

    It is current only while a value is awaited: what the caller does with one is not below it.
    """
    about = _about(verb)

    @wraps(verb)
    async def traced(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        current = _tracer.start_span(f"saveslot.{name}", attributes=_attributes(self, name, about(args, kwargs)))
        count = 0
        async with aclosing(verb(self, *args, **kwargs)) as values:
            try:
                while True:
                    with trace.use_span(current, record_exception=False, set_status_on_exception=False):
                        value = await anext(values, END)
                    if value is END:
                        return
                    count += 1
                    yield value
            except Exception as exc:
                _failed(current, exc)
                raise
            finally:  # also when the caller leaves the loop, or is cancelled
                current.set_attribute("saveslot.count", count)
                current.end()

    return traced


def _holding() -> Verb:
    take = _traced("hold", claims.take)

    @wraps(claims.hold)
    def hold(self: SessionManager, id: Any, **options: Any) -> claims.Holding:
        return claims.Holding(str(getattr(id, "session_id", id)), lambda: take(self, id, **options))

    return hold


def _traced_step(step: Verb) -> Verb:
    @wraps(step)
    def traced(self: blocking.Held, *args: Any, **kwargs: Any) -> Any:
        with span("saveslot.held.step", _attributes(self.resident.value, "held.step", None)):
            return step(self, *args, **kwargs)

    return traced


def _attributes(self: SessionManager | Held, verb: str, target: Any) -> dict[str, str]:
    space = self.space if isinstance(self, Held) else self
    attributes = {
        "saveslot.verb": verb,
        "saveslot.store": space.engine.metered.kind,
        "saveslot.namespace": space.namespace,
    }
    session_id = self.id if isinstance(self, Held) else getattr(target, "session_id", target)
    if isinstance(session_id, str):
        attributes["saveslot.session_id"] = session_id[:200]
    return attributes


def _describe(current: Span, result: object, *, new: bool) -> None:
    if isinstance(result, list):
        current.set_attribute("saveslot.count", len(cast("list[object]", result)))
    elif new and isinstance(session_id := getattr(result, "session_id", None), str):
        current.set_attribute("saveslot.session_id", session_id)


@contextmanager
def span(
    name: str,
    attributes: Mapping[str, Any],
    kind: SpanKind = SpanKind.INTERNAL,
    carrier: Mapping[str, str] | None = None,
) -> Generator[Span]:
    """A span around a block; `carrier` has the headers of the trace that it continues."""
    with _tracer.start_as_current_span(
        name,
        None if carrier is None else W3C.extract(carrier),
        kind,
        attributes,
        record_exception=False,  # its text may repeat what agents save
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except BaseException as exc:
            _failed(current, exc)
            raise


def _failed(current: Span, exc: BaseException) -> None:
    code = exc.code if isinstance(exc, errors.SaveslotError) else type(exc).__qualname__
    current.set_attribute("error.type", code)
    current.set_status(StatusCode.ERROR)


def _headers() -> str:
    carrier: dict[str, str] = {}
    W3C.inject(carrier)
    return "".join(f"{name}: {value}\r\n" for name, value in carrier.items())
