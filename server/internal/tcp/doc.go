// Package tcp is the door for clients that speak Shiva over raw TCP.
//
//	            event loop, one goroutine each
//	socket ──► session.traffic ─► shiva.Decoder ─► call ─► gate.Open ─┐ all of one reading
//	                                                │                 ▼ at once
//	                                 line of answers, oldest first   scheduler.Submit
//	                                                │                 │ any goroutine
//	socket ◄── session.flush ◄── encode ◄── head answered? ◄── loop.post ◄── Complete
//
// Promises: every message gets one answer, in the order of the messages, in whatever order they are
// completed. A message that cannot be understood gets an error; the connection ends only if the
// next message boundary is lost. The memory that a client can make the server hold is bounded:
// requests in flight, bytes of a half-received message, unread answers, connections. Each error
// names the limit that caused it.
//
// Concurrency: everything about a session happens in turns of its loop, one at a time. Nearly all
// turns are the event loop's; other goroutines reach it through its mailbox (loop.post,
// loop.postRoom). Sessions know only a transport: gnet.go and writable.go implement it for TCP,
// socket.go for Unix sockets, TLS and clients over their rate, where the goroutines that read take
// the turns.
//
// Memory: a message's bytes are copied once, from the loop's read buffer into their tensor, or not
// at all if the rest of a large body is read straight into place. An answer's tensor bytes are
// copied once, into the loop's write buffer, or not at all if they need no byte swap. Bytes that
// the transport does not take stay where they are, in memory that the pool counts, until there is
// room.
package tcp
