// Package zmtp carries multipart ZeroMQ messages over one net.Conn, between a ROUTER, the server,
// and a DEALER (a container) or a REQ (a client that asks one question at a time).
//
// The handshake is github.com/go-zeromq/zmq4's (zmq4.Open, NULL mechanism); everything after it is
// ours. containers/DESIGN.md lists the findings about that library that led to the split. In short:
// the bytes that the library would read during the handshake are read, bounded and checked here
// first, and the stream after READY is framed here, into pooled memory and with one writev for each
// message.
//
//	greeting   64 bytes: ff ........ 7f | major minor | mechanism, 20 bytes | as-server | filler
//	READY      command frame: 04 len | 05 "READY" | properties (Socket-Type, Identity)
//	then       frames:
//	           +-------+-----------------+------+    flags  01 more frames of this message follow
//	           | flags | length          | body |           02 the length has 8 bytes, big-endian
//	           | 1     | 1, or 8 (flag)  |      |           04 command; PING and PONG are answered
//	           +-------+-----------------+------+              here, and are no messages
//
// # Memory
//
// A frame's length is a claim. It is checked against [Limits] before any memory is taken, and the
// memory of a large body grows in stages with the bytes that have arrived: never more than eight
// times those plus 16 KiB, at the price of copying at most a seventh of the body. If the pool
// refuses, the rest of the message is read and thrown away and the message says so
// ([Message.Refused]); the stream stays in step.
//
// # Writing
//
// [Conn.Send] never blocks. When nothing waits, it tries one non-blocking writev on the caller's
// goroutine; bytes that the socket does not take are written by a goroutine that lives as long as
// there is something to write. A connection that cannot be written to without blocking in the
// caller (TLS, and one that is not a socket of the operating system) always uses that goroutine.
//
// # TLS
//
// With [Config.Secure] all of it goes through TLS. If one side speaks TLS and the other does not,
// the peer is told as far as possible: a plain peer by ZMTP's ERROR, a TLS peer by the greeting,
// which it takes for a broken record.
//
// # Concurrency
//
// Send, Ping, Written, Close and the accessors may be called from any goroutine. Receive belongs to
// one goroutine at a time. Any error of Receive or Send ends the connection: nothing after it can
// be trusted, and only Close is left to call.
package zmtp
