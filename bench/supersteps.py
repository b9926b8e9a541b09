"""`python -m bench.supersteps`: Agent Framework's FileCheckpointStorage and SaveslotCheckpointStorage, bytes and time.

A workflow of 200 supersteps, whose state grows by a message of 1 KB in each; once as JSON, once as an object that the
framework pickles. The storages take turns, so that a busy moment hits both. Saveslot syncs each save to the disk, the
other one does not.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent_framework import FileCheckpointStorage, WorkflowCheckpoint

from bench.machine import load
from saveslot.adapters.agent_framework import SaveslotCheckpointStorage

SUPERSTEPS, WORDS = 200, 146


async def measure(folder: Path, *, pickled: bool) -> list[float]:
    """Return the milliseconds of the median save of both."""
    ours = SaveslotCheckpointStorage(folder / "ours.db")
    pair: list[Any] = [FileCheckpointStorage(folder / "theirs"), ours]
    choice, messages = random.Random(1), list[Any]()
    previous: list[Any] = [None, None]
    took: list[list[float]] = [[], []]
    for n in range(SUPERSTEPS):
        text = " ".join("".join(choice.choices("abcdefghij", k=6)) for _ in range(WORDS))
        messages.append({"role": "assistant", "text": text})
        for which, storage in enumerate(pair):
            checkpoint = WorkflowCheckpoint(
                workflow_name="w",
                graph_signature_hash="h",
                previous_checkpoint_id=previous[which],
                iteration_count=n,
                state={"messages": tuple(messages) if pickled else messages},
            )
            start = time.perf_counter()
            previous[which] = await storage.save(checkpoint)
            took[which].append((time.perf_counter() - start) * 1000)
    await ours.close()
    return [statistics.median(samples) for samples in took]


def main() -> None:
    print(f"{SUPERSTEPS} supersteps; load {load()}\n")
    print(f"{'':10}{'FileCheckpointStorage':>26}{'SaveslotCheckpointStorage':>28}{'times':>8}")
    for pickled in (False, True):
        with TemporaryDirectory(suffix=".tmp", dir=Path(__file__).parent) as name:
            folder = Path(name)
            took = asyncio.run(measure(folder, pickled=pickled))
            sizes = [sum(file.stat().st_size for file in folder.glob(files)) for files in ("theirs/*.json", "ours.db*")]
        kind = "pickled" if pickled else "JSON"
        print(f"{kind:10}{sizes[0] / 1e6:>23.1f} MB{sizes[1] / 1e6:>25.2f} MB{sizes[0] / sizes[1]:>8.0f}")
        print(f"{'':10}{took[0]:>23.2f} ms{took[1]:>25.2f} ms{took[0] / took[1]:>8.1f}")


if __name__ == "__main__":
    main()
