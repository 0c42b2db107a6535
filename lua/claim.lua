-- claim.lua: take over entries that their consumers have held for too long, and note those that are gone.
--
-- KEYS[1] orders stream    KEYS[2] lost entries: a set of entry ids
-- ARGV[1] consumer group    ARGV[2] consumer    ARGV[3] idle time that is too long, in milliseconds
-- ARGV[4] where to begin    ARGV[5] how many entries
--
-- Returns { where the next page begins ("0-0" at the end), entries as XRANGE lists them, ids of
-- entries that were pending and are gone from the stream }.
--
-- XAUTOCLAIM names an entry that is gone once, to one caller, who may die of anything just then. So
-- the same script notes it, until somebody has written it down elsewhere.
--
-- With JUSTID, so that the delivery count does not grow: a delivery is not an attempt.

local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'set' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE claim: the key of lost entries holds no set')
end
local claimed =
  redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5], 'JUSTID')
for _, id in ipairs(claimed[3]) do redis.call('SADD', KEYS[2], id) end
local entries = {}
for i, id in ipairs(claimed[2]) do entries[i] = redis.call('XRANGE', KEYS[1], id, id)[1] end
return { claimed[1], entries, claimed[3] }
