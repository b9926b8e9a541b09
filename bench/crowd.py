"""A store of very many sessions, written straight into its tables: five entries each, of agents that ran for weeks.

    created, task_received, planned, answered, and how it ended (or one more checkpoint)

`mixed`: most have ended. `beating` and `checkpointing`: all are active; a few gave no sign of life for a week, the
others did just now, by a heartbeat or by a checkpoint alone.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import asyncpg

from saveslot import codec
from saveslot.cli.benchmark import message
from saveslot.stores import open_store
from saveslot.stores.sqlite.file import created as created_file
from saveslot.stores.sqlite.rows import APART
from saveslot.values.kinds import Kind

DAY = 86_400_000_000
DAYS = 30
TEAMS, AGENTS, USERS = 40, 12, 10_000
REASONS = ("timeout", "rate_limited", "tool_error", "out_of_memory", "heartbeat_timeout")
# Seconds from creation to each entry.
TIMES = (0, 2, 9, 31, 40)
NAMES = ("session_created", "task_received", "planned", "answered", "")
STALE = 1_000
_COLUMNS = "key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence, labels, body"


def _frames() -> list[tuple[int, int, str, bytes, bytes, bytes]]:
    """Entries 1 to 5 as (seq, kind, name, recipe, digest, frame)."""
    items: list[tuple[int, int, str, bytes, bytes, bytes]] = []
    for seq, name in enumerate(NAMES, 1):
        written = codec.write(codec.State(), {"message": message(seq, 250)}, seq, "data")
        kind = Kind.CREATED if seq == 1 else Kind.CHECKPOINT
        items.append((seq, int(kind), name, written.state.recipe.pack(seq), written.state.digest, written.frame))
    return items


def _bodies() -> list[tuple[int, bytes, str]]:
    return [
        (n, codec.note({"context": {"topic": n}, "metadata": {}, "labels": {"team": f"team-{n}"}}, "session"),
         f'{{"team":"team-{n}"}}')
        for n in range(TEAMS)
    ]  # fmt: skip


def _notes() -> list[tuple[int, bytes]]:
    return [(n, codec.note({"error": reason, "details": {}}, "data")) for n, reason in enumerate(REASONS)]


# n, now and the state are SQL; both databases speak this much alike. Of 20: 13 completed, 4 active, 1 paused, 2 failed.
_STATE = """case when {all_active} then 'active' when n % 20 < 13 then 'completed' when n % 20 < 17 then 'active'
  when n % 20 < 18 then 'paused' else 'failed' end"""
_LAST_KIND = "case s.state when 'completed' then 5 when 'failed' then 6 when 'paused' then 3 else 1 end"
_LAST_NAME = """case s.state when 'completed' then 'session_completed' when 'failed' then 'session_failed'
  when 'paused' then 'session_paused' else 'reviewed' end"""


def _times(shape: str, count: int) -> tuple[str, str]:
    """Return SQL for when session n was created and when its heartbeat was; `now` is the time in microseconds."""
    every = max(1, count // STALE)
    created = f"now - {7 * DAY} - ({count} - n) * {(DAYS - 8) * DAY // count}"
    if shape == "mixed":
        return created, f"{created} + 40000000"
    if shape == "beating":
        return created, f"case when n % {every} = 0 then {created} else now - (n % 3600) * 1000000 end"
    return created, created


def _alive(shape: str, count: int) -> str:
    """Return SQL for the time of a session's last activity, as of its last entry."""
    every = max(1, count // STALE)
    return "s.heartbeat" if shape != "checkpointing" else f"case when s.n % {every} = 0 then s.heartbeat else s.now end"


def build_sqlite(path: Path, count: int, shape: str = "mixed") -> None:
    asyncio.run(_touch(f"sqlite:///{path}"))
    connection = created_file(str(path), None)
    connection.pragma("synchronous", "off")
    connection.pragma("cache_size", -400_000)
    created, beaten = _times(shape, count)
    now = time.time_ns() // 1000
    with connection:
        connection.execute("create temp table bodies (n, body, labels)")
        connection.executemany("insert into bodies values (?, ?, ?)", _bodies())
        connection.execute("create temp table frames (seq, kind, name, recipe, digest, frame)")
        connection.executemany("insert into frames values (?, ?, ?, ?, ?, ?)", _frames())
        connection.execute("create temp table notes (n, note)")
        connection.executemany("insert into notes values (?, ?)", _notes())
        state = _STATE.format(all_active=int(shape != "mixed"))
        apart = f" || '{APART}' || "
        search = apart.join(("id", "agent_type", "user_id", "(labels ->> '$.team')"))
        sessions = f"""
            with recursive counted(n) as (select 0 union all select n + 1 from counted where n + 1 < {count}),
            timed as (
              select n, {created} as created_at, {beaten} as heartbeat from (select n, {now} as now from counted)),
            named as (select *, printf('s-%08d', n) as id, 'agent-' || (n * 7919 % {AGENTS}) as agent_type,
              'user-' || (n * 104729 % {USERS}) as user_id, {state} as state from timed)
            insert into sessions ({_COLUMNS}, search)
            select unhex(printf('%012x', created_at / 1000) || hex(randomblob(10))), 'default', id, agent_type, user_id,
              state, created_at, heartbeat, 0, labels, body, lower({search})
            from named join bodies on bodies.n = named.n * 31 % {TEAMS}"""  # noqa: S608
        connection.execute(sessions)
        connection.execute("""
            insert into labels select namespace, 'team', labels ->> '$.team', created_at, key from sessions
            order by 1, 2, 3, 4, 5""")
        entries = f"""
            insert into checkpoints (key, seq, append_id, kind, name, at, alive, fence, data_seq, about_seq, recipe,
              digest, note, frame)
            select s.key, f.seq, randomblob(16), case f.seq when 5 then {_LAST_KIND} else f.kind end,
              case f.seq when 5 then {_LAST_NAME} else f.name end,
              s.created_at + case f.seq {_offsets()} end + s.rowid % 1000 * f.seq * 1000,
              {_alive(shape, count)}, 0, case when f.seq > 1 then min(f.seq, 4) else 0 end, 1, f.recipe, f.digest,
              case when f.seq = 5 and s.state = 'failed' then notes.note end,
              case when f.seq < 5 or s.state = 'active' then f.frame end
            from (select *, rowid - 1 as n, {now} as now from sessions order by rowid) s
            join notes on notes.n = s.n % {len(REASONS)} cross join frames f"""  # noqa: S608
        connection.execute(entries.replace("s.rowid", "s.n"))
    connection.pragma("wal_checkpoint", "truncate")
    connection.close()


def _offsets() -> str:
    return " ".join(f"when {seq} then {seconds * 1_000_000}" for seq, seconds in enumerate(TIMES, 1))


async def build_postgres(url: str, count: int, shape: str = "mixed") -> None:
    await _touch(url)
    connection: Any = await asyncpg.connect(url)
    created, beaten = _times(shape, count)
    now = time.time_ns() // 1000
    # Wait for commits: VACUUM cannot mark rows as committed that are not on disk yet, and their first reader would
    # rewrite all of them.
    await connection.execute("set search_path to saveslot; set work_mem to '256MB'")
    await connection.execute("""
        create temp table bodies (n int, body bytea, labels text); create temp table notes (n int, note bytea);
        create temp table frames (seq int, kind int, name text, recipe bytea, digest bytea, frame bytea)""")
    await connection.executemany("insert into bodies values ($1, $2, $3)", _bodies())
    await connection.executemany("insert into frames values ($1, $2, $3, $4, $5, $6)", _frames())
    await connection.executemany("insert into notes values ($1, $2)", _notes())
    await connection.execute("analyze bodies; analyze notes; analyze frames; truncate sessions, checkpoints, labels")
    state = _STATE.format(all_active=str(shape != "mixed").lower())
    sessions = f"""
        with timed as (
          select n, {created} as created_at, {beaten} as heartbeat
          from (select n, {now} as now from generate_series(0::int8, {count} - 1) n) m),
        named as (select *, {state} as state from timed)
        insert into sessions ({_COLUMNS})
        select decode(lpad(to_hex(created_at / 1000), 12, '0') || substr(md5(random()::text), 1, 20), 'hex'), 'default',
          's-' || lpad(named.n::text, 8, '0'), 'agent-' || (named.n * 7919 % {AGENTS}),
          'user-' || (named.n * 104729 % {USERS}), state, created_at, heartbeat, 0, labels::jsonb, body
        from named join bodies on bodies.n = named.n * 31 % {TEAMS} order by named.n"""  # noqa: S608
    await connection.execute(sessions, timeout=600)
    labels = "select namespace, 'team', labels ->> 'team', created_at, key from sessions order by 1, 2, 3, 4, 5"
    await connection.execute(f"insert into labels {labels}", timeout=600)
    entries = f"""
        insert into checkpoints (key, seq, append_id, kind, name, at, alive, fence, data_seq, about_seq, recipe, digest,
          note, frame)
        select s.key, f.seq, decode(md5(random()::text || s.n || f.seq), 'hex'),
          case f.seq when 5 then {_LAST_KIND} else f.kind end,
          case f.seq when 5 then {_LAST_NAME} else f.name end,
          s.created_at + case f.seq {_offsets()} end + s.n % 1000 * f.seq * 1000,
          {_alive(shape, count)}, 0, case when f.seq > 1 then least(f.seq, 4) else 0 end, 1, f.recipe, f.digest,
          case when f.seq = 5 and s.state = 'failed' then notes.note end,
          case when f.seq < 5 or s.state = 'active' then f.frame end
        from (select *, substr(id, 3)::int8 as n, {now} as now from sessions) s
        join notes on notes.n = s.n % {len(REASONS)} cross join frames f order by s.n, f.seq"""  # noqa: S608
    await connection.execute(entries, timeout=600)
    for table in ("sessions", "labels"):
        await connection.execute(f"vacuum analyze {table}", timeout=600)
    await connection.execute("vacuum analyze checkpoints", timeout=600)
    await connection.execute(
        "checkpoint", timeout=600
    )  # or the one that building started would run beside what is timed
    await connection.close()


async def _touch(url: str) -> None:
    store = await open_store(url)
    await store.tend()
    await store.close()
