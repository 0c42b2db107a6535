-- update_dead_letter.lua: replace a dead letter that is still there.
--
-- KEYS[1] dead letters
-- ARGV[1] entry id    ARGV[2] the letter
--
-- Returns 1 replaced, 0 it is gone: somebody has dealt with it, and it must not come back.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
