-- trim_acked.lua: remove the entries that every group has acknowledged.
--
-- KEYS[1] orders stream
--
-- Returns how many entries were removed. Nothing at or above the oldest entry that is pending in, or
-- not yet delivered to, some group is touched; without a group nothing is known to be done, and
-- nothing is removed.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
local min_ms, min_seq
for _, group in ipairs(groups) do
  local field = by_name(group)
  local ms, seq = split_id(field['last-delivered-id'])
  seq = seq + 1
  if field['pending'] > 0 then
    local pending_ms, pending_seq = split_id(redis.call('XPENDING', KEYS[1], field['name'])[2])
    -- A group that was set back (XGROUP SETID) has undelivered entries below its pending ones.
    if pending_ms < ms or (pending_ms == ms and pending_seq < seq) then
      ms, seq = pending_ms, pending_seq
    end
  end
  if not min_ms or ms < min_ms or (ms == min_ms and seq < min_seq) then
    min_ms, min_seq = ms, seq
  end
end
if not min_ms then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', format_id(min_ms, min_seq))
