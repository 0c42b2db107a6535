-- admit.lua: decide a batch of requests for one sale, and enqueue the order of each that is admitted.
--
-- KEYS[1] gate    KEYS[2] sale    KEYS[3] buyers of the sale    KEYS[4] orders stream
-- ARGV[1] sale id
-- ARGV[2] the most orders, open and closed, that one buyer's record may hold
-- ARGV[3] '1' where the caller waits for replicas behind this call, else ''
-- ARGV[4...] the user ids of all requests, then their idempotency digests or '', then their
--            traceparents or ''
--
-- Returns { now_ms, epoch, returns, stock, code_1, entry_id_1, code_2, entry_id_2, ... }
--   1 admitted         entry id of the new order
--   2 replayed         entry id of the order that the same key was answered with before
--   3 already ordered  entry id of the buyer's latest open order (at the order cap: of the latest)
--   4 sold out
--   5 not started
--   6 ended
--   7 paused
--   8 not loaded: sale or gate missing, fenced, of another server's memory, or unreadable
--   9 clock fault: no id can be given
-- entry_id is '' for 4 to 9.
--
-- Redis does not roll back a script that fails. So everything is read and checked before a
-- request's first write; the first write is the XADD, the only one that can be refused; and the
-- records, written together at the end, go to a key whose type has been seen.

local now_ms = server_time_ms()
local count = (#ARGV - 3) / 3
local orders_max = tonumber(ARGV[2])
if not orders_max or count < 1 or count ~= math.floor(count) then
  return redis.error_reply('ERR admit: three arguments a request are needed')
end

local function refuse_all(code)
  local reply = { now_ms, 0, 0, 0 }
  for _ = 1, count do
    reply[#reply + 1] = code
    reply[#reply + 1] = ''
  end
  return reply
end

local function whole(text)
  if text and string.match(text, '^%d+$') then return tonumber(text) end
  return nil
end

if not gate_is_open(KEYS[1]) then return refuse_all(8) end

local sale = redis.call('HMGET', KEYS[2], 'state', 'stock', 'held', 'opens_ms', 'closes_ms',
  'limit', 'epoch', 'returns', 'reopen_ms')
local state = sale[1]
local stock, held = whole(sale[2]), whole(sale[3])
local opens_ms, closes_ms = whole(sale[4]), whole(sale[5])
local limit, epoch, returns, reopen_ms = whole(sale[6]), whole(sale[7]), whole(sale[8]), whole(sale[9])
if not (state and stock and held and opens_ms and closes_ms and limit and epoch and returns
    and reopen_ms) then
  return refuse_all(8)
end

-- The refusal of a sale that is not on; the same for the whole batch.
local not_on = nil
if state == 'paused' then not_on = 7
elseif state == 'closed' then not_on = 6
elseif state ~= 'published' then not_on = 8
elseif now_ms < opens_ms then not_on = 5
elseif now_ms >= closes_ms then not_on = 6
end

local last = redis.call('HMGET', KEYS[1], 'last_ms', 'last_seq')
local last_ms, last_seq = whole(last[1]), whole(last[2])

-- The stream itself knows its last id best, but asking costs Redis more than the whole request; so
-- the gate remembers it, and the stream is asked only where the two turn out to differ.
local function read_last_id()
  local last_id = last_generated_id(KEYS[4])
  if last_id then last_ms, last_seq = split_id(last_id) end
end

-- The id of the appended entry; or nil, and why.
local function append(user, slot, digest, traceparent)
  if not last_ms or not last_seq then return nil, 'no stream' end
  local ms, seq = next_order_id(now_ms, last_ms, last_seq)
  if not ms then return nil, 'clock' end
  local id = format_id(ms, seq)
  local added = add_order_entry(KEYS[4], id, ARGV[1], user, slot, sale[7], digest, traceparent)
  if type(added) == 'table' and added.err then return nil, added end
  if not added then return nil, 'no stream' end
  last_ms, last_seq = ms, seq
  return id
end

-- What each buyer's record was, and what it becomes. A buyer may come twice in one batch.
local before = redis.call('HMGET', KEYS[3], unpack(ARGV, 4, 3 + count))
local after, writes = {}, {}
local admitted = 0

-- For a buyer who has a record: the code and the entry id of the order that he is answered with; or
-- nil and the lowest free slot.
local function find_order(orders, digest)
  if digest ~= '' then
    for i = 1, #orders do
      if orders[i].digest == digest then return 2, orders[i].id end
    end
  end
  local open, latest_open, taken = 0, nil, {}
  for i = 1, #orders do
    if orders[i].open then
      open, latest_open = open + 1, orders[i].id
      taken[orders[i].slot] = true
    end
  end
  if open >= limit then return 3, latest_open end
  if #orders >= orders_max then return 3, latest_open or orders[#orders].id end
  local slot = 1
  while taken[slot] do slot = slot + 1 end
  return nil, slot
end

-- Returns a code and an entry id; or nil and an error reply that nothing was written before.
local function decide(user, text, digest, traceparent)
  -- Text, because numbers that become text by themselves do so slowly.
  local slot = '1'
  if text then
    local orders = parse_record(text)
    if not orders then return 8, '' end
    local code, found = find_order(orders, digest)
    if code then return code, found end
    slot = string.format('%d', found)
  end
  if not_on then return not_on, '' end
  if stock < 1 or now_ms < reopen_ms then return 4, '' end

  if not last_ms or not last_seq then read_last_id() end
  local id, refused = append(user, slot, digest, traceparent)
  if not id and type(refused) == 'table' and string.find(refused.err, 'equal or smaller', 1, true) then
    read_last_id()
    id, refused = append(user, slot, digest, traceparent)
  end
  if not id then
    if refused == 'clock' then return 9, '' end
    if type(refused) == 'table' and admitted == 0 then return nil, refused end
    return 8, ''
  end

  local item = record_item(id, slot, '1', true, digest)
  local record = text and record_with(text, item) or record_of({ item })
  after[user] = record
  writes[#writes + 1] = user
  writes[#writes + 1] = record
  stock, held, admitted = stock - 1, held + 1, admitted + 1
  return 1, id
end

local reply, yes = { now_ms, epoch, returns, stock }, false
for i = 1, count do
  local user = ARGV[3 + i]
  local code, id =
    decide(user, after[user] or before[i], ARGV[3 + count + i], ARGV[3 + 2 * count + i])
  if not code then return id end
  reply[#reply + 1] = code
  reply[#reply + 1] = id
  if code <= 3 then yes = true end
end
if admitted > 0 then
  redis.call('HSET', KEYS[3], unpack(writes))
  redis.call('HSET', KEYS[2], 'stock', stock, 'held', held)
  redis.call('HINCRBY', KEYS[2], 'admitted', admitted)
  redis.call('HSET', KEYS[1], 'last_ms', format_id(last_ms, 0):match('^%d+'), 'last_seq', last_seq)
elseif yes and ARGV[3] == '1' then
  -- WAIT asks how far the replicas are with what *its* connection wrote last. The order that is
  -- answered here again may have been written over another connection, and no replica may have it yet:
  -- so this call writes too, behind that order, though it changes nothing.
  local written = redis.pcall('HSET', KEYS[2], 'stock', stock)
  if type(written) == 'table' and written.err then return written end
end
reply[4] = stock
return reply
