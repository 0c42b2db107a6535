-- unlock.lua: give a lock back, but only one's own.
--
-- KEYS[1] lock    ARGV[1] the owner's token
--
-- Returns 1 released, 0 it had run out or belongs to somebody else by now.

if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
