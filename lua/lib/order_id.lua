-- lib/order_id.lua: the next id of a stream whose ids are order ids.
--
-- An order id has 41 bits for milliseconds since 2024-01-01 and 12 bits for the sequence; what does
-- not fit is refused (nil), never wrapped. A last id more than a minute ahead of the clock means
-- that a clock is wrong somewhere, and giving ids away would go on for as long as it stays wrong.

local ID_EPOCH_MS = 1704067200000
local ID_MS_MAX = ID_EPOCH_MS + 2199023255551 -- 2^41 - 1
local SEQ_MAX = 4095
local CLOCK_SKEW_MAX_MS = 60000

local function next_order_id(now_ms, last_ms, last_seq)
  local ms, seq = now_ms, 0
  if last_ms >= now_ms then
    ms, seq = last_ms, last_seq + 1
    if seq > SEQ_MAX then ms, seq = last_ms + 1, 0 end
  end
  if ms < ID_EPOCH_MS or ms > ID_MS_MAX or ms - now_ms > CLOCK_SKEW_MAX_MS then return nil end
  -- The very first millisecond's first id would be the number 0, which is no id.
  if ms == ID_EPOCH_MS and seq == 0 then seq = 1 end
  return ms, seq
end

-- %d and no conversion by Lua, which goes by way of floating point and takes five times as long.
local function format_id(ms, seq)
  return string.format('%d-%d', ms, seq)
end

local function split_id(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
