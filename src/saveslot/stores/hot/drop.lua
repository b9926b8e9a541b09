-- Removes copies. KEYS: their names, ARGV[1]: milliseconds that a grave stays, 0 for none, then for each key its session's.
--
-- A grave takes the copy's place after content was destroyed: a copy still under way does not bring the bytes back,
-- because it expects another head. (Without memory for graves there is none for copies either.)

for n, name in ipairs(KEYS) do
  local key, held = ARGV[n + 1], redis.pcall('HGET', name, 'key')
  if type(held) ~= 'string' or held <= key then
    redis.call('UNLINK', name)
    if ARGV[1] ~= '0' then
      redis.pcall('HSET', name, 'key', key, 'head', 'gone')
      redis.pcall('PEXPIRE', name, ARGV[1])
    end
  end
end
return #KEYS
