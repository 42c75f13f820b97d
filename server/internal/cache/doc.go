// Package cache keeps the answers of a model, and lets equal requests in flight share one
// execution.
//
//	gate.Submit --> Call.Find -+-> hit: the request is completed at once
//	                           +-> an equal one is executing: it waits for that one's answer
//	                           +-> miss: it goes to the scheduler, and equal ones wait for it
//
// Source: Clipper's prediction cache (Crankshaw et al., NSDI 2017, section 4.2), with two
// differences: it is off unless a model asks for it, and the key is a hash that is made once,
// not a comparison of inputs.
//
// Key: xxh3-128, with a seed of the cache's own, of the version, the parameters for the
// container, and the dtype, shape and bytes of every input. Two requests with one key are taken
// to be equal: by chance that happens to one pair in 2^128, and the seed is there so that no
// client can make such a pair at leisure. Priority, deadline and id are not in it.
//
// An entry is a copy of the outputs in one buffer of the server's pool, of their size: a
// view of the batch's outputs would pin all of them. It is the pool and no budget beside it so
// that limits.payload_bytes stays the one number that bounds the payloads of the process; when
// the pool is exhausted an answer is not cached, and nothing fails for that. Only whole answers
// of the model are cached: no errors. An answer that comes after the deadline of its request, or
// after the request was cancelled, is cached as well: a model that takes longer than its clients
// wait would never be of use to them otherwise.
//
// Bound: all that an entry takes counts, its buffer's class and its bookkeeping alike.
// W-TinyLFU (github.com/maypok86/otter) chooses what goes, so that a stream of questions that
// are asked once does not flush those that are asked often. The bound may be exceeded by the
// one answer that is being stored.
//
// Versions: answers belong to a [Version], which stands for one version of the model while it
// has live replicas. The gate drops it when the last one goes, and makes another when one
// comes.
//
// Followers keep their own deadlines and may be cancelled. When the leader ends with an error
// that is its own (its deadline, its client gone, refused or displaced at a limit), the next
// follower is submitted in its place; all other ends are shared. A follower waits at its
// leader's place in the queue, whatever its own priority and deadline.
//
// Concurrency: everything may be called from any goroutine. A hit takes no lock but what the
// table of entries takes to learn of it; a miss and its answer take the cache's mutex once
// each. Owners' Complete and the scheduler are called without it.
package cache
