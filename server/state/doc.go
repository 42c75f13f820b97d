// Package state keeps what a server must remember: applications and what they link to, default
// versions, settings, the state of selection policies, and which feedback has been applied.
//
//	 Get, List, Watch              Update
//	        │                        │
//	        ▼            what was    ▼
//	┌───────────────┐  acknowledged ┌──────────────────────┐
//	│ mirror        │◄──────────────│ file (bbolt),        │
//	│ in memory     │◄──────────────│ Redis, or nothing    │
//	└───────────────┘  what others  └──────────────────────┘
//	                   have changed
//
// Every key is mirrored in the memory of every server: reading never waits for a disk or a
// network, and a server that has lost its Redis goes on with what it knows, and can bring it
// back. So the state is meant to be megabytes, not gigabytes.
//
// # Keys and values
//
// A key is a path of at most [MaxKeyBytes]; [Key] makes one of segments and escapes what users
// chose. A value is any bytes, at most [MaxValueBytes], and belongs to the layer that wrote it.
// An update changes one key, in one atomic step, whoever else changes it at the same time. A
// write sets many keys in one, whatever they were: what must change together by what it was is
// one value.
//
// # Consistency
//
// A change is there for every reader of this store before the Update that made it returns.
// Other servers on the same Redis see it within a second, as a rule within milliseconds.
// Reading may be that much behind; Update never is: it always works on the newest value. A
// server that was cut off sees the final state when it is back, also what has been deleted.
//
// # What is durable
//
// The file: everything that Update acknowledged has been written and synced. Redis: as durable
// as that Redis is set up to be, and beyond that as long as one of the servers lives that knew
// of it. DESIGN.md tells how.
//
// # Limits
//
// Ids of updates are remembered for [Options.IDLifetime], and at most [Options.MaxIDs] of them.
//
// All methods of a Store may be called from any goroutine.
package state
