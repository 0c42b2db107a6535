-- leave_group.lua: remove a consumer that holds nothing.
--
-- KEYS[1] orders stream
-- ARGV[1] consumer group    ARGV[2] consumer
--
-- Returns 1 removed, 0 it still holds entries (removing it would destroy them) or is not there.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local field = by_name(consumer)
  if field['name'] == ARGV[2] and field['pending'] == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
    return 1
  end
end
return 0
