-- count_attempt.lua: count a solo run of a suspect entry, just before it begins.
--
-- KEYS[1] attempts: a hash of entry id and count
-- ARGV[1] entry id    ARGV[2] how many attempts are allowed
--
-- Returns the number of this attempt; or -1 when no attempt is left: the entry is to be set aside.
--
-- The count lives in Redis because the worker that is about to crash takes its own memory with it. It
-- runs also where Redis has no memory left: see count_suspects.lua.

local attempts = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
if attempts >= tonumber(ARGV[2]) then return -1 end
return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
