-- lib/record.lua: what Redis keeps of a buyer in a sale. The stored format is read and written here.
--
-- '2' then one item an order, oldest first, joined by ';'. An item is
--   <entry id>                      an open order in slot 1 of generation 1, placed without a key
--   <entry id>:<digest>             the same, placed with an Idempotency-Key
--   <entry id>:<slot>:<generation>:<o open | c closed>:<digest, may be empty>     every other
-- Nearly every record is of one short item, and with it fits 32 bytes of Redis's memory.
--
-- Format 1, '1|' and then items of the long form, is still read.

-- A list of orders, or nil when the text is of a format that this script does not know.
local function parse_record(text)
  if not text then return {} end
  local items = string.match(text, '^2(.*)$') or string.match(text, '^1|(.*)$')
  if not items then return nil end
  local orders = {}
  -- Every item ends with ';' here, so that an empty one is seen, and refused, as well.
  for item in string.gmatch(items .. ';', '([^;]*);') do
    local id, rest = string.match(item, '^(%d+%-%d+)(.*)$')
    if not id then return nil end
    local slot, generation, flag, digest = '1', '1', 'o', ''
    if rest ~= '' then
      digest = string.match(rest, '^:([%w_-]+)$')
      if not digest then
        slot, generation, flag, digest = string.match(rest, '^:(%d+):(%d+):([oc]):([%w_-]*)$')
        if not slot then return nil end
      end
    end
    orders[#orders + 1] = {
      id = id, slot = tonumber(slot), generation = tonumber(generation),
      open = flag == 'o', digest = digest,
    }
  end
  return orders
end

local function record_item(id, slot, generation, open, digest)
  if open and tonumber(slot) == 1 and tonumber(generation) == 1 then
    return digest == '' and id or (id .. ':' .. digest)
  end
  return id .. ':' .. slot .. ':' .. generation .. ':' .. (open and 'o' or 'c') .. ':' .. digest
end

local function record_of(items)
  return '2' .. table.concat(items, ';')
end

-- The same record with an item more. One of format 1 becomes one of format 2: the item may be short.
local function record_with(text, item)
  if string.sub(text, 1, 1) == '1' then text = '2' .. string.sub(text, 3) end
  return text .. ';' .. item
end
