-- holds_fence.lua: does a partition's fence still belong to this token?
--
-- KEYS[1] gate
-- ARGV[1] the fence's token    ARGV[2] the replication id seen at the fence
--
-- Returns 1 yes, 0 no: somebody else has fenced since, or the server is another one.

return holds_fence(KEYS[1], ARGV[1], ARGV[2]) and 1 or 0
