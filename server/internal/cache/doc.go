// Package cache keeps the answers of a model, and lets equal requests in flight share one
// execution.
//
//	gate.Submit --> Call.Find -+-> hit: the request is completed at once
//	                           +-> an equal one is executing: it waits for that one's answer
//	                           +-> miss: it goes to the scheduler, and equal ones wait for it
//
// Source: Clipper's prediction cache (Crankshaw et al., NSDI 2017, section 4.2), with two
// differences: it is off by default, per model, and requests are compared by a hash that is
// computed once, not by their inputs.
//
// Key: xxh3-128, seeded by the cache, of the version, the parameters for the container, and the
// dtype, shape and bytes of every input. Requests with the same key are taken to be equal. One pair
// in 2^128 collides by chance; the seed keeps clients from searching for such a pair. Priority,
// deadline and id are not part of the key.
//
// An entry is a copy of the outputs in one buffer of the server's pool: a view of the batch's
// outputs would pin all of them. The pool is the common one, so that limits.payload_bytes stays the
// one number that bounds the payloads of the process; when the pool is exhausted, an answer is not
// cached, and no request fails because of that. Only complete answers of the model are cached,
// never errors. An answer that arrives after the deadline of its request, or after the request was
// cancelled, is cached too: otherwise a model slower than its clients' timeouts would never answer
// them.
//
// Bound: everything that an entry takes counts, both its buffer's size class and its bookkeeping.
// W-TinyLFU (github.com/maypok86/otter) chooses the entries to evict, so that many requests that
// occur once do not evict those that occur often. The answer that is being stored may exceed the
// bound.
//
// Versions: answers belong to a [Version], which is a version of the model while it has live
// replicas. The gate drops it when the last replica is removed, and makes another when a replica is
// added.
//
// Followers keep their own deadlines and may be cancelled. If the leader fails for a reason of its
// own (its deadline, a disconnected client, refused or displaced at a limit), the next follower is
// submitted in its place; any other result is shared. A follower has its leader's place in the
// queue, whatever its own priority and deadline.
//
// Concurrency: everything may be called from any goroutine. A hit takes only the locks of the table
// of entries; a miss and its answer take the cache's mutex once each. The mutex is not held during
// calls to owners and the scheduler.
//
// # Bounds, expiry and order
//
//   - A cache stands between a request and its owner: from gate.Submit until Complete,
//     Request.Owner of a leader is the cache's Call.
//   - A cached answer is found without a lock, so it may be evicted at the same moment:
//     entry.acquire takes a reference only if one is left. Entries are never recycled, unlike
//     buffers of the pool, whose count may already belong to another user.
//   - Answers are cached per incarnation of a version (scheduler.Model.Incarnation), not only per
//     version: between two reads of the routes the last replica may have left and another build may
//     have registered.
//   - Cached answers are copies in the payload pool. Views of a batch's outputs cost no copy but
//     pin the whole batch; a budget apart from the pool would split the memory of one process into
//     two numbers. So copies count against limits.payload_bytes, all caches and the largest message
//     must fit it together, and an answer that finds no memory is not kept.
//   - Followers wait, whatever their own priority and deadline. Executing the more urgent one of
//     two equal requests as well would answer it sooner under overload, but execute it twice. When
//     the leader turns out to be late, the follower takes its place.
//   - otter evicts (Apache 2.0). Its W-TinyLFU retains frequent requests during a scan of others,
//     in which the least recently used entry is always a frequent one (TestScanLeavesTheUseful),
//     and it weighs entries and expires them by itself. hashicorp/golang-lru does not do the first,
//     and its expiring form has a goroutine that cannot be stopped.
package cache
