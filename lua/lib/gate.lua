-- lib/gate.lua: is this server's memory the one that was loaded?
--
-- Redis changes master_replid at every restart and every promotion, so a gate that carries another
-- replication id stands in memory that may be older than what buyers were told. Whatever touches a
-- sale's state asks here first.

local function server_replid()
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
end

-- True when the gate is open and was opened on this very server.
local function gate_is_open(gate_key)
  local gate = redis.call('HMGET', gate_key, 'state', 'replid')
  return gate[1] == 'open' and gate[2] == server_replid()
end

-- True when the gate is closed by the fence that this token belongs to, on this very server.
local function holds_fence(gate_key, token, replid)
  local gate = redis.call('HMGET', gate_key, 'state', 'token')
  return gate[1] == 'fenced' and gate[2] == token and replid == server_replid()
end

local function server_time_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
