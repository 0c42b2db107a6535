-- dead_letter.lua: set an entry aside for an operator, then acknowledge it.
--
-- KEYS[1] orders stream    KEYS[2] dead letters
-- ARGV[1] consumer group    ARGV[2] entry id    ARGV[3] the letter
--
-- Returns { stored, acked }: stored is 0 when the letter was there already, acked is 0 when the entry
-- was no longer pending. The letter is stored before the entry is acknowledged, and an entry that
-- cannot be stored (no memory left) stays pending.

-- HSETNX tells by itself whether KEYS[2] is a hash; XACK would tell too late.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE dead_letter: the orders key holds no stream')
end
local stored = redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3])
return { stored, redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) }
