"""Idempotency keys: a call that is made again with its key gets its first answer, from any process.

An entry, or the row of a session that the call created, carries the call's *request*: 16 bytes of the key's hash,
unique in its scope, and 16 of the hash of the call's content.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, TypeVar

from saveslot import codec
from saveslot.errors import InvalidInput
from saveslot.stores import Store
from saveslot.values.checks import as_name
from saveslot.values.log import ID, Entry, Query, Row, Wanted

T = TypeVar("T", Entry, Row)

PATH = "idempotency_key"
USED = "was used for another call; draw a new key for each call, and keep it for its retries"


def request(key: str | None, verb: str, content: Mapping[str, Any], path: str = PATH, scope: bytes = b"") -> bytes:
    """Return a call's request, empty without a key. `content` are the arguments; `path` is that of the key.

    `scope` is the key of a session, where calls about several sessions leave their requests in one place.
    """
    if key is None:
        return b""
    digest = sha256(verb.encode())
    for name, value in content.items():
        text, tagged = codec.encode(value, name, codec.ANY_SIZE)
        digest.update(b"\0%b\0%d\0%d\0" % (name.encode(), tagged, len(text)) + text)
    return sha256(scope + as_name(key, path).encode()).digest()[:ID] + digest.digest()[:ID]


async def entry_of(store: Store, key: bytes, request: bytes, path: str = PATH) -> Entry | None:
    """Return the entry that the same call wrote before; `InvalidInput` if another call did."""
    if not request:
        return None
    entries = await store.entries(key, Wanted(request=request[:ID], frames=False))
    return None if not entries else _same(entries[0], request, path)


async def row_of(store: Store, namespace: str, request: bytes) -> Row | None:
    """Return the row of the session that the same call created before; `InvalidInput` if another call did."""
    if not request:
        return None
    rows = await store.find(Query(namespace=namespace, request=request[:ID]), None, 1)
    if not rows:
        return None
    [head] = await store.heads([rows[0].key])
    if head is not None and head.row.locked is not None:  # the digest of its call cannot be compared
        raise head.row.locked
    return None if head is None else _same(head.row, request, PATH)


def _same(answer: T, request: bytes, path: str) -> T:
    if answer.request != request:
        raise InvalidInput(path, USED)
    return answer
