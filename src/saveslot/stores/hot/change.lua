-- Changes copies of states. KEYS: the copies' names. ARGV: their time to live in milliseconds, a change per key as a row
-- of MessagePack strings, and the channels to publish on. A change:
--
--   session key, head that the copy must have ("" for none), head from now on, "1" to start over, what to drop ("" for
--   nothing), then field and frame by turns
--
-- What to drop: two seqs between which no base is needed any more, and the ranges of seqs of the short patches to keep.
--
-- A copy is a hash: `key`, the session's; `head`, the append_id of the newest entry it includes; a field per frame. It
-- changes only from the head that the caller knows, so a copy is never a mixture: after a lost change it stays old.

for n = #KEYS + 2, #ARGV do
  redis.pcall('PUBLISH', ARGV[n], '') -- a hint: left out if this user may not publish
end

-- Drops frames that the newest state no longer needs.
local function prune(name, ranges)
  local after, before = string.match(ranges, '^(%d+) (%d+)')
  for _, field in ipairs(redis.call('HKEYS', name)) do
    local seq, base, kept = tonumber(field), tonumber(string.match(field, '^b(%d+)$')), false
    for first, last in string.gmatch(ranges, '(%d+)-(%d+)') do
      kept = kept or seq and seq >= tonumber(first) and seq <= tonumber(last)
    end
    local between = base and base > tonumber(after) and base < tonumber(before)
    if seq and not kept or between then redis.call('HDEL', name, field) end
  end
end

local changed = 0
for n, name in ipairs(KEYS) do
  local change = {cmsgpack.unpack(ARGV[n + 1])}
  local key, seen, head, anew, ranges = unpack(change, 1, 5)
  local held = redis.pcall('HMGET', name, 'key', 'head')
  if held.err then -- not a hash, so not a copy
    redis.call('UNLINK', name)
    held = {}
  end
  local before = held[1] == key and held[2] or ''
  -- Session keys, in hexadecimal, rise with time: an id's later session is never replaced by an earlier one.
  if (not held[1] or held[1] <= key) and before == seen then
    if anew == '1' then redis.call('UNLINK', name) end
    redis.call('HSET', name, 'key', key, 'head', head, unpack(change, 6))
    if ranges ~= '' then prune(name, ranges) end
    redis.call('PEXPIRE', name, ARGV[1])
    changed = changed + 1
  end
end
return changed
