-- oldest_unapplied.lua: how long the oldest entry waits that is pending or undelivered.
--
-- KEYS[1] orders stream
-- ARGV[1] consumer group
--
-- Returns its age in milliseconds by this server's clock, never below 0 (after a rebuild ids run
-- ahead of the clock for a moment); -1 when nothing waits, or there is no stream. Without the group all
-- that is on the stream counts as undelivered.

if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local group = find_group(KEYS[1], ARGV[1])
local oldest
if group and group['pending'] > 0 then
  oldest = redis.call('XPENDING', KEYS[1], ARGV[1])[2]
else
  -- Delivered in order: what is pending is older than what is undelivered.
  local from = group and '(' .. group['last-delivered-id'] or '-'
  local next_entry = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', 1)[1]
  oldest = next_entry and next_entry[1]
end
if not oldest then return -1 end
return math.max(0, server_time_ms() - (split_id(oldest)))
