"""The world outside: a travel agency that knows nothing of Saveslot. Its ledger records every request.

{"at": 1763240000.1, "process": 4711, "trip": "oslo", "wish": "hotel", "key": "5d3c…", "booked": true}
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import msgspec


class Request(msgspec.Struct):
    at: float
    process: int
    trip: str
    wish: str
    key: str
    booked: bool  # False: the key was known, so nothing was booked again


async def book(ledger: str, trip: str, wish: str, pace: float, *, idempotency_key: str) -> str:
    """Book once per key, like a payment service. The booking is immediate, the answer is slow."""
    _enter(Path(ledger), trip, wish, idempotency_key)
    await asyncio.sleep(pace)
    return f"{wish} in {trip}"


def _enter(ledger: Path, trip: str, wish: str, key: str) -> None:
    from fcntl import LOCK_EX, flock  # not available on Windows, where there is no demo

    with ledger.open("ab") as file:
        flock(file, LOCK_EX)  # one customer at a time
        known = any(request.key == key for request in read(ledger))
        file.write(msgspec.json.encode(Request(time.time(), os.getpid(), trip, wish, key, not known)) + b"\n")


def read(ledger: Path) -> list[Request]:
    whole = ledger.read_bytes().rpartition(b"\n")[0] if ledger.exists() else b""
    return [msgspec.json.decode(line, type=Request) for line in whole.splitlines()]
