-- drill_order.lua: an order of a drill's sale, by the admission that buyers have, and what befalls it.
--
-- admit.lua stands in front as the function `admit`.
--
-- KEYS[1] gate    KEYS[2] sale    KEYS[3] buyers of the sale    KEYS[4] orders stream
-- ARGV[1...] as admit.lua has them, for one request; and behind them, taken off before it runs:
-- ARGV[n-2] consumer group    ARGV[n-1] the consumer who has the order's entry
-- ARGV[n] what befalls it: 'hold' he holds it, and no worker gets it; 'lose' he holds it, and it is gone
--         from the stream; 'ahead' no order at all, but an entry of an epoch that the sale has not reached
--
-- Returns { code, entry id }: a code of admit.lua, or 0 where others' entries are in the way, which must
-- not be touched: try again.

local fate, consumer, group_name = table.remove(ARGV), table.remove(ARGV), table.remove(ARGV)
if fate ~= 'hold' and fate ~= 'lose' and fate ~= 'ahead' then
  return redis.error_reply('ERR drill_order: unknown fate')
end
local group = find_group(KEYS[4], group_name)
if not group then return { 0, '' } end

if fate == 'ahead' then
  local epoch = redis.call('HGET', KEYS[2], 'epoch')
  if not epoch or not gate_is_open(KEYS[1]) then return { 8, '' } end
  local ms, seq = next_order_id(server_time_ms(), split_id(last_generated_id(KEYS[4])))
  if not ms then return { 9, '' } end
  local ahead = format_id(tonumber(epoch) + 1, 0):match('^%d+')
  add_order_entry(KEYS[4], format_id(ms, seq), ARGV[1], ARGV[4], '1', ahead, '', '')
  return { 1, format_id(ms, seq) }
end

-- Whoever reads next gets the oldest that nobody has had: it has to be ours.
local undelivered =
  redis.call('XRANGE', KEYS[4], '(' .. group['last-delivered-id'], '+', 'COUNT', 1)
if #undelivered > 0 then return { 0, '' } end
-- What is trimmed with ours must be done.
if fate == 'lose' and group['pending'] > 0 then return { 0, '' } end

local reply = admit()
if type(reply) ~= 'table' or reply.err or reply[5] ~= 1 then
  return type(reply) == 'table' and reply.err and reply or { reply[5], '' }
end
local id = reply[6]
redis.call('XREADGROUP', 'GROUP', group_name, consumer, 'COUNT', 1, 'STREAMS', KEYS[4], '>')
if fate == 'lose' then
  local ms, seq = split_id(id)
  -- Idle for longer than any worker waits: the next one that looks takes it over, and finds nothing.
  redis.call('XCLAIM', KEYS[4], group_name, consumer, 0, id, 'IDLE', 604800000, 'JUSTID')
  redis.call('XTRIM', KEYS[4], 'MINID', '=', format_id(ms, seq + 1))
end
return { 1, id }
