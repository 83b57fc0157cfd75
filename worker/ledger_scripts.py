"""What `worker.ledger` does in one step inside Redis; its docstring names the keys.

Every script looks at R:spec first and writes nothing without it. What it writes lives as long as R:spec does.
"""

CLAIM = """
local spec, done, result, lease, attempts, pause, cancel = unpack(KEYS)
local shard, token, ttl = unpack(ARGV)
local key_ttl = redis.call('PTTL', spec)
if key_ttl <= 0 or redis.call('EXISTS', pause, cancel) > 0 then return {'gone', 0} end
if redis.call('GETBIT', done, shard) == 1 or redis.call('EXISTS', result) == 1 then return {'done', 0} end
local holder = redis.call('GET', lease)
if holder == token then return {'claimed', tonumber(redis.call('HGET', attempts, shard))} end
if holder then return {'held', 0} end
local attempt = redis.call('HINCRBY', attempts, shard, 1)
redis.call('PEXPIRE', attempts, key_ttl)
redis.call('SET', lease, token, 'NX', 'PX', ttl)
return {'claimed', attempt}
"""

RENEW = """
local spec, done, lease, cancel, pause = unpack(KEYS)
local shard, token, ttl = unpack(ARGV)
if redis.call('EXISTS', spec) == 0 or redis.call('EXISTS', cancel, pause) > 0 then return 'cancelled' end
if redis.call('GETBIT', done, shard) == 1 then return 'lost' end
local holder = redis.call('GET', lease)
if holder and holder ~= token then return 'lost' end
redis.call('SET', lease, token, 'PX', ttl)
return 'held'
"""

RELEASE = """
local lease, attempts = unpack(KEYS)
local shard, prefix, forgive = unpack(ARGV)
local holder = redis.call('GET', lease)
if not holder or string.sub(holder, 1, #prefix) ~= prefix then return 0 end
redis.call('DEL', lease)
if forgive == '1' and redis.call('HEXISTS', attempts, shard) == 1 then redis.call('HINCRBY', attempts, shard, -1) end
return 1
"""

DELIVER = """
local spec, done, result, ready, lease, live, issued, finished = unpack(KEYS)
local shard, token, rows, report, worker, idle = unpack(ARGV)
local key_ttl = redis.call('PTTL', spec)
if key_ttl <= 0 then return 'gone' end
local holder = redis.call('GET', lease)
if holder and holder ~= token then return 'lost' end
if redis.call('GETBIT', done, shard) == 0 and redis.call('EXISTS', result) == 0 then
  redis.call('HSET', result, 'rows', rows, 'report', report)
  redis.call('PEXPIRE', result, key_ttl)
  redis.call('RPUSH', ready, shard)
  redis.call('PEXPIRE', ready, key_ttl)
  redis.call('SREM', issued, shard)
  redis.call('SADD', finished, shard)
  redis.call('PEXPIRE', finished, key_ttl)
end
redis.call('DEL', lease)
redis.call('HSET', live, worker, idle)
redis.call('PEXPIRE', live, key_ttl)
return 'delivered'
"""

RECORD_FAULT = """
local key_ttl = redis.call('PTTL', KEYS[1])
if key_ttl <= 0 then return 0 end
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('PEXPIRE', KEYS[2], key_ttl)
return 1
"""

REPORT_LIVE = """
local key_ttl = redis.call('PTTL', KEYS[1])
if key_ttl <= 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], key_ttl)
return 1
"""

COUNT_DEATH = """
local key_ttl = redis.call('PTTL', KEYS[1])
if key_ttl <= 0 then return 0 end
local deaths = redis.call('HINCRBY', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], key_ttl)
return deaths
"""

JOIN_CLASS = """
local spec, class = unpack(KEYS)
local key_ttl = redis.call('PTTL', spec)
local decided = redis.call('GET', class)
if decided then return decided end
if key_ttl > 0 then redis.call('SET', class, ARGV[1], 'PX', key_ttl) end
return ARGV[1]
"""
