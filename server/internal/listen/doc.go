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
package listen
