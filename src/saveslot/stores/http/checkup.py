"""Checks of a server: it answers, lets this token in, and its logs are sound as seen from here."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from saveslot.errors import Forbidden, SaveslotError, Unauthorized
from saveslot.stores import shown
from saveslot.stores.findings import Finding, Logs, Progress, problem
from saveslot.stores.http import HttpStore
from saveslot.values.log import Place, Query, Row
from saveslot.values.words import many

# Sessions of a page, and of the sample; entries after which no further session is checked; namespaces looked at.
PAGE, SAMPLE, MOST, NAMESPACES = 200, 200, 20_000, 1000

TABLES = False


async def check(url: str, progress: Progress, *, every: bool = False) -> AsyncGenerator[Finding | Logs]:
    """All findings, from the outside in. `every`: look at all sessions, not at the newest ones."""
    progress("server", 0, 0)
    began = time.perf_counter()
    try:
        store = await HttpStore.open(url, patient=False)
    except (Unauthorized, Forbidden) as exc:
        yield problem("token", *str(exc).split("; ", 1))
        return
    except SaveslotError as exc:
        yield problem("server", *str(exc).split("; ", 1))
        return
    try:
        took = (time.perf_counter() - began) * 1000
        yield Finding("server", f"{shown(url)} answers, connected in {took:.0f} ms")
        rows: list[Row] = []
        entries = 0
        names = await store.namespaces(limit=NAMESPACES)
        for name in names:
            entries = max(entries, (await store.count(Query(namespace=name))).entries)
            rows += await _rows(store, name, None if every else SAMPLE - len(rows))
        yield Finding("content", f"{many(len(names), 'namespace')}, {many(entries, 'entry')} in the store")
        yield Logs(url, rows, entries, None if every else MOST)
    except SaveslotError as exc:
        yield problem("server", *str(exc).split("; ", 1))
    finally:
        await store.close()


async def formats(url: str) -> tuple[int, int]:  # noqa: ARG001  (the server migrates its own tables)
    return 0, 0


async def _rows(store: HttpStore, namespace: str, most: int | None) -> list[Row]:
    rows: list[Row] = []
    after: Place | None = None
    while most is None or len(rows) < most:
        page = await store.find(Query(namespace=namespace), after, PAGE)
        rows += page
        if len(page) < PAGE:
            break
        after = page[-1].created_at, page[-1].key
    return rows if most is None else rows[: max(0, most)]
