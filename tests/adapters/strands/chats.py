"""A model that follows a script, for Strands agents."""

from __future__ import annotations

import json

from strands import Agent
from strands.models import Model


def said(text):
    return {"text": text}


def called(tool, call_id, **arguments):
    return {"toolUse": {"name": tool, "toolUseId": call_id, "input": arguments}}


class Script(Model):
    """Answers one after another; `heard` is what the model was given each time."""

    def __init__(self, *answers, wait=None):
        self.answers, self.heard, self.wait = list(answers), [], wait

    def update_config(self, **_):
        raise NotImplementedError

    def get_config(self):
        return {}

    def structured_output(self, *_, **__):
        raise NotImplementedError

    async def stream(self, messages, *_, **__):
        self.heard.append(json.loads(json.dumps(messages)))
        if self.wait is not None:
            self.wait()
        block = self.answers.pop(0)
        start, delta, reason = {}, {"text": block.get("text")}, "end_turn"
        if use := block.get("toolUse"):
            start = {"toolUse": {"name": use["name"], "toolUseId": use["toolUseId"]}}
            delta, reason = {"toolUse": {"input": json.dumps(use["input"])}}, "tool_use"
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": start}}
        yield {"contentBlockDelta": {"delta": delta}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}


def tutor(session_manager, *answers, wait=None, **options):
    """An agent that prints nothing."""
    return Agent(
        model=Script(*answers, wait=wait),
        session_manager=session_manager,
        agent_id="tutor",
        callback_handler=None,
        **options,
    )


def texts(messages):
    return [part["text"] for message in messages for part in message["content"] if "text" in part]
