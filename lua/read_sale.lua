-- read_sale.lua: a sale's account in Redis, read at one moment.
--
-- KEYS[1] gate    KEYS[2] sale
--
-- Returns { open, total, stock, held, epoch, returns, state }; open is 1 when the gate is open on this
-- server. All but open are '' when the sale is not there.

local sale = redis.call('HMGET', KEYS[2], 'total', 'stock', 'held', 'epoch', 'returns', 'state')
local reply = { gate_is_open(KEYS[1]) and 1 or 0 }
for i = 1, 6 do reply[i + 1] = sale[i] or '' end
return reply
