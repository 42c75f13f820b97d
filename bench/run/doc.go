// Command run measures shivad relative to the limits of its machine, and checks floors. "make
// bench" runs it from the top of the repository.
//
//	run [-short] [-only REGEXP] [-rounds N] [-duration D] [-profile DIR] [-markdown]
//
// A single figure from a shared machine means little, so every figure here is a ratio to a
// reference that was measured right next to it. In each round all systems get the same load from
// the same generator, one after the other, every other round in reverse order, and ratios are taken
// within a round. The report has the median of the rounds, the lowest and the highest.
//
//	codec    decode and encode of package shiva, against copy of the same bytes
//	json     JSON of 150,528 floats into a tensor, against encoding/json into a slice
//	doors    a model inside the process through Shiva, HTTP and gRPC, against Shiva
//	batches  a batch to a container and back, against a bare ZMTP exchange of the same bytes
//	hostile  p99 of requests to a container beside hostile ones, against the same without them
//	bombs    p50 of requests beside gzip bodies that unpack a thousandfold, against as much CPU load
//	resets   p50 of requests beside rapid resets over gRPC, against as much CPU load; the same for
//	         the tricks windows, continuations, pings, keepalive and pipelined; and all of these
//	         once more from many addresses, as bombs-many and so on
//	idle     10,000 connections without a request: memory, CPU, and the p99 of other clients
//	slow     5,000 clients at a byte a second: when they are closed, and the wait of new ones
//	overhead latency at 30 % of the rate, against two round trips to the bare echo
//	direct   rate of a container at its limit, against a program that drives it directly
//	unread   p99 of requests beside clients that read no answers, against the same without them
//	identities, traced
//	         rate with a hundred identities and quotas, or with traces, against the same without
//	log      p99 of requests with a log that nobody reads, against one in a file
//	tls      the TCP door over TLS, against a bare crypto/tls echo
//	handshakes
//	         p99 of requests over TLS beside unfinished handshakes and slow clients, and memory
//	quotas   p99 of requests beside a client at ten times its quota, against one at its quota
//	large    frames of 6.2 and 24.9 MB through the door, against the bare echo and each other
//	echo     bare gnet that writes back what it read: the reference for the following
//	door     the TCP door, the gate and the scheduler, with a model inside the process
//	go       shivad with a container in Go, a process of its own
//	python   shivad with a container in Python
//
// It prints lines for benchstat, then the ratios, each with its limit, and exits with 1 if a ratio
// does not hold.
package main
