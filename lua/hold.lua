-- hold.lua: keep entries that one still owns; say which ones have been taken over.
--
-- KEYS[1] orders stream
-- ARGV[1] consumer group    ARGV[2] consumer    ARGV[3] idle time to set, in milliseconds: 0 keeps
--         them for another while, a large one hands them back, so that whoever looks next takes them
-- ARGV[4...] entry ids
--
-- Returns the ids that this consumer no longer owns: acknowledged, taken over, or named as deleted by
-- a peer's claim.
--
-- Owner check and claim are one script: between the two nobody else can become the owner, so a
-- worker that wakes up after its entries were taken over cannot take them back.
--
-- XCLAIM drops an entry that is gone from the stream from the pending list without a word. So such an
-- entry is passed over: whoever has its bytes in memory still writes its row and acknowledges it, and
-- if he does not, a peer's XAUTOCLAIM finds it there and names the loss.

local lost = {}
for i = 4, #ARGV do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if pending and pending[2] == ARGV[2] then
    if #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) > 0 then
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'JUSTID')
    end
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
