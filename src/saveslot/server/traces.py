"""Traces of requests: a span for each continues the trace of its `traceparent`. The verbs' spans are below it."""

from __future__ import annotations

from http import HTTPStatus

from opentelemetry.trace import ProxyTracerProvider, SpanKind, StatusCode, get_tracer_provider
from starlette.responses import Response

from saveslot import otel
from saveslot.errors import InvalidInput
from saveslot.server.app import Server
from saveslot.server.call import Call


def start() -> None:
    """Trace the verbs, too. `InvalidInput` if nothing would get the spans."""
    if isinstance(get_tracer_provider(), ProxyTracerProvider):
        raise InvalidInput(
            "--traces",
            "nothing collects them: this process has no OpenTelemetry SDK. Install opentelemetry-distro and an "
            "exporter, and run: opentelemetry-instrument saveslot serve --traces",
        )
    otel.instrument()


class TracedServer(Server):
    async def answer(self, call: Call) -> Response:
        route = call.route
        attributes = {
            "http.request.method": call.request.method,
            "http.route": route.path,
            "url.scheme": call.request.scope["scheme"],
            "saveslot.store": call.store.kind,
            "saveslot.request_id": call.request_id,
        }
        if route.path.startswith("/v1/sessions/{id}"):
            attributes["saveslot.session_id"] = call.path["id"]
        with otel.span(f"{route.method} {route.path}", attributes, SpanKind.SERVER, call.headers) as span:
            response = await super().answer(call)
            span.set_attribute("saveslot.namespace", call.namespace)
            span.set_attribute("http.response.status_code", response.status_code)
            if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                span.set_status(StatusCode.ERROR)
            return response
