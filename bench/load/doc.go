// Package load generates load for a server of tensors, over Shiva, HTTP/1.1 or gRPC, and
// measures it: rates, and latencies as a user would see them.
//
// There are two ways to offer load. A closed loop keeps a set number of requests in flight on
// each connection and sends the next when one is answered: it finds the highest rate, but a
// server that stalls also stalls the questions, so its latencies flatter. An open loop sends at
// a set rate, whatever the server does, and counts each latency from the moment at which the
// request was meant to leave, not from the moment at which it did: no coordinated omission.
// What was really achieved is reported beside what was offered.
//
//	   arrivals ──> conn.due ──> write(2) ──> server ──> read(2) ──> answers ──> Histogram
//	(open: schedule,   requests due,  one frame each,      split by lengths,   from the intended
//	 closed: answers)  by time        or all at once       a sample in full    send time
//
// The generator shares the machine with what it measures, so its own cost must be small, and
// the same for every server: requests are frames encoded beforehand; answers are found by
// reading headers and skipping by lengths; only a sample is compared in full. One thread per
// loop (default one loop in all) owns its connections, waits for them with epoll to the
// microsecond, and allocates nothing while it runs.
//
// Run may be called from any goroutine; runs are independent of each other.
package load
