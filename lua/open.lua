-- open.lua: set the stream's last id and open a fenced gate under this server's replication id.
--
-- KEYS[1] gate    KEYS[2] orders stream
-- ARGV[1] the fence's token    ARGV[2] the replication id seen at the fence
-- ARGV[3] the last id: no order of before the fence has a higher one; '0-0' where the partition was
--         never used, so that nothing can have been lost. A stream whose own last id is later by more
--         than a clock can be wrong is replaced by an empty one: the id is nobody's order, all that is
--         on it was applied before, and no id could be given above it
-- ARGV[4] the consumer group
--
-- Returns 1 opened, 0 refused: the fence is no longer ours, or the server is another one.

if not holds_fence(KEYS[1], ARGV[1], ARGV[2]) then return 0 end
local group = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[4], '0', 'MKSTREAM')
if type(group) == 'table' and group.err and not string.find(group.err, 'BUSYGROUP', 1, true) then
  return group
end
local ms, seq = split_id(ARGV[3])
local stream_ms, stream_seq = split_id(last_generated_id(KEYS[2]))
if ms > 0 and stream_ms > ms + CLOCK_SKEW_MAX_MS then
  redis.call('DEL', KEYS[2])
  redis.call('XGROUP', 'CREATE', KEYS[2], ARGV[4], '0', 'MKSTREAM')
  stream_ms, stream_seq = 0, 0
end
if ms > stream_ms or (ms == stream_ms and seq > stream_seq) then
  redis.call('XSETID', KEYS[2], ARGV[3])
else
  ms, seq = stream_ms, stream_seq
end
if ARGV[3] ~= '0-0' then redis.call('HSET', KEYS[1], 'rebuilt_id', ARGV[3]) end
redis.call('HSET', KEYS[1], 'state', 'open', 'replid', ARGV[2],
  'last_ms', string.format('%.0f', ms), 'last_seq', string.format('%.0f', seq))
redis.call('HDEL', KEYS[1], 'token')
return 1
