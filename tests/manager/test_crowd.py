"""Many callers at once on one session that is not there yet."""

from __future__ import annotations

import asyncio

from saveslot import Conflict, SessionManager


async def test_writers_who_read_first_all_land(sessions, others):
    """Each creates the session or adds to it, again after a conflict: nothing is lost, and nobody reads damage."""

    async def add(one: SessionManager, name: str, key: str) -> None:
        while True:
            head = await one.head(name)
            try:
                if head is None:
                    session = await one.create_session("tutor", session_id=name, data={key: 1})
                    await one.pause(name, seen=session.version)
                else:
                    await one.get_data(name, head.seq, keys=[key])
                    await one.checkpoint(name, "put", put={key: 1}, seen=head.version)
            except Conflict:
                continue
            return

    for n in range(12):
        await asyncio.gather(*[add((sessions, others)[key % 2], f"s{n}", f"key {key}") for key in range(12)])
        assert len(await sessions.get_data(f"s{n}")) == 12
