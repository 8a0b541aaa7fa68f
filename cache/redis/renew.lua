-- SPDX-License-Identifier: Apache-2.0
-- Renews leases of requests that still run, also those that Redis has lost meanwhile.
-- KEYS  leases (id -> expiry in ms)        ARGV  life of a lease in ms, ids
local clock = redis.call('TIME')
local expiry = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + tonumber(ARGV[1])
for i = 2, #ARGV do
    redis.call('ZADD', KEYS[1], expiry, ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[1]) * 2)
return #ARGV - 1
