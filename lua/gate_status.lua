-- gate_status.lua: may the partition's memory be trusted?
--
-- KEYS[1] gate
--
-- Returns 'open' opened on this server, 'fenced' somebody loads it, 'stale' opened on another server
-- or before a restart, 'missing' there is no gate: the memory is gone, or was never loaded.

local gate = redis.call('HMGET', KEYS[1], 'state', 'replid')
if not gate[1] then return 'missing' end
if gate[1] ~= 'open' then return 'fenced' end
return gate[2] == server_replid() and 'open' or 'stale'
