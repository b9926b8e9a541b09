"""`.venv-strands/bin/python -m bench.strands`: AWS Strands' own files beside Saveslot's repository and storage.

A conversation of 200 turns of 2 KB: after each message the agent's record is written again, as Strands' session manager
does when it has changed. Then another process restores it. And a snapshot of a conversation that grows by a message at
a time. They take turns, so that a busy moment hits both; each figure is a median, and `times` is how many times faster,
or smaller, Saveslot is. It syncs each call to the disk and keeps every version; the files of Strands are not synced,
and a snapshot replaces the one before.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from strands.session import FileSessionManager, SessionRepository
from strands.storage import LocalFileStorage
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from bench.machine import load
from saveslot import blocking
from saveslot.adapters.strands import SaveslotSessionRepository, SaveslotStorage

TURNS, SNAPSHOTS, WORDS = 200, 200, 146
Figures = dict[str, list[list[float]]]
_choice = random.Random(1)


def message(n: int) -> Any:
    text = " ".join("".join(_choice.choices("abcdefghij", k=6)) for _ in range(WORDS))
    return {"role": "assistant" if n % 2 else "user", "content": [{"text": text}]}


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def restore(repository: SessionRepository) -> None:
    repository.read_session("chat")
    repository.read_agent("chat", "tutor")
    assert len(repository.list_messages("chat", "tutor")) == 2 * TURNS


def conversations(theirs: Path, ours: Path) -> Figures:
    with blocking.open(ours) as sessions:
        pair: list[Any] = [FileSessionManager("chat", str(theirs)), SaveslotSessionRepository(sessions=sessions)]
        for repository in pair:
            if repository.read_session("chat") is None:
                repository.create_session(Session("chat", SessionType.AGENT))
            repository.create_agent("chat", SessionAgent("tutor", {}, {"removed_message_count": 0}))
        figures: Figures = {"create_message": [[], []], "update_agent": [[], []], "restore, 400 messages": [[], []]}
        for n in range(2 * TURNS):
            item, agent = SessionMessage(message(n), n), SessionAgent("tutor", {}, {"removed_message_count": 0})
            for which in (0, 1) if n % 2 else (1, 0):
                store = pair[which]
                figures["create_message"][which].append(
                    timed(lambda store=store, item=item: store.create_message("chat", "tutor", item))
                )
                figures["update_agent"][which].append(
                    timed(lambda store=store, agent=agent: store.update_agent("chat", agent))
                )
    for _ in range(10):
        figures["restore, 400 messages"][0].append(timed(lambda: restore(FileSessionManager("chat", str(theirs)))))
        with blocking.open(ours) as sessions:
            sessions.count()  # opens the file
            figures["restore, 400 messages"][1].append(
                timed(lambda sessions=sessions: restore(SaveslotSessionRepository(sessions=sessions)))
            )
    return figures


def snapshots(theirs: Path, ours: Path) -> Figures:
    figures: Figures = {"write of a snapshot": [[], []], "read of a snapshot": [[], []]}
    with blocking.open(ours) as sessions:
        pair: list[Any] = [LocalFileStorage(str(theirs)), SaveslotStorage(sessions=sessions)]
        messages: list[Any] = []
        for n in range(SNAPSHOTS):
            messages.append(message(n))
            blob = json.dumps({"type": "agent", "version": n, "data": {"messages": messages}}).encode()
            for which in (0, 1) if n % 2 else (1, 0):
                storage = pair[which]
                for what, call in (
                    ("write", lambda storage=storage, blob=blob: asyncio.run(storage.write("chat/latest.json", blob))),
                    ("read", lambda storage=storage: asyncio.run(storage.read("chat/latest.json"))),
                ):
                    figures[f"{what} of a snapshot"][which].append(timed(call))
    return figures


def size(place: Path) -> float:
    files = place.rglob("*") if place.is_dir() else place.parent.glob(f"{place.name}*")
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def main() -> None:
    print(f"load before: {load()}\n\n{'':32}{'files of Strands':>20}{'Saveslot':>12}{'times':>8}")
    for name, measure in (("conversation", conversations), ("snapshots", snapshots)):
        # Beside this file: the system's temporary folder may be in memory.
        with TemporaryDirectory(suffix=".tmp", dir=Path(__file__).parent) as folder:
            theirs, ours = Path(folder) / "theirs", Path(folder) / "ours.db"
            for what, samples in measure(theirs, ours).items():
                own, mine = (statistics.median(each) for each in samples)
                print(f"{what:32}{own:17.2f} ms{mine:9.2f} ms{own / mine:8.2f}")
            own, mine = size(theirs), size(ours)
            print(f"{f'bytes of the {name}':32}{own:17.2f} MB{mine:9.2f} MB{own / mine:8.2f}")


if __name__ == "__main__":
    main()
