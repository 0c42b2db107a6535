-- lib/reply.lua: replies that are flat lists of names and values (XINFO), as tables by name.

local function by_name(list)
  local fields = {}
  for i = 1, #list, 2 do fields[list[i]] = list[i + 1] end
  return fields
end

-- The last id that a stream gave out; nil when there is no stream.
local function last_generated_id(stream_key)
  if redis.call('EXISTS', stream_key) == 0 then return nil end
  return by_name(redis.call('XINFO', 'STREAM', stream_key))['last-generated-id']
end

-- A stream's group by its name, as XINFO GROUPS describes it; nil when there is no stream or group.
local function find_group(stream_key, name)
  if redis.call('EXISTS', stream_key) == 0 then return nil end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream_key)) do
    local field = by_name(group)
    if field['name'] == name then return field end
  end
end
