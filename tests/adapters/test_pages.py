"""The pages about frameworks: each example runs as it is, with a model that needs no network."""

from __future__ import annotations

from agents import ModelResponse, Usage
from agents.models.interface import Model
from agents.models.openai_provider import OpenAIProvider
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from tests.docs.test_pages import Page, reader

__all__ = ["reader"]


class Clerk(Model):
    """Calls the tool `pay` once if it has one, then says so."""

    async def get_response(self, *, input, tools, **_):
        said = ResponseFunctionToolCall(type="function_call", name="pay", call_id="c1", arguments='{"amount": 25}')
        if not tools or any(item.get("type") == "function_call_output" for item in input):
            text = ResponseOutputText(type="output_text", text="Five sixths.", annotations=[])
            said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


def test_openai_agents(reader, monkeypatch):
    """docs/frameworks/openai-agents.md runs from top to bottom, with the SDK's default model replaced."""
    monkeypatch.setattr(OpenAIProvider, "get_model", lambda *_: Clerk())
    Page("docs/frameworks/openai-agents.md").run()
