-- extend_lock.lua: keep a lock alive, but only one's own.
--
-- KEYS[1] lock    ARGV[1] the owner's token    ARGV[2] time to live from now, in milliseconds
--
-- Returns 1 extended, 0 it had run out or belongs to somebody else by now.

if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
