-- oldest_unapplied.lua: how long the oldest entry waits that is pending or undelivered.
--
-- KEYS[1] orders stream
-- ARGV[1] consumer group
--
-- Returns its age in milliseconds by this server's clock, never below 0 (after a rebuild ids run
-- ahead of the clock for a moment); -1 when nothing waits, or there is no stream or group.

if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local field = by_name(group)
  if field['name'] == ARGV[1] then
    local oldest
    if field['pending'] > 0 then
      oldest = redis.call('XPENDING', KEYS[1], ARGV[1])[2]
    else
      -- Delivered in order: what is pending is older than what is undelivered.
      local next_entry =
        redis.call('XRANGE', KEYS[1], '(' .. field['last-delivered-id'], '+', 'COUNT', 1)[1]
      oldest = next_entry and next_entry[1]
    end
    if not oldest then return -1 end
    return math.max(0, server_time_ms() - (split_id(oldest)))
  end
end
return -1
