"""Threads of LangGraph's own savers go on in Saveslot."""

from __future__ import annotations

import subprocess
import sys

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from saveslot.adapters.langgraph import SaveslotSaver
from tests.adapters.test_langgraph import THREAD, VALUES, build, put, seen


@pytest.fixture(params=["sqlite", "postgres"])
def source(request, tmp_path, servers) -> str:
    return str(tmp_path / "theirs.db") if request.param == "sqlite" else servers.database().url


@pytest.fixture
async def theirs(source):
    """A saver of LangGraph's."""
    kind = AsyncSqliteSaver if source.endswith(".db") else AsyncPostgresSaver
    async with kind.from_conn_string(source) as saver:
        await saver.setup()
        yield saver


def bring(source: str, file) -> None:
    subprocess.run([sys.executable, "-m", "saveslot", "import", source, "--store", str(file)], check=True, timeout=60)


@pytest.mark.parametrize("own_memory", [False, True])
async def test_half_of_a_conversation_there_half_here(theirs, source, file, own_memory):
    """After an import in the middle of a question the graph shows the same history, goes on, and ends the same way."""
    graph = build(theirs, own_memory=own_memory)
    await graph.ainvoke({"messages": [HumanMessage("q1", id="h1")]}, THREAD)
    await graph.ainvoke(Command(resume="yes"), THREAD)
    await graph.ainvoke({"messages": [HumanMessage("q2", id="h2")]}, THREAD)
    bring(source, file)
    async with SaveslotSaver.from_conn_string(file) as ours:
        here = build(ours, own_memory=own_memory)
        histories = [[state async for state in one.aget_state_history(THREAD)] for one in (graph, here)]
        assert [seen(state) for state in histories[1]] == [seen(state) for state in histories[0]]
        assert [state.config for state in histories[1]] == [state.config for state in histories[0]]
        for given in (Command(resume="no"), {"messages": [HumanMessage("q3", id="h3")]}, Command(resume="fine")):
            answers = [await one.ainvoke(given, THREAD) for one in (graph, here)]
            assert [answer | {"__interrupt__": None} for answer in answers[1:]] == [
                answers[0] | {"__interrupt__": None}
            ]
        assert seen(await here.aget_state(THREAD)) == seen(await graph.aget_state(THREAD))


async def test_values_come_along(theirs, source, file):
    """Every value that their saver gives back ours gives back, from channels and from writes."""
    refused = set() if source.endswith(".db") else {"nan", "infinite"}  # PostgreSQL's JSON has neither
    values = {name: value for name, value in VALUES.items() if name not in refused}
    config = await put(theirs, values)
    await theirs.aput_writes(config, list(values.items()), "task", "~path")
    expected = await theirs.aget_tuple(config)
    bring(source, file)
    async with SaveslotSaver.from_conn_string(file) as ours:
        item = await ours.aget_tuple(config)
    there, here = expected.checkpoint["channel_values"], item.checkpoint["channel_values"]
    assert repr(sorted(here.items())) == repr(sorted(there.items()))
    assert repr(sorted(item.pending_writes, key=str)) == repr(sorted(expected.pending_writes, key=str))
    assert item.parent_config == expected.parent_config
