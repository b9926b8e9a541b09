"""Traces of requests: a span for each continues the trace of its `traceparent`. The verbs' spans are below it. A stream
has a second one, for as long as it goes on.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

from opentelemetry.trace import ProxyTracerProvider, SpanKind, StatusCode, get_tracer_provider
from starlette.responses import Response

from saveslot import otel
from saveslot.errors import InvalidInput
from saveslot.server.app import Receive, Send, Server
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
        with otel.span(f"{route.method} {route.path}", _attributes(call), SpanKind.SERVER, call.headers) as span:
            response = await super().answer(call)
            span.set_attribute("saveslot.namespace", call.namespace)
            span.set_attribute("http.response.status_code", response.status_code)
            if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                span.set_status(StatusCode.ERROR)
            return response

    async def send(
        self, call: Call | None, response: Response, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        if call is None or not call.route.streams:
            await super().send(call, response, scope, receive, send)
            return
        attributes = {**_attributes(call), "saveslot.namespace": call.namespace}
        # Beside the span of the request, which is over once the answer begins.
        with otel.span(f"stream {call.route.path}", attributes, SpanKind.SERVER, call.headers):
            await super().send(call, response, scope, receive, send)


def _attributes(call: Call) -> dict[str, Any]:
    attributes = {
        "http.request.method": call.request.method,
        "http.route": call.route.path,
        "url.scheme": call.request.scope["scheme"],
        "saveslot.store": call.store.kind,
        "saveslot.request_id": call.request_id,
    }
    if call.route.path.startswith("/v1/sessions/{id}"):
        attributes["saveslot.session_id"] = call.path["id"]
    return attributes
