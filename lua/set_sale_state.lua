-- set_sale_state.lua: pause, resume or close a sale.
--
-- KEYS[1] gate    KEYS[2] sale
-- ARGV[1] the new state: published, paused or closed
--
-- Returns 1 done (also when it was so already), 2 refused: a closed sale stays closed, 0 not loaded.

if not gate_is_open(KEYS[1]) then return 0 end
local state = redis.call('HGET', KEYS[2], 'state')
if not state then return 0 end
if state == 'closed' and ARGV[1] ~= 'closed' then return 2 end
redis.call('HSET', KEYS[2], 'state', ARGV[1])
return 1
