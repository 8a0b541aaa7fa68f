-- SPDX-License-Identifier: Apache-2.0
-- Puts tokens back that were taken and not used, up to the burst.
-- KEYS  bucket of tokens        ARGV  tokens a second, burst, tokens to put back
-- A bucket that is gone counts as full: nothing to do. Gives 1 if something was put back.
local rate, burst, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if not (rate > 0 and amount > 0 and amount <= burst) then
    return redis.error_reply('BADCOST tokens to put back must be above 0 and at most the burst')
end
local held = redis.call('HMGET', KEYS[1], 't', 'n')
local last, level = tonumber(held[1]), tonumber(held[2])
if not last or not level then
    return 0
end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
if now > last then
    level = level + (now - last) * rate / 1000000
    last = now
end
redis.call('HSET', KEYS[1], 't', string.format('%d', last),
    'n', string.format('%.6f', math.min(level + amount, burst)))
redis.call('PEXPIRE', KEYS[1], math.ceil(burst * 1000 / rate) + 1000)
return 1
