"""A worker without async: it makes thumbnails for orders, and may be killed at any moment.

Start as many as you like, stop them with Ctrl-C, SIGTERM or kill -9, and start them again: each order is finished once.

    python examples/blocking_worker.py --orders 3    # place orders, then work until none is left
    python examples/blocking_worker.py               # help the others
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from saveslot import blocking

PICTURES = ["front", "side", "back"]


def thumbnail(picture: str) -> str:
    """Stand in for the expensive part."""
    return f"{picture}-64x64.png"


def work(held: blocking.Held, pace: float) -> None:
    """Finish one order. A finished picture is a finished step, whichever worker drew it."""
    done: list[str] = []
    for picture in PICTURES:
        time.sleep(pace)
        done.append(held.step("thumbnail", thumbnail, picture, key=picture))
        held.checkpoint(picture, {"done": done})
    held.complete({"thumbnails": len(done)})
    print(f"{held.session.session_id} is done: {', '.join(done)}", flush=True)


def place(sessions: blocking.SessionManager, count: int) -> None:
    for number in range(1, count + 1):
        sessions.create_session("thumbnails", session_id=f"order-{number}", exist_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A worker without async that may be killed at any moment.")
    parser.add_argument("--store", default="orders.db", help="where orders are kept (%(default)s)")
    parser.add_argument("--orders", type=int, default=0, help="orders to place first (%(default)s)")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds that a picture takes (%(default)s)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # leaves every block, so that sessions are released

    # A short lease, so that orders of a killed worker are taken over within a second.
    with blocking.open(given.store, worker_ttl=1, worker_beat=0.25) as sessions:
        place(sessions, given.orders)
        while sessions.count(agent_type="thumbnails", state="active"):
            for held in sessions.claim(agent_type="thumbnails", limit=1, released=True):
                with held:
                    work(held, given.pace)
            time.sleep(given.pace / 4)
    print("no orders left", flush=True)


if __name__ == "__main__":
    main()
