"""The statements of the log in PostgreSQL. `{s}` stands for the schema.

Each is one autocommit statement, so nothing ever waits for a client with a lock held. Locks are taken in one order
everywhere: workers, creations by (namespace, id), entries by key, then the `sessions` rows of what landed.
"""

from __future__ import annotations

HEADER = "seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, note"
SIZE = "coalesce(length(frame), 0) + coalesce(length(note), 0)"
# The clock that people read and the one that leases go by. A test may bring its own; else both are the database's.
# `date_part` counts in floats, which tell microseconds apart until 2255; `extract` counts in decimals, more slowly.
_CLOCK = "(date_part('epoch', clock_timestamp()) * 1000000)::int8"
NOW, UP = (f"coalesce(($1::text::int8[])[{n}], {_CLOCK})" for n in (1, 2))
# $1: the clock. A dead owner has nothing left.
ROW = f"""
select s.key, s.namespace, s.id, s.agent_type, s.user_id, s.state, s.created_at, s.heartbeat, s.fence, s.lease, s.body,
  s.labels::text, s.owner, coalesce(w.name, ''),
  case when w.dead then 0 else greatest(0, coalesce(w.expires, 0) - {UP}) end, {NOW}, coalesce(s.deleted_at, 0)"""
# Of a session s: when it ended, the bytes of its frames and notes, how many entries it has, the newest one's append_id.
WEIGHED = f"""lateral (
  select coalesce((array_agg(at) filter (where kind in (5, 6)))[1], 0), sum(size)::int8, max(seq),
    (array_agg(append_id))[1]
  from (
    select seq, append_id, kind, at, {SIZE} as size from {{s}}.checkpoints c where c.key = s.key
    order by c.seq desc offset 0) c) c(ended, weight, length, last)"""  # noqa: S608
# The same alone.
ENDED = """coalesce((select c.at from {s}.checkpoints c where c.key = s.key and c.kind in (5, 6)
  order by c.seq desc limit 1), 0)"""
_OWNER = "left join {s}.workers w on w.worker = s.owner"
OWNED = f"{{s}}.sessions s {_OWNER}"
# In the order of a label. Lateral with a limit: the label leads, whatever the planner thinks of how many have it.
LABELLED = f"""{{s}}.labels l
  cross join lateral (select * from {{s}}.sessions s where s.key = l.session limit 1) s {_OWNER}"""  # noqa: S608

# Of a group only its first entry is guarded; the others follow it. `alive`: the newest sign of life before.
_COLUMNS = "key, seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, note, frame"
_VALUES = """n.key, n.seq, n.append_id, n.kind, n.name, case when n.at > 0 then n.at else t.now + n.at end,
    case when n.signed then t.now else {alive} end, n.fence, n.lease, n.data_seq, n.about_seq, n.recipe, n.digest,
    n.note, n.frame"""
# $2: key, append_id, prev and lease of each entry, 64 bytes; $3: what it holds, one behind another; $4: its name; $5:
# its numbers, six each; $6: where its four parts end, and before all of them where the first begins. Of these arrays
# items are picked: with one array for each column a row cost the server 4,200 instructions more, of 107,800. They are
# texts: for any array but of texts the driver looks into the catalog first, and at each item twice.
_CLOCKS = f"with t as materialized (select {NOW} as now, {UP} as up, $5::text::int8[] as a, $6::text::int[] as ends)"
# Whether a purge has marked one of these sessions: then nothing lands. By key they go from the first to the last.
_MARKED = """,
m as materialized (
  select exists (select 1 from {s}.purging p
    where p.greatest >= substring($2::bytea for 16) and p.least <= substring($2 from length($2) - 63 for 16)
      and p.keys && array(
        select substring($2 from 64 * i - 63 for 16) from generate_series(1, length($2) / 64) i)) as marked)"""
_GIVEN = """
  select substring($2::bytea from h - 63 for 16) as key, a[p - 5] as seq, substring($2 from h - 47 for 16) as append_id,
    substring($2 from h - 31 for 16) as prev, (a[p - 4] & 255)::int2 as kind, name, a[p - 3] as at,
    a[p - 4] & 256 > 0 as signed, a[p - 4] & 512 > 0 as first, a[p - 2] as fence,
    case when a[p - 4] & 1024 > 0 then substring($2 from h - 15 for 16) end as lease, a[p - 1] as data_seq,
    a[p] as about_seq, substring($3::bytea from ends[e - 3] for ends[e - 2] - ends[e - 3]) as recipe,
    substring($3 from ends[e - 2] for ends[e - 1] - ends[e - 2]) as digest,
    case when a[p - 4] & 2048 > 0 then substring($3 from ends[e - 1] for ends[e] - ends[e - 1]) end as note,
    case when a[p - 4] & 4096 > 0 then substring($3 from ends[e] for ends[e + 1] - ends[e]) end as frame
  from (select name, 64 * i::int as h, 6 * i::int as p, 4 * i::int as e
    from unnest($4::text[]) with ordinality n(name, i)) n, t"""
# Lateral with a limit: the guard is one look into an index for each, where EXISTS or IN was planned as a scan, ten
# times slower; and entries are written in the order of what is {given}.
_FIRST = f""",
first as (
  insert into {{s}}.checkpoints ({_COLUMNS})
  select {_VALUES.format(alive="c.alive")}
  from {{given}} n cross join t {{allowed}}
  cross join lateral (
    select c.append_id, c.alive from {{s}}.checkpoints c
    where c.key = n.key and c.seq = n.seq - 1 and c.kind <> 9 limit 1) c
  where n.first and c.append_id = n.prev and not (select marked from m)
  {{sorted}} on conflict do nothing returning key, seq, alive, fence, lease)"""  # noqa: S608
_REST = f""",
rest as (
  insert into {{s}}.checkpoints ({_COLUMNS})
  select {_VALUES.format(alive="f.alive")}
  from n cross join t join first f on f.key = n.key where not n.first order by n.key, n.seq
  returning key, seq, fence, lease)"""  # noqa: S608
# The clock, and the keys of what landed, one behind another: with it and what was sent all else is known.
_TOLD = "\nselect t.now, coalesce((select string_agg(key, '') from first), ''), (select marked from m) from t"


def _first(given: str, by: str = "", allowed: str = "") -> str:
    return _MARKED + _FIRST.replace("{given}", given).replace("{sorted}", by).replace("{allowed}", allowed)


# Checkpoints and steps, which leave the session's row as it is: one of each session, in the order of their keys (not
# sorted again: that would copy all of it); or several.
PLAIN = f"{_CLOCKS}{_first(f'({_GIVEN} offset 0)')}{_TOLD}"
_KEPT = f"{_CLOCKS}, n as materialized ({_GIVEN})"
SEVERAL = f"{_KEPT}{_first('n', 'order by n.key')}{_REST}{_TOLD}"

# One entry alone, by scalars: a third of the time of the same in arrays.
LONE = f"""
insert into {{s}}.checkpoints ({_COLUMNS})
select $2, $3::int8, $4, $6, $7, case when $8::int8 > 0 then $8::int8 else t.now + $8::int8 end,
  case when $9::bool then t.now else c.alive end, $10, $11, $12, $13, $14, $15, $16, $17
from (select coalesce($1::int8, {_CLOCK}) as now) t, {{s}}.checkpoints c
where c.key = $2 and c.seq = $3::int8 - 1 and c.append_id = $5 and c.kind <> 9 and not exists (
  select 1 from {{s}}.purging p where p.greatest >= $2 and p.least <= $2 and $2 = any(p.keys))
on conflict do nothing returning at"""  # noqa: S608

_GROUPS = """,
g as materialized (
  select decode(key, 'hex') as key, state, decode(body, 'hex') as body, labels, heartbeat, gone,
    decode(owner, 'hex') as owner, stale, orphan, before, decode(prev, 'hex') as prev
  from unnest($7::text[], $8::text[], $9::text[], $10::text[], $11::text[]::bool[], $12::text[]::bool[],
    $13::text[], $14::text[]::int8[], $15::text[]::int8[], $16::text[]::int8[], $17::text[])
  as g(key, state, body, labels, heartbeat, gone, owner, stale, orphan, before, prev))"""
# Dead from here on, if the entry will land. Whoever beats meanwhile is looked at again, and stays alive. By arrays: a
# row that was waited for is looked at again alone, and of a join with what was sent nothing was found then.
_BURIED = """,
suspects as materialized (
  select w.worker from {s}.workers w
  where w.worker = any(array(select (select s.owner from {s}.sessions s where s.key = g.key) from g
    where g.orphan is not null and g.prev =
      (select c.append_id from {s}.checkpoints c where c.key = g.key order by c.seq desc limit 1)))
  order by w.worker for update),
buried as (
  update {s}.workers w set dead = true where w.worker = any(array(select worker from suspects))
    and (w.dead or w.expires + (select min(orphan) from g) <= (select up from t)) returning w.worker),
allowed as materialized (
  select g.key from g cross join t
  join lateral (select s.owner, s.heartbeat from {s}.sessions s where s.key = g.key limit 1) s on true
  left join {s}.workers w on w.worker = s.owner
  where (g.orphan is null or s.owner in (select worker from buried))
    and (g.stale is null or t.now - g.stale > greatest(s.heartbeat, coalesce(w.beaten, 0), coalesce(
      (select c.alive from {s}.checkpoints c where c.key = g.key and c.seq = g.before), 0))))"""
_PROJECTED = """,
last as (
  select distinct on (key) key, fence, lease
  from (select key, seq, fence, lease from first union all select key, seq, fence, lease from rest) l
  order by key, seq desc),
projected as (
  update {s}.sessions s set state = coalesce(g.state, s.state), body = coalesce(g.body, s.body),
    labels = coalesce(g.labels::jsonb, s.labels), heartbeat = case when g.heartbeat then t.now else s.heartbeat end,
    deleted_at = case when g.gone then t.now end, fence = l.fence, lease = l.lease,
    owner = case when l.lease is null then null else coalesce(g.owner, s.owner) end
  from last l join g on g.key = l.key cross join t where s.key = l.key),
-- What a session was labelled with before its entry landed is what everybody sees: nobody else can have changed it.
other as materialized (
  select s.namespace, s.created_at, s.key, s.labels as old, case when g.gone then '{}' else g.labels::jsonb end as new
  from last l join g on g.key = l.key and (g.gone or g.labels is not null)
  cross join lateral (select * from {s}.sessions s where s.key = g.key limit 1) s
  where g.gone or g.labels::jsonb <> s.labels),
-- By their places, looked up one by one: joined with `other`, the labels were planned as a scan. Nobody moves them.
unlabelled as (
  delete from {s}.labels where ctid = any(array(
    select l.ctid from other o cross join jsonb_each_text(o.old) e
    cross join lateral (
      select l.ctid from {s}.labels l
      where l.space = o.namespace and l.label = e.key and l.value = e.value and l.made = o.created_at
        and l.session = o.key limit 1) l
    where o.new ->> e.key is distinct from e.value))),
labelled as (
  insert into {s}.labels select o.namespace, e.key, e.value, o.created_at, o.key
  from other o cross join jsonb_each_text(o.new) e where o.old ->> e.key is distinct from e.value),
-- An owner that never said that it lives does not.
unheard as (
  insert into {s}.workers select distinct g.owner, '', 0, 0, true from g join last l on l.key = g.key
  where g.owner is not null order by g.owner on conflict do nothing)"""

CHANGING = f"{_KEPT}{_GROUPS}{_first('n', 'order by n.key')}{_REST}{_PROJECTED}{_TOLD}"
_ALLOWED = _first("n", "order by n.key", "join allowed on allowed.key = n.key")
GUARDED = f"{_KEPT}{_GROUPS}{_BURIED}{_ALLOWED}{_REST}{_PROJECTED}{_TOLD}"

CREATE = f"""{_KEPT},
r as materialized (
  select decode(key, 'hex') as key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence,
    decode(lease, 'hex') as lease, decode(body, 'hex') as body, labels
  from unnest($7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[]::int8[],
    $14::text[]::int8[], $15::text[]::int8[], $16::text[], $17::text[], $18::text[])
  as r(key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence, lease, body, labels)),
made as (
  insert into {{s}}.sessions
    (key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence, lease, body, labels)
  select r.key, r.namespace, r.id, r.agent_type, r.user_id, r.state, coalesce(r.created_at, t.now),
    coalesce(r.heartbeat, t.now), r.fence, r.lease, r.body, r.labels::jsonb
  from r cross join t order by r.namespace, r.id on conflict do nothing
  returning key, heartbeat, namespace, created_at, labels),
labelled as (
  insert into {{s}}.labels select m.namespace, e.key, e.value, m.created_at, m.key
  from made m cross join jsonb_each_text(m.labels) e),
entries as (
  insert into {{s}}.checkpoints ({_COLUMNS})
  select {_VALUES.format(alive="m.heartbeat")}
  from n cross join t join made m on m.key = n.key order by n.key, n.seq)
select t.now, coalesce((select string_agg(key, '') from made), ''), false from t"""  # noqa: S608

# In the order in which a batch of several sorts is landed.
APPENDING = (CREATE, PLAIN, SEVERAL, CHANGING, GUARDED)

# In a new snapshot, for what did not land: what stands at its seq and before it, and the newest entry.
LOOK = f"""
select s.key is not null, s.deleted_at is not null, s.fence, s.lease, s.heartbeat, e.append_id, p.append_id,
  {", ".join(f"h.{column}" for column in HEADER.split(", "))}, null, h.size
from (select decode(key, 'hex') as key, seq, ord
  from unnest($1::text[], $2::text[]::int8[]) with ordinality n(key, seq, ord)) n
left join {{s}}.sessions s on s.key = n.key
left join lateral (select c.append_id from {{s}}.checkpoints c where c.key = n.key and c.seq = n.seq) e on true
left join lateral (select c.append_id from {{s}}.checkpoints c where c.key = n.key and c.seq = n.seq - 1) p on true
left join lateral (
  select {HEADER}, {SIZE} as size from {{s}}.checkpoints c where c.key = n.key order by c.seq desc limit 1) h on true
order by n.ord"""  # noqa: S608

# Of these ids the ones that a row keeps from being used, though nobody can read it: it has no entries.
HOLLOW = """
select s.namespace, s.id from unnest($1::text[], $2::text[]) n(namespace, id) join {s}.sessions s using (namespace, id)
where s.deleted_at is null and not exists (select from {s}.checkpoints c where c.key = s.key)"""

_HEAD = f"""{ROW}, {", ".join(f"h.{column}" for column in HEADER.split(", "))}, null, h.size
from {{refs}}
left join {{s}}.workers w on w.worker = s.owner
join lateral (
  select {HEADER}, {SIZE} as size from {{s}}.checkpoints c where c.key = s.key order by c.seq desc limit 1) h on true"""  # noqa: S608
# Lateral with a limit: one look into an index for each, whatever the planner thinks of the table's size.
HEADS_BY_KEY = _HEAD.replace(
    "{refs}",
    """unnest($2::text[]) r(key)
join lateral (
  select * from {s}.sessions s where s.key = decode(r.key, 'hex') and s.deleted_at is null limit 1) s on true""",
)
HEADS_BY_ID = _HEAD.replace(
    "{refs}",
    """unnest($2::text[], $3::text[]) r(namespace, id)
join lateral (
  select * from {s}.sessions s
  where s.namespace = r.namespace and s.id = r.id and s.deleted_at is null limit 1) s on true""",
)

# {frame}: what is read of it.
_RANGE = f"""
select {HEADER}, {{frame}}, {SIZE} from {{s}}.checkpoints
where key = $1 and seq between {{first}} and {{last}}
  and ($4::text is null or kind = any($4::text::int2[])) and ($5::text is null or name = $5)
order by seq desc limit $6"""  # noqa: S608
# A lateral part with a limit is done once for each range, by the index. A plain join read the whole session.
RANGES = f"""
select c.* from unnest($2::text::int8[], $3::text::int8[]) r(first, last)
cross join lateral ({_RANGE.replace("{first}", "r.first").replace("{last}", "r.last")}) c
order by c.seq desc limit $6"""  # noqa: S608
RANGE = _RANGE.replace("{first}", "$2::int8").replace("{last}", "$3::int8")

# Rows that somebody changes just now are skipped (0 for those): who waits for many rows, holding others, may wait for
# ever. One alone may be waited for.
_ALIVE = """s.key = {key} and s.lease is not distinct from {lease} and s.deleted_at is null
  and s.state in ('active', 'paused')"""
BEAT = f"""
with t as materialized (select {NOW} as now),
b as materialized (
  select b.key, b.lease
  from (
    select decode(key, 'hex') as key, decode(lease, 'hex') as lease from unnest($2::text[], $3::text[]) b(key, lease)) b
  cross join lateral (
    select from {{s}}.sessions s where {_ALIVE.format(key="b.key", lease="b.lease")} limit 1) s),
free as materialized (
  select s.key from b cross join lateral (
    select s.key from {{s}}.sessions s where {_ALIVE.format(key="b.key", lease="b.lease")}
    limit 1 for no key update skip locked) s),
beaten as (
  update {{s}}.sessions s set heartbeat = t.now from t where s.key = any(array(select key from free)) returning s.key)
select b.key, b.lease, case when b.key in (select key from beaten) then t.now else 0 end from b cross join t"""  # noqa: S608
BEAT_ONE = f"""
update {{s}}.sessions s set heartbeat = {NOW}
where {_ALIVE.format(key="$2::bytea", lease="$3::bytea")} returning heartbeat"""  # noqa: S608
WORKER_FIRST = f"""
with t as materialized (select {NOW} as now, {UP} as up)
insert into {{s}}.workers as w select $2, $3, t.up + $4::int8, t.now, $4::int8 = 0 from t
on conflict (worker) do update set expires = excluded.expires, beaten = excluded.beaten, dead = excluded.dead
where not w.dead returning beaten"""  # noqa: S608
WORKER = f"""
with t as materialized (select {NOW} as now, {UP} as up)
update {{s}}.workers w set expires = t.up + $3::int8, beaten = t.now, dead = ($3::int8 = 0) from t
where w.worker = $2 and not w.dead returning beaten"""  # noqa: S608
LEFTOVERS = f"""
delete from {{s}}.workers where worker = any(array(
  select w.worker from {{s}}.workers w where (w.dead or w.expires + $2::int8 <= {UP})
    and not exists (select 1 from {{s}}.sessions s where s.owner = w.worker and s.deleted_at is null)
  for update skip locked))"""  # noqa: S608

EMPTY = """
update {s}.checkpoints set frame = null, note = case when $3::bool then substr(note, 1, 16) else note end
where key = $1 and seq = any($2::text::int8[]) and (frame is not null or ($3::bool and length(note) > 16))
returning 1"""
SWAP = """
update {s}.sessions set body = $3::bytea, user_id = case when $3::bytea = '' then '' else user_id end,
  labels = case when $3::bytea = '' then '{}' else labels end
where key = $1 and body = $2::bytea and ($3::bytea <> '' or deleted_at is not null) returning 1"""
# Keys that stand one behind another in $1, 16 bytes each.
_KEYS = "select substring($1::bytea from 16 * i - 15 for 16) as key from generate_series(1, length($1::bytea) / 16) i"
# Entries of the chosen sessions. Keys as an array, and from the least to the greatest: joined, or by arrays alone, the
# log was planned as a scan where few sessions were known, or nothing at all; and other months are left alone.
_OF = """c.key = any(array(select key from {chosen})) and c.key between
    (select key from {chosen} order by key limit 1) and (select key from {chosen} order by key desc limit 1)"""
# Nothing that begins from here on lands behind these sessions, unless it takes them out. Their marks by others go: one
# who died, or is as far as we are, and will find nothing left to do. So do those that nobody came back for; a purge
# whose mark is gone removes nothing, so the clock decides nothing else.
MARK = f"""
with n as materialized (select array({_KEYS} order by 1) as keys, gen_random_uuid() as own),
others as (delete from {{s}}.purging p using n where p.keys && n.keys or p.marked < now() - interval '1 hour')
insert into {{s}}.purging select own, now(), keys[1], keys[array_upper(keys, 1)], keys from n returning own"""  # noqa: S608
# Places in the array do not matter. Who waited for another that does the same sees what that one left.
UNMARK = f"""
update {{s}}.purging set keys = array(select k from unnest(keys) k where k <> all(array({_KEYS})))
where keys && array({_KEYS})"""  # noqa: S608
LEAVE = "delete from {s}.purging where own = $1"
# Who writes to the log just now. A statement takes its lock on the table before it looks at anything, so what begins
# after this one sees all that was committed before.
WRITING = """
select l.virtualtransaction from pg_locks l join pg_database d on d.oid = l.database
where d.datname = current_database() and l.relation = '{s}.checkpoints'::regclass and l.granted
  and l.mode = 'RowExclusiveLock' and l.pid <> pg_backend_pid()"""
# $2: of each session its key and the id of the newest entry that was seen. Of those that we still have marked, the ones
# that end there go.
REMOVE = f"""
with mine as (delete from {{s}}.purging where own = $1 returning keys),
doomed as materialized (
  select n.key, c.seq
  from (
    select substring($2::bytea from 32 * i - 31 for 16) as key, substring($2 from 32 * i - 15 for 16) as seen
    from generate_series(1, length($2::bytea) / 32) i) n
  join (select unnest(keys) as key from mine) m using (key)
  cross join lateral (
    select c.seq, c.append_id from {{s}}.checkpoints c where c.key = n.key order by c.seq desc limit 1) c
  where c.append_id = n.seen),
entries as (delete from {{s}}.checkpoints c where {_OF.format(chosen="doomed")}),
unlabelled as (
  delete from {{s}}.labels where ctid = any(array(
    select l.ctid from doomed n
    cross join lateral (select * from {{s}}.sessions s where s.key = n.key limit 1) s
    cross join jsonb_each_text(s.labels) e
    cross join lateral (
      select l.ctid from {{s}}.labels l
      where l.space = s.namespace and l.label = e.key and l.value = e.value and l.made = s.created_at
        and l.session = s.key limit 1) l))),
gone as (delete from {{s}}.sessions where key = any(array(select key from doomed)) returning key)
select key, seq from doomed join gone using (key)"""  # noqa: S608
# Rows of `sessions` in the order of their keys, as everywhere; one that somebody else purges is left to them.
# `coalesce`: the index of the deleted, through which a plain condition is planned, is full of those that were purged
# before.
PURGE = f"""
with chosen as materialized (
  select key from {{s}}.sessions where key = any(array({_KEYS})) and coalesce(deleted_at, 0) > 0
  order by key for update skip locked),
gone as (delete from {{s}}.sessions where key = any(array(select key from chosen)) returning key),
entries as (delete from {{s}}.checkpoints c where {_OF.format(chosen="gone")} returning c.key)
select key, count(*)::int8 from entries group by key"""  # noqa: S608

EVENTS = """
select c.tx::text::int8, c.key, c.seq, c.kind, c.name, c.at, s.id, s.namespace
from (
  select * from {s}.checkpoints c
  where (c.tx, c.key, c.seq) > ($1::text::xid8, $2::bytea, $3::int8)
    and c.tx < pg_snapshot_xmin(pg_current_snapshot())
  order by c.tx, c.key, c.seq limit $4) c
left join lateral (select s.id, s.namespace from {s}.sessions s where s.key = c.key limit 1) s on true
order by c.tx, c.key, c.seq"""
EVENTS_END = "select pg_snapshot_xmin(pg_current_snapshot())::text"

# Of some sessions their entries, session by session, without what they hold; and how each failed last. LATERAL: one
# short range of the index each, whatever the statistics say.
TRACED = f"""
select k.key, c.* from ({_KEYS}) k cross join lateral (
  select seq, kind, name, at, {SIZE} from {{s}}.checkpoints c where c.key = k.key order by c.seq) c
limit $2"""  # noqa: S608
FAILED = f"""
select k.key, c.* from ({_KEYS}) k cross join lateral (
  select {HEADER}, null::bytea, {SIZE} from {{s}}.checkpoints c where c.key = k.key and c.kind = 6
  order by c.seq desc limit 1) c"""  # noqa: S608
