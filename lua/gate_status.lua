-- gate_status.lua: may the partition's memory be trusted?
--
-- KEYS[1] gate    KEYS[2] orders stream
--
-- Returns 'open' opened on this server, 'fenced' somebody loads it, 'stale' opened on another server
-- or before a restart, 'missing' there is no gate: the memory is gone, or was never loaded; 'ahead' it
-- is open, but no order id can be given: the stream's last id lies in the future, and no rebuild has
-- found an order that has it.

local gate = redis.call('HMGET', KEYS[1], 'state', 'replid')
if not gate[1] then return 'missing' end
if gate[1] ~= 'open' then return 'fenced' end
if gate[2] ~= server_replid() then return 'stale' end
local last_ms = split_id(last_generated_id(KEYS[2]) or '0-0')
local rebuilt_ms = split_id(redis.call('HGET', KEYS[1], 'rebuilt_id') or '0-0')
if last_ms > server_time_ms() + CLOCK_SKEW_MAX_MS and last_ms > rebuilt_ms then return 'ahead' end
return 'open'
