"""A sample for stores that have no query language: session by session, from the primitives that every store has."""

from __future__ import annotations

import asyncio

from saveslot.log import FAILURES, TRACED, Query, Sample
from saveslot.model import Kind
from saveslot.stores import Store

# Logs that are asked for at once.
TOGETHER = 100


async def sampled(store: Store, query: Query, count: int) -> Sample:
    sample = Sample(count * TRACED)
    rows = await store.find(query, None, count)
    for start in range(0, len(rows), TOGETHER):
        part = rows[start : start + TOGETHER]
        logs = await asyncio.gather(*(store.entries(row.key, frames=False) for row in part))
        for row, log in zip(part, logs, strict=True):
            sample.sessions[row.key] = (row.state, row.created_at)
            sample.entries += [(row.key, e.seq, int(e.kind), e.name, e.at, e.size) for e in log]
            failures = [entry for entry in log if entry.kind is Kind.FAILED]
            if row.state == "failed" and failures and len(sample.failures) < FAILURES:
                sample.failures.append((row.key, failures[-1]))
        if len(sample.entries) >= sample.limit:
            del sample.entries[sample.limit :]
            break
    return sample
