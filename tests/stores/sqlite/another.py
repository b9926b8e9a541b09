"""Another process at the same file: tests start this script and talk to it by lines.

another.py open FILE...          opens each file on "go", prints "ok" or the error
another.py append FILE NS TURNS  writes to the sessions a, b and c, and counts the verdicts
another.py read FILE             begins a read transaction, prints "reading", and ends on request
"""

import asyncio
import sys
from collections import Counter

import msgspec

from saveslot.stores.sqlite import SqliteStore
from saveslot.stores.sqlite.file import connect
from saveslot.testing import Pen
from saveslot.values.log import Outcome


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def open_each(paths: list[str]) -> None:
    say("ready")
    for path in paths:
        sys.stdin.readline()
        store = await SqliteStore.open(path)
        pen = Pen("ns", f"{path} {id(store)} {sys.argv[0]}")
        verdicts = await store.append([pen.begin()])
        await store.close()
        say(verdicts[0].outcome)


async def append(path: str, namespace: str, turns: int) -> None:
    store = await SqliteStore.open(path)
    seen: Counter[str] = Counter()
    landed: list[tuple[str, int, str]] = []
    say("ready")
    sys.stdin.readline()

    async def write(session_id: str) -> None:
        for turn in range(turns):
            (head,) = await store.heads([(namespace, session_id)])
            assert head is not None
            pen = Pen(namespace, session_id, key=head.row.key, seq=head.last.seq, prev=head.last.append_id)
            group = pen.group(1 + turn % 2)
            (verdict,) = await store.append([group])
            seen[verdict.outcome] += 1
            if verdict.outcome is Outcome.APPENDED:
                landed.extend((session_id, entry.seq, entry.append_id.hex()) for entry in group.entries)
                (verdict,) = await store.append([group])
                seen[verdict.outcome] += 1

    await asyncio.gather(*map(write, "abc"))
    await store.close()
    say(msgspec.json.encode({"seen": dict(seen), "landed": landed}).decode())


def read(path: str) -> None:
    connection = connect(path, None)
    connection.execute("begin")
    entries = connection.execute("select count(*) from checkpoints").get
    say("reading")
    sys.stdin.readline()
    assert connection.execute("select count(*) from checkpoints").get == entries
    say("same")


match sys.argv[1:]:
    case ["open", *paths]:
        asyncio.run(open_each(paths))
    case ["append", path, namespace, turns]:
        asyncio.run(append(path, namespace, int(turns)))
    case ["read", path]:
        read(path)
