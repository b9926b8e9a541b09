"""Another program's sessions in Valkey, one JSON text per key `<prefix>:session:<id>`. Read only."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from saveslot.errors import InvalidInput, SaveslotError, Unavailable
from saveslot.moving import records
from saveslot.moving.builder import stamp
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.stores import shown
from saveslot.values.checks import Data

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
        """Each record, or its copy in Valkey if that is newer; with metadata, which these tables lack."""
        answers = await self._read([str(record["id"]) for record in page])
        return [_newer(record, answers.get(str(record["id"]))) for record in page]

    async def pages(self) -> AsyncIterator[Found]:
        """All sessions, a page at a time."""
        pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", self._start) + "*"
        ids: list[str] = []
        async for key in self._client.scan_iter(match=pattern, count=PAGE):
            ids.append(_text(key).removeprefix(self._start))
            if len(ids) == PAGE:
                yield await self._read(ids)
                ids = []
        yield await self._read(ids)

    async def parcels(self, namespace: str) -> AsyncIterator[MemoryParcel | Problem]:
        """All sessions in Valkey. A scan may return a key twice, which the loader recognises as one session."""
        async for page in self.pages():
            for record in page.values():
                if isinstance(record, Problem):
                    yield record
                elif not records.deleted(record):
                    for item in records.session(record, namespace):
                        yield item

    async def _read(self, ids: list[str]) -> Found:
        if not ids:
            return {}
        texts = await self._client.mget([self._start + session_id for session_id in ids])
        by_id: Found = {}
        for name, text in zip(ids, texts, strict=True):
            key = self._start + name
            # MGET returns nothing for a missing key, and for a key of another type.
            if text is not None:
                by_id[name] = _record(name, key, text)
            elif (kind := _text(await self._client.type(key))) not in {"none", "string"}:
                by_id[name] = Problem(f"key {key}", f"is a {kind}; expected the text of a session")
        return by_id


def _record(session_id: str, key: str, text: Any) -> Data | Problem:
    try:
        record = records.parsed(_text(text))
        if not isinstance(record, dict):
            raise InvalidInput(key, "is not a session")
        return {**cast("Data", record), "id": session_id}
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
