"""Sessions for the page's tests, made the way they come about: workers die, others take over, one rolls back.

    python tests/page/trips.py STORE

`trip-lisbon` has all that a tape can show; `lesson-2207` is orphaned in a step of unknown outcome; `review-8812`
failed; `hostile` has names and values that must never be run or hide anything.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import saveslot

# Seconds after which a silent worker counts as dead here.
TTL = 1.5
HOSTILE = "<script>alert(1)</script> \u202egnp.exe\u200b"


def said(role: str, content: str, **more: str) -> dict[str, str]:
    return {"role": role, "content": content, **more}


def answer(*, idempotency_key: str = "") -> dict[str, str]:
    time.sleep(0.2)  # so that a tape has some width
    return {"receipt": idempotency_key[:8]}


def sold_out() -> None:
    raise LookupError("Largo do Chiado has no room on 2026-12-06")


def die() -> None:
    os._exit(9)


async def first(store: str) -> None:
    async with saveslot.open(store, worker_beat=TTL / 3, worker_ttl=TTL) as sessions:
        await sessions.create_session(
            "booker", "acct-17", {"budget": 900}, labels={"env": "prod"}, session_id="trip-lisbon"
        )
        async with sessions.hold("trip-lisbon") as held:
            start = [said("user", "Book two of us to Lisbon, 4 to 8 December. Flight and hotel, 900 euros at most.")]
            await held.checkpoint(
                "task_received",
                {"messages": start, "trip": {"to": "Lisbon", "people": 2}, "budget": {"limit": 900, "left": 900}},
            )
            await held.step("ask-model", answer, key="turn-1")
            await held.checkpoint(
                "planned",
                append={"messages": [said("assistant", "I start with flights, since they decide the dates.")]},
                put={"plan": ["find flights", "book flight", "find hotel"]},
            )
            await held.step("search-flights", answer, key="q-1")
            await held.checkpoint(
                "chosen",
                append={"messages": [said("tool", "3 offers: TP-571 412 €, LH-1172 388 €", name="search-flights")]},
                put={"choice": {"flight": "TP-571", "why": "direct, and 24 euros more than with a stop"}},
            )
            await sessions.pin("trip-lisbon", "chosen")
            await held.step("book", answer, key="flight")
            await held.checkpoint(
                "booked",
                put={
                    "budget": {"limit": 900, "left": 488},
                    "bookings": [{"what": "flight", "id": "TP-571", "price": 412}],
                },
            )
            die()


async def second(store: str) -> None:
    async with saveslot.open(store, worker_beat=TTL / 3, worker_ttl=TTL) as sessions:
        held = await sessions.claim(wait=60)
        assert held
        async with held[0] as held:
            await held.step("book", answer, key="hotel")
            await held.checkpoint(
                "reviewed",
                append={"messages": [said("assistant", "Casa do Rio is 40 minutes from the centre.")]},
                put={"notes": "far from the centre"},
            )
            fork = await sessions.fork("trip-lisbon", "reviewed", "trip-lisbon-cheap")
        await sessions.fail(fork.session_id, "BudgetExceeded: 912 of 900 euros")
        await sessions.pause("trip-lisbon")
        await asyncio.sleep(0.3)
        await sessions.resume("trip-lisbon")
        async with sessions.hold("trip-lisbon") as held:
            await held.checkpoint("answered", append={"messages": [said("user", "Closer to the centre, please.")]})
            await held.rollback("booked")
            with suppress(LookupError):
                await held.step("book", sold_out, key="hotel-2")
            await held.checkpoint(
                "chosen",
                put={
                    "choice": {
                        "flight": "TP-571",
                        "why": "direct flight; hotel two minutes from the metro",
                        "hotel": "Baixa Rooms",
                    }
                },
            )
            await held.checkpoint(
                "summarised",
                append={"messages": [said("assistant", "Done: TP-571 on 4 December, four nights at Baixa Rooms.")]},
                put={"summary": "858 of 900 euros"},
            )


async def unknown(store: str) -> None:
    async with (
        saveslot.open(store, worker_beat=TTL / 3, worker_ttl=TTL) as sessions,
        sessions.hold("lesson-2207", create="tutor", user_id="acct-88") as held,
    ):
        await held.checkpoint("asked", {"messages": [said("user", "1/2 + 1/3?")], "turn": 0})
        await held.checkpoint(
            "hinted", append={"messages": [said("assistant", "What do both denominators divide?")]}, put={"turn": 1}
        )
        await held.step("send-mail", die, key="reminder", mode="at_most_once")


async def others(store: str) -> None:
    async with saveslot.open(store) as sessions:
        async with sessions.hold("review-8812", create="reviewer", user_id="acct-03") as held:
            await held.checkpoint("opened", {"files": ["a.py"], "score": 0.5})
            await held.fail("Timeout: no answer from the test runner in 600 s")
        async with sessions.hold("hostile", create=HOSTILE, user_id="<b>u</b>") as held:
            await held.checkpoint(
                HOSTILE[:40], {"messages": [said("user", HOSTILE)], HOSTILE: HOSTILE, "long": "x" * 50_000}
            )
            await held.checkpoint("<img src=x onerror=alert(1)>", put={HOSTILE: "\0 <b>bold</b>"})


PARTS = {"first": first, "second": second, "unknown": unknown, "others": others}


def make(store: str) -> None:
    """Play all parts, each in a process of its own, since two of them die."""
    for part in PARTS:
        done = subprocess.run([sys.executable, Path(__file__), store, part], check=False, timeout=120)
        expected = 9 if part in {"first", "unknown"} else 0
        assert done.returncode == expected, f"{part} ended with {done.returncode}"


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(PARTS[sys.argv[2]](sys.argv[1]))
    else:
        make(sys.argv[1])
