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
// All decisions are made by the production code: the scheduler of each server, the choice of
// servers of a container, the choice of the rows that it executes next, and the number of replicas
// needed. The simulation provides time, the network, the length of executions, and the actions of
// the processes around that code when something begins or ends: connecting, looking up names,
// noticing that a peer has failed.
//
// simulate plays a [Fleet]. The reference is an oracle: one queue for all containers, which knows
// their execution times and which of them are up, and which no message delays. All of it is
// deterministic: the same seed gives the same figures on any machine.
package main
