-- lib/order_entry.lua: an order's stream entry, format version 1.
--
--   v format version   s sale id   u user id   b slot   e epoch
--   k idempotency digest, when the buyer sent a key   t traceparent, when the request was sampled
--
-- Read back by `decode` in crates/storage-redis/src/order_stream/entry.rs, which embeds this file: the two
-- change together, and a golden entry in its tests fails when only one does.

-- Appends one under an id that it must be able to have. Returns what XADD answers: the id, false where
-- there is no stream, or an error as a table. Written out, because a table of fields made and taken
-- apart again for each order is felt.
local function add_order_entry(stream_key, id, sale, user, slot, epoch, digest, traceparent)
  if traceparent ~= '' then
    if digest ~= '' then
      return redis.pcall('XADD', stream_key, 'NOMKSTREAM', id, 'v', '1', 's', sale, 'u', user,
        'b', slot, 'e', epoch, 'k', digest, 't', traceparent)
    end
    return redis.pcall('XADD', stream_key, 'NOMKSTREAM', id, 'v', '1', 's', sale, 'u', user,
      'b', slot, 'e', epoch, 't', traceparent)
  end
  if digest ~= '' then
    return redis.pcall('XADD', stream_key, 'NOMKSTREAM', id, 'v', '1', 's', sale, 'u', user,
      'b', slot, 'e', epoch, 'k', digest)
  end
  return redis.pcall('XADD', stream_key, 'NOMKSTREAM', id, 'v', '1', 's', sale, 'u', user,
    'b', slot, 'e', epoch)
end
