-- count_suspects.lua: add to what is counted of entries that come again.
--
-- KEYS[1] counts: a hash of field and count
-- ARGV[1] how much to add    ARGV[2...] fields
--
-- Returns the new count of each field.
--
-- It runs also where Redis has no memory left: an entry that is not counted is not worked on, and what
-- is held keeps the stream from being trimmed, which is what makes room again.

local counts = {}
for i = 2, #ARGV do
  counts[i - 1] = redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[1])
end
return counts
