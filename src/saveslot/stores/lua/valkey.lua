-- The log in Valkey: every primitive is one call of this script, so nobody ever sees half of one.
--
-- KEYS[1] begins the name of every key and holds the hash tag: a store lies in one slot. ARGV: what to do, the two clocks
-- (empty: the server's), and the rest as MessagePack. A session is one hash with one time to live, so that it ends as a
-- whole: its row, `e<seq>` the entries, `f<seq>` the frames. What lies beyond its field `last` is not there. The other
-- keys are indexes. They may name sessions that are gone: readers pass over those, writers clear them away (`tidy`).

local P = KEYS[1]
local COUNTERS, EXPIRY, REMAINS, FEED = P .. ':counters', P .. ':expiry', P .. ':remains', P .. ':feed'
local WORKERS = P .. ':workers'
local call = redis.call

local clock = call('TIME')
local micros = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local millis = math.floor(micros / 1000)
local now, up = tonumber(ARGV[2]) or micros, tonumber(ARGV[3]) or micros

-- One call of a command takes so many arguments: Lua's stack holds 8,000.
local MANY = 2000
-- A worker that crashed and owns nothing leaves a row that nobody needs: gone after an hour.
local LEFTOVER = 3600 * 1000000
-- A page looks at so many sessions before it lets others have the server; whoever asked comes again.
local PART = 500
-- An index outlives every session that it names; with nobody left to write, it ends as well.
local LONGER = 2

local function text(number) return string.format('%.0f', number) end
local function session(key) return P .. ':session:' .. key end
local function ids(namespace) return P .. ':ids:' .. namespace end
local function made(namespace) return P .. ':made:' .. namespace end
local function beaten(namespace) return P .. ':beaten:' .. namespace end
local function deleted(namespace) return P .. ':deleted:' .. namespace end
local function owned(worker) return P .. ':owned:' .. worker end

local function damaged(what) error('DAMAGED ' .. what) end

local function many(command, key, values)
  for start = 1, #values, MANY do
    call(command, key, unpack(values, start, math.min(start + MANY - 1, #values)))
  end
end

-- Workers: "expires beaten dead place name"

local function worker(id)
  local kept = call('HGET', WORKERS, id)
  if not kept then return nil end
  local expires, seen, dead, place, name = string.match(kept, '^(%-?%d+) (%-?%d+) ([01]) (%d+) (.*)$')
  if not expires then damaged('worker ' .. id) end
  return {expires = tonumber(expires), beaten = tonumber(seen), dead = dead == '1', place = tonumber(place), name = name}
end

local function employ(id, w)
  local told = text(w.expires) .. ' ' .. text(w.beaten) .. (w.dead and ' 1 ' or ' 0 ') .. text(w.place) .. ' ' .. w.name
  call('HSET', WORKERS, id, told)
end

local function orphaned(id, patience)
  if not id or id == '' then return false end
  local w = worker(id)
  return not w or w.dead or w.expires + patience <= up
end

-- Sessions

local FIELDS = {
  'last', 'gone', 'ns', 'id', 'made', 'beat', 'fence', 'lease', 'owner', 'ttl', 'bytes', 'alive', 'state', 'weight', 'ended',
  'deleted',
}
local NUMBERS = {'last', 'made', 'beat', 'fence', 'ttl', 'bytes', 'alive', 'weight', 'ended', 'deleted'}

local function known(key)
  local found = call('HMGET', session(key), unpack(FIELDS))
  if not found[1] then return nil end
  local row = {}
  for n, name in ipairs(FIELDS) do row[name] = found[n] or '' end
  for _, name in ipairs(NUMBERS) do
    row[name] = tonumber(row[name])
    if not row[name] then damaged('session ' .. key) end
  end
  row.gone = row.gone == '1'
  return row
end

local function header(key, seq)
  local kept = call('HGET', session(key), 'e' .. text(seq))
  if not kept then damaged('entry ' .. text(seq) .. ' of ' .. key) end
  return kept
end

-- A header begins "append_id at alive ".
local function time_of(kept)
  local at = string.match(kept, '^%x+ (%-?%d+) ')
  if not at then damaged('an entry') end
  return tonumber(at)
end

local function size_of(key, seq) return call('HSTRLEN', session(key), 'f' .. text(seq)) end

local function alive(row)
  local w = row.owner ~= '' and worker(row.owner)
  return math.max(row.beat, row.alive, w and w.beaten or 0)
end

local function keep(key, ttl)
  local left = call('PTTL', key)
  if left == -1 or (left >= 0 and left < ttl) then call('PEXPIRE', key, text(LONGER * ttl)) end
end

-- A sign of use: the session lives for its time from now on, and what names it for longer.
local function extend(key, row)
  local till = text(millis + row.ttl)
  call('PEXPIREAT', session(key), till)
  call('ZADD', EXPIRY, till, key)
  for _, index in ipairs({COUNTERS, EXPIRY, REMAINS, FEED, ids(row.ns), made(row.ns), beaten(row.ns), deleted(row.ns)}) do
    keep(index, row.ttl)
  end
  if row.owner ~= '' then
    keep(WORKERS, row.ttl)
    keep(owned(row.owner), row.ttl)
  end
end

-- What is to be cleared away once the session itself is gone: "last bytes owner length namespace id"
local function remember(key, row)
  local owner = row.owner == '' and '-' or row.owner
  local told = text(row.last) .. ' ' .. text(row.bytes) .. ' ' .. owner .. ' ' .. text(#row.ns) .. ' ' .. row.ns .. row.id
  call('HSET', REMAINS, key, told)
end

local function unlist(key, row)
  call('ZREM', made(row.ns), key)
  call('ZREM', beaten(row.ns), key)
  call('ZREM', deleted(row.ns), key)
  if row.owner ~= '' then call('ZREM', owned(row.owner), key) end
  if call('HGET', ids(row.ns), row.id) == key then call('HDEL', ids(row.ns), row.id) end
end

local function forget(key)
  local kept = call('HGET', REMAINS, key)
  call('ZREM', EXPIRY, key)
  if not kept then return end
  local last, bytes, owner, length, rest = string.match(kept, '^(%d+) (%d+) (%S+) (%d+) (.*)$')
  if not last then damaged('what remains of ' .. key) end
  length = tonumber(length)
  local row = {owner = owner == '-' and '' or owner, ns = string.sub(rest, 1, length), id = string.sub(rest, length + 1)}
  unlist(key, row)
  local news = {}
  for seq = 1, tonumber(last) do news[seq] = key .. ':' .. text(seq) end
  many('ZREM', FEED, news)
  call('HINCRBY', COUNTERS, 'bytes', text(0 - tonumber(bytes)))
  call('HDEL', REMAINS, key)
end

local function tidy(most)
  local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', text(millis), 'LIMIT', 0, most)
  for _, key in ipairs(due) do
    local left = call('PTTL', session(key))
    if left == -2 then
      forget(key)
    else -- somebody gave it more time by hand
      call('ZADD', EXPIRY, text(millis + 1 + (left < 0 and 86400000 or left)), key)
    end
  end
  return #due
end

-- Appending

local function landed(outcome, group, beat)
  local told = {outcome, beat, false, 0}
  for n, entry in ipairs(group.entries) do told[4 + n] = time_of(header(group.key, entry.seq)) end
  return told
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
  -- A row that has not seen the fence of an owner's entry went back in time, and says nothing about the lease.
  local back = row.fence < first.fence and not first.takes
  if first.lease ~= '' and not back and (row.fence > first.fence or row.lease ~= first.lease) then return 'fenced' end
  if not before or before ~= group.prev then return 'lost' end
  return 'conflict'
end

local function write(group, row)
  local key, values, news = group.key, {}, {}
  local number = tonumber(call('HGET', COUNTERS, 'feed') or 0)
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
    row.weight = row.weight + entry.weight
    if entry.ends then row.ended = at end
    -- Numbers follow the clock, so that none is given twice when the server comes back without its newest entries.
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
  local told = {
    'last', text(row.last), 'gone', row.gone and '1' or '0', 'beat', text(row.beat), 'alive', text(row.alive),
    'fence', text(row.fence), 'lease', row.lease, 'owner', row.owner, 'state', row.state, 'bytes', text(row.bytes),
    'weight', text(row.weight), 'ended', text(row.ended), 'deleted', text(row.deleted),
  }
  if group.create then
    local c = group.create
    for _, pair in ipairs({
      {'ns', c.ns}, {'id', c.id}, {'type', c.type}, {'user', c.user}, {'made', text(row.made)}, {'ttl', text(row.ttl)},
      {'body', c.body}, {'labels', c.labels},
    }) do
      told[#told + 1] = pair[1]
      told[#told + 1] = pair[2]
    end
  end
  if group.body then
    told[#told + 1] = 'body'
    told[#told + 1] = group.body
  end
  if group.labels then
    told[#told + 1] = 'labels'
    told[#told + 1] = group.labels
  end
  call('HSET', session(key), unpack(told)) -- with `last` the group is there
  many('ZADD', FEED, news)
  call('HSET', COUNTERS, 'feed', text(number), 'format', '1')
  call('HINCRBY', COUNTERS, 'bytes', text(bytes))
  remember(key, row)
  if former ~= '' and former ~= row.owner then call('ZREM', owned(former), key) end
  if row.gone then
    unlist(key, row)
    call('ZADD', deleted(row.ns), text(row.deleted), key)
  else
    if group.create then
      call('HSET', ids(row.ns), row.id, key)
      call('ZADD', made(row.ns), text(row.made), key)
    end
    if group.create or group.heartbeat then call('ZADD', beaten(row.ns), text(row.beat), key) end
    if row.owner ~= '' and row.owner ~= former then call('ZADD', owned(row.owner), text(row.made), key) end
  end
  if row.owner ~= '' then call('HSETNX', WORKERS, row.owner, '0 0 1 0 ') end -- one that nobody heard of is dead
  extend(key, row)
end

local function land(group)
  local key, first = group.key, group.entries[1]
  local row = known(key)
  if group.create then
    local c = group.create
    local taken = call('HGET', ids(c.ns), c.id)
    local theirs = taken and known(taken)
    if theirs or row then
      if id_at(key, row, 1) == first.id then return landed('already', group, row.beat) end
      return refused('conflict', taken, theirs or nil)
    end
    local beat = c.beat ~= 0 and c.beat or now
    row = {
      last = 0, ns = c.ns, id = c.id, made = c.made ~= 0 and c.made or now, beat = beat, alive = beat, owner = '',
      ttl = c.ttl, bytes = 0, state = c.state, weight = 0, ended = 0, deleted = 0,
    }
  else
    local here, before = id_at(key, row, first.seq), id_at(key, row, first.seq - 1)
    local outcome = judged(group, row, here, before)
    if outcome == 'already' then return landed(outcome, group, row.beat) end
    local free = row and not row.gone and row.last == first.seq - 1 and before == group.prev
    if not free then return refused(outcome, key, row) end
    if group.only_stale > 0 and alive(row) >= now - group.only_stale then return refused(outcome, key, row) end
    if group.only_orphan then
      if not orphaned(row.owner, group.only_orphan) then return refused(outcome, key, row) end
      -- Dead from here on: a dead one is never renewed, so nobody takes a session from the living.
      local w = worker(row.owner) or {expires = 0, beaten = 0, place = 0, name = ''}
      w.dead = true
      employ(row.owner, w)
    end
  end
  write(group, row)
  return landed('appended', group, (group.create or group.heartbeat) and row.beat or 0)
end

local function append(groups)
  tidy(16)
  local verdicts, news = {}, false
  for n, group in ipairs(groups) do
    local fine, verdict = pcall(land, group) -- what is wrong with one session harms no other
    if not fine then
      verdict = {'damaged', 0, type(verdict) == 'table' and verdict.err or tostring(verdict), 0}
    end
    news = news or verdict[1] == 'appended'
    verdicts[n] = verdict
  end
  if news then redis.pcall('PUBLISH', P .. ':news', '') end -- a hint; one that may not be given is left out
  return verdicts
end

-- Signs of life

local function beat_worker(told)
  tidy(16)
  local ttl = told.ttl
  if told.first then
    for _, id in ipairs(call('HKEYS', WORKERS)) do
      if orphaned(id, LEFTOVER) then
        local holds = false
        for _, key in ipairs(call('ZRANGE', owned(id), 0, -1)) do
          if call('EXISTS', session(key)) == 1 then holds = true else call('ZREM', owned(id), key) end
        end
        if not holds then call('HDEL', WORKERS, id) end
      end
    end
    if call('HEXISTS', WORKERS, told.id) == 0 then
      employ(told.id, {expires = 0, beaten = now, dead = false, place = 0, name = told.name})
    end
  end
  local w = worker(told.id)
  if not w or w.dead then return 0 end
  w.expires, w.beaten, w.dead = up + ttl, now, ttl == 0
  -- What a living worker holds lives as well, however long it is silent: a part of it each time, all of it in turn.
  local count = call('ZCARD', owned(told.id))
  local part = math.max(100, math.ceil(count / 32))
  if w.place >= count then w.place = 0 end
  for _, key in ipairs(call('ZRANGE', owned(told.id), w.place, w.place + part - 1)) do
    local row = known(key)
    if not row then
      call('ZREM', owned(told.id), key)
    elseif ttl > 0 and call('PTTL', session(key)) < row.ttl / 2 then
      extend(key, row)
    end
  end
  w.place = w.place + part
  employ(told.id, w)
  keep(WORKERS, 86400000)
  return now
end

local function beat(told)
  local times = {}
  for n, sign in ipairs(told.signs) do
    local key, row = sign[1], known(sign[1])
    local living = row and not row.gone and (row.state == 'active' or row.state == 'paused')
    times[n] = 0
    if living and row.lease == sign[2] then
      call('HSET', session(key), 'beat', text(now))
      call('ZADD', beaten(row.ns), text(now), key)
      extend(key, row)
      times[n] = now
    end
  end
  if told.worker then times[#times + 1] = beat_worker(told.worker) end
  return times
end

-- Reading

local SHOWN = {
  'ns', 'id', 'type', 'user', 'state', 'made', 'beat', 'fence', 'lease', 'body', 'labels', 'owner', 'deleted', 'weight',
}

local function shown(key)
  local told = call('HMGET', session(key), unpack(SHOWN))
  local owner = told[12]
  local w = owner and owner ~= '' and worker(owner)
  told[15] = w and w.name or ''
  told[16] = w and not w.dead and math.max(0, w.expires - up) or 0
  told[17] = now
  table.insert(told, 1, key)
  return told
end

local function heads(refs)
  local found = {}
  for n, ref in ipairs(refs) do
    local key = ref[1]
    if ref[2] then key = call('HGET', ids(ref[1]), ref[2]) end
    local row = key and known(key)
    found[n] = row and not row.gone and {shown(key), header(key, row.last), size_of(key, row.last)} or false
  end
  return found
end

-- Newest first. With `budget` bytes of frames; behind that (told: 0) they are to be asked for.
local function log(asked)
  local key, found = asked.key, {}
  local row = known(key)
  if not row then return {-1, {}} end
  local left = asked.budget
  for n = #asked.ranges, 1, -1 do
    local first, last = unpack(asked.ranges[n])
    for seq = math.min(last, row.last), math.max(first, 1), -1 do
      if #found == asked.most then return {row.last, found} end
      local size = size_of(key, seq)
      local told = size <= left and asked.budget > 0
      local frame = told and call('HGET', session(key), 'f' .. text(seq))
      left = told and left - size or left
      found[#found + 1] = {seq, header(key, seq), size, told and 1 or 0, frame}
    end
  end
  return {row.last, found}
end

local function frames(asked)
  local found = {}
  for n, seq in ipairs(asked.seqs) do found[n] = call('HGET', session(asked.key), 'f' .. text(seq)) end
  return {known(asked.key) and 1 or 0, found}
end

local LOOKED = {
  'last', 'gone', 'ns', 'id', 'type', 'user', 'state', 'made', 'beat', 'alive', 'owner', 'labels', 'ended', 'deleted',
}

local function labelled(row, labels)
  local told = cjson.decode(row.labels)
  for name, value in pairs(labels) do
    if told[name] ~= value then return false end
  end
  return true
end

local function mentions(row, part)
  part = string.lower(part)
  local texts = {row.id, row.type, row.user}
  for _, value in pairs(cjson.decode(row.labels)) do texts[#texts + 1] = value end
  for _, value in ipairs(texts) do
    if string.find(string.lower(value), part, 1, true) then return true end
  end
  return false
end

-- By the entry that ended it and by its row; at the end of time if it was not.
local function ended(row)
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
    and (next(q.labels) == nil or labelled(row, q.labels))
    and (q.text == nil or mentions(row, q.text))
    and (q.orphan_for == nil or orphaned(row.owner, q.orphan_for))
    and (q.stale_for == nil or alive(row) < now - q.stale_for)
    and (q.ended_for == nil or ended(row) <= now - q.ended_for)
    and (q.deleted_for == nil or row.deleted <= now - q.deleted_for)
end

local function candidate(key, q)
  local found = call('HMGET', session(key), unpack(LOOKED))
  if not found[1] or (found[2] == '1') ~= (q.deleted_for ~= nil) then return nil end
  local row = {}
  for n, name in ipairs(LOOKED) do row[name] = found[n] end
  for _, name in ipairs({'made', 'beat', 'alive', 'ended', 'deleted'}) do
    row[name] = tonumber(row[name])
    if not row[name] then damaged('session ' .. key) end
  end
  if not (row.labels and row.owner) then damaged('session ' .. key) end
  return row
end

-- Looks at a part of an index, behind a place; tells where it stopped, nothing at the end. `seen` may stop it.
local function walk(asked, seen)
  local q, down, offset, looked, last = asked.query, asked.down, 0, 0, {}
  local index = asked.worker and owned(asked.worker) or q.deleted_for and deleted(q.namespace)
    or down and made(q.namespace) or beaten(q.namespace)
  local command, near, far = 'ZRANGEBYSCORE', '-inf', '+inf'
  if down then command, near, far = 'ZREVRANGEBYSCORE', '+inf', '-inf' end
  local score, place = asked.score, asked.place
  while looked < PART do
    local found = call(command, index, score and text(score) or near, far, 'WITHSCORES', 'LIMIT', offset, PART)
    for n = 1, #found, 2 do
      local key, at = found[n], tonumber(found[n + 1])
      local before = at == score and (down and key >= place or not down and key <= place)
      if not before then
        looked, last = looked + 1, {text(at), key}
        local row = candidate(key, q)
        if row and matches(row, q) and seen(key, row) then return last end
      end
    end
    if #found < 2 * PART then return {} end
    offset = offset + PART
  end
  return last
end

local function find(asked)
  local rows = {}
  local stopped = walk(asked, function(key)
    local told = shown(key)
    if asked.weighed then told[#told + 1] = header(key, tonumber(call('HGET', session(key), 'last'))) end
    rows[#rows + 1] = told
    return #rows == asked.limit
  end)
  return {stopped, rows}
end

local function count(asked)
  local cells, order = {}, {}
  local stopped = walk(asked, function(_, row)
    local name = text(#row.state) .. row.state .. row.type
    if not cells[name] then
      cells[name] = {row.state, row.type, 0, 0, 0}
      order[#order + 1] = cells[name]
    end
    local cell = cells[name]
    cell[3] = cell[3] + 1
    if row.owner ~= '' and row.gone ~= '1' then
      cell[4] = cell[4] + 1
      if orphaned(row.owner, 0) then cell[5] = cell[5] + 1 end
    end
    return false
  end)
  return {stopped, order, call('ZCARD', FEED), tonumber(call('HGET', COUNTERS, 'bytes') or 0)}
end

local function gone(patience)
  local found = {}
  for _, id in ipairs(call('HKEYS', WORKERS)) do
    if orphaned(id, patience) then found[#found + 1] = id end
  end
  return found
end

local function events(asked)
  if not asked.after then return {call('HGET', COUNTERS, 'feed') or '0', 0, {}} end
  local found = call('ZRANGEBYSCORE', FEED, '(' .. asked.after, '+inf', 'WITHSCORES', 'LIMIT', 0, asked.limit)
  local told, place = {}, asked.after
  for n = 1, #found, 2 do
    local key, seq = string.match(found[n], '^(%x+):(%d+)$')
    if not key then damaged('the feed') end
    place = text(tonumber(found[n + 1]))
    local row = (not asked.key or asked.key == key) and call('HMGET', session(key), 'ns', 'id')
    if row and row[1] == asked.namespace then
      told[#told + 1] = {place, row[2], tonumber(seq), header(key, tonumber(seq))}
    end
  end
  return {place, #found / 2, told}
end

-- Giving room

local function empty(asked)
  local key, emptied, bytes = asked.key, 0, 0
  local row = known(key)
  if not row then return 0 end
  for _, seq in ipairs(asked.seqs) do
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
  call('HINCRBY', COUNTERS, 'bytes', text(0 - bytes))
  return emptied
end

local function purge(asked)
  local counts = {}
  for n, key in ipairs(asked.keys) do
    local row, last = known(key), asked.ends[n]
    counts[n] = 0
    if row and (row.gone and not last or last and string.sub(header(key, row.last), 1, 32) == last) then
      call('UNLINK', session(key))
      forget(key)
      counts[n] = row.last
    end
  end
  return counts
end

local function format() return call('HGET', COUNTERS, 'format') end

local verbs = {
  append = append, beat = beat, heads = heads, log = log, frames = frames, find = find, count = count, gone = gone,
  events = events, empty = empty, purge = purge, tidy = tidy, format = format,
}
return verbs[ARGV[1]](cmsgpack.unpack(ARGV[4]))
