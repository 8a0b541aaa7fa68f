-- SPDX-License-Identifier: Apache-2.0
-- Takes one request, its tokens and a lease, or nothing.
-- KEYS  bucket of requests, bucket of tokens, leases (id -> expiry in ms)
-- ARGV  requests a second, burst, tokens a second, burst, tokens to take, leases at most,
--       life of a lease in ms, its id.        A rate or maximum of 0: no such limit.
-- Gives {1, 0, 0}, or {0, what is short (1 requests, 2 tokens, 3 leases), ms until it is there}.
-- Time is Redis's own, so that it does not matter what the callers' clocks say. It may step back
-- (a failover): then nothing flows in until it has caught up, and the last filling stays put.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local function bucket(key, rate, burst, cost)
    if rate == 0 then
        return { limited = false, wait = 0 }
    end
    local held = redis.call('HMGET', key, 't', 'n')
    local last = tonumber(held[1]) or now
    local level = tonumber(held[2]) or burst
    if now > last then
        level = level + (now - last) * rate / 1000000
        last = now
    end
    level = math.min(level, burst)
    local wait = 0
    if cost - level > 0.000001 then
        wait = math.max(1, math.ceil((cost - level - 0.0000005) * 1000 / rate))
    end
    return { limited = true, key = key, rate = rate, burst = burst, cost = cost, last = last,
             level = level, wait = wait }
end

local function write(b)
    if b.limited then
        redis.call('HSET', b.key, 't', string.format('%d', b.last),
            'n', string.format('%.6f', math.max(b.level - b.cost, 0)))
        -- A bucket that is gone counts as full, which it is by then.
        redis.call('PEXPIRE', b.key, math.ceil(b.burst * 1000 / b.rate) + 1000)
    end
end

local requests_rate, requests_burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local tokens_rate, tokens_burst = tonumber(ARGV[3]), tonumber(ARGV[4])
local cost, most, life = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
if requests_rate > 0 and not (requests_burst >= 1) then
    return redis.error_reply('BADCOST the burst of requests is below 1')
end
if tokens_rate > 0 and not (cost > 0 and cost <= tokens_burst) then
    return redis.error_reply('BADCOST tokens to take must be above 0 and at most the burst')
end

if most > 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', math.floor(now / 1000))
    if redis.call('ZCARD', KEYS[3]) >= most then
        return { 0, 3, 0 }
    end
end
local requests = bucket(KEYS[1], requests_rate, requests_burst, 1)
local tokens = bucket(KEYS[2], tokens_rate, tokens_burst, cost)
if requests.wait > 0 or tokens.wait > 0 then
    local short = requests.wait >= tokens.wait and 1 or 2
    return { 0, short, math.max(requests.wait, tokens.wait) }
end
write(requests)
write(tokens)
if most > 0 then
    redis.call('ZADD', KEYS[3], math.floor(now / 1000) + life, ARGV[8])
    redis.call('PEXPIRE', KEYS[3], life * 2)
end
return { 1, 0, 0 }
