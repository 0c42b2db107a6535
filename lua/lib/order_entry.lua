-- lib/order_entry.lua: the fields of an order's stream entry, format version 1.
--
--   v format version   s sale id   u user id   b slot   e epoch
--   k idempotency digest, when the buyer sent a key   t traceparent, when the request was sampled
--
-- Read back by `decode` in crates/storage-redis/src/order_stream/entry.rs, which embeds this file: the two
-- change together, and a golden entry in its tests fails when only one does.

local function order_entry(sale, user, slot, epoch, digest, traceparent)
  local fields = { 'v', '1', 's', sale, 'u', user, 'b', slot, 'e', epoch }
  if digest ~= '' then
    fields[#fields + 1] = 'k'
    fields[#fields + 1] = digest
  end
  if traceparent ~= '' then
    fields[#fields + 1] = 't'
    fields[#fields + 1] = traceparent
  end
  return fields
end
