package state

import "github.com/redis/go-redis/v9"

// Each atomic step in Redis is a script. DESIGN.md describes the protocol; these are its keys,
// where N is the namespace:
//
//	N:meta     hash       format    of these keys and their values; none: 1, as before it was there
//	                      run       run id of the Redis that this life began on
//	                      life      names the life: another one after every restart, fail-over
//	                                and flush
//	                      hold      ms since 1970: no update before that, servers bring what they
//	                                know
//	                      revision  of the last change; a life begins with the time in µs, so that
//	                                what is changed in it is newer than all that servers bring
//	                                from before
//	                      floor     highest revision of a deletion that is no longer in N:deleted
//	N:entries  hash       key → revision, a space, value
//	N:deleted  sorted set key, by the revision of its deletion
//	N:applied  sorted set hash of key and id of an update (16 bytes), by its time in ms since 1970
//	N:changes  channel    messages, see wire.go
//
// All numbers are whole and below 2^53, the limit of Lua and sorted sets; scripts store revisions
// with string.format, since Lua would write large ones as 1e+14.

// redisFormat is the number of this layout. Increment it for a change that earlier releases would
// read or write wrongly: they then refuse the layout.
const redisFormat = "1"

// scriptHead is the common beginning of the scripts. KEYS: meta, entries, deleted, applied. Each
// script checks the format in the step that reads or writes, so that a server of an earlier release
// that still runs when a later one changes the format touches nothing from then on.
const scriptHead = `
local meta, entries, deleted, applied = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local format = redis.call('HGET', meta, 'format')
if format and format ~= '` + redisFormat + `' then return redis.error_reply('FORMAT ' .. format) end
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function whole(n) return string.format('%.0f', n) end
local function revision(entry) return entry and tonumber(string.match(entry, '^%d+')) or 0 end
local function bury(key, rev, most)
  redis.call('ZADD', deleted, whole(rev), key)
  local over = redis.call('ZCARD', deleted) - most
  if over > 0 then
    local gone = redis.call('ZPOPMIN', deleted, over)
    redis.call('HSET', meta, 'floor', whole(tonumber(gone[#gone])))
  end
end
local function put(op, key, rev, value, most)
  if op == 'set' then
    redis.call('HSET', entries, key, whole(rev) .. ' ' .. value)
    redis.call('ZREM', deleted, key)
  else
    redis.call('HDEL', entries, key)
    bury(key, rev, most)
  end
end
local function forget(lifetime, most)
  redis.call('ZREMRANGEBYSCORE', applied, '-inf', whole(now - lifetime))
  redis.call('ZREMRANGEBYRANK', applied, 0, -most - 1)
end
`

// commitScript changes one key if nothing else has changed it meanwhile.
//
//	ARGV  channel, life, key, revision expected, 'set', 'delete' or 'look', value, hash of the id
//	      or '', lifetime of ids in ms, most ids, most deletions
//	gives {'done', revision, now} | {'life'}: read everything again | {'hold', ms}: wait
//	      | {'applied', entry or false} | {'changed', entry or false}: not as expected, or a look
var commitScript = redis.NewScript(scriptHead + `
local channel, life, key, expected, op, value, id = unpack(ARGV, 1, 7)
local lifetime, mostIDs, mostDeleted = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local m = redis.call('HMGET', meta, 'run', 'life', 'hold')
if m[1] ~= run or m[2] ~= life then return {'life'} end
local wait = tonumber(m[3] or 0) - now
if wait > 0 then return {'hold', wait} end
local entry = redis.call('HGET', entries, key)
if id ~= '' then
  local at = redis.call('ZSCORE', applied, id)
  if at and now - tonumber(at) < lifetime then return {'applied', entry} end
end
if op == 'look' or revision(entry) ~= tonumber(expected) then return {'changed', entry} end
local rev = redis.call('HINCRBY', meta, 'revision', 1)
put(op, key, rev, value, mostDeleted)
if id ~= '' then
  redis.call('ZADD', applied, whole(now), id)
  forget(lifetime, mostIDs)
end
redis.call('PUBLISH', channel, table.concat({op, whole(rev), whole(now), #id, #key, id .. key .. value}, ' '))
return {'done', rev, now}
`)

// writeScript sets keys to values, whatever their old values.
//
//	ARGV  channel, life, most deletions, then as often as needed: key, 'set' or 'delete', value
//	gives {'done', revision of the last, now} | {'life'} | {'hold', ms}
var writeScript = redis.NewScript(scriptHead + `
local most = tonumber(ARGV[3])
local m = redis.call('HMGET', meta, 'run', 'life', 'hold')
if m[1] ~= run or m[2] ~= ARGV[2] then return {'life'} end
local wait = tonumber(m[3] or 0) - now
if wait > 0 then return {'hold', wait} end
local last = redis.call('HINCRBY', meta, 'revision', (#ARGV - 3) / 3)
local rev = last - (#ARGV - 3) / 3
for i = 4, #ARGV, 3 do
  rev = rev + 1
  put(ARGV[i + 1], ARGV[i], rev, ARGV[i + 2], most)
end
redis.call('PUBLISH', ARGV[1], 'read')
return {'done', last, now}
`)

// beginScript returns the life of the data, and begins a new life if this Redis has another run id
// than the data, or no data.
//
//	ARGV  channel, ms to hold
//	gives life
var beginScript = redis.NewScript(scriptHead + `
local m = redis.call('HMGET', meta, 'run', 'life', 'revision')
if m[1] == run and m[2] then return m[2] end
local rev = math.max(tonumber(m[3] or 0) + 1, t[1] * 1000000 + t[2])
local life = run .. ':' .. whole(rev)
redis.call('HSET', meta, 'format', '` + redisFormat +
	`', 'run', run, 'life', life, 'revision', whole(rev), 'hold', whole(now + tonumber(ARGV[2])))
redis.call('PUBLISH', ARGV[1], 'read')
return life
`)

// restoreScript stores what a server knows and this Redis does not, except where Redis has
// something newer.
//
//	ARGV  channel or '' if more is coming, life, ms to hold, most deletions, lifetime of ids in
//	      ms, most ids, highest revision known, floor, then as often as needed: 'set', key,
//	      revision, value | 'delete', key, revision, '' | 'id', hash, time, ''
//	gives 1, or 0 if another life has begun
var restoreScript = redis.NewScript(scriptHead + `
local hold, mostDeleted, lifetime, mostIDs = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local m = redis.call('HMGET', meta, 'run', 'life', 'revision', 'floor')
if m[1] ~= run or m[2] ~= ARGV[2] then return 0 end
for i = 9, #ARGV, 4 do
  local op, key, n, value = unpack(ARGV, i, i + 3)
  if op == 'id' then
    redis.call('ZADD', applied, 'GT', n, key)
  else
    local there = math.max(revision(redis.call('HGET', entries, key)),
      tonumber(redis.call('ZSCORE', deleted, key) or 0))
    if tonumber(n) > there then put(op, key, tonumber(n), value, mostDeleted) end
  end
end
forget(lifetime, mostIDs)
local floor = redis.call('HGET', meta, 'floor') or 0
redis.call('HSET', meta,
  'revision', whole(math.max(tonumber(m[3] or 0), tonumber(ARGV[7]))),
  'floor', whole(math.max(tonumber(floor), tonumber(ARGV[8]))),
  'hold', whole(now + hold))
if ARGV[1] ~= '' then redis.call('PUBLISH', ARGV[1], 'read') end
return 1
`)
