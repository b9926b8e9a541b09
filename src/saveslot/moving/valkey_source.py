"""Sessions that another program keeps in Valkey, one JSON text a key: `<prefix>:session:<id>`. Only ever read."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from saveslot.errors import InvalidInput, SaveslotError, Unavailable
from saveslot.model import Data
from saveslot.moving import records
from saveslot.moving.drafting import stamp
from saveslot.moving.parcel import Kept, Problem
from saveslot.stores import shown

PAGE = 500
Found = dict[str, "Data | Problem"]


@asynccontextmanager
async def opened(url: str, prefix: str) -> AsyncGenerator[Hot]:
    try:
        from valkey import asyncio as valkey, exceptions
    except ModuleNotFoundError:
        raise InvalidInput("url", "Valkey needs a driver: pip install 'saveslot[valkey]'") from None
    client: Any = valkey.from_url(re.sub("^redis", "valkey", url))
    try:
        yield Hot(client, prefix)
    except (exceptions.ValkeyError, OSError) as exc:
        raise Unavailable(f"{shown(url)} cannot be read ({exc})") from exc
    finally:
        await client.aclose()


class Hot:
    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._start = f"{prefix}:session:"

    async def newest(self, page: list[Data]) -> list[Data]:
        """Each record as Valkey has it, where that is newer; metadata too, which such tables never got."""
        found = await self._read([str(record["id"]) for record in page])
        return [_newer(record, found.get(str(record["id"]))) for record in page]

    async def pages(self) -> AsyncIterator[Found]:
        """All of them, some at a time."""
        pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", self._start) + "*"
        ids: list[str] = []
        async for key in self._client.scan_iter(match=pattern, count=PAGE):
            ids.append(_text(key).removeprefix(self._start))
            if len(ids) == PAGE:
                yield await self._read(ids)
                ids = []
        yield await self._read(ids)

    async def parcels(self, namespace: str) -> AsyncIterator[Kept | Problem]:
        """What Valkey alone has; a key that a scan shows twice is one session all the same."""
        async for page in self.pages():
            for found in page.values():
                if isinstance(found, Problem):
                    yield found
                elif not records.deleted(found):
                    for item in records.session(found, namespace):
                        yield item

    async def _read(self, ids: list[str]) -> Found:
        if not ids:
            return {}
        texts = await self._client.mget([self._start + session_id for session_id in ids])
        found: Found = {}
        for name, text in zip(ids, texts, strict=True):
            key = self._start + name
            # Nothing is what MGET says of a key that is gone, and of one that holds no text.
            if text is not None:
                found[name] = _record(name, key, text)
            elif (kind := _text(await self._client.type(key))) not in {"none", "string"}:
                found[name] = Problem(f"key {key}", f"holds a {kind}; the text of a session was expected")
        return found


def _record(session_id: str, key: str, text: Any) -> Data | Problem:
    try:
        found = records.parsed(_text(text))
        if not isinstance(found, dict):
            raise InvalidInput(key, "holds no session")
        return {**cast("Data", found), "id": session_id}
    except SaveslotError as exc:
        return Problem(f"key {key}", str(exc))


def _newer(record: Data, hot: Data | Problem | None) -> Data:
    if hot is None or isinstance(hot, Problem) or records.deleted(record):
        return record
    try:
        there, here = (stamp(one.get("last_heartbeat") or one["created_at"]) for one in (hot, record))
    except (SaveslotError, KeyError):
        return record
    chosen = hot if there > here else record
    return {**chosen, "metadata": record.get("metadata") or hot.get("metadata")}


def _text(value: Any) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
