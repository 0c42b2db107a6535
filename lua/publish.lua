-- publish.lua: put a new sale behind an open gate.
--
-- KEYS[1] gate    KEYS[2] sale    KEYS[3] buyers of the sale
-- ARGV pairs of sale field and value
--
-- Returns 1 published, 2 the sale is there already, 0 not loaded: the gate is missing, fenced, or of
-- another server's memory, so the partition has to be rebuilt first.

if not gate_is_open(KEYS[1]) then return 0 end
if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return 2 end
redis.call('HSET', KEYS[2], unpack(ARGV))
return 1
