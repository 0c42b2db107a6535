-- read_sale.lua: a sale's account in Redis, read at one moment.
--
-- KEYS[1] gate    KEYS[2] sale    KEYS[3] orders stream
--
-- Returns { open, last_id, total, stock, held, epoch, returns, state, admitted }; open is 1 when the gate is open
-- on this server. last_id is the last one that the partition gave out, by the stream or by the gate,
-- which outlives the stream: whoever holds a unit at this moment has an order up to it. All but the two
-- are '' when the sale is not there.

local ms, seq = 0, 0
local function note(other_ms, other_seq)
  if other_ms > ms or (other_ms == ms and other_seq > seq) then ms, seq = other_ms, other_seq end
end
local in_stream = last_generated_id(KEYS[3])
if in_stream then note(split_id(in_stream)) end
local in_gate = redis.call('HMGET', KEYS[1], 'last_ms', 'last_seq')
note(tonumber(in_gate[1]) or 0, tonumber(in_gate[2]) or 0)

local sale = redis.call('HMGET', KEYS[2], 'total', 'stock', 'held', 'epoch', 'returns', 'state',
  'admitted')
local reply = { gate_is_open(KEYS[1]) and 1 or 0, format_id(ms, seq) }
for i = 1, 7 do reply[i + 2] = sale[i] or '' end
return reply
