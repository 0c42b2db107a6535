-- adjust_stock.lua: carry out an adjustment of a sale's stock, exactly once.
--
-- KEYS[1] gate    KEYS[2] sale
-- ARGV[1] the adjustment's number    ARGV[2] units more, or less    ARGV[3] the sale's epoch
-- ARGV[4] how long stock that rises from 0 is held back, in milliseconds: by then every gateway that
--         refuses from memory has asked again
--
-- Returns 1 carried out, now or by an earlier call; 2 refused, now or by an earlier call: fewer units
-- were for sale than are to be taken away; 0 not loaded, or of another epoch: read the adjustment again, then ask again.

if not gate_is_open(KEYS[1]) then return 0 end
local sale = redis.call('HMGET', KEYS[2], 'stock', 'total', 'returns', 'epoch', 'adjusted',
  'not_adjusted')
local stock, total, returns, epoch =
  tonumber(sale[1]), tonumber(sale[2]), tonumber(sale[3]), tonumber(sale[4])
if not (stock and total and returns and epoch) or epoch ~= tonumber(ARGV[3]) then return 0 end

-- A sale's adjustments come one after the other, with rising numbers.
if tonumber(sale[5] or '0') >= tonumber(ARGV[1]) then return 1 end
local delta = tonumber(ARGV[2])
-- Who was refused may have told the database so already: the answer stays, though units come back.
if tonumber(sale[6] or '0') >= tonumber(ARGV[1]) then return 2 end
if stock + delta < 0 then
  redis.call('HSET', KEYS[2], 'not_adjusted', ARGV[1])
  return 2
end
if delta > 0 then
  returns = returns + 1
  if stock == 0 then
    redis.call('HSET', KEYS[2], 'reopen_ms', string.format('%.0f', server_time_ms() + tonumber(ARGV[4])))
  end
end
redis.call('HSET', KEYS[2], 'stock', stock + delta, 'total', total + delta, 'returns', returns,
  'adjusted', ARGV[1])
return 1
