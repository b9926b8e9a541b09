"""Quotas: how much a namespace may hold and write. Each is a session of the reserved namespace, as a token is.

Every server of the store watches that namespace, so a change counts everywhere within about 0.1 s. `limits` keeps them.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from saveslot.errors import Conflict, Forbidden, InvalidInput, NotFound, Unavailable
from saveslot.manager import SessionManager
from saveslot.values.checks import RESERVED, Data, as_count, as_name, now

AGENT = "quota"
PAGE = 500
# Attempts at a change that others' changes of the same quota overtook.
TRIES = 10
LIMITS = ("sessions", "bytes", "checkpoints_per_minute")


class Quota(msgspec.Struct, frozen=True):
    """The limits of one namespace; None: no limit."""

    namespace: str
    sessions: int | None = None
    bytes: int | None = None
    checkpoints_per_minute: int | None = None
    set_at: datetime | None = None

    def to_dict(self) -> Data:
        return {**msgspec.structs.asdict(self), "set_at": self.set_at and self.set_at.isoformat()}


async def put(registry: SessionManager, namespace: str, **limits: int | None) -> None:
    """Set the limits of a namespace in place of those that it has; one that is None, or not named, does not count."""
    name = as_namespace(namespace)
    context: Data = {"namespace": name, "set_at": now().isoformat()}
    for limit in LIMITS:
        value = limits.get(limit)
        context[limit] = None if value is None else as_count(value, limit)
    if all(context[limit] is None for limit in LIMITS):
        raise InvalidInput("quota", f"needs a limit: {', '.join(LIMITS)}")
    for _ in range(TRIES):
        session = await registry.create_session(AGENT, session_id=id_of(name), context=context, exist_ok=True)
        if session.context["set_at"] == context["set_at"]:
            return
        taken = session.context.get("taken", [])  # within the last minute
        session.context.clear()
        session.context.update(context, taken=taken)
        with suppress(Conflict, NotFound):  # set or removed by someone else meanwhile
            await registry.update_session(session)
            return
    raise Unavailable(f"the quota of {name} was not set: others kept changing it; retry")


async def remove(registry: SessionManager, namespace: str) -> None:
    """Lift the limits of a namespace."""
    if not await registry.delete_session(id_of(as_namespace(namespace))):
        raise NotFound(f"namespace {namespace} has no quota; `saveslot quota ls` lists them")


async def quotas_of(registry: SessionManager) -> list[Quota]:
    """All quotas, by namespace."""
    quotas: list[Quota] = []
    after: str | None = None
    while True:
        page = await registry.find(agent_type=AGENT, limit=PAGE, after=after)
        quotas += [_quota(session.context) for session in page]
        if (after := page.next) is None:
            return sorted(quotas, key=lambda quota: quota.namespace)


def as_namespace(value: Any) -> str:
    name = as_name(value, "namespace")
    if name == RESERVED:
        raise Forbidden(f"namespace {RESERVED} is the server's own")
    return name


def _quota(context: Data) -> Quota:
    limits = {limit: context[limit] for limit in LIMITS}
    return Quota(context["namespace"], **limits, set_at=datetime.fromisoformat(context["set_at"]))


def id_of(namespace: str) -> str:
    """The id of a quota's session: no token is likely to be named so, and it is short however long the namespace is."""
    return f"quota-{hashlib.sha256(namespace.encode(errors='surrogatepass')).hexdigest()}"
