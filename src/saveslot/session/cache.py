"""Logs cached by this process, by namespace and session id, up to a limit in bytes."""

from __future__ import annotations

from collections import OrderedDict

from msgspec.structs import replace

from saveslot.session.draft import Draft
from saveslot.session.known import KnownEntries
from saveslot.session.log import Log
from saveslot.session.retries import Scope
from saveslot.stores import Store
from saveslot.values.log import Head

# Bytes of cached states, which the next writes are diffed against. An evicted log costs one read from the store.
CACHE_BYTES = 64 * 1024 * 1024


class Cache:
    def __init__(self, store: Store, limit: int, known: KnownEntries) -> None:
        self.weight = 0  # bytes of all logs, each as last measured
        self.hits = self.misses = 0  # writes whose log was cached; writes that read it from the store
        self.known = known
        self._store = store
        self._limit = limit
        self._logs: OrderedDict[Scope, Log] = OrderedDict()

    def __len__(self) -> int:
        return len(self._logs)

    def __contains__(self, scope: Scope) -> bool:
        return scope in self._logs

    def get(self, scope: Scope) -> Log | None:
        log = self._logs.get(scope)
        return None if log is not None and log.refused else log

    def log(self, head: Head) -> Log:
        """Return a new log that is not cached."""
        return Log.of(self._store, head, self._limit, self.known.of((head.row.namespace, head.row.session_id)))

    def new(self, scope: Scope, draft: Draft) -> Log:
        """Return the log of a session that this draft creates; it is not cached yet."""
        known = self.known.of(scope)
        return Log(self._store, scope[1], draft.group.key, draft.at, self._limit, known)

    def add(self, scope: Scope, head: Head) -> Log:
        return self.put(scope, self.log(head))

    def put(self, scope: Scope, log: Log) -> Log:
        """Make this the session's cached log."""
        self.drop(scope, self._logs.get(scope))
        self._logs[scope] = log
        self.used(scope, log)
        return log

    def left(self, scope: Scope, log: Log) -> None:
        """Continue after a hold of this process: writes by id follow its entries without a conflict."""
        at = replace(log.at, data=None, about=None)
        self.put(scope, Log(self._store, log.session_id, log.key, at, self._limit, log.known))

    def used(self, scope: Scope, log: Log) -> None:
        """Record a write. Evict the least recently used logs if the cache is full, except those in use."""
        if self._logs.get(scope) is not log:
            return  # dropped meanwhile, and perhaps replaced
        if log.refused:
            self.drop(scope, log)
            return
        self._logs.move_to_end(scope)
        self.weight += log.weigh()
        if self.weight > CACHE_BYTES:
            self._make_room(log)

    def _make_room(self, newest: Log) -> None:
        excess, spare = self.weight - CACHE_BYTES, list[tuple[Scope, Log]]()
        for scope, log in self._logs.items():
            if excess <= 0:
                break
            if log is not newest and not log.busy:
                spare.append((scope, log))
                excess -= log.counted
        for scope, log in spare:
            self.drop(scope, log)

    def drop(self, scope: Scope, log: Log | None = None) -> None:
        """Evict the log: the next caller reloads it, and so do callers waiting for their turn on it."""
        known = self._logs.get(scope)
        if known is not None and (log is None or log is known):
            del self._logs[scope]
            self.weight -= known.counted
            known.counted = 0
