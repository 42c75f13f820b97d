// Package state stores what a server must remember: applications and their links, default versions,
// settings, the state of selection policies, and which feedback has been applied.
//
//	 Get, List, Watch              Update
//	        |                        |
//	        v            what was    v
//	+---------------+  acknowledged +----------------------+
//	| mirror        |<--------------| file (bbolt),        |
//	| in memory     |<--------------| Redis, or nothing    |
//	+---------------+  what others  +----------------------+
//	                   have changed
//
// Every key is mirrored in the memory of every server: reading never waits for a disk or a network,
// and a server that has lost its Redis goes on with its mirror, and can restore Redis from it. So
// the state is meant to be megabytes, not gigabytes.
//
// # Keys and values
//
// A key is a path of at most [MaxKeyBytes]; [Key] joins segments to one and escapes what users
// chose. A value is any bytes, at most [MaxValueBytes], and only the layer that wrote it interprets
// it. An update changes one key in one atomic step, even if other servers change it at the same
// time. A write sets many keys in one step, whatever their old values: data that must be read and
// changed together belongs in one value.
//
// # Consistency
//
// A change is visible to every reader of this store before the Update that made it returns. Other
// servers on the same Redis see it within a second, as a rule within milliseconds. Reading may be
// that much behind; Update never is: it always works on the newest value. A server that was cut off
// sees the final state when it is back, including deletions.
//
// # What is durable
//
// In a file, everything that Update acknowledged has been written and synced. In Redis, a change is
// as durable as that Redis is configured to be, and beyond that lasts as long as any server lives
// that has seen it. DESIGN.md explains how.
//
// # Limits
//
// Ids of updates are remembered for [Options.IDLifetime], and at most [Options.MaxIDs] of them.
//
// All methods of a Store may be called from any goroutine.
package state
