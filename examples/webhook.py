"""Write by id, as a web handler does: many short calls, no owner, deliveries that come twice or at the same time.

    python examples/webhook.py

`deliver` is what a handler would call. It adds an event to the session it belongs to, once, whatever order, repetition
or process the deliveries come from.
"""

from __future__ import annotations

import asyncio

import saveslot
from saveslot import SessionManager
from saveslot.types import Data


async def deliver(sessions: SessionManager, order: str, event: Data) -> bool:
    """Store one event. False if it was delivered before."""
    session = await sessions.create_session("order", session_id=order, exist_ok=True)
    while True:
        state = await sessions.get_data(order)
        if event["id"] in state.get("seen", []):
            return False
        try:
            # Follows what `session` has seen: if another handler was faster, nothing is stored.
            await sessions.checkpoint(session, event["kind"], append={"seen": [event["id"]], "events": [event]})
        except saveslot.Conflict:
            await sessions.refresh(session)  # see what the other one wrote, and decide again
        else:
            return True


async def main() -> None:
    deliveries: list[Data] = [
        {"id": "e1", "kind": "paid", "amount": 25},
        {"id": "e2", "kind": "packed"},
        {"id": "e1", "kind": "paid", "amount": 25},  # delivered again
        {"id": "e3", "kind": "shipped"},
    ]
    # Two managers stand for two processes behind a load balancer.
    url = "webhook.db"
    async with saveslot.open(url) as one, saveslot.open(url) as two:
        handlers = [deliver((one, two)[n % 2], "order-7", event) for n, event in enumerate(deliveries)]
        stored = await asyncio.gather(*handlers)
        state = await one.get_data("order-7")
        print(f"{stored.count(True)} of {len(deliveries)} deliveries were new")
        print("events:", sorted(event["id"] for event in state["events"]))


if __name__ == "__main__":
    asyncio.run(main())
