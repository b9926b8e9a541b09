"""The pages about frameworks: each example runs as it is, with a model that needs no network."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

import pytest
from agents import ModelResponse, Usage
from agents.models.interface import Model
from agents.models.openai_provider import OpenAIProvider
from mcp import Client, StdioServerParameters
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


def test_claude_agent(reader):
    """docs/frameworks/claude-agent.md runs; its function is not called, since that takes a network."""
    Page("docs/frameworks/claude-agent.md").run()


def test_agent_framework(reader):
    """docs/frameworks/agent-framework.md runs; its function is not called, since that takes a model."""
    Page("docs/frameworks/agent-framework.md").run()


def test_pydantic_ai(reader):
    """docs/frameworks/pydantic-ai.md runs from top to bottom, with the framework's own test model."""
    Page("docs/frameworks/pydantic-ai.md").run()


def test_mcp(reader):
    """docs/frameworks/mcp.md runs from top to bottom."""
    Page("docs/frameworks/mcp.md").run()


@pytest.mark.parametrize("client", range(3), ids=["mcpServers", "servers", "mcp_servers"])
async def test_mcp_files(client, reader):
    """Each file to paste starts a server that has the tools of the page's table."""
    page = (Path(__file__).parents[2] / "docs" / "frameworks" / "mcp.md").read_text()
    kinds = [(kind, text) for kind, text in re.findall(r"^```(json|toml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]
    kind, text = kinds[client]
    [servers] = (json.loads(text) if kind == "json" else tomllib.loads(text)).values()
    started = StdioServerParameters(
        command=servers["saveslot"]["command"], args=servers["saveslot"]["args"], cwd=reader
    )
    started.env = {"PATH": os.environ["PATH"], "SAVESLOT_URL": str(reader / "s.db")}
    async with Client(started, read_timeout_seconds=60) as connected:
        tools = {tool.name for tool in (await connected.list_tools()).tools}
    assert tools == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_langgraph(reader):
    """docs/frameworks/langgraph.md runs from top to bottom."""
    Page("docs/frameworks/langgraph.md").run()
