-- lib/record.lua: what Redis keeps of a buyer in a sale. The stored format is read and written here.
--
-- '1|' then one item an order, oldest first, joined by ';':
--   <entry id>:<slot>:<generation>:<o open | c closed>:<idempotency digest, may be empty>

-- A list of orders, or nil when the text is of a format that this script does not know.
local function parse_record(text)
  if not text then return {} end
  if string.sub(text, 1, 2) ~= '1|' then return nil end
  local orders = {}
  -- Every item ends with ';' here, so that an empty one is seen, and refused, as well.
  for item in string.gmatch(string.sub(text, 3) .. ';', '([^;]*);') do
    local id, slot, generation, flag, digest =
      string.match(item, '^(%d+%-%d+):(%d+):(%d+):([oc]):([%w_-]*)$')
    if not id then return nil end
    orders[#orders + 1] = {
      id = id, slot = tonumber(slot), generation = tonumber(generation),
      open = flag == 'o', digest = digest,
    }
  end
  return orders
end

local function record_item(id, slot, generation, open, digest)
  return id .. ':' .. slot .. ':' .. generation .. ':' .. (open and 'o' or 'c') .. ':' .. digest
end
