// Scale simulates fleets that no machine here could hold: a thousand servers, thousands of
// containers, a hundred thousand streams, while parts of them fail, are replaced, or get more load.
//
//	go run ./bench/sim/scale                       # all of it, 6 GB
//	go run ./bench/sim/scale -servers 64 -only events
//
//	streams ──► servers ──► sessions ──► containers
//	  frames     scheduler.Scheduler      rounds.Table, subset.Choice
//	             as it is                 as they are
//
// What decides is the code that runs in production: the scheduler of each server, by which servers
// a container is served, whose rows it executes next, and how many replicas are needed. Simulated
// are time, the network, what an execution takes, and what the processes around that code do when
// something begins or ends: connecting, looking names up, noticing that somebody has gone.
//
// simulate plays a [Fleet]. Beside it stands an oracle: one queue for all containers, which knows
// how long they take and which of them are there, and which no message delays. All of it is
// deterministic: the same seed gives the same figures on any machine.
package main
