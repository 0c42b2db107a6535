-- prune_consumers.lua: remove the consumers of processes that are gone.
--
-- KEYS[1] orders stream
-- ARGV[1] consumer group    ARGV[2] how long a consumer must not have been seen, in milliseconds
--
-- Returns how many were removed: none without a stream or group. One that still holds entries stays, because removing it would
-- destroy them; reclaiming empties it first. A living reader is seen at every poll.

local removed = 0
if not find_group(KEYS[1], ARGV[1]) then return 0 end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local field = by_name(consumer)
  if field['pending'] == 0 and field['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], field['name'])
    removed = removed + 1
  end
end
return removed
