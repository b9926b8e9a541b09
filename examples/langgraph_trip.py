"""A LangGraph agent books two hotels, each once, although it is killed in the middle of the second booking.

    pip install 'saveslot[langgraph]' langgraph
    python examples/langgraph_trip.py 60    # kill -9 it: the hotel in Rome takes 60 seconds to answer
    python examples/langgraph_trip.py       # goes on where that one was: Paris is not booked again

The hotels' system is a file, `bookings.txt`. Like a payment service, it ignores an idempotency key that it has seen:
the call's id, which is the same when the interrupted booking runs again. The model is scripted and needs no network.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph, add_messages

from saveslot.adapters.langgraph import SaveslotSaver

BOOKINGS = Path("bookings.txt")


class Trip(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def model(trip: Trip) -> dict[str, Any]:
    """Books the first city that the conversation shows no booking of."""
    done = sum(message.type == "tool" for message in trip["messages"])
    if done == 2:
        return {"messages": [AIMessage("Both hotels are booked.")]}
    call = {"name": "book", "args": {"city": ["Paris", "Rome"][done]}, "id": f"call-{done}"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def tools(trip: Trip) -> dict[str, Any]:
    [call] = trip["messages"][-1].tool_calls
    return {"messages": [ToolMessage(book(call["args"]["city"], key=call["id"]), tool_call_id=call["id"])]}


def book(city: str, *, key: str) -> str:
    """What the hotels' system does; Rome takes its time to answer."""
    known = BOOKINGS.read_text().splitlines() if BOOKINGS.exists() else []
    if f"{key} {city}" not in known:
        with BOOKINGS.open("a") as file:
            file.write(f"{key} {city}\n")
    print(f"asked for a hotel in {city}", flush=True)
    time.sleep(float(sys.argv[1]) if city == "Rome" and sys.argv[1:] else 0)
    return f"booked in {city}"


def calls(trip: Trip) -> str:
    return "tools" if trip["messages"][-1].tool_calls else END


async def main() -> None:
    graph = StateGraph(Trip).add_node(model).add_node(tools)
    graph.add_edge(START, "model").add_conditional_edges("model", calls, ["tools", END]).add_edge("tools", "model")
    async with SaveslotSaver.from_conn_string("trips.db") as saver:
        agent = graph.compile(checkpointer=saver)
        thread: Any = {"configurable": {"thread_id": "trip-1"}}
        begun = (await agent.aget_state(thread)).next
        given = None if begun else {"messages": [HumanMessage("Book hotels in Paris and Rome.")]}  # None: go on
        # "sync": each step is durable before the next one starts.
        trip = await agent.ainvoke(given, thread, durability="sync")
        print(trip["messages"][-1].content)


asyncio.run(main())
