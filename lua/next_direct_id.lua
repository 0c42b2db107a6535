-- next_direct_id.lua: an id for an order of a direct sale, which has no stream.
--
-- KEYS[1] the counter: a hash with the last id given
--
-- Returns an entry id, or '' when no id can be given (clock fault). The database's primary key has
-- the last word: after a loss of memory an id may come twice, and the caller takes a new one.

local last = redis.call('HMGET', KEYS[1], 'ms', 'seq')
local ms, seq = next_order_id(server_time_ms(), tonumber(last[1] or 0), tonumber(last[2] or 0))
if not ms then return '' end
redis.call('HSET', KEYS[1], 'ms', string.format('%.0f', ms), 'seq', string.format('%.0f', seq))
return format_id(ms, seq)
