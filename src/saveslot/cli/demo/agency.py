"""The world outside: a travel agency that knows nothing of Saveslot. What it was asked stands in its ledger.

    {"at": 1763240000.1, "process": 4711, "trip": "oslo", "wish": "hotel", "key": "5d3c…", "booked": true}
"""

from __future__ import annotations

import asyncio
import os
import time
from fcntl import LOCK_EX, flock
from pathlib import Path

import msgspec


class Asked(msgspec.Struct):
    at: float
    process: int
    trip: str
    wish: str
    key: str
    booked: bool  # False: that key was known, nothing was booked again


async def book(ledger: str, trip: str, wish: str, pace: float, *, idempotency_key: str) -> str:
    """Book once for each key, as a payment service does. It is done at once; the answer takes its time."""
    with Path(ledger).open("ab") as file:
        flock(file, LOCK_EX)
        known = any(line.key == idempotency_key for line in read(ledger))
        file.write(
            msgspec.json.encode(Asked(time.time(), os.getpid(), trip, wish, idempotency_key, not known)) + b"\n"
        )
    await asyncio.sleep(pace)
    return f"{wish} in {trip}"


def read(ledger: str) -> list[Asked]:
    path = Path(ledger)
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [msgspec.json.decode(line, type=Asked) for line in whole.splitlines()]
