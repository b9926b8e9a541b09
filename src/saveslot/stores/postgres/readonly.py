"""Finds out why a server that is not a replica refuses writes, and how to change that."""

from __future__ import annotations

from typing import Any

Connection = Any  # asyncpg.Connection, or one of its pool


async def set_read_only(connection: Connection) -> tuple[str, str] | None:
    """Where default_transaction_read_only was set, and how to reset it; None on a replica or if it is off."""
    setting = await connection.fetchrow("""
        select source, quote_ident(current_user), quote_ident(current_database()) from pg_settings
        where name = 'default_transaction_read_only' and setting = 'on' and not pg_is_in_recovery()""")
    return None if setting is None else (setting[0], _writable(*setting))


async def why_read_only(connection: Connection) -> str | None:
    """An error text if it is set for this role, database or connection. None if set for the whole server, perhaps only
    for now: because of a failover or a full disk.
    """
    source, cure = await set_read_only(connection) or ("", "")
    if not cure or source in {"configuration file", "command line"}:
        return None
    return f"refuses writes: default_transaction_read_only is on; {cure}"


def _writable(source: str, role: str, database: str) -> str:
    name = "default_transaction_read_only"
    if source in {"default", "configuration file"}:
        return f"alter system reset {name}; select pg_reload_conf()"
    whose = {
        "user": f"alter role {role} reset {name}",
        "database": f"alter database {database} reset {name}",
        "database user": f"alter role {role} in database {database} reset {name}",
        "command line": f"start the server without {name} on its command line",
    }
    return whose.get(source, f"remove {name} from the URL (or from the pool's settings)")
