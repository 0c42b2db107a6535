-- load.lua: load a sale behind a fenced gate, in chunks; replaces what was there, never merges.
--
-- KEYS[1] gate    KEYS[2] sale    KEYS[3] buyers of the sale
-- ARGV[1] the fence's token    ARGV[2] the replication id seen at the fence
-- ARGV[3] '1' on the first chunk: what was there is removed
-- ARGV[4] number of sale fields n (0 but on the last chunk: a sale without its fields is not loaded)
-- ARGV[5...] n pairs of sale field and value, then pairs of user id and record
--
-- Returns 1 loaded, 0 refused: the fence is no longer ours, or the server is another one.

if not holds_fence(KEYS[1], ARGV[1], ARGV[2]) then return 0 end
if ARGV[3] == '1' then redis.call('UNLINK', KEYS[2], KEYS[3]) end
local records_from = 5 + tonumber(ARGV[4]) * 2
if records_from <= #ARGV then redis.call('HSET', KEYS[3], unpack(ARGV, records_from)) end
if records_from > 5 then redis.call('HSET', KEYS[2], unpack(ARGV, 5, records_from - 1)) end
return 1
