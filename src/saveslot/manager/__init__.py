"""SessionManager: sessions and their checkpoints in one namespace of one store. The file list is the feature list."""

from __future__ import annotations

from typing import Any, Self

from saveslot import codec
from saveslot.manager import (
    analytics,
    audit,
    cancel,
    checkpoints,
    claims,
    copies,
    create,
    erase,
    export,
    gc,
    headers,
    lifecycle,
    reading,
    records,
    rotate,
    sweep,
    thin,
    together,
    update,
)
from saveslot.manager.keeper import Keeper
from saveslot.session import attempts
from saveslot.session.engine import Engine, Space
from saveslot.session.retention import DEFAULT, Rules
from saveslot.stores import Store
from saveslot.stores.around.cached import MAX_AGE, Level
from saveslot.stores.memory import MemoryStore
from saveslot.values.checks import Data, Span, as_span


class SessionManager(Space):
    """Sessions and their checkpoints in one namespace of one store; in memory by default.

    `db_pool` is the caller's asyncpg pool, `schema` the PostgreSQL schema with the tables; `redis_client` is an asyncio
    Valkey client for the hot tier in front of it. The manager never closes either.
    """

    def __init__(
        self,
        redis_client: Any = None,
        db_pool: Any = None,
        namespace: str = "default",
        session_ttl_hours: Span = 24,
        *,
        schema: str = "saveslot",
        store: Store | None = None,
        encryption_key: codec.Keys | None = None,
        max_state_bytes: int = codec.MAX_STATE,
        worker_beat: Span = 5.0,
        worker_ttl: Span = 20.0,
        max_block: Span = 300.0,
        retention: Rules = DEFAULT,
        backoff: Span = attempts.BACKOFF,
        max_attempts: int | None = attempts.MAX_ATTEMPTS,
    ) -> None:
        ttl = as_span(session_ttl_hours, "session_ttl_hours", 3600) * 3600
        if db_pool is not None:
            from saveslot.stores.postgres import PostgresStore  # imported when it is used

            store = PostgresStore.on(db_pool, schema)
        if redis_client is not None and store is None:
            from saveslot.stores.valkey import ValkeyStore

            store = ValkeyStore.on(redis_client, ttl)
        elif redis_client is not None and store is not None:
            from saveslot.stores.hot import TieredStore

            store = TieredStore(store, redis_client, ttl)
        engine = Engine(
            store or MemoryStore(),
            None if encryption_key is None else codec.Keyring.of(encryption_key),
            max_state_bytes=max_state_bytes,
            worker_beat=worker_beat,
            worker_ttl=worker_ttl,
            max_block=max_block,
            retention=retention,
            backoff=backoff,
            max_attempts=max_attempts,
        )
        super().__init__(engine, namespace)
        self.session_ttl_hours: float = as_span(session_ttl_hours, "session_ttl_hours", 3600)
        self._view = False

    def of(self, namespace: str) -> SessionManager:
        """Return a manager of another namespace. It shares everything with this one and costs nothing; closing it
        does nothing.
        """
        view = SessionManager.__new__(SessionManager)
        Space.__init__(view, self.engine, namespace)
        view.session_ttl_hours, view._view = self.session_ttl_hours, True  # noqa: SLF001  (its own class)
        return view

    def __repr__(self) -> str:
        return f"<SessionManager {self.namespace} on {self.engine.metered!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish the writes under way, then close the store. Sessions that are still held become orphans at once.

        In a forked child, this does not affect what the parent opened.
        """
        if not self._view:
            await self.engine.close()

    @property
    def keeper(self) -> Keeper:
        """Background maintenance of this namespace; runs once started."""
        keepers = self.engine.keepers
        keeper = keepers.get(self.namespace)
        if not isinstance(keeper, Keeper):
            keeper = keepers[self.namespace] = Keeper(self)
        return keeper

    async def stats(self, *, level: Level = "strong", max_age: Span = MAX_AGE) -> Data:
        """Count this namespace's sessions by state, agent type and owner; add store totals, worker and keeper."""
        counts = await reading.counts(self, level, max_age)
        return {**counts, "worker": self.worker, "keeper": self.keeper.stats}

    async def metrics(self) -> Data:
        """Return counts and latencies of this manager and its tiers since it was opened, without asking a server."""
        cache, answers = self.engine.cache, self.engine.answers
        memory = {
            "sessions": len(cache),
            "bytes": cache.weight,
            "hits": cache.hits,
            "misses": cache.misses,
            "cached_hits": answers.hits,
            "cached_misses": answers.misses,
        }
        return {"memory": memory, **self.engine.metered.metrics(), "worker": self.worker}

    # Sessions
    create_session = create.create_session
    get_session = reading.get_session
    get_active_sessions = reading.get_active_sessions
    find = reading.find
    count = reading.count
    head = headers.head
    update_session = update.update_session
    refresh = update.refresh
    delete_session = lifecycle.delete_session
    together = together.together
    pause = lifecycle.pause
    resume = lifecycle.resume
    complete = lifecycle.complete
    fail = lifecycle.fail
    cleanup_stale_sessions = sweep.cleanup_stale_sessions
    # Checkpoints
    checkpoint = checkpoints.checkpoint
    get_checkpoint = reading.get_checkpoint
    get_data = reading.get_data
    history = reading.history
    entries = headers.entries
    walk = reading.walk
    log = reading.log
    summary = reading.summary
    record = records.record
    drop = records.drop
    records = records.records
    diff = reading.diff
    rollback = checkpoints.rollback
    fork = create.fork
    copy_session = copies.copy_session
    watch = reading.watch
    # Owners
    hold = claims.hold
    take = claims.take
    claim = claims.claim
    claims = claims.claims
    release = cancel.release
    cancel = cancel.cancel
    # Retention and privacy
    thin_all = thin.thin_all
    pin = thin.pin
    unpin = thin.unpin
    pins = thin.pins
    thin = thin.thin
    gc = gc.gc
    erase_all = erase.erase_all
    erase = erase.erase
    rotate_keys = rotate.rotate_keys
    key_ids = rotate.key_ids
    # Moving and looking back
    export_parts = export.export_parts
    export = export.export
    import_session = create.import_session
    audit = audit.audit
    analytics = analytics.analytics
    namespaces = reading.namespaces
