"""LangGraph on Saveslot: `SaveslotSaver`, a checkpointer, and `SaveslotStore`, long-term memory. Extra: `langgraph`.

async with SaveslotSaver.from_conn_string("agents.db") as saver:
    graph = builder.compile(checkpointer=saver)
    await graph.ainvoke(question, {"configurable": {"thread_id": "lesson-1"}})
"""

from saveslot.adapters.access import require

# The versions of langgraph-checkpoint that the tests cover: 4.3 sorts pending writes.
LOWEST, BELOW = "4.3", "5"
require("langgraph", "langgraph-checkpoint", LOWEST, BELOW)

from saveslot.adapters.langgraph.saver import SaveslotSaver  # noqa: E402  (an older version lacks names it imports)
from saveslot.adapters.langgraph.store import SaveslotStore  # noqa: E402

__all__ = ["SaveslotSaver", "SaveslotStore"]
