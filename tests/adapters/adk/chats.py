"""Conversations of Google ADK, and a model that follows a script."""

from __future__ import annotations

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types
from pydantic import Field

CHAT = {"app_name": "tutor", "user_id": "anna", "session_id": "chat"}


def user(text):
    return types.Content(role="user", parts=[types.Part(text=text)])


def said(text):
    return types.Part(text=text)


def called(tool, **arguments):
    return types.Part(function_call=types.FunctionCall(name=tool, args=arguments))


class Script(BaseLlm):
    """Answers one after another; `heard` is what the model was given each time."""

    model: str = "script"
    answers: list
    heard: list = Field(default_factory=list)
    wait: object = None

    async def generate_content_async(self, llm_request, **_):
        self.heard.append(llm_request.contents)
        if self.wait is not None:
            await self.wait()
        yield LlmResponse(content=types.Content(role="model", parts=[self.answers.pop(0)]))


def tutor(*answers, wait=None, **options):
    return LlmAgent(name="tutor", model=Script(answers=list(answers), wait=wait), **options)


async def turn(service, agent, text, **chat):
    """One run; return what its events say."""
    runner = Runner(agent=agent, app_name="tutor", session_service=service)
    keys = {"user_id": "anna", "session_id": "chat", **chat}
    return [text async for event in runner.run_async(**keys, new_message=user(text)) for text in texts([event])]


def texts(events):
    return [part.text for event in events for part in (event.content.parts if event.content else []) if part.text]
