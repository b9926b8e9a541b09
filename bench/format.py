"""What the format costs: bytes a turn, states handed over whole, reads of a tail. Realistic turns.

python -m bench.format [TURNS]     (default: 10,000; prints a table)

A turn is 1.2 KB of JSON: an answer, a nested tool call with its result, and usage.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypeVar

import apsw
import msgspec

import saveslot
from saveslot import SessionManager

T = TypeVar("T")
COUNTS = (300, 1_000, 3_000, 10_000)
WORDS = [random.Random(2).randbytes(random.Random(n).randrange(2, 5)).hex() for n in range(6000)]
TAIL, REPEATS = 20, 15
# Turns of the state that is handed over whole, and of the LangGraph-shaped threads.
WHOLE, THREADS, SHARED = 1_000, (200, 1_000), 100


def turn(dice: random.Random, number: int) -> dict[str, Any]:
    def prose(count: int) -> str:
        return " ".join(dice.choices(WORDS, k=count))

    items = [{"doc": dice.randrange(10**7), "score": round(dice.random(), 6), "snippet": prose(10)} for _ in range(3)]
    call = {
        "id": f"call_{dice.randbytes(12).hex()}",
        "type": "function",
        "function": {
            "name": dice.choice(["search_documents", "read_file", "run_query"]),
            "arguments": {
                "query": prose(9),
                "limit": 10,
                "filters": {"lang": "en", "since": dice.randrange(2000, 2026)},
            },
        },
        "result": {"status": "ok", "items": items, "took_ms": dice.random() * 90},
    }
    usage = {
        "input": dice.randrange(20_000),
        "output": dice.randrange(2000),
        "cost": dice.random() / 50,
        "turn": number,
    }
    text = [{"type": "text", "text": prose(55)}]
    return {"id": dice.randbytes(12).hex(), "role": "assistant", "content": text, "tool_calls": [call], "usage": usage}


def size(path: Path) -> int:
    """Bytes of the pages in use."""
    connection = apsw.Connection(str(path))
    pages, free, page = (connection.pragma(name) for name in ("page_count", "freelist_count", "page_size"))
    connection.close()
    return (pages - free) * page


async def timed(call: Awaitable[T]) -> tuple[float, T]:
    start = perf_counter()
    result = await call
    return (perf_counter() - start) * 1000, result


async def growing(path: Path, turns: int) -> None:
    dice = random.Random(7)
    async with saveslot.open(f"sqlite:///{path}") as sessions:
        await sessions.create_session("agent", session_id="s")
        empty, raw, times = size(path), 0, list[float]()
        for number in range(turns):
            item = turn(dice, number)
            raw += len(msgspec.json.encode(item))
            times.append((await timed(sessions.checkpoint("s", "turn", append={"messages": [item]})))[0])
            if number + 1 in COUNTS:
                stored = (size(path) - empty) / (number + 1)
                print(f"{number + 1:>7,} turns: {stored:,.0f} bytes stored a turn, of {raw / (number + 1):,.0f}")
        print(f"append: median {median(times):.2f} ms, slowest {max(times):.1f} ms")
    async with saveslot.open(f"sqlite:///{path}") as sessions:
        await sessions.count()
        cold, _ = await timed(sessions.get_data("s", last={"messages": TAIL}))
        tails = [(await timed(sessions.get_data("s", last={"messages": TAIL})))[0] for _ in range(REPEATS)]
        wholes = [(await timed(sessions.get_data("s")))[0] for _ in range(REPEATS)]
        ratio = median(wholes) / median(tails)
        print(f"last {TAIL}: cold {cold:.1f} ms, warm {median(tails):.2f}; whole {median(wholes):.1f}, {ratio:.0f} x")


async def whole() -> None:
    dice, state = random.Random(7), {"messages": list[Any](), "n": 0}
    async with saveslot.open("memory:") as sessions:
        await sessions.create_session("agent", session_id="s")
        state["messages"] = [turn(dice, number) for number in range(WHOLE)]
        first, _ = await timed(sessions.checkpoint("s", "turn", state))
        times, encodes = list[float](), list[float]()
        for number in range(100):
            state = {"messages": [*state["messages"], turn(dice, number)], "n": number}
            start = perf_counter()
            msgspec.json.encode(state)
            encodes.append((perf_counter() - start) * 1000)
            times.append((await timed(sessions.checkpoint("s", "turn", state)))[0])
    ratio = median(time / encode for time, encode in zip(times[4:], encodes[4:], strict=True))
    print(f"{WHOLE:,} turns handed over whole: {median(times):.2f} ms, {ratio:.2f} x msgspec; the first {first:.1f} ms")


async def thread(path: Path, turns: int, *, shared: bool) -> None:
    """Store what LangGraph's engine hands to a saver: each message passes `__start__`, writes and the channel.

    With `shared`, a subgraph has the whole channel as well, in its own input and output.
    """
    dice, data = random.Random(3), 0

    def message(role: str) -> dict[str, Any]:
        return {
            "type": role,
            "id": dice.randbytes(16).hex(),
            "content": "".join(dice.choices("abcdefgh ijklmnop", k=1000)),
        }

    def write(value: Any) -> list[Any]:
        return [dice.randbytes(16).hex(), 0, "~__pregel_pull", "messages", value]

    async with saveslot.open(f"sqlite:///{path}") as sessions:
        await sessions.create_session("graph", session_id="s")
        empty, messages, put = size(path), list[Any](), Puts(sessions)
        for number in range(turns):
            asked, answered = message("human"), message("ai")
            data += len(msgspec.json.encode([asked, answered]))
            await put(put={"__start__": {"messages": [asked]}, "$versions": {"__start__": number}}, meta=number)
            await put(append={"$writes": [write([asked])]})
            messages.append(asked)
            await put(
                put={"messages": messages, "$writes": [], "$versions": {"messages": number}},
                drop=["__start__"],
                meta=number,
            )
            if shared:
                await put(put={"__start__@sub": {"messages": messages}}, meta=number)
                await put(put={"messages@sub": messages}, drop=["__start__@sub"], meta=number)
                await put(append={"$writes": [write([*messages, answered])]})
                await put(put={"messages@sub": [*messages, answered]}, meta=number)
            await put(append={"$writes": [write([answered])]})
            messages.append(answered)
            await put(put={"messages": messages, "$writes": [], "$versions": {"messages": number}}, meta=number)
            if shared:
                await put(drop=["messages@sub"])
        stored = size(path) - empty
    print(f"{'shared subgraph' if shared else 'LangGraph thread'}, {turns:,} turns: {stored / data:.2f} x its data")


class Puts:
    """Changes of single keys of a state, each a checkpoint."""

    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions
        self._state: dict[str, Any] = {}

    async def __call__(
        self, put: dict[str, Any] | None = None, append: dict[str, Any] | None = None, drop: Any = (), meta: Any = None
    ) -> None:
        state = {key: value for key, value in self._state.items() if key not in drop} | (put or {})
        for key, items in (append or {}).items():
            state[key] = state.get(key, []) + items
        self._state = state
        metadata = None if meta is None else {"id": f"{meta:032x}", "parent": f"{meta - 1:032x}", "step": meta}
        await self._sessions.checkpoint("s", "put", state, metadata)


async def main(turns: int) -> None:
    with TemporaryDirectory() as folder:
        await growing(Path(folder, "growing.db"), turns)
        await whole()
        for count in THREADS:
            await thread(Path(folder, f"thread-{count}.db"), count, shared=False)
        await thread(Path(folder, "shared.db"), SHARED, shared=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else COUNTS[-1]))
