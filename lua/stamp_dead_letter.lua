-- stamp_dead_letter.lua: replace a dead letter that is still there, behind a fence of one's own.
--
-- KEYS[1] gate    KEYS[2] dead letters
-- ARGV[1] the fence's token    ARGV[2] the replication id seen at the fence
-- ARGV[3] entry id    ARGV[4] the letter
--
-- Returns 1 replaced, 2 it is gone: somebody has dealt with it, 0 refused: the fence is no longer ours,
-- or the server is another one. A rebuilder that woke up late would stamp an epoch that is over.

if not holds_fence(KEYS[1], ARGV[1], ARGV[2]) then return 0 end
if redis.call('HEXISTS', KEYS[2], ARGV[3]) == 0 then return 2 end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
return 1
