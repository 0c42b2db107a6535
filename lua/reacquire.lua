-- reacquire.lua: give an expired order that was paid for late a unit again, exactly once.
--
-- KEYS[1] gate    KEYS[2] sale    KEYS[3] buyers of the sale
-- ARGV[1] user id    ARGV[2] the order's entry id    ARGV[3] its slot
-- ARGV[4] the generation of the new hold: one above that of the hold that expired
-- ARGV[5] its idempotency digest or ''
--
-- Returns { code, epoch }
--   1 the order holds a unit in that generation, since now or since an earlier call
--   2 refused: no unit is left, the sale is closed, another order of the buyer has the slot, or the
--     hold of that generation was given back already
--   0 not loaded: ask again when the sale is
-- epoch is the sale's epoch, 0 when it is not loaded.

if not gate_is_open(KEYS[1]) then return { 0, 0 } end
local sale = redis.call('HMGET', KEYS[2], 'stock', 'held', 'limit', 'state', 'epoch')
local stock, held, limit, state, epoch =
  tonumber(sale[1]), tonumber(sale[2]), tonumber(sale[3]), sale[4], tonumber(sale[5])
if not (stock and held and limit and state and epoch) then return { 0, 0 } end

local orders = parse_record(redis.call('HGET', KEYS[3], ARGV[1]))
if not orders then return { 0, 0 } end

local slot, generation = tonumber(ARGV[3]), tonumber(ARGV[4])
local ours, open, slot_is_taken = nil, 0, false
for i = 1, #orders do
  local order = orders[i]
  if order.id == ARGV[2] then
    ours = i
  elseif order.open then
    open = open + 1
    if order.slot == slot then slot_is_taken = true end
  end
end

local held_before = ours and orders[ours].open
if ours and orders[ours].generation >= generation then return { held_before and 1 or 2, epoch } end
if slot_is_taken or open >= limit or state == 'closed' then return { 2, epoch } end
-- Whose release has not come through yet still has its unit: it keeps it, and the release of the
-- older generation will find nothing to take back.
if not held_before then
  if stock < 1 then return { 2, epoch } end
  stock, held = stock - 1, held + 1
end

local items = {}
for i = 1, #orders do
  local order = orders[i]
  if i ~= ours then
    items[#items + 1] =
      record_item(order.id, order.slot, order.generation, order.open, order.digest)
  else
    items[#items + 1] = record_item(ARGV[2], slot, generation, true, order.digest)
  end
end
if not ours then items[#items + 1] = record_item(ARGV[2], slot, generation, true, ARGV[5]) end
redis.call('HSET', KEYS[3], ARGV[1], record_of(items))
redis.call('HSET', KEYS[2], 'stock', stock, 'held', held)
return { 1, epoch }
