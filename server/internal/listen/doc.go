// Package listen does what every door must do before it serves a connection, and while a message
// arrives on it.
//
//	Open                   listens on an address: TCP, TLS or a Unix socket
//	TLSFiles, TLS          the certificates of a door, and what is wrong with them
//	Listener.Accept ──┬──→ Conn, counted until it is closed or Leave is called
//	                  └──→ above a limit: told why in the door's protocol, and closed so that
//	                       the client can read it
//	Clock                  when a message that has begun must be complete
//	ForeignPage            whether a page of another site sent an HTTP request
//
// On TLS addresses, Accept returns a connection after its handshake.
//
// A door supplies its name, which errors use for its settings, its limits, and the encoding of
// errors in its protocol.
//
// A client on a Unix socket has no address and is identified by its user, which the kernel reports
// (SO_PEERCRED).
//
// Concurrency: everything may be called from any goroutine.
//
// # Connections and unread answers
//
//   - One address may have half of a door's connections (connections_per_address), except this
//     machine's own: so one address cannot fill the door, and a proxy, which is one address as
//     well, has enough. An IPv6 address counts as its 64-bit network, since one host may use all of
//     it.
//   - idle_timeout is 15 minutes over HTTP and gRPC, longer than the balancers we know keep a
//     connection (10 minutes at most), so that the balancer closes it first, and none is closed
//     under a request. It is off for Shiva, whose clients are devices that may send nothing for a
//     day and take 1.2 KiB each.
//   - Room for an answer is reserved before its request is submitted (gate.Outbox, for the Shiva
//     and the gRPC door). A client that does not read is detected only after a while, when all its
//     requests in flight are answered: 20 clients with 256 answers of 1 MiB each held 4 GB. So a
//     request waits, in its place, until the client's unread answers and those of its requests in
//     flight leave room within tcp.outbound_bytes. Most models declare the size of an answer;
//     otherwise it is estimated from the last ones. An answer of unforeseeable size (a client may
//     choose it) that does not fit becomes Overloaded. A strict window would keep large requests of
//     one client out of each other's batches, so the window doubles, up to eight times, for a
//     client that has read everything while requests waited, and shrinks again when the client
//     stalls.
//   - A row of an answer pins the memory of its whole batch. Answers that wait for a stalled client
//     are copied (unpin), so that they take only the memory that is counted for them.
//   - A refusal is written when the client has sent its body, as far as the limits allow: one that
//     is still sending would find its connection reset instead of the reason.
package listen
