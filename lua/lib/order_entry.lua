-- lib/order_entry.lua: an order's stream entry, format version 2.
--
--   o the order: version, sale id, slot, epoch, idempotency digest or nothing, user id, joined by ':'
--   t traceparent, when the request was sampled
--
-- In one field, because each costs Redis when it is written, stored, read and told to the worker. The user
-- id stands last: it may hold any character but control characters.
--
-- Read back by `decode` in crates/storage-redis/src/order_stream/entry.rs, which reads version 1 (a field
-- each) as well: the two change together, and a golden entry in its tests fails when only one does.

-- Appends one under an id that it must be able to have. Numbers come as texts. Returns what XADD answers:
-- the id, false where there is no stream, or an error as a table.
local function add_order_entry(stream_key, id, sale, user, slot, epoch, digest, traceparent)
  local order = '2:' .. sale .. ':' .. slot .. ':' .. epoch .. ':' .. digest .. ':' .. user
  if traceparent == '' then return redis.pcall('XADD', stream_key, 'NOMKSTREAM', id, 'o', order) end
  return redis.pcall('XADD', stream_key, 'NOMKSTREAM', id, 'o', order, 't', traceparent)
end
