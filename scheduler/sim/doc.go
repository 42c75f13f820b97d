// Package sim simulates the scheduler: the production code, on virtual time, against replicas
// that take a + b·rows with noise and stalls. Ten seconds of load pass in a fraction of a second,
// deterministically.
//
//	   arrivals ──► scheduler.Scheduler ──► replicas (a + b·rows, noise)
//	(trace: times,    on schedtest.Clock          │
//	 deadlines)             ▲─────────────────────┘
//
// [Run] measures one strategy in one [Cell]: a model's profile, a load, a kind of arrivals, a kind
// of deadlines. [Oracle] is the reference: it shares no code with the scheduler, knows the true
// profile and the true distribution of the noise, learns nothing, has no dispatch overhead, and
// tries every window of the waiting rows. [AtOnce] is the other extreme: a free replica gets all
// waiting rows.
//
// [RunFleet] has several servers, which share the replicas over a network.
//
// All of them get the same arrivals, and the k-th batch of a replica the same noise.
package sim
