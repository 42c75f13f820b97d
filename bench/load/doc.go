// Package load generates load for a server of tensors, over Shiva, HTTP/1.1 or gRPC, and
// measures it: rates, and latencies as a user would see them.
//
// There are two ways to offer load. A closed loop holds a fixed number of requests in flight on
// each connection and sends the next when one is answered, or a think time later, as programs do
// that wait for each answer. It finds the highest rate, but a server that stalls also stalls the
// requests, so its latencies are too good. An open loop sends at a fixed rate, whatever the server
// does, and counts each latency from the intended send time, not from the actual one: no
// coordinated omission. The achieved rate is reported next to the offered one.
//
//	   arrivals --> conn.due --> write(2) --> server --> read(2) --> answers --> Histogram
//	(open: schedule,   requests due,  one frame each,      split by lengths,   from the intended
//	 closed: answers)  by time        or all at once       a sample in full    send time
//
// With Config.Streams the requests are frames of streams, as cameras send them, each with its
// number and the time at which it was due.
//
// The generator shares the machine with the server under test, so its own cost must be small, and
// the same for every server. Requests are encoded beforehand; answers are found by headers and
// lengths; only a sample is compared in full. One thread per loop (default: one loop) owns its
// connections, waits for them with epoll to the microsecond, and allocates nothing while it runs.
//
// Run may be called from any goroutine; runs are independent of each other.
package load
