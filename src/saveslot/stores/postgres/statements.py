"""SQL statements of the PostgreSQL store. `{s}` stands for the schema.

Each but a purge is one autocommit statement, so no lock is held while waiting for a client. Locks are always taken in
this order: workers, creations by (namespace, id), entries by key, then the `sessions` rows of the entries that landed.
"""

from __future__ import annotations

from saveslot.stores.postgres.anchor import ANCHORED

HEADER = "seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, note, request, base"
SIZE = "coalesce(length(frame), 0) + coalesce(length(note), 0)"
# The wall clock, and the clock for leases. A test may pass its own; else both are the database's. `date_part` returns
# floats, exact to the microsecond until 2255; `extract` returns decimals, which are slower.
_CLOCK = "(date_part('epoch', clock_timestamp()) * 1000000)::int8"
NOW, UP = (f"coalesce(($1::text::int8[])[{n}], {_CLOCK})" for n in (1, 2))
# $1: the clock. A dead owner has 0 microseconds left.
ROW = f"""
select s.key, s.namespace, s.id, s.agent_type, s.user_id, s.state, s.created_at, s.heartbeat, s.fence, s.lease, s.body,
  s.labels::text, s.owner, s.request, coalesce(w.name, ''),
  case when w.dead then 0 else greatest(0, greatest(0, w.expires) - {UP}) end, coalesce(w.beaten, 0), {NOW},
  coalesce(s.deleted_at, 0)"""
# For a session s: when it ended, bytes of its frames and notes, number of entries, append_id of the newest.
WEIGHED = f"""lateral (
  select coalesce((array_agg(at) filter (where kind in (5, 6)))[1], 0), sum(size)::int8, max(seq),
    (array_agg(append_id))[1]
  from (
    select seq, append_id, kind, at, {SIZE} as size from {{s}}.checkpoints c where c.key = s.key
    order by c.seq desc offset 0) c) c(ended, weight, length, last)"""  # noqa: S608
# Only when it ended.
ENDED = """coalesce((select c.at from {s}.checkpoints c where c.key = s.key and c.kind in (5, 6)
  order by c.seq desc limit 1), 0)"""
# For a session s: when its newest entry was written, pins and retention marks (19 to 21) aside.
CHANGED = """lateral (
  select c.at from {s}.checkpoints c where c.key = s.key and c.kind not in (19, 20, 21)
  order by c.seq desc limit 1) c(changed_at)"""
_OWNER = "left join {s}.workers w on w.worker = s.owner"
OWNED = f"{{s}}.sessions s {_OWNER}"
# The session of a request ($3). OFFSET 0: found by the index of requests, whatever order is asked for.
REQUESTING = f"""(
  select * from {{s}}.sessions s where s.namespace = $2 and substring(s.request from 1 for 16) = $3
    and s.request is not null and s.deleted_at is null offset 0) s {_OWNER}"""  # noqa: S608
# Sessions whose id is within a range. OFFSET 0: by the index of ids, whatever order is asked for.
PREFIXED = f"""(
  select * from {{s}}.sessions s where s.namespace = $2 and {{range}} and s.deleted_at is null offset 0) s {_OWNER}"""  # noqa: S608
# At most {probed} of the sessions with a label, and of those within a range of ids: in their order, so by the index.
LABEL_COUNT = """(select count(*) from (
  select from {s}.labels l where l.space = $1 and l.label = {label} and l.value = {value} limit {probed}) l)"""
PREFIX_COUNT = """(select count(*) from (
  select from {s}.sessions s where s.namespace = $1 and {range} and s.deleted_at is null
  order by s.id using ~<~ limit {probed}) s)"""
# Ordered by a label. Lateral with a limit: the label index leads, whatever row count the planner expects. A label row
# whose time is not the session's is damaged: pages that begin after it could repeat.
LABELLED = f"""{{s}}.labels l
  cross join lateral (
    select * from {{s}}.sessions s where s.key = l.session and s.created_at = l.made limit 1) s {_OWNER}"""  # noqa: S608
# The same by a label of entries.
ENTRY_LABELLED = LABELLED.replace(".labels l\n", ".entry_labels l\n")

# Only the first entry of a group is guarded; the others follow it. `alive`: the newest sign of life before it.
_COLUMNS = f"key, {HEADER}, frame"
_VALUES = """n.key, n.seq, n.append_id, n.kind, n.name, case when n.at > 0 then n.at else t.now + n.at end,
    case when n.signed then t.now else {alive} end, n.fence, n.lease, n.data_seq, n.about_seq, n.recipe, n.digest,
    n.note, n.request, n.base, n.frame"""
_CLOCKS = f"with t as materialized (select {NOW} as now, {UP} as up, $5::text::int8[] as a, $6::text::int[] as ends)"
_GIVEN = """
  select substring($2::bytea from h - 63 for 16) as key, a[p - 6] as seq, substring($2 from h - 47 for 16) as append_id,
    substring($2 from h - 31 for 16) as prev, (a[p - 5] & 255)::int2 as kind, name, a[p - 4] as at,
    a[p - 5] & 256 > 0 as signed, a[p - 5] & 512 > 0 as first, a[p - 3] as fence,
    case when a[p - 5] & 1024 > 0 then substring($2 from h - 15 for 16) end as lease, a[p - 2] as data_seq,
    a[p - 1] as about_seq, substring($3::bytea from ends[e - 4] for ends[e - 3] - ends[e - 4]) as recipe,
    substring($3 from ends[e - 3] for ends[e - 2] - ends[e - 3]) as digest,
    case when a[p - 5] & 2048 > 0 then substring($3 from ends[e - 2] for ends[e - 1] - ends[e - 2]) end as note,
    nullif(substring($3 from ends[e - 1] for ends[e] - ends[e - 1]), '') as request,
    a[p] as base, case when a[p - 5] & 4096 > 0 then substring($3 from ends[e] for ends[e + 1] - ends[e]) end as frame
  from (select name, 64 * i::int as h, 7 * i::int as p, 5 * i::int as e
    from unnest($4::text[]) with ordinality n(name, i)) n, t"""
# Lateral with a limit: the guard is one index lookup per entry; EXISTS or IN was planned as a scan, ten times slower.
# It also keeps the order of {given}. KEY SHARE: an append waits for a purge that holds the entry before it, and a purge
# waits until the append has landed or failed.
_FIRST = f""",
first as (
  insert into {{s}}.checkpoints ({_COLUMNS})
  select {_VALUES.format(alive="c.alive")}
  from {{given}} n cross join t {{allowed}}
  cross join lateral (
    select c.alive from {{s}}.checkpoints c
    where c.key = n.key and c.seq = n.seq - 1 and c.append_id = n.prev and c.kind <> 9 limit 1 for key share) c
  where n.first
  {{sorted}} on conflict do nothing returning key, seq, alive, fence, lease)"""  # noqa: S608
_REST = f""",
rest as (
  insert into {{s}}.checkpoints ({_COLUMNS})
  select {_VALUES.format(alive="f.alive")}
  from n cross join t join first f on f.key = n.key where not n.first order by n.key, n.seq
  returning key, seq, fence, lease)"""  # noqa: S608
# The clock and the keys of groups that landed; the caller derives everything else from what it sent.
_TOLD = "\nselect t.now, array(select encode(key, 'hex') from first) from t"


def _first(given: str, by: str = "", allowed: str = "") -> str:
    return _FIRST.replace("{given}", given).replace("{sorted}", by).replace("{allowed}", allowed)


# Checkpoints and steps, which leave the session's row as it is. PLAIN: one per session, sent in key order (sorting here
# would copy them all). SEVERAL: more per session.
PLAIN = f"{_CLOCKS}{_first(f'({_GIVEN} offset 0)')}{_TOLD}"
# Sessions of which an entry has the same request. What this statement sees of a session is all that was written before
# the entry that the group follows: a request that comes meanwhile takes the group's place in the log.
_KEPT = f"""{_CLOCKS}, n as materialized ({_GIVEN}),
asked as materialized (
  select n.key from n cross join lateral (
    select from {{s}}.checkpoints c where c.key = n.key and c.request is not null
      and substring(c.request from 1 for 16) = substring(n.request from 1 for 16) limit 1) c
  where n.request is not null)"""  # noqa: S608
_NEW = "and n.key <> all(array(select key from asked))"
# {label}: the labels of entries as JSON; {owners}: the namespace, time and key of a session k that a group landed in.
_MARKED = """,
marked as (
  insert into {s}.entry_labels select o.namespace, l.key, l.value, o.created_at, k.key, (e ->> 'seq')::int8
  from jsonb_array_elements({label}::text::jsonb) e cross join lateral (select decode(e ->> 'key', 'hex') as key) k
  cross join lateral ({owners}) o cross join jsonb_each_text(e -> 'labels') l)"""
_OF_FIRST = """
    select s.namespace, s.created_at from {s}.sessions s
    where s.key = k.key and k.key = any(array(select key from first)) limit 1"""
_OF_MADE = "select m.namespace, m.created_at from made m where m.key = k.key"


def _marked(label: str, owners: str) -> str:
    return _MARKED.replace("{label}", label).replace("{owners}", owners)


_SORTED = _first("n", "order by n.key").replace("where n.first", f"where n.first {_NEW}")
SEVERAL = f"{_KEPT}{_SORTED}{_REST}{_marked('$7', _OF_FIRST)}{_TOLD}"

# A single entry, with scalar arguments: takes a third of the time of arrays.
LONE = f"""
insert into {{s}}.checkpoints ({_COLUMNS})
select $2, $3::int8, $4, $6, $7, case when $8::int8 > 0 then $8::int8 else t.now + $8::int8 end,
  case when $9::bool then t.now else c.alive end, $10, $11, $12, $13, $14, $15, $16, null, $17, $18
from (select coalesce($1::int8, {_CLOCK}) as now) t, {{s}}.checkpoints c
where c.key = $2 and c.seq = $3::int8 - 1 and c.append_id = $5 and c.kind <> 9 for key share of c
on conflict do nothing returning at"""  # noqa: S608

_GROUPS = """,
g as materialized (
  select decode(key, 'hex') as key, state, decode(body, 'hex') as body, labels, heartbeat, gone,
    decode(owner, 'hex') as owner, stale, orphan, before, decode(prev, 'hex') as prev
  from unnest($7::text[], $8::text[], $9::text[], $10::text[], $11::text[]::bool[], $12::text[]::bool[],
    $13::text[], $14::text[]::int8[], $15::text[]::int8[], $16::text[]::int8[], $17::text[])
  as g(key, state, body, labels, heartbeat, gone, owner, stale, orphan, before, prev))"""
# Declares the owner dead if the entry will land. A worker that renews meanwhile is checked again, and stays alive. With
# arrays, not a join: after a lock wait PostgreSQL rechecks the row alone, and a join with the arguments found nothing.
_BURIED = """,
suspects as materialized (
  select w.worker from {s}.workers w
  where w.worker = any(array(select (select s.owner from {s}.sessions s where s.key = g.key) from g
    where g.orphan is not null and g.prev =
      (select c.append_id from {s}.checkpoints c where c.key = g.key order by c.seq desc limit 1)))
  order by w.worker for update),
buried as (
  update {s}.workers w set dead = true where w.worker = any(array(select worker from suspects))
    and (w.dead or w.expires <= (select up from t) - (select min(orphan) from g)) returning w.worker),
allowed as materialized (
  select g.key from g cross join t
  join lateral (select s.owner, s.heartbeat from {s}.sessions s where s.key = g.key limit 1) s on true
  left join {s}.workers w on w.worker = s.owner
  where (g.orphan is null or s.owner in (select worker from buried))
    and (g.stale is null or t.now - g.stale > greatest(s.heartbeat, coalesce(w.beaten, 0), coalesce(
      (select c.alive from {s}.checkpoints c where c.key = g.key and c.seq = g.before), 0))))"""
# Labels that damage turned into another JSON value count as none: the functions for objects would fail every session.
LABELS_OF = "case when jsonb_typeof(s.labels) = 'object' then s.labels else '{}' end"
_PROJECTED = f""",
last as (
  select distinct on (key) key, fence, lease
  from (select key, seq, fence, lease from first union all select key, seq, fence, lease from rest) l
  order by key, seq desc),
projected as (
  update {{s}}.sessions s set state = coalesce(g.state, s.state), body = coalesce(g.body, s.body),
    labels = coalesce(g.labels::jsonb, s.labels), heartbeat = case when g.heartbeat then t.now else s.heartbeat end,
    deleted_at = case when g.gone then t.now end, fence = l.fence, lease = l.lease,
    owner = case when l.lease is null then null else coalesce(g.owner, s.owner) end
  from last l join g on g.key = l.key cross join t where s.key = l.key),
-- `s.labels` still shows the labels from before this entry: only the entry that lands can change them.
other as materialized (
  select s.namespace, s.created_at, s.key, {LABELS_OF} as old,
    case when g.gone then '{{}}' else g.labels::jsonb end as new
  from last l join g on g.key = l.key and (g.gone or g.labels is not null)
  cross join lateral (select * from {{s}}.sessions s where s.key = g.key limit 1) s
  where g.gone or g.labels::jsonb <> s.labels),
-- By ctid, looked up one by one: a join with `other` was planned as a scan. Rows of `labels` are never updated.
unlabelled as (
  delete from {{s}}.labels where ctid = any(array(
    select l.ctid from other o cross join jsonb_each_text(o.old) e
    cross join lateral (
      select l.ctid from {{s}}.labels l
      where l.space = o.namespace and l.label = e.key and l.value = e.value and l.made = o.created_at
        and l.session = o.key limit 1) l
    where o.new ->> e.key is distinct from e.value))),
unmarked as (
  delete from {{s}}.entry_labels where ctid = any(array(
    select l.ctid from last k join g on g.key = k.key and g.gone
    cross join lateral (select l.ctid from {{s}}.entry_labels l where l.session = g.key offset 0) l))),
labelled as (
  insert into {{s}}.labels select o.namespace, e.key, e.value, o.created_at, o.key
  from other o cross join jsonb_each_text(o.new) e where o.old ->> e.key is distinct from e.value),
-- An owner without a row has never sent a heartbeat: it counts as dead.
unheard as (
  insert into {{s}}.workers select distinct g.owner, '', 0, 0, true from g join last l on l.key = g.key
  where g.owner is not null order by g.owner on conflict do nothing)"""  # noqa: S608

_CHANGED = f"{_PROJECTED}{_marked('$18', _OF_FIRST)}"
CHANGING = f"{_KEPT}{_GROUPS}{_SORTED}{_REST}{_CHANGED}{_TOLD}"
_ALLOWED = _SORTED.replace("cross join t ", "cross join t join allowed on allowed.key = n.key")
GUARDED = f"{_KEPT}{_GROUPS}{_BURIED}{_ALLOWED}{_REST}{_CHANGED}{_TOLD}"

# {1} to {13}: the columns of new sessions.
_MADE = f""",
r as materialized (
  select decode(key, 'hex') as key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence,
    decode(lease, 'hex') as lease, decode(body, 'hex') as body, labels, decode(request, 'hex') as request
  from unnest({{1}}::text[], {{2}}::text[], {{3}}::text[], {{4}}::text[], {{5}}::text[], {{6}}::text[],
    {{7}}::text[]::int8[], {{8}}::text[]::int8[], {{9}}::text[]::int8[], {{10}}::text[], {{11}}::text[],
    {{12}}::text[], {{13}}::text[])
  as r(key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence, lease, body, labels, request)),
made as (
  insert into {{s}}.sessions
    (key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence, lease, body, labels, request)
  select r.key, r.namespace, r.id, r.agent_type, r.user_id, r.state, coalesce(r.created_at, t.now),
    coalesce(r.heartbeat, t.now), r.fence, r.lease, r.body, r.labels::jsonb, r.request
  from r cross join t order by r.namespace, r.id on conflict do nothing
  returning key, heartbeat, namespace, created_at, labels),
made_labels as (
  insert into {{s}}.labels select m.namespace, e.key, e.value, m.created_at, m.key
  from made m cross join jsonb_each_text(m.labels) e),
entries as (
  insert into {{s}}.checkpoints ({_COLUMNS})
  select {_VALUES.format(alive="m.heartbeat")}
  from n cross join t join made m on m.key = n.key order by n.key, n.seq)"""  # noqa: S608


def _made(first: int) -> str:
    """{1} is the parameter `first`, and so on."""
    text = _MADE
    for n in range(13):
        text = text.replace(f"{{{n + 1}}}", f"${first + n}")
    return text


CREATE = f"""{_KEPT}{_made(7)}{_marked("$20", _OF_MADE)}
select t.now, array(select encode(key, 'hex') from made) from t"""  # noqa: S608

# Groups of all kinds without a guard, all or none: $32 counts them, and if fewer landed, division by zero ends the
# statement. Creations come first, as everywhere.
TOGETHER = f"""{_KEPT}{_GROUPS}{_SORTED}{_REST}{_CHANGED.replace("$18", "$31")}{_made(18)}
{_marked("$31", _OF_MADE).replace("marked as", "made_marks as")}
select t.now, 1 / ((select count(*) from made) + (select count(*) from first) = $32::int8)::int from t"""  # noqa: S608
# The same of groups that are all PLAIN: it takes half of the time on the server.
PLAIN_TOGETHER = f"""{PLAIN.removesuffix(_TOLD)}
select t.now, 1 / ((select count(*) from first) = $7::int8)::int from t"""  # noqa: S608

# The order in which the kinds of groups in a batch are appended.
APPENDING = (CREATE, PLAIN, SEVERAL, CHANGING, GUARDED)

# In a new snapshot, for a group that did not land: the append_ids at its seq and before it, and the newest entry.
LOOK = f"""
select s.key is not null, s.deleted_at is not null, s.fence, s.lease, s.heartbeat, e.append_id, p.append_id,
  exists (
    select from unnest(string_to_array(n.requests, ',')) r(id) cross join lateral (
      select from {{s}}.checkpoints c where c.key = n.key and c.request is not null
        and substring(c.request from 1 for 16) = decode(r.id, 'hex') limit 1) c),
  {", ".join(f"h.{column}" for column in HEADER.split(", "))}, null, h.size
from (select decode(key, 'hex') as key, seq, requests, ord
  from unnest($1::text[], $2::text[]::int8[], $3::text[]) with ordinality n(key, seq, requests, ord)) n
left join {{s}}.sessions s on s.key = n.key
left join lateral (select c.append_id from {{s}}.checkpoints c where c.key = n.key and c.seq = n.seq) e on true
left join lateral (select c.append_id from {{s}}.checkpoints c where c.key = n.key and c.seq = n.seq - 1) p on true
left join lateral (
  select {HEADER}, {SIZE} as size from {{s}}.checkpoints c where c.key = n.key order by c.seq desc limit 1) h on true
order by n.ord"""  # noqa: S608

# The session that a call with this request created.
CREATED_BY = """
select s.key from {s}.sessions s where s.namespace = $1 and substring(s.request from 1 for 16) = $2
  and s.request is not null and s.deleted_at is null"""
# Those of the ids that are taken by a row without entries, which cannot be read.
HOLLOW = """
select s.namespace, s.id from unnest($1::text[], $2::text[]) n(namespace, id) join {s}.sessions s using (namespace, id)
where s.deleted_at is null and not exists (select from {s}.checkpoints c where c.key = s.key)"""

_HEAD = f"""{ROW}, {", ".join(f"h.{column}" for column in HEADER.split(", "))}, null, h.size, b.digest, b.at
from {{refs}}
left join {{s}}.workers w on w.worker = s.owner
join lateral (
  select {HEADER}, {SIZE} as size from {{s}}.checkpoints c where c.key = s.key order by c.seq desc limit 1) h on true
left join lateral (
  select c.digest, c.at from {{s}}.checkpoints c where c.key = s.key and c.seq = h.seq - 1 limit 1) b on true"""  # noqa: S608
# Lateral with a limit: one index lookup each, whatever table size the planner expects.
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

# Adds the entry with the newest data, if it is not the newest entry.
_DATA = f"""
left join lateral (
  select {HEADER}, {SIZE} as size from {{s}}.checkpoints c
  where c.key = s.key and c.seq = h.data_seq and h.data_seq < h.seq limit 1) d on true"""  # noqa: S608


_DATA_COLUMNS = ", ".join(f"d.{column}" for column in HEADER.split(", "))
STATES_BY_KEY, STATES_BY_ID = (
    heads.replace("b.digest, b.at\n", f"b.digest, b.at, {_DATA_COLUMNS}, null, d.size\n") + _DATA
    for heads in (HEADS_BY_KEY, HEADS_BY_ID)
)

# {frame}: the frame column, or an expression that leaves it out.
_RANGE = f"""
select {HEADER}, {{frame}}, {SIZE} from {{s}}.checkpoints
where key = $1 and seq between {{first}} and {{last}}
  and ($4::text is null or kind = any($4::text::int2[])) and ($5::text is null or name = $5)
order by seq desc limit $6"""  # noqa: S608
# Lateral with a limit: one index scan per range. A plain join read the whole session.
RANGES = f"""
select c.* from unnest($2::text::int8[], $3::text::int8[]) r(first, last)
cross join lateral ({_RANGE.replace("{first}", "r.first").replace("{last}", "r.last")}) c
order by c.seq desc limit $6"""  # noqa: S608
# Of the ranges and a chain of bases ($7); the chain leaves out what the ranges have. {room}: applied to all of them.
_STEP = "select c.seq, c.base from {s}.checkpoints c where c.key = $1"
CHAIN = f"""
with recursive chain(at, base) as (
  {_STEP} and c.seq = $7::int8
  union all
  select c.* from chain cross join lateral ({_STEP} and c.seq = chain.base and chain.base < chain.at limit 1) c),
ranges as (select * from unnest($2::text::int8[], $3::text::int8[]) r(first, last))
select {HEADER}, {{room}}, size
from (select * from ranges union all
  select at, at from chain where not exists (select from ranges where chain.at between first and last)) r
cross join lateral ({_RANGE.replace("{first}", "r.first").replace("{last}", "r.last")}) c({HEADER}, frame, size)
order by c.seq desc limit $6"""  # noqa: S608
RANGE = _RANGE.replace("{first}", "$2::int8").replace("{last}", "$3::int8")

# The entry of a request, if it is within the ranges. OFFSET 0: found by the index of requests, then looked at.
REQUESTED = f"""
select {HEADER}, {{frame}}, {SIZE} from (
  select * from {{s}}.checkpoints c where c.key = $1 and substring(c.request from 1 for 16) = $7
    and c.request is not null offset 0) c
where exists (select from unnest($2::text::int8[], $3::text::int8[]) r(first, last) where c.seq between first and last)
  and ($4::text is null or kind = any($4::text::int2[])) and ($5::text is null or name = $5) limit $6"""  # noqa: S608

# Headers of short ranges, one per key. Lateral with a limit: one range of the index each.
SHORT_LOGS = f"""
select n.place, c.* from (select decode(key, 'hex') as key, first, last, place
  from unnest($1::text[], $2::text::int8[], $3::text::int8[]) with ordinality n(key, first, last, place)) n
cross join lateral (
  select {HEADER}, null::bytea, {SIZE} from {{s}}.checkpoints c
  where c.key = n.key and c.seq between n.first and n.last order by c.seq limit 128) c"""  # noqa: S608

# BEAT skips rows that another transaction has locked, and returns 0 for them: waiting for many rows while holding
# others can deadlock. BEAT_ONE may wait for its single row.
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
# Not $3, the worker that no process is: while its row is removed, a release by an error that sees the row may commit.
LEFTOVERS = f"""
delete from {{s}}.workers where worker = any(array(
  select w.worker from {{s}}.workers w where (w.dead or w.expires <= {UP} - $2::int8) and w.worker <> $3
    and not exists (select 1 from {{s}}.sessions s where s.owner = w.worker and s.deleted_at is null)
  for update skip locked))"""  # noqa: S608

EMPTY = """
update {s}.checkpoints set frame = null, note = case when $3::bool then substr(note, 1, 16) else note end
where key = $1 and seq = any($2::text::int8[]) and (frame is not null or ($3::bool and length(note) > 16))
returning 1"""
_SWAPPED = """
update {s}.sessions set body = $3::bytea, user_id = case when $3::bytea = '' then '' else user_id end,
  labels = case when $3::bytea = '' then '{}' else labels end
where key = $1 and body = $2::bytea and ($3::bytea <> '' or deleted_at is not null) returning"""
SWAP = f"{_SWAPPED} 1"
# Labels of a session's entries. OFFSET 0: by the index of sessions, whatever else is asked for.
_MARKS = "select {what} from {s}.entry_labels l where l.session = {key} offset 0"
MARKS = _MARKS.replace("{what}", "seq, label, value").replace("{key}", "$1")
# The same with labels of entries ($4, JSON). What stays as it is must not be deleted: whether an insert sees a row that
# the same statement deletes is left open.
RELABEL = f"""
with swapped as ({_SWAPPED} key, namespace, created_at),
n as materialized (
  select (e ->> 'seq')::int8 as seq, l.key as label, l.value
  from jsonb_array_elements($4::text::jsonb) e cross join jsonb_each_text(e -> 'labels') l),
had as materialized (
  select l.* from swapped w
  cross join lateral ({_MARKS.replace("{what}", "l.ctid as place, seq, label, value").replace("{key}", "w.key")}) l
  where l.seq in (select seq from n)),
unmarked as (
  delete from {{s}}.entry_labels where ctid = any(array(
    select h.place from had h
    where not exists (select from n where (n.seq, n.label, n.value) = (h.seq, h.label, h.value))))),
marked as (
  insert into {{s}}.entry_labels
  select w.namespace, n.label, n.value, w.created_at, w.key, n.seq from swapped w cross join n
  where n.seq in (select seq from had) on conflict do nothing)
select 1 from swapped"""  # noqa: S608
# A purge is a transaction of two statements. The first locks the newest entry of each session, by key: it waits for
# appends under way, and later appends wait for it. The second sees, in a new snapshot, what the earlier appends wrote.
# An append after an older entry and the deletion can still wait for each other: the server ends such a deadlock within
# a second, and the loser is retried.
LOCK = """
select count(*) from (select decode(key, 'hex') as key from unnest($1::text[]) n(key) order by key) n
cross join lateral (
  select from {s}.checkpoints c where c.key = n.key order by c.seq desc limit 1 for update) c"""
# Entries of the chosen sessions, by an array of keys and their range: a join, or the array alone, was planned as a scan
# of the log when there were few sessions. The range also excludes other months.
_OF = """c.key = any(array(select key from {chosen})) and c.key between
    (select key from {chosen} order by key limit 1) and (select key from {chosen} order by key desc limit 1)"""
# $2: append_id of the newest entry seen; null: purge the session only if it is deleted.
REMOVE = f"""
with doomed as materialized (
  select n.key, coalesce(c.seq, 0) as seq
  from (
    select decode(key, 'hex') as key, decode(seen, 'hex') as seen from unnest($1::text[], $2::text[]) n(key, seen)) n
  cross join lateral (select s.deleted_at from {{s}}.sessions s where s.key = n.key limit 1) s
  left join lateral (
    select c.seq, c.append_id from {{s}}.checkpoints c where c.key = n.key order by c.seq desc limit 1) c on true
  where case when n.seen is null then s.deleted_at is not null else c.append_id = n.seen end),
entries as (delete from {{s}}.checkpoints c where {_OF.format(chosen="doomed")}),
unlabelled as (
  delete from {{s}}.labels where ctid = any(array(
    select l.ctid from doomed n
    cross join lateral (select * from {{s}}.sessions s where s.key = n.key limit 1) s
    cross join jsonb_each_text({LABELS_OF}) e
    cross join lateral (
      select l.ctid from {{s}}.labels l
      where l.space = s.namespace and l.label = e.key and l.value = e.value and l.made = s.created_at
        and l.session = s.key limit 1) l))),
unmarked as (
  delete from {{s}}.entry_labels where ctid = any(array(
    select l.ctid from doomed n
    cross join lateral (select l.ctid from {{s}}.entry_labels l where l.session = n.key offset 0) l))),
gone as (delete from {{s}}.sessions where key = any(array(select key from doomed)) returning key)
select key, seq from doomed join gone using (key)"""  # noqa: S608

# Entries of transactions below it are all visible, and there will be no others. For an `a` with the feed's shift.
_HORIZON = "(pg_snapshot_xmin(pg_current_snapshot())::text::int8 + a.shift)::text::xid8"
# $1 to $4: the entry at which the cursor is: its number, key, seq and the first bytes of its append_id. One row even if
# there are no events: whether the numbers are this server's, the feed's id, whether that entry is there.
EVENTS = f"""
select a.sound, a.replica, a.feed, a.there, c.tx::text::int8, c.key, c.seq, c.kind, c.name, c.at, s.id, s.namespace,
  substr(c.append_id, 1, 4)
from (
  select {ANCHORED} as sound, pg_is_in_recovery() as replica, substr(uuid_send(format.feed), 1, 4) as feed,
    format.shift,
    exists (
      select from {{s}}.checkpoints e where e.key = $2 and e.seq = $3::int8 and e.tx = $1::text::xid8
        and substr(e.append_id, 1, length($4::bytea)) = $4::bytea) as there
  from {{s}}.format) a
left join lateral (
  select * from {{s}}.checkpoints c
  where (c.tx, c.key, c.seq) > ($1::text::xid8, $2::bytea, $3::int8) and c.tx < {_HORIZON}
  order by c.tx, c.key, c.seq limit $5) c on true
left join lateral (select s.id, s.namespace from {{s}}.sessions s where s.key = c.key limit 1) s on true
order by c.tx, c.key, c.seq"""  # noqa: S608
# The feed's id, and its newest entry.
EVENTS_END = f"""
select a.sound, substr(uuid_send(a.feed), 1, 4), c.tx::text::int8, c.key, c.seq, substr(c.append_id, 1, 4)
from (select {ANCHORED} as sound, format.feed, format.shift from {{s}}.format) a
left join lateral (
  select * from {{s}}.checkpoints c where c.tx < {_HORIZON} order by c.tx desc, c.key desc, c.seq desc limit 1) c on true"""  # noqa: S608, E501

# Of one session, by its key alone: entry n+1 is written only after entry n is visible. $2: after this seq. One row even
# if there are no events: the append_id and number of the entry with that seq, and the newest seq.
EVENTS_OF = """
select substr(a.append_id, 1, 4), a.tx::text::int8, l.seq, substr(uuid_send(f.feed), 1, 4),
  c.tx::text::int8, c.key, c.seq, c.kind, c.name, c.at, s.id, s.namespace, substr(c.append_id, 1, 4)
from {s}.format f
left join lateral (
  select e.append_id, e.tx from {s}.checkpoints e where e.key = $1 and e.seq = $2::int8 limit 1) a on true
left join lateral (select e.seq from {s}.checkpoints e where e.key = $1 order by e.seq desc limit 1) l on true
left join lateral (
  select * from {s}.checkpoints c where c.key = $1 and c.seq between $2::int8 + 1 and $2::int8 + $3::int8) c on true
left join lateral (select s.id, s.namespace from {s}.sessions s where s.key = $1 limit 1) s on true
order by c.seq"""
# The newest seq of a session ($4) up to a place in the feed.
SEQ_AT = """
select c.seq from {s}.checkpoints c
where c.key = $4 and (c.tx, c.key, c.seq) <= ($1::text::xid8, $2::bytea, $3::int8) order by c.seq desc limit 1"""

# Of the sessions of a query, one by one by their keys. $1: the clock.
MATCHING = f"""
select coalesce(sum(own.entries), 0)::int8, coalesce(sum(own.bytes + marks.bytes + length(s.body)), 0)::int8
from {{source}}
cross join lateral (
  select count(*) as entries, coalesce(sum({SIZE} + length(recipe) + octet_length(name)), 0) as bytes
  from {{s}}.checkpoints where key = s.key offset 0) own
cross join lateral (
  select coalesce(sum(octet_length(label) + octet_length(value)), 0) as bytes
  from {{s}}.entry_labels where session = s.key offset 0) marks
where {{where}} and $1::text is not null"""  # noqa: S608
# Each found by the index; $1: after this one, $2: how many at most.
NAMESPACES = """
with recursive known (name, n) as (
  select (select min(namespace) from {s}.sessions where deleted_at is null and namespace > $1), 1
  union all
  select (select min(namespace) from {s}.sessions where deleted_at is null and namespace > name), n + 1 from known
  where name is not null and n < $2
)
select name from known where name is not null"""

# $1: the schema.
TOTALS = """
select (select count(*) from {s}.checkpoints), (
  select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = $1 and c.relkind = 'r')::int8"""
