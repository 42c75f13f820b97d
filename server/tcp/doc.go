// Package tcp is the door for clients that speak Shiva over raw TCP.
//
//	            event loop, one goroutine each
//	socket ──► session.traffic ─► shiva.Decoder ─► call ─► gate.Open ─┐ all of one reading
//	                                                │                 ▼ at once
//	                                 line of answers, oldest first   scheduler.Submit
//	                                                │                 │ any goroutine
//	socket ◄── session.flush ◄── encode ◄── head answered? ◄── loop.post ◄── Complete
//
// Promises: one answer to every message, in the order of the messages, whatever order they are
// completed in. A message that cannot be understood costs its sender an answer, and the
// connection only if the next boundary is lost. What a client can make the server hold is
// bounded: requests in flight, bytes of a half-received message, unread answers, connections;
// each limit is named in the error it causes.
//
// Concurrency: everything about a session happens in turns of its loop, one at a time. Nearly
// all turns are the event loop's; other goroutines reach it through its mailbox (loop.post,
// loop.postRoom). Sessions know a transport; gnet.go and writable.go are the one for TCP, socket.go
// is the one for Unix sockets, whose turns are taken by the goroutines that read them.
//
// Memory: a message's bytes are copied once, from the loop's read buffer into their tensor, or
// not at all when the rest of a large body is read straight into place. An answer's tensor
// bytes are copied once, into the loop's write buffer, or not at all when they need no byte
// swap. What the transport does not take stays where it is, in memory that the pool counts, until
// it has room.
package tcp
