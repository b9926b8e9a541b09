"""`saveslot doctor` on a primary with a real replica, and on the replica."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import asyncpg
import pytest

import saveslot
from saveslot.stack import Postgres
from saveslot.stores.postgres import checkup as checkup_postgres
from tests.harness.proxy import Proxy


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Proxy, Postgres]]:
    with ExitStack() as stack:
        primary = stack.enter_context(Postgres())
        link = stack.enter_context(Proxy(primary.url))
        yield primary, link, stack.enter_context(primary.replica(link.url))


def sql(url: str, statement: str) -> Any:
    async def work() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(work())


async def saved(url: str, size: int) -> None:
    async with saveslot.open(url) as sessions:
        session = await sessions.create_session("tutor")
        await sessions.checkpoint(session, "asked", {"noise": [str(hash((size, n))) for n in range(size)]})


def findings(answer) -> dict[str, dict]:
    return {finding["what"]: finding for finding in json.loads(answer.out)["findings"]}


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_doctor_shows_how_far_a_replica_lags(run, pair, monkeypatch):
    """One that keeps up is well; one whose link is dead is a warning, by what it has not got."""
    primary, link, replica = pair
    asyncio.run(saved(primary.url, 10))
    until(
        lambda: sql(primary.url, "select count(*) = 1 from pg_stat_replication where replay_lsn = pg_current_wal_lsn()")
    )
    findings_by_name = findings(run("doctor", "--json", "--store", primary.url))["replicas"]
    assert (findings_by_name["state"], findings_by_name["text"]) == ("ok", "1, none far behind")
    assert "walreceiver (async)" in findings_by_name["details"][0]
    here = run("doctor", "--json", "--store", replica.url)
    assert here.code == 1
    assert "read only; lag 0.0 s" in findings(here)["replica"]["text"]
    assert findings(here)["recipes"]["state"] == "ok"
    both = f"{primary.url},{replica.url.partition('host=')[2]}"
    assert "replica" not in findings(run("doctor", "--json", "--store", both.replace("host=", "host=/nowhere,")))
    monkeypatch.setattr(checkup_postgres, "BEHIND", 10_000)
    link.drop()
    asyncio.run(saved(primary.url, 10_000))
    findings_by_name = findings(run("doctor", "--json", "--store", primary.url))["replicas"]
    assert (findings_by_name["state"], findings_by_name["text"]) == ("warning", "1 replica, some far behind")
    assert "a failover now would lose" in findings_by_name["advice"][0]
