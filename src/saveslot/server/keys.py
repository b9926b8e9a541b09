"""Which namespace a session is in, by its key: what tells whether a token may touch it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from saveslot.errors import Forbidden, InvalidInput
from saveslot.server.tokens import Caller
from saveslot.stores import Store
from saveslot.values.checks import RESERVED
from saveslot.values.log import ID, Place, Query, Row

# Namespaces remembered, by key: 16 MB at most.
REMEMBERED = 100_000
# Rows of a page when a deleted session is looked for.
PAGE = 1000


class Keys:
    """The namespaces of sessions, by key. A session never changes its namespace, so only what the store says counts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, str] = {}

    def learn(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._remember(row.key, row.namespace)

    def _remember(self, key: bytes, namespace: str) -> None:
        if self._known.get(key, namespace) != namespace:  # the session was purged, and its key used anew: look again
            del self._known[key]
            return
        if len(self._known) >= REMEMBERED and key not in self._known:
            del self._known[next(iter(self._known))]
        self._known[key] = namespace

    async def allowed(self, caller: Caller, keys: Sequence[bytes]) -> set[bytes]:
        """Return those of the keys that name a session, even a deleted one, of the caller's; `Forbidden` if one is not
        the caller's.
        """
        for key in keys:
            if len(key) != ID:
                raise InvalidInput("key", f"must be {ID} bytes")
        unknown = [key for key in keys if key not in self._known]
        if unknown:
            self.learn(head.row for head in await self._store.heads(unknown) if head is not None)
        if any(key not in self._known for key in unknown):
            await self._look_among_deleted(caller, {key for key in unknown if key not in self._known})
        known = {key: self._known[key] for key in keys if key in self._known}
        for namespace in set(known.values()):
            require(caller, namespace)
        return set(known)

    async def _look_among_deleted(self, caller: Caller, keys: set[bytes]) -> None:
        """Rarely: a key of a session that was deleted, and that another server handed out."""
        if caller.namespaces is None:
            # All are the caller's, but for tokens that were revoked.
            await self._search(RESERVED, keys)
            return
        for namespace in caller.namespaces:
            await self._search(namespace, keys)

    async def _search(self, namespace: str, keys: set[bytes]) -> None:
        after: Place | None = None
        query = Query(namespace=namespace, deleted_for=0)
        while keys - self._known.keys():
            page = await self._store.find(query, after, PAGE)
            for row in page:
                if row.key in keys:
                    self._remember(row.key, row.namespace)
            if len(page) < PAGE:
                return
            after = page[-1].deleted_at, page[-1].key


def require(caller: Caller, namespace: str) -> str:
    if namespace == RESERVED:
        raise Forbidden(f"namespace {RESERVED} is the server's own")
    if caller.namespaces is not None and namespace not in caller.namespaces:
        raise Forbidden(f"token {caller.name} does not include namespace {namespace}")
    return namespace
