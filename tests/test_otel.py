"""`saveslot.otel`: what its spans say, what they never say, and that they cost nothing until they are wanted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import aclosing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import saveslot
from saveslot import Conflict, NotFound
from saveslot.blocking import Held as BlockingHeld
from saveslot.manager import SessionManager
from saveslot.session.held import Held
from saveslot.stores.http.servers import Servers
from tests.server.conftest import serving

SECRET = "the-secret-word"  # noqa: S105
ATTRIBUTES = {"verb", "store", "namespace", "session_id", "count"}
# A server's process gets its SDK as from `opentelemetry-instrument`: before any of its own code runs.
SITE = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

out = open({path!r}, "a", buffering=1)
provider = TracerProvider()
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""


@pytest.fixture(scope="module")
def exporter():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter):
    exporter.clear()
    saveslot.otel.instrument()
    yield exporter.get_finished_spans
    saveslot.otel.uninstrument()


def by_name(spans: tuple[ReadableSpan, ...]) -> dict[str, ReadableSpan]:
    return {span.name.removeprefix("saveslot."): span for span in spans}


async def test_verbs_have_spans_without_content(spans):
    """Each verb is a span with its store, namespace and session; names, states, results and error texts are in none."""

    def failing() -> None:
        raise ValueError(SECRET)

    async with saveslot.open("memory:", namespace="school-7") as sessions:
        created = await sessions.create_session("tutor", user_id=SECRET, context={SECRET: SECRET}, session_id="s")
        with pytest.raises(Conflict):
            await sessions.checkpoint("s", SECRET, {SECRET: 1}, seen="99-" + "0" * 16)
        async with sessions.hold("s") as held:
            await held.checkpoint(SECRET, {SECRET: SECRET}, metadata={SECRET: SECRET})
            assert await held.step(SECRET, lambda: SECRET) == SECRET
            with pytest.raises(ValueError, match=SECRET):
                await held.step("failing", failing)
        await sessions.get_session(created.session_id)
        await sessions.find(limit=5)
        await sessions.history("s")
        with pytest.raises(NotFound):
            await sessions.get_data(id="unknown")
    found = by_name(spans())
    assert found.keys() >= {"create_session", "hold", "held.checkpoint", "held.step", "held.release", "find"}
    for name, span in found.items():
        known = dict(span.attributes)
        error = known.pop("error.type", None)
        assert {key.removeprefix("saveslot.") for key in known} <= ATTRIBUTES, name
        assert (known["saveslot.verb"], known["saveslot.store"]) == (name, "memory")
        assert known["saveslot.namespace"] == "school-7"
        assert known.get("saveslot.session_id") == {"find": None, "get_data": "unknown"}.get(name, "s"), name
        assert error == {"checkpoint": "conflict", "held.step": "ValueError", "get_data": "not_found"}.get(name)
        assert span.status.is_ok == (error is None)
        assert not span.events
    assert found["history"].attributes["saveslot.count"] == 2
    assert SECRET not in json.dumps([span.to_json() for span in spans()])


async def test_streams_have_a_span_each(spans):
    """`watch`, `walk` and `claims`: how many values, an error's code; what the caller does is not below it."""
    async with saveslot.open("memory:", namespace="school-7") as sessions:
        await sessions.create_session("tutor", session_id="s", data={SECRET: SECRET})
        assert [checkpoint.seq async for checkpoint in sessions.walk("s")] == [1, 2]
        with pytest.raises(NotFound):
            async for _ in sessions.walk("unknown"):
                pass
        async with aclosing(sessions.watch("s", 0)) as events:
            async for event in events:
                await sessions.head("s")
                if event.seq == 2:
                    break
        async with aclosing(sessions.claims(released=True)) as claims:
            async for held in claims:
                async with held:
                    await held.checkpoint(SECRET, {})
                break
    done = [span for span in spans() if span.attributes["saveslot.verb"] in {"walk", "watch", "claims"}]
    found = [
        tuple(span.attributes.get(f"saveslot.{name}") for name in ("verb", "session_id", "count")) for span in done
    ]
    assert found == [("walk", "s", 2), ("walk", "unknown", 0), ("watch", "s", 2), ("claims", None, 1)]
    assert [span.attributes.get("error.type") for span in done] == [None, "not_found", None, None]
    streams = {span.context.span_id for span in done}
    below = [span.attributes["saveslot.verb"] for span in spans() if span.parent and span.parent.span_id in streams]
    assert not {"head", "held.checkpoint"} & set(below)
    assert SECRET not in json.dumps([span.to_json() for span in spans()])


async def test_spans_of_a_step_are_below_it(spans):
    """What a step's function does is in the step's trace, in the event loop as in a thread."""
    tracer = trace.get_tracer("agent")

    def in_thread() -> None:
        tracer.start_span("in-thread").end()

    async def in_loop() -> None:
        tracer.start_span("in-loop").end()

    async with saveslot.open("memory:") as sessions, sessions.hold("s", create="tutor") as held:
        for name, work in (("in-thread", in_thread), ("in-loop", in_loop)):
            with tracer.start_as_current_span("turn"):
                await held.step(name, work)
            inner, step, turn = spans()[-3:]
            assert [inner.name, step.name, turn.name] == [name, "saveslot.held.step", "turn"]
            assert inner.parent.span_id == step.context.span_id
            assert step.parent.span_id == turn.context.span_id


def test_blocking_verbs_are_in_the_callers_trace(spans):
    """Verbs of synchronous callers are spans, too, below the caller's own, although another thread runs them."""
    with saveslot.blocking.open("memory:") as sessions, trace.get_tracer("agent").start_as_current_span("turn") as turn:
        with sessions.hold("s", create="tutor") as held:
            held.checkpoint("asked", {"n": 1})
            assert held.step("ask", lambda: 1) == 1
        assert {span.context.trace_id for span in spans()} == {turn.get_span_context().trace_id}
    assert by_name(spans()).keys() >= {"take", "held.checkpoint", "held.step", "held.release"}


def test_nothing_is_left_of_it(exporter):
    """Without traces the verbs are the plain functions: nothing runs before `instrument` or after `uninstrument`."""
    kinds = (SessionManager, Held, BlockingHeld, Servers)
    before = [dict(vars(kind)) for kind in kinds]
    saveslot.otel.instrument()
    saveslot.otel.instrument()
    assert [dict(vars(kind)) for kind in kinds] != before
    saveslot.otel.uninstrument()
    assert [dict(vars(kind)) for kind in kinds] == before


@pytest.fixture(scope="module")
def traced(tmp_path_factory, exporter):
    """A server that traces, and a function that reads its spans."""
    folder: Path = tmp_path_factory.mktemp("traced")
    path = folder / "spans"
    (folder / "sitecustomize.py").write_text(SITE.format(path=str(path)))
    python = f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}"
    with serving(str(folder / "agents.db"), "--traces", PYTHONPATH=python) as served:
        yield served, lambda: [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_server_continues_the_trace(traced, spans):
    """The requests of a verb are spans of the server in the same trace, without content."""
    served, read = traced
    async with saveslot.open(served.url, namespace="school-7") as sessions:
        await sessions.create_session("tutor", session_id="s", data={SECRET: SECRET})
        await sessions.checkpoint("s", SECRET, {SECRET: SECRET})
    verbs = by_name(spans())
    [append] = [span for span in read() if span["parent_id"] == _id(verbs["checkpoint"])]
    assert append["name"] == "POST /store/1/append"
    assert append["kind"] == "SpanKind.SERVER"
    assert append["context"]["trace_id"] == f"0x{verbs['checkpoint'].context.trace_id:032x}"
    assert append["attributes"]["http.response.status_code"] == 200
    assert SECRET not in json.dumps(read())


def test_the_json_door_is_traced_with_its_verbs(traced):
    """A request's span has its route, status and session, and the spans of verbs below it."""
    served, read = traced
    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    served.request("POST", "/v1/sessions", {"agent_type": "tutor", "session_id": "j"}, traceparent=parent)
    served.request("POST", f"/v1/sessions/j/checkpoints?{SECRET}=1", {"name": SECRET, "data": {}}, traceparent=parent)
    served.request("GET", "/v1/sessions/none", traceparent=parent)
    served.request("GET", f"/v1/sessions/j/checkpoints/{SECRET}", traceparent=parent)
    known = {span["name"]: span for span in read() if span["context"]["trace_id"] == "0x" + "ab" * 16}
    saved = known["POST /v1/sessions/{id}/checkpoints"]
    assert saved["parent_id"] == "0x" + "cd" * 8
    assert saved["attributes"]["saveslot.session_id"] == "j"
    assert saved["attributes"]["http.response.status_code"] == 201
    assert known["saveslot.checkpoint"]["parent_id"] == saved["context"]["span_id"]
    assert known["GET /v1/sessions/{id}"]["attributes"]["http.response.status_code"] == 404
    assert SECRET not in json.dumps(read())


def test_a_stream_of_events_has_a_span_until_it_ends(traced):
    """The request's span ends when the stream begins; a second one in its trace lasts until the client leaves."""
    served, read = traced
    served.request("POST", "/v1/sessions", {"agent_type": "tutor", "session_id": "e", "data": {SECRET: 1}})
    parent = "00-" + "ef" * 16 + "-" + "cd" * 8 + "-01"
    connection = HTTPConnection(served.address, timeout=60)
    connection.request("GET", "/v1/sessions/e/events", headers={"traceparent": parent, "last-event-id": "0"})
    answer = connection.getresponse()
    assert answer.status == 200
    answer.readline()
    answer.close()
    connection.close()
    ends = time.monotonic() + 60
    while True:
        known = {span["name"]: span for span in read() if span["context"]["trace_id"] == "0x" + "ef" * 16}
        if "stream /v1/sessions/{id}/events" in known:
            break
        assert time.monotonic() < ends
        time.sleep(0.1)
    assert known.keys() >= {"GET /v1/sessions/{id}/events", "stream /v1/sessions/{id}/events"}
    assert known["stream /v1/sessions/{id}/events"]["parent_id"] == "0x" + "cd" * 8
    assert SECRET not in json.dumps(read())


async def test_shared_requests_are_in_no_callers_trace_that_has_ended(traced, spans):
    """Of many callers at once, no request continues a verb that had ended before: it would be in a stranger's trace."""

    async def work(sessions: SessionManager, session_id: str) -> None:
        for n in range(5):
            await sessions.checkpoint(session_id, "turn", {"n": n})
            await asyncio.sleep(hash((session_id, n)) % 10 / 1000)

    served, read = traced
    async with saveslot.open(served.url) as sessions:
        await asyncio.gather(*(sessions.create_session("crowd", session_id=f"c{n}") for n in range(20)))
        await asyncio.gather(*(work(sessions, f"c{n}") for n in range(20)))
    verbs = {_id(span): span for span in spans()}
    continued = [(verbs[span["parent_id"]], span) for span in read() if span["parent_id"] in verbs]
    assert continued
    for verb, span in continued:
        assert span["start_time"] < json.loads(verb.to_json())["end_time"]  # both as ISO texts in UTC


def test_traces_that_nothing_collects_are_refused(tmp_path):
    """`serve --traces` in a process without an SDK says how to start it with one."""
    argv = [sys.executable, "-m", "saveslot", "serve", "--traces", "--port", "0", "--store", str(tmp_path / "s.db")]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "opentelemetry-instrument" in done.stderr


def _id(span: ReadableSpan) -> str:
    return f"0x{span.context.span_id:016x}"
