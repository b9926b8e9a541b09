-- The log in Valkey: every primitive is one call of this script, so no reader sees half of one.
--
-- KEYS[1] begins the name of every key and contains the hash tag: a store lies in one slot. ARGV: the verb, the two clocks
-- (empty: the server's), and the verb's argument as MessagePack. A session is one hash with one time to live, so that it
-- ends as a whole: its row, `e<seq>` the entries, `f<seq>` the frames, `r<request>` the seq of its entry. Entries beyond its field `last` do not count. The
-- other keys are indexes. They may name sessions that have ended: readers skip those, writers remove them (`tidy`).

local P = KEYS[1]
local COUNTERS, EXPIRY, REMAINS, FEED = P .. ':counters', P .. ':expiry', P .. ':remains', P .. ':feed'
local WORKERS = P .. ':workers'
local call = redis.call

local clock = call('TIME')
local micros = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local millis = math.floor(micros / 1000)
local now, up = tonumber(ARGV[2]) or micros, tonumber(ARGV[3]) or micros

-- Arguments per command: Lua's stack holds 8,000.
local MANY = 2000
-- Microseconds until the row of a crashed worker that owns nothing is removed.
local LEFTOVER = 3600 * 1000000
-- Sessions examined per call, before other clients get the server; the caller comes again.
local PART = 500
-- Times a session's time to live that an index gets: it outlives every session it names, and ends without writers.
local LONGER = 2

local function text(number) return string.format('%.0f', number) end
local function session(key) return P .. ':session:' .. key end
local function id_index(namespace) return P .. ':ids:' .. namespace end
local function created_index(namespace) return P .. ':made:' .. namespace end
local function beat_index(namespace) return P .. ':beaten:' .. namespace end
local function deleted_index(namespace) return P .. ':deleted:' .. namespace end
local function request_key(namespace, request) return P .. ':request:' .. string.sub(request, 1, 32) .. ':' .. namespace end
-- Members of the index: "label NUL value NUL made key:seq", made and seq in digits that sort as numbers do. The same of one
-- session are a set beside it: what to take out of the index once the session has ended.
local function mark_index(namespace) return P .. ':marks:' .. namespace end
local function marked_set(key) return P .. ':marked:' .. key end
local function owned_index(worker) return P .. ':owned:' .. worker end

-- Bytes in a value that Saveslot did not write. A session's fails only what needs that session; the others go on.
local function damaged(what) error('DAMAGED ' .. what) end

-- The bytes of all sessions; counted from 0 again if damage left something else.
local function add_bytes(bytes)
  local added = redis.pcall('HINCRBY', COUNTERS, 'bytes', text(bytes))
  if type(added) == 'table' then call('HSET', COUNTERS, 'bytes', text(math.max(0, bytes))) end
end

local function many(command, key, values)
  for start = 1, #values, MANY do
    call(command, key, unpack(values, start, math.min(start + MANY - 1, #values)))
  end
end

-- Workers: "expires beaten dead place name". A worker whose value is damaged is dead.

local function load_worker(id)
  local kept = call('HGET', WORKERS, id)
  if not kept then return nil end
  local expires, seen, dead, place, name = string.match(kept, '^(%-?%d+) (%-?%d+) ([01]) (%d+) (.*)$')
  if not expires then return {expires = 0, beaten = 0, dead = true, place = 0, name = ''} end
  return {expires = tonumber(expires), beaten = tonumber(seen), dead = dead == '1', place = tonumber(place), name = name}
end

local function put_worker(id, w)
  local value = text(w.expires) .. ' ' .. text(w.beaten) .. (w.dead and ' 1 ' or ' 0 ') .. text(w.place) .. ' ' .. w.name
  call('HSET', WORKERS, id, value)
end

local function orphaned(id, patience)
  if not id or id == '' then return false end
  local w = load_worker(id)
  return not w or w.dead or w.expires + patience <= up
end

-- Sessions

local FIELDS = {
  'last', 'gone', 'ns', 'id', 'made', 'beat', 'fence', 'lease', 'owner', 'ttl', 'bytes', 'alive', 'state', 'weight', 'ended',
  'deleted', 'request', 'marked',
}
local NUMBERS = {'last', 'made', 'beat', 'fence', 'ttl', 'bytes', 'alive', 'weight', 'ended', 'deleted'}

local function load_row(key)
  local results = call('HMGET', session(key), unpack(FIELDS))
  if not results[1] and not results[3] then return nil end
  local row = {}
  for n, name in ipairs(FIELDS) do row[name] = results[n] or '' end
  for _, name in ipairs(NUMBERS) do
    local number = string.match(row[name], '^%-?%d+$') -- not `nan`, `inf` or hexadecimal
    if not number then damaged('session ' .. key) end
    row[name] = tonumber(number)
  end
  row.gone = row.gone == '1'
  return row
end

local function header(key, seq)
  local kept = call('HGET', session(key), 'e' .. text(seq))
  if not kept then damaged('entry ' .. text(seq) .. ' of session ' .. key) end
  return kept
end

-- A header begins "append_id at alive ".
local function time_of(kept, key)
  local at = string.match(kept, '^%x+ (%-?%d+) ')
  if not at then damaged('session ' .. key) end
  return tonumber(at)
end

local function size_of(key, seq) return call('HSTRLEN', session(key), 'f' .. text(seq)) end

local function last_alive(row)
  local w = row.owner ~= '' and load_worker(row.owner)
  return math.max(row.beat, row.alive, w and w.beaten or 0)
end

local function keep(key, ttl)
  local left = call('PTTL', key)
  if left == -1 or (left >= 0 and left < ttl) then call('PEXPIRE', key, text(LONGER * ttl)) end
end

-- After an entry or heartbeat: the session lives for its time from now on, the indexes that name it for longer.
local function extend(key, row)
  local till = text(millis + row.ttl)
  call('PEXPIREAT', session(key), till)
  call('ZADD', EXPIRY, till, key)
  for _, index in ipairs({COUNTERS, EXPIRY, REMAINS, FEED, id_index(row.ns), created_index(row.ns), beat_index(row.ns), deleted_index(row.ns)}) do
    keep(index, row.ttl)
  end
  if row.request ~= '' then call('PEXPIREAT', request_key(row.ns, row.request), till) end
  if row.marked ~= '' then
    keep(mark_index(row.ns), row.ttl)
    keep(marked_set(key), row.ttl)
  end
  if row.owner ~= '' then
    keep(WORKERS, row.ttl)
    keep(owned_index(row.owner), row.ttl)
  end
end

-- What `forget` needs once the session itself has ended: "last bytes owner length namespace id"
local function remember(key, row)
  local owner = row.owner == '' and '-' or row.owner
  local value = text(row.last) .. ' ' .. text(row.bytes) .. ' ' .. owner .. ' ' .. text(#row.ns) .. ' ' .. row.ns .. row.id
  call('HSET', REMAINS, key, value)
end

local function sortable(number)
  local digits = string.format('%020.0f', math.abs(number))
  if number >= 0 then return '1' .. digits end
  return '0' .. string.gsub(digits, '%d', function(digit) return 9 - digit end)
end

local function mark(label, value, made, key, seq)
  return label .. '\0' .. value .. '\0' .. sortable(made) .. key .. ':' .. (seq and sortable(seq) or '')
end

local function unlist(key, row)
  many('ZREM', mark_index(row.ns), call('SMEMBERS', marked_set(key)))
  call('DEL', marked_set(key))
  call('ZREM', created_index(row.ns), key)
  call('ZREM', beat_index(row.ns), key)
  call('ZREM', deleted_index(row.ns), key)
  if row.owner ~= '' then call('ZREM', owned_index(row.owner), key) end
  if call('HGET', id_index(row.ns), row.id) == key then call('HDEL', id_index(row.ns), row.id) end
end

local function forget(key)
  local kept = call('HGET', REMAINS, key)
  call('ZREM', EXPIRY, key)
  if not kept then return end
  local last, bytes, owner, length, rest = string.match(kept, '^(%d+) (%d+) (%S+) (%d+) (.*)$')
  if not last or tonumber(last) > call('ZCARD', FEED) then -- damaged: readers skip what the indexes still say
    call('HDEL', REMAINS, key)
    return
  end
  length = tonumber(length)
  local row = {owner = owner == '-' and '' or owner, ns = string.sub(rest, 1, length), id = string.sub(rest, length + 1)}
  unlist(key, row)
  local news = {}
  for seq = 1, tonumber(last) do news[seq] = key .. ':' .. text(seq) end
  many('ZREM', FEED, news)
  add_bytes(0 - tonumber(bytes))
  call('HDEL', REMAINS, key)
end

local function tidy(most)
  local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', text(millis), 'LIMIT', 0, most)
  for _, key in ipairs(due) do
    local left = call('PTTL', session(key))
    if left == -2 then
      forget(key)
    else -- its time to live was extended by hand
      call('ZADD', EXPIRY, text(millis + 1 + (left < 0 and 86400000 or left)), key)
    end
  end
  return #due
end

-- Appending

-- A retry that is longer than what landed has only the times of those entries.
local function landed(outcome, group, row, beat)
  local verdict = {outcome, beat, false, 0}
  for n, entry in ipairs(group.entries) do
    if entry.seq <= row.last then verdict[4 + n] = time_of(header(group.key, entry.seq), group.key) end
  end
  return verdict
end

local function refused(outcome, key, row)
  if not row then return {outcome, 0, false, 0} end
  return {outcome, 0, header(key, row.last), size_of(key, row.last)}
end

local function id_at(key, row, seq)
  if not row or seq < 1 or seq > row.last then return nil end
  return string.sub(header(key, seq), 1, 32)
end

local function judged(group, row, here, before)
  local first = group.entries[1]
  if here == first.id then return 'already' end
  if not row or row.gone then return 'missing' end
  -- A row whose fence is below that of an owner's entry went back in time, and says nothing about the lease.
  local back = row.fence < first.fence and not first.takes
  if first.lease ~= '' and not back and (row.fence > first.fence or row.lease ~= first.lease) then return 'fenced' end
  if not before or before ~= group.prev then return 'lost' end
  return 'conflict'
end

local function write(group, row)
  local key, values, news, marks, members = group.key, {}, {}, {}, {}
  local number = tonumber(call('HGET', COUNTERS, 'feed') or 0) or 0
  local bytes = 0
  for _, entry in ipairs(group.entries) do
    local seq = text(entry.seq)
    local at = entry.at > 0 and entry.at or now + entry.at
    if entry.sign then row.alive = now end
    values[#values + 1] = 'e' .. seq
    values[#values + 1] = entry.id .. ' ' .. text(at) .. ' ' .. text(row.alive) .. ' ' .. entry.rest
    bytes = bytes + #values[#values]
    if entry.frame then
      values[#values + 1] = 'f' .. seq
      values[#values + 1] = entry.frame
      bytes = bytes + #entry.frame
    end
    if entry.request then
      values[#values + 1] = 'r' .. entry.request
      values[#values + 1] = seq
    end
    for label, value in pairs(entry.labels or {}) do
      members[#members + 1] = mark(label, value, row.made, key, entry.seq)
      marks[#marks + 1] = 0
      marks[#marks + 1] = members[#members]
    end
    row.weight = row.weight + entry.weight
    if entry.ends then row.ended = at end
    -- Numbers follow the clock, so that none is used twice if the server restarts without its newest entries.
    number = math.max(number + 1, micros)
    news[#news + 1] = text(number)
    news[#news + 1] = key .. ':' .. seq
    row.last, row.fence, row.lease = entry.seq, entry.fence, entry.lease
  end
  many('HSET', session(key), values)
  local former = row.owner
  row.owner = row.lease ~= '' and (group.owner or row.owner) or ''
  row.state = group.state or row.state
  if group.heartbeat then row.beat = now end
  row.gone = group.delete
  if row.gone then row.deleted = now end
  row.bytes = row.bytes + bytes
  if #marks > 0 then row.marked = '1' end
  local fields = {
    'last', text(row.last), 'gone', row.gone and '1' or '0', 'beat', text(row.beat), 'alive', text(row.alive),
    'fence', text(row.fence), 'lease', row.lease, 'owner', row.owner, 'state', row.state, 'bytes', text(row.bytes),
    'weight', text(row.weight), 'ended', text(row.ended), 'deleted', text(row.deleted),
    'marked', row.marked,
  }
  if group.create then
    local c = group.create
    for _, pair in ipairs({
      {'ns', c.ns}, {'id', c.id}, {'type', c.type}, {'user', c.user}, {'made', text(row.made)}, {'ttl', text(row.ttl)},
      {'body', c.body}, {'labels', c.labels}, {'request', c.request},
    }) do
      fields[#fields + 1] = pair[1]
      fields[#fields + 1] = pair[2]
    end
  end
  if group.body then
    fields[#fields + 1] = 'body'
    fields[#fields + 1] = group.body
  end
  if group.labels then
    fields[#fields + 1] = 'labels'
    fields[#fields + 1] = group.labels
  end
  call('HSET', session(key), unpack(fields)) -- from `last` on, the group counts
  many('ZADD', FEED, news)
  call('HSET', COUNTERS, 'feed', text(number), 'format', '3')
  add_bytes(bytes)
  remember(key, row)
  many('ZADD', mark_index(row.ns), marks)
  many('SADD', marked_set(key), members)
  if former ~= '' and former ~= row.owner then call('ZREM', owned_index(former), key) end
  if row.gone then
    unlist(key, row)
    if row.request ~= '' then call('DEL', request_key(row.ns, row.request)) end
    call('ZADD', deleted_index(row.ns), text(row.deleted), key)
  else
    if group.create then
      call('HSET', id_index(row.ns), row.id, key)
      if row.request ~= '' then call('SET', request_key(row.ns, row.request), key) end
      call('ZADD', created_index(row.ns), text(row.made), key)
    end
    if group.create or group.heartbeat then call('ZADD', beat_index(row.ns), text(row.beat), key) end
    if row.owner ~= '' and row.owner ~= former then call('ZADD', owned_index(row.owner), text(row.made), key) end
  end
  if row.owner ~= '' then call('HSETNX', WORKERS, row.owner, '0 0 1 0 ') end -- an unknown worker is dead
  extend(key, row)
end

-- The row to write a group to; or no row, and why the group does not land or that it has.
local function admitted(group)
  local key, first = group.key, group.entries[1]
  local row = load_row(key)
  if group.create then
    local c = group.create
    local taken = call('HGET', id_index(c.ns), c.id)
    local theirs = taken and load_row(taken)
    if not theirs and c.request ~= '' then
      taken = call('GET', request_key(c.ns, c.request))
      theirs = taken and load_row(taken)
    end
    if theirs or row then
      if id_at(key, row, 1) == first.id then return nil, landed('already', group, row, row.beat) end
      return nil, refused('conflict', taken, theirs or nil)
    end
    local beat = c.beat ~= 0 and c.beat or now
    row = {
      last = 0, ns = c.ns, id = c.id, made = c.made ~= 0 and c.made or now, beat = beat, alive = beat, owner = '',
      ttl = c.ttl, bytes = 0, state = c.state, weight = 0, ended = 0, deleted = 0, request = c.request,
      marked = '',
    }
  else
    local here, before = id_at(key, row, first.seq), id_at(key, row, first.seq - 1)
    local outcome = judged(group, row, here, before)
    if outcome == 'already' then return nil, landed(outcome, group, row, row.beat) end
    local free = row and not row.gone and row.last == first.seq - 1 and before == group.prev
    if not free then return nil, refused(outcome, key, row) end
    for _, entry in ipairs(group.entries) do
      local known = entry.request and call('HEXISTS', session(key), 'r' .. entry.request) == 1
      if known then return nil, refused(outcome, key, row) end
    end
    if group.only_stale > 0 and last_alive(row) >= now - group.only_stale then return nil, refused(outcome, key, row) end
    if group.only_orphan then
      if not orphaned(row.owner, group.only_orphan) then return nil, refused(outcome, key, row) end
      -- Dead from here on: a dead worker is never renewed, so no session is taken from a living one.
      local w = load_worker(row.owner) or {expires = 0, beaten = 0, place = 0, name = ''}
      w.dead = true
      put_worker(row.owner, w)
    end
  end
  return row
end

local function put(group, row)
  write(group, row)
  return landed('appended', group, row, (group.create or group.heartbeat) and row.beat or 0)
end

local function land(group)
  local row, verdict = admitted(group)
  return row and put(group, row) or verdict
end

local function broken(why) return {'damaged', 0, type(why) == 'table' and why.err or tostring(why), 0} end

-- A hint to watchers of these sessions: left out if this user may not publish.
local function tell(keys) redis.pcall('PUBLISH', P .. ':news', table.concat(keys)) end

local function append(groups)
  tidy(16)
  local verdicts, news = {}, {}
  for n, group in ipairs(groups) do
    local fine, verdict = pcall(land, group) -- a damaged session does not fail the others
    if not fine then verdict = broken(verdict) end
    if verdict[1] == 'appended' then news[#news + 1] = group.key end
    verdicts[n] = verdict
  end
  if #news > 0 then tell(news) end
  return verdicts
end

-- All groups, or none: nothing is written before all are admitted. They name no session, id or request twice.
local function together(groups)
  tidy(16)
  local rows, verdicts, stopped = {}, {}, false
  for n, group in ipairs(groups) do
    local fine, row, verdict = pcall(admitted, group)
    if not fine then row, verdict = nil, broken(row) end
    rows[n], verdicts[n] = row or false, verdict or {'skipped', 0, false, 0}
    stopped = stopped or verdict and verdict[1] ~= 'already'
  end
  if stopped then return verdicts end
  for n, group in ipairs(groups) do
    if rows[n] then verdicts[n] = put(group, rows[n]) end
  end
  local news = {}
  for n, group in ipairs(groups) do news[n] = group.key end
  tell(news)
  return verdicts
end

-- Heartbeats

local function beat_worker(request)
  tidy(16)
  local ttl = request.ttl
  if request.first then
    for _, id in ipairs(call('HKEYS', WORKERS)) do
      if orphaned(id, LEFTOVER) then
        local holds = false
        for _, key in ipairs(call('ZRANGE', owned_index(id), 0, -1)) do
          if call('EXISTS', session(key)) == 1 then holds = true else call('ZREM', owned_index(id), key) end
        end
        if not holds then call('HDEL', WORKERS, id) end
      end
    end
    if call('HEXISTS', WORKERS, request.id) == 0 then
      put_worker(request.id, {expires = 0, beaten = now, dead = false, place = 0, name = request.name})
    end
  end
  local w = load_worker(request.id)
  if not w or w.dead then return 0 end
  w.expires, w.beaten, w.dead = up + ttl, now, ttl == 0
  -- Sessions held by a living worker live too, however long they are silent: a part is extended each time, all in turn.
  local count = call('ZCARD', owned_index(request.id))
  local part = math.max(100, math.ceil(count / 32))
  if w.place >= count then w.place = 0 end
  for _, key in ipairs(call('ZRANGE', owned_index(request.id), w.place, w.place + part - 1)) do
    pcall(function() -- a damaged session fails the calls about it, not the worker
      local row = load_row(key)
      if not row then
        call('ZREM', owned_index(request.id), key)
      elseif ttl > 0 and call('PTTL', session(key)) < row.ttl / 2 then
        extend(key, row)
      end
    end)
  end
  w.place = w.place + part
  put_worker(request.id, w)
  keep(WORKERS, 86400000)
  return now
end

-- The time of a session's heartbeat; 0 if it is not held under that lease.
local function beaten(key, lease)
  local row = load_row(key)
  local living = row and not row.gone and (row.state == 'active' or row.state == 'paused')
  if not living or row.lease ~= lease then return 0 end
  call('HSET', session(key), 'beat', text(now))
  call('ZADD', beat_index(row.ns), text(now), key)
  extend(key, row)
  return now
end

local function beat(request)
  local times = {}
  for n, sign in ipairs(request.signs) do
    local fine, time = pcall(beaten, sign[1], sign[2])
    times[n] = fine and time or 0
  end
  if request.worker then times[#times + 1] = beat_worker(request.worker) end
  return times
end

-- Reading

local SHOWN = {
  'ns', 'id', 'type', 'user', 'state', 'made', 'beat', 'fence', 'lease', 'body', 'labels', 'owner', 'deleted', 'weight',
  'request',
}

-- Numbers of a session that only this script reads.
local OWN = {'last', 'ttl', 'bytes', 'alive', 'weight', 'ended'}

-- A row as it is stored, and the first of its own numbers that is damaged; the caller looks for damage in the others.
local function columns_of(key)
  local columns = call('HMGET', session(key), unpack(SHOWN))
  local owner = columns[12]
  local w = owner and owner ~= '' and load_worker(owner)
  columns[16] = w and w.name or ''
  columns[17] = w and not w.dead and math.max(0, w.expires - up) or 0
  columns[18], columns[19], columns[20] = w and w.beaten or 0, now, false
  for n, number in ipairs(call('HMGET', session(key), unpack(OWN))) do
    if not string.match(number or '', '^%-?%d+$') then columns[20] = OWN[n] end
  end
  table.insert(columns, 1, key)
  return columns
end

-- The field `data_seq` of an entry: "append_id at alive " and a MessagePack array of seq, kind, name, fence, lease,
-- data_seq, … The lease is nil or bytes, a type that the server's MessagePack cannot read.
local function data_seq(kept)
  local rest = string.match(kept, '^%x+ %-?%d+ %-?%d+ (.*)$')
  local at = 1
  for _ = 1, 4 do at = cmsgpack.unpack_one(rest, at) end
  local lease = string.byte(rest, at + 1)
  at = lease == 0xc0 and at + 1 or at + 2 + string.byte(rest, at + 2)
  local _, seq = cmsgpack.unpack_one(rest, at)
  return seq
end

-- The field `base` of an entry, its twelfth; entries of formats 1 and 2 have fewer. Recipe, digest, note and request are
-- bytes or nil.
local function base_of(kept)
  local rest = string.match(kept, '^%x+ %-?%d+ %-?%d+ (.*)$')
  local fields, at = string.byte(rest), 1
  if fields < 0x9c then return 0 end
  for _ = 1, 11 do
    local kind, a, b, c, d = string.byte(rest, at + 1, at + 5)
    if kind == 0xc4 then at = at + 2 + a
    elseif kind == 0xc5 then at = at + 3 + a * 256 + b
    elseif kind == 0xc6 then at = at + 5 + ((a * 256 + b) * 256 + c) * 256 + d
    else at = cmsgpack.unpack_one(rest, at) end
  end
  local _, base = cmsgpack.unpack_one(rest, at)
  return base
end

-- When a session's newest entry was written, pins and retention marks (kinds 19 to 21) aside.
local function changed_at(key)
  if not key then return false end
  local seq = tonumber(call('HGET', session(key), 'last'))
  while true do
    local kept = header(key, seq)
    local rest = string.match(kept, '^%x+ %-?%d+ %-?%d+ (.*)$')
    local at = cmsgpack.unpack_one(rest, 1)
    local _, kind = cmsgpack.unpack_one(rest, at)
    if kind < 19 or kind > 21 then return text(time_of(kept, key)) end
    seq = seq - 1
  end
end

-- The stored header and size of an entry; false and 0 if it is missing.
local function stored(key, seq)
  return call('HGET', session(key), 'e' .. seq), call('HSTRLEN', session(key), 'f' .. seq)
end

local function head_of(key, state)
  local last, gone, ns = unpack(call('HMGET', session(key), 'last', 'gone', 'ns'))
  if not last and not ns or gone == '1' then return false end
  local kept, size = stored(key, last or '')
  local seq = tonumber(last) or 0
  local head = {columns_of(key), kept, size, last, seq > 1 and call('HGET', session(key), 'e' .. text(seq - 1))}
  local fine
  fine, seq = pcall(data_seq, kept)
  if state and fine and seq > 0 then head[6], head[7] = stored(key, text(seq)) end
  return head
end

local function heads(request)
  local results = {}
  for n, ref in ipairs(request.refs) do
    local key = ref[1]
    if ref[2] then key = call('HGET', id_index(ref[1]), ref[2]) end
    local fine, head = pcall(head_of, key, request.state)
    results[n] = key and (fine and head or not fine and {key}) -- {key}: not even a hash
  end
  return results
end

local function rows(keys)
  local results = {}
  for n, key in ipairs(keys) do
    local fine, columns = pcall(columns_of, key)
    results[n] = fine and columns or {key}
  end
  return results
end

-- Newest first, with up to `budget` bytes of frames; the caller reads the others (sent: 0) with `frames`.
local function log(request)
  local key, results = request.key, {}
  local newest, ns = unpack(call('HMGET', session(key), 'last', 'ns'))
  if not newest and not ns then return {-1, {}} end
  local row = {last = tonumber(newest)} -- other damaged fields do not hide the entries
  if not row.last then damaged('session ' .. key) end
  local left = request.budget
  for n = #request.ranges, 1, -1 do
    local first, last = unpack(request.ranges[n])
    for seq = math.min(last, row.last), math.max(first, 1), -1 do
      if #results == request.most then return {row.last, results} end
      local size = size_of(key, seq)
      local sent = size <= left and request.budget > 0
      local frame = sent and call('HGET', session(key), 'f' .. text(seq))
      left = sent and left - size or left
      results[#results + 1] = {seq, header(key, seq), size, sent and 1 or 0, frame}
    end
  end
  return {row.last, results}
end

-- The seq of the entry with this request; 0 if there is none.
local function requested(request)
  return tonumber(call('HGET', session(request.key), 'r' .. request.request) or 0) or 0
end

-- The marks of a session's entries, as `mark` wrote them.
local function marks(request) return call('SMEMBERS', marked_set(request.key)) end

-- The seqs of a chain of bases, newest first. A base that is not an earlier entry ends it.
local function chain(request)
  local seqs, seq = {}, request.seq
  while seq > 0 do
    local kept = call('HGET', session(request.key), 'e' .. text(seq))
    if not kept then break end
    seqs[#seqs + 1] = seq
    local fine, base = pcall(base_of, kept)
    seq = fine and type(base) == 'number' and base < seq and base or 0
  end
  return seqs
end

local function frames(request)
  local results = {}
  for n, seq in ipairs(request.seqs) do results[n] = call('HGET', session(request.key), 'f' .. text(seq)) end
  return {call('EXISTS', session(request.key)), results}
end

local LOOKED = {
  'last', 'gone', 'ns', 'id', 'type', 'user', 'state', 'made', 'beat', 'alive', 'owner', 'labels', 'ended', 'deleted',
  'request', 'marked', 'bytes',
}

local function labels_of(row)
  local fine, labels = pcall(cjson.decode, row.labels)
  return fine and type(labels) == 'table' and labels or {}
end

local function labelled(row, labels)
  local held = labels_of(row)
  for name, value in pairs(labels) do
    if held[name] ~= value then return false end
  end
  return true
end

local function mentions(row, part)
  part = string.lower(part)
  local texts = {row.id, row.type, row.user}
  for _, value in pairs(labels_of(row)) do texts[#texts + 1] = value end
  for _, value in ipairs(texts) do
    if type(value) == 'string' and string.find(string.lower(value), part, 1, true) then return true end
  end
  return false
end

-- Whether the entry that a mark of these labels names has all of them.
local function marked_by_all(ns, labels, made, key, seq)
  for label, value in pairs(labels) do
    if not call('ZSCORE', mark_index(ns), mark(label, value, made, key, seq)) then return false end
  end
  return true
end

-- Whether an entry of the session has all these labels.
local function marked(row, labels)
  if row.marked == '' then return false end
  local label, value = next(labels)
  local start = mark(label, value, row.made, row.key)
  for _, member in ipairs(call('ZRANGEBYLEX', mark_index(row.ns), '[' .. start, '[' .. start .. 'a')) do
    if marked_by_all(row.ns, labels, row.made, row.key, tonumber(string.sub(member, -20))) then return true end
  end
  return false
end

-- By the entry that ended the session and by its row; never if it has not ended.
local function ended_at(row)
  if row.state ~= 'completed' and row.state ~= 'failed' then return math.huge end
  return math.max(row.beat, row.ended)
end

local function matches(row, q)
  return row.ns == q.namespace
    and (q.agent_type == nil or row.type == q.agent_type)
    and (q.user_id == nil or row.user == q.user_id)
    and (q.state == nil or row.state == q.state)
    and (q.created_after == nil or row.made > q.created_after)
    and (q.created_before == nil or row.made < q.created_before)
    and (q.prefix == nil or string.sub(row.id, 1, #q.prefix) == q.prefix)
    and (q.owner == nil or row.owner == q.owner)
    and not (q.unowned and row.owner ~= '')
    and (q.request == nil or string.sub(row.request, 1, 32) == q.request)
    and (next(q.labels) == nil or labelled(row, q.labels))
    and (next(q.entry) == nil or marked(row, q.entry))
    and (q.text == nil or mentions(row, q.text))
    and (q.orphan_for == nil or orphaned(row.owner, q.orphan_for))
    and (q.stale_for == nil or last_alive(row) < now - q.stale_for)
    and (q.ended_for == nil or ended_at(row) <= now - q.ended_for)
    and (q.deleted_for == nil or row.deleted <= now - q.deleted_for)
end

-- Damaged numbers count as 0 and damaged texts as empty: the caller gets the row as it is stored, and says so.
local function candidate(key, q)
  local results = call('HMGET', session(key), unpack(LOOKED))
  if not results[1] and not results[3] or (results[2] == '1') ~= (q.deleted_for ~= nil) then return nil end
  local row = {}
  for n, name in ipairs(LOOKED) do row[name] = results[n] or '' end
  row.key = key
  for _, name in ipairs({'made', 'beat', 'alive', 'ended', 'deleted'}) do row[name] = tonumber(row[name]) or 0 end
  return row
end

-- The same as `walk`, by the index of the marks of entries: newest sessions first, all marks of one in a row.
local function walk_marks(request, visit)
  local q, looked, last, done = request.query, 0, {}, nil
  local label, value = next(q.entry)
  local start = label .. '\0' .. value .. '\0'
  local from = '(' .. start .. (request.score and sortable(tonumber(request.score)) .. request.place or ':')
  while true do
    local results = call('ZREVRANGEBYLEX', mark_index(q.namespace), from, '[' .. start, 'LIMIT', 0, PART)
    for _, member in ipairs(results) do
      local key = string.sub(member, #start + 22, #start + 53)
      if key ~= done then
        if looked >= PART then return last end
        looked, done = looked + 1, key
        local fine, row = pcall(candidate, key, q)
        if fine and row then
          last = {text(row.made), key}
          if mark(label, value, row.made, key, tonumber(string.sub(member, -20))) == member and matches(row, q)
            and visit(key, row, text(row.made)) then return last end
        end
      end
    end
    if #results < PART then return {} end
    from = '(' .. results[#results]
  end
end

-- Walks a part of an index, after a place; returns where it stopped, {} at the end. `visit` gets a key, its row and its
-- score, and returns true to stop it. A session that is not even a hash is passed over.
local function walk(request, visit)
  local q, down, offset, looked, last = request.query, request.down, 0, 0, {}
  if next(q.entry) and down and not request.worker and not q.deleted_for then return walk_marks(request, visit) end
  local index = request.worker and owned_index(request.worker) or q.deleted_for and deleted_index(q.namespace)
    or down and created_index(q.namespace) or beat_index(q.namespace)
  local command, near, far = 'ZRANGEBYSCORE', '-inf', '+inf'
  if down then command, near, far = 'ZREVRANGEBYSCORE', '+inf', '-inf' end
  local score, place = tonumber(request.score), request.place
  while looked < PART do
    local results = call(command, index, score and text(score) or near, far, 'WITHSCORES', 'LIMIT', offset, PART)
    for n = 1, #results, 2 do
      local key, at = results[n], tonumber(results[n + 1])
      local before = at == score and (down and key >= place or not down and key <= place)
      if not before then
        looked, last = looked + 1, {text(at), key}
        local fine, row = pcall(candidate, key, q)
        if fine and row and matches(row, q) and visit(key, row, text(at)) then return last end
      end
    end
    if #results < 2 * PART then return {} end
    offset = offset + PART
  end
  return last
end

local function find(request)
  local rows = {}
  local stopped = walk(request, function(key, _, score)
    local last = request.weighed and call('HGET', session(key), 'last')
    local fine, changed = pcall(changed_at, request.changed and key)
    rows[#rows + 1] = {columns_of(key), score, last and call('HGET', session(key), 'e' .. last), last, fine and changed}
    return #rows == request.limit
  end)
  return {stopped, rows}
end

local function count(request)
  local cells, order = {}, {}
  local stopped = walk(request, function(_, row)
    local name = text(#row.state) .. row.state .. row.type
    if not cells[name] then
      cells[name] = {row.state, row.type, 0, 0, 0, 0, 0}
      order[#order + 1] = cells[name]
    end
    local cell = cells[name]
    cell[3] = cell[3] + 1
    cell[6] = cell[6] + (tonumber(row.last) or 0)
    cell[7] = cell[7] + (tonumber(row.bytes) or 0) + call('HSTRLEN', session(row.key), 'body')
    if row.owner ~= '' and row.gone ~= '1' then
      cell[4] = cell[4] + 1
      if orphaned(row.owner, 0) then cell[5] = cell[5] + 1 end
    end
    return false
  end)
  return {stopped, order, call('ZCARD', FEED), tonumber(call('HGET', COUNTERS, 'bytes') or 0) or 0}
end

local function gone(patience)
  local results = {}
  for _, id in ipairs(call('HKEYS', WORKERS)) do
    if orphaned(id, patience) then results[#results + 1] = id end
  end
  return results
end

-- The newest entry of a session whose number is at most `number`: numbers rise with seqs. 0 if there is none.
local function seq_at(key, last, number)
  local low, high = 0, last
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if tonumber(call('ZSCORE', FEED, key .. ':' .. text(middle)) or 0) <= number then low = middle else high = middle - 1 end
  end
  return low
end

local function events_of(request)
  local key = request.key
  local namespace, id, last = unpack(redis.pcall('HMGET', session(key), 'ns', 'id', 'last'))
  last = tonumber(last or 0) or 0
  local seq = request.seq or (request.after and seq_at(key, last, tonumber(request.after))) or last
  local place = call('ZSCORE', FEED, key .. ':' .. text(seq))
  place = place and text(tonumber(place)) or '@' .. text(seq)
  local answers = {}
  for n = seq + 1, math.min(last, seq + request.limit) do
    local number = call('ZSCORE', FEED, key .. ':' .. text(n))
    place = number and text(tonumber(number)) or '@' .. text(n)
    if namespace == request.namespace then answers[#answers + 1] = {place, id, n, (stored(key, text(n)))} end
  end
  return {place, math.max(0, math.min(last - seq, request.limit)), answers}
end

-- The place of the last entry that was looked at, how many were (-1: there is no entry at `after` any more), and events.
local function events(request)
  local newest = call('HGET', COUNTERS, 'feed') or '0'
  if request.after and tonumber(request.after) > (tonumber(newest) or 0) then return {request.after, -1, {}} end
  if request.key then return events_of(request) end
  if not request.after then return {newest, 0, {}} end
  local results = call('ZRANGEBYSCORE', FEED, '(' .. request.after, '+inf', 'WITHSCORES', 'LIMIT', 0, request.limit)
  local answers, place = {}, request.after
  for n = 1, #results, 2 do
    local key, seq = string.match(results[n], '^(%x+):(%d+)$')
    place = text(tonumber(results[n + 1]))
    local row = key and redis.pcall('HMGET', session(key), 'ns', 'id')
    if row and row[1] == request.namespace then
      answers[#answers + 1] = {place, row[2], tonumber(seq), (stored(key, seq))}
    end
  end
  return {place, #results / 2, answers}
end

-- Freeing memory

local function empty(request)
  local key, emptied, bytes = request.key, 0, 0
  local row = load_row(key)
  if not row then return 0 end
  for _, seq in ipairs(request.seqs) do
    if seq >= 1 and seq <= row.last then
      local size = size_of(key, seq)
      if call('HDEL', session(key), 'f' .. text(seq)) == 1 then
        emptied, bytes = emptied + 1, bytes + size
      end
    end
  end
  row.bytes, row.weight = row.bytes - bytes, row.weight - bytes
  call('HSET', session(key), 'bytes', text(row.bytes), 'weight', text(row.weight))
  remember(key, row)
  add_bytes(0 - bytes)
  return emptied
end

local function purge(request)
  local counts = {}
  for n, key in ipairs(request.keys) do
    local fine, row = pcall(load_row, key) -- a damaged session stays, so that `saveslot doctor` names it
    local last = request.ends[n]
    counts[n] = 0
    if fine and row and (row.gone and not last or last and string.sub(stored(key, text(row.last)) or '', 1, 32) == last) then
      call('UNLINK', session(key))
      if row.request ~= '' and call('GET', request_key(row.ns, row.request)) == key then
        call('DEL', request_key(row.ns, row.request))
      end
      forget(key)
      counts[n] = row.last
    end
  end
  return counts
end

-- Whether an index lacks a session or places it wrongly; with `apply` it is listed as it should be.
local function unlisted(key, apply)
  local row = load_row(key)
  if not row then return false end
  local wrong = false
  local function place(index, score)
    if tonumber(call('ZSCORE', index, key)) ~= score then
      wrong = true
      if apply then call('ZADD', index, text(score), key) end
    end
  end
  if row.gone then
    place(deleted_index(row.ns), row.deleted)
  else
    place(created_index(row.ns), row.made)
    place(beat_index(row.ns), row.beat)
    if row.owner ~= '' then place(owned_index(row.owner), row.made) end
    local known = call('HGET', id_index(row.ns), row.id)
    local fine, theirs = pcall(load_row, known or '')
    local taken = fine and theirs and not theirs.gone and theirs.ns == row.ns and theirs.id == row.id
    if known ~= key and not taken then
      wrong = true
      if apply then call('HSET', id_index(row.ns), row.id, key) end
    end
  end
  if not call('ZSCORE', EXPIRY, key) or not call('HGET', REMAINS, key) then
    wrong = true
    if apply then
      call('ZADD', EXPIRY, text(millis + math.max(0, call('PTTL', session(key)))), key)
      remember(key, row)
    end
  end
  return wrong
end

local function relist(request)
  local count = 0
  for _, key in ipairs(request.keys) do
    local fine, wrong = pcall(unlisted, key, request.apply)
    if fine and wrong then count = count + 1 end
  end
  return count
end

local function format() return call('HGET', COUNTERS, 'format') end

local verbs = {
  append = append, together = together, requested = requested, marks = marks, beat = beat, heads = heads, log = log, chain = chain, frames = frames,
  find = find, count = count, gone = gone,
  events = events, rows = rows, relist = relist, empty = empty, purge = purge, tidy = tidy, format = format,
}
return verbs[ARGV[1]](cmsgpack.unpack(ARGV[4]))
