-- fence.lua: close a partition's gate, so that nobody is admitted until `open` with the same token.
--
-- KEYS[1] gate    KEYS[2] orders stream
-- ARGV[1] a fresh random token: a later fence replaces it, and with it whoever held it before
--
-- Returns { now_ms, replid, last_id }: this server's clock, its replication id, and the last id that
-- the stream gave out ('0-0' when there is no stream).

local last_id = last_generated_id(KEYS[2]) or '0-0'
redis.call('HSET', KEYS[1], 'state', 'fenced', 'token', ARGV[1])
return { server_time_ms(), server_replid(), last_id }
