-- release.lua: take back what an order that is over still holds, exactly once.
--
-- KEYS[1] gate    KEYS[2] sale    KEYS[3] buyers of the sale
-- ARGV[1] user id    ARGV[2] the order's entry id    ARGV[3] its generation
-- ARGV[4] '1' the unit goes back on sale, '0' it never existed: Redis had one too many
-- ARGV[5] '' or the record item of the open order that has the slot instead (see lib/record.lua)
-- ARGV[6] how long stock that rises from 0 is held back, in milliseconds: by then every gateway that
--         refuses from memory has asked again
--
-- Returns 1 released, 2 nothing to do: the record does not hold this order in this generation any
-- more (a repeat), 0 not loaded: the release has to wait until the sale is.

if not gate_is_open(KEYS[1]) then return 0 end
local sale = redis.call('HMGET', KEYS[2], 'stock', 'held', 'total', 'returns')
local stock, held, total, returns =
  tonumber(sale[1]), tonumber(sale[2]), tonumber(sale[3]), tonumber(sale[4])
if not (stock and held and total and returns) then return 0 end

local orders = parse_record(redis.call('HGET', KEYS[3], ARGV[1]))
if not orders then return 0 end

local ours, instead_is_known
for i = 1, #orders do
  local order = orders[i]
  if order.id == ARGV[2] and order.generation == tonumber(ARGV[3]) and order.open then ours = i end
  if ARGV[5] ~= '' and order.id == string.match(ARGV[5], '^[^:]+') then instead_is_known = true end
end
if not ours then return 2 end

local items = {}
for i = 1, #orders do
  local order = orders[i]
  items[i] =
    record_item(order.id, order.slot, order.generation, order.open and i ~= ours, order.digest)
end
local replaced = ARGV[5] ~= '' and not instead_is_known
if replaced then
  -- The other order holds a unit that Redis never gave it: it takes over this one's.
  items[#items + 1] = ARGV[5]
elseif ARGV[4] == '1' then
  if stock == 0 then
    redis.call('HSET', KEYS[2], 'reopen_ms', string.format('%.0f', server_time_ms() + tonumber(ARGV[6])))
  end
  stock, held, returns = stock + 1, held - 1, returns + 1
else
  held, total = held - 1, total - 1
end
redis.call('HSET', KEYS[3], ARGV[1], record_of(items))
redis.call('HSET', KEYS[2], 'stock', stock, 'held', held, 'total', total, 'returns', returns)
return 1
