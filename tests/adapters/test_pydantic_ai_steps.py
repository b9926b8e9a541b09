"""Durable runs of Pydantic AI, with the real package and a model that follows a script."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from saveslot import InvalidInput, LeaseHeld, SessionState
from saveslot.adapters.pydantic_ai import SaveslotStepStore, idempotency_key

EXAMPLES = Path(__file__).parents[2] / "examples"


class Counted:
    """An agent that pays twice, side by side, then says so; it counts what happens outside."""

    def __init__(self, sessions, *, fail_at=None):
        self.asked, self.fail_at = 0, fail_at
        self.paid, self.keys, self.done = [], [], []
        self.steps = SaveslotStepStore(sessions=sessions)
        self.agent = Agent(FunctionModel(self.model), name="tutor", capabilities=[self.steps])
        self.agent.tool_plain(self.pay)

    def model(self, messages, _):
        self.asked += 1
        if self.fail_at == self.asked:
            raise ConnectionError("the model is away")
        returned = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        if not returned:
            return ModelResponse(parts=[ToolCallPart("pay", {"amount": n}, tool_call_id=f"c{n}") for n in (1, 2)])
        return ModelResponse(parts=[TextPart(", ".join(returned))])

    async def pay(self, amount: int) -> str:
        """Pay."""
        await asyncio.sleep(0.05 / amount)  # the second one ends first
        self.paid.append(amount)
        self.keys.append(idempotency_key())
        if self.fail_at == f"pay {amount}":
            raise ConnectionError("the bank is away")
        self.done.append(amount)
        return f"paid {amount}"


def responses(result):
    return [message for message in result.all_messages() if isinstance(message, ModelResponse)]


async def test_a_run_is_replayed(sessions, others):
    """A run that another process starts again repeats no model request and no tool call, and has the same result."""
    first = Counted(sessions)
    async with first.steps.hold("order-7"):
        result = await first.agent.run("pay")
    second = Counted(others)
    async with second.steps.hold("order-7"):
        again = await second.agent.run("pay")
    assert again.output == result.output == "paid 1, paid 2"
    assert responses(again) == responses(result)
    assert (again.usage, again.run_id) == (result.usage, result.run_id)
    assert (first.asked, sorted(first.paid), second.asked, second.paid) == (2, [1, 2], 0, [])
    assert len(set(first.keys)) == 2
    steps = [entry.name for entry in await sessions.entries("order-7", kinds=["step_finished"])]
    assert sorted(name for name in steps if "model" in name) == ["tutor__model.request"] * 2
    assert sum(name.endswith(":pay") for name in steps) == 2


@pytest.mark.parametrize("fail_at", [1, 2, "pay 2"])
async def test_what_failed_runs_again(sessions, others, fail_at):
    """A run that failed goes on there when it is started again: only what failed, or had not begun, runs."""
    first, second = Counted(sessions, fail_at=fail_at), Counted(others)
    with pytest.raises(ConnectionError):
        async with first.steps.hold("order-7"):
            await first.agent.run("pay")
    async with second.steps.hold("order-7", wait=60):
        assert (await second.agent.run("pay")).output == "paid 1, paid 2"
    assert sorted(first.done + second.done) == [1, 2]
    assert first.asked + second.asked == (2 if fail_at == "pay 2" else 3)
    keys = dict(zip(first.paid, first.keys, strict=True))
    assert all(keys.get(amount, key) == key for amount, key in zip(second.paid, second.keys, strict=True))


async def test_runs_of_one_hold(sessions, others):
    """Several runs in one hold, also side by side, each get their own results when they are replayed."""

    def echo(messages, _):
        return ModelResponse(parts=[TextPart(messages[-1].parts[-1].content)])

    def nothing(*_):
        raise AssertionError("asked again")

    for manager, model in ((sessions, echo), (others, nothing)):
        steps = SaveslotStepStore(sessions=manager)
        agent = Agent(FunctionModel(model), name="tutor", capabilities=[steps])
        async with steps.hold("runs", wait=60):
            assert (await agent.run("a")).output == "a"
            results = await asyncio.gather(*(agent.run(text) for text in "bcd"))
            assert [result.output for result in results] == ["b", "c", "d"]
            assert (await agent.run("e")).output == "e"


async def test_answers_of_tools_that_are_no_results(sessions, others):
    """A tool's ModelRetry is replayed as one."""
    asked = []

    def model(messages, _):
        asked.append(1)
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])
        return ModelResponse(parts=[ToolCallPart("pick", {}, tool_call_id="c")])

    for manager in (sessions, others):
        steps = SaveslotStepStore(sessions=manager)
        agent = Agent(FunctionModel(model), name="tutor", capabilities=[steps])

        @agent.tool_plain
        def pick() -> str:
            """Pick."""
            raise ModelRetry("pick another one")

        async with steps.hold("retries", wait=60):
            assert "pick another one" in (await agent.run("go")).output
    assert len(asked) == 2


async def test_tools_choose(sessions, others):
    """A tool's metadata gives its step's options, or makes it none; unknown options are refused."""
    ran = []

    def model(messages, _):
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(name, {}, tool_call_id=name) for name in ("free", "once")])

    for manager in (sessions, others):
        steps = SaveslotStepStore(sessions=manager)
        agent = Agent(FunctionModel(model), name="tutor", capabilities=[steps])

        @agent.tool_plain(metadata={"saveslot": False})
        async def free() -> None:
            """Not a step."""
            ran.append("free")
            assert idempotency_key() is None

        @agent.tool_plain(metadata={"saveslot": {"mode": "at_most_once"}})
        async def once() -> None:
            """A step."""
            ran.append("once")

        async with steps.hold("options", wait=60):
            await agent.run("go")
    assert sorted(ran) == ["free", "free", "once"]
    for wrong, reason in (({"tries": 3}, "has no option tries"), (True, "must be a dict of options, or False")):
        steps = SaveslotStepStore(sessions=sessions)
        agent = Agent(FunctionModel(model), name="tutor", capabilities=[steps])
        agent.tool_plain(metadata={"saveslot": wrong})(free)
        agent.tool_plain(once)
        async with steps.hold(f"wrong {reason}"):
            with pytest.raises(InvalidInput, match=f"of the tool free {reason}"):
                await agent.run("go")


async def test_one_process_owns_a_run(sessions, others):
    """While one process holds a run, another one gets LeaseHeld before its model is asked. Between holds a run rests
    paused.
    """
    ours, theirs = SaveslotStepStore(sessions=sessions), SaveslotStepStore(sessions=others)
    async with ours.hold("run"):
        with pytest.raises(LeaseHeld):
            async with theirs.hold("run"):
                pass
        assert (await sessions.head("run")).state is SessionState.ACTIVE
    assert (await sessions.head("run")).state is SessionState.PAUSED


async def test_outside_of_a_hold(sessions):
    """Outside of a hold an agent runs as ever: nothing is stored."""
    counted = Counted(sessions)
    for _ in range(2):
        assert (await counted.agent.run("pay")).output == "paid 1, paid 2"
    assert (counted.asked, counted.keys) == (4, [None] * 4)
    assert await sessions.count() == 0


async def test_what_cannot_be_replayed_is_refused(sessions):
    """Toolsets that are passed to a run, and a hold from another event loop, are refused with a reason."""
    steps = SaveslotStepStore(sessions=sessions)
    agent = Agent(FunctionModel(lambda *_: ModelResponse(parts=[TextPart("x")])), name="tutor", capabilities=[steps])
    async with steps.hold("run"):
        with pytest.raises(UserError, match="toolset"):
            await agent.run("go", toolsets=[FunctionToolset([sorted], id="more")])

    def elsewhere():
        async def held():
            async with steps.hold("other"):
                pass

        asyncio.run(held())

    with pytest.raises(InvalidInput, match="hold: needs its manager in this event loop"):
        await asyncio.to_thread(elsewhere)


def test_a_killed_run_goes_on(tmp_path):
    """Killed with -9 in the middle of its second tool call, a run goes on in another process with that call: no model
    request is made twice, and no call that had finished.
    """
    command = [sys.executable, str(EXAMPLES / "pydantic_ai_steps_trip.py")]
    with subprocess.Popen([*command, "600"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        heard = [first.stdout.readline() for _ in range(4)]
        first.kill()
    ask, paris, rome = "asked the model\n", "asked for a hotel in Paris\n", "asked for a hotel in Rome\n"
    assert heard == [ask, paris, ask, rome]
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 0, second.stderr
    assert second.stdout == f"{rome}{ask}Both hotels are booked.\n"
    bookings = [line.split()[1] for line in (tmp_path / "bookings.txt").read_text().splitlines()]
    assert bookings == ["Paris", "Rome"]
