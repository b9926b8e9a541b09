"""How far one call walks through the package: Python calls, and those that enter another module.

python -m bench.trace [-v]     (prints a table; -v also lists the calls that change module)

A call counts if a function of the package calls one of another file of the package, directly or through C code, such
as `map`. Returning does not count, nor does entering the package from outside. Resuming a coroutine is a call, too.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

import saveslot

ROOT = str(Path(saveslot.__file__).parent) + "/"
MESSAGES = [{"role": "user", "content": f"message {n}: " + "some words " * 10} for n in range(40)]


class Walk(NamedTuple):
    """What was called: by (calling file and function, called file and function), relative to the package."""

    calls: Counter[tuple[str, str]]

    @property
    def count(self) -> int:
        """Calls of functions of the package."""
        return self.calls.total()

    @property
    def crossings(self) -> Counter[tuple[str, str]]:
        """Those whose caller is in another file of the package."""
        return Counter({(a, b): n for (a, b), n in self.calls.items() if a and _file(a) != _file(b)})


def _file(place: str) -> str:
    return place.split(":", maxsplit=1)[0]


def _place(frame: FrameType | None) -> str:
    """Return file and function of a frame, "" outside of the package."""
    code = None if frame is None else frame.f_code
    if code is None or not code.co_filename.startswith(ROOT):
        return ""
    return f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname if sys.version_info >= (3, 11) else code.co_name}"


async def walk(call: Callable[[], Awaitable[Any]]) -> Walk:
    """Await a call in the loop's thread, and count."""
    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (called := _place(frame)):
            calls[_place(frame.f_back), called] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        await call()
    finally:
        sys.setprofile(before)
    return Walk(calls)


async def walks(url: str) -> dict[str, Walk]:
    """Trace verbs on a session of some messages, each after the same call was made before."""
    found: dict[str, Walk] = {}
    async with saveslot.open(url) as sessions:
        await sessions.create_session("agent", session_id="s")
        state: dict[str, Any] = {"messages": MESSAGES[:4], "step": 0}

        def grown(step: int) -> dict[str, Any]:
            return {"messages": MESSAGES[step : step + 4], "step": step}

        for step in range(3):
            await sessions.checkpoint("s", "turn", grown(step))
        found["checkpoint"] = await walk(lambda: sessions.checkpoint("s", "turn", grown(3)))
        async with sessions.hold("s") as held:
            for step in range(4, 7):
                await held.checkpoint("turn", grown(step))
            found["held.checkpoint"] = await walk(lambda: held.checkpoint("turn", grown(7)))
            found["held.checkpoint append="] = await walk(lambda: held.checkpoint("turn", append={"log": [state]}))
        await sessions.get_session("s")
        found["get_session"] = await walk(lambda: sessions.get_session("s"))
        found["get_data"] = await walk(lambda: sessions.get_data("s"))
    return found


async def main(verbose: bool) -> None:  # noqa: FBT001
    with TemporaryDirectory() as folder:
        for url in ("memory:", f"sqlite:///{folder}/trace.db"):
            print(f"{url.split(':')[0]:<26}{'calls':>7}{'changes of module':>20}")
            for verb, found in (await walks(url)).items():
                print(f"  {verb:<24}{found.count:>7}{found.crossings.total():>20}")
                for (caller, called), count in found.crossings.most_common() if verbose else ():
                    print(f"{count:>8} x {caller} > {called}")


if __name__ == "__main__":
    asyncio.run(main("-v" in sys.argv[1:]))
