// Package containers serves model containers: processes in any language that connect over ZeroMQ,
// register a model, and answer batches. Each session is a replica of its model in the scheduler.
//
//	l, err := containers.Listen(containers.Config{
//		Addrs:     []string{"tcp://127.0.0.1:7000"},
//		Scheduler: s,
//	})
//
// The package speaks every generation of Clipper's protocol, and v4, our own. DESIGN.md documents
// v4, the life of a session, the lock order and the file map. A connection's first message
// determines its generation, together with its address where that message is ambiguous: see
// [Dialect]. Package container implements containers of v4 in Go, python/ in Python; containertest
// has a scripted container for tests.
//
// # What a container can do to the server
//
// A container can end its own session, and nothing else. Everything that it sends is checked before
// memory is allocated or a batch completed. Invalid frames and violations of the protocol end the
// session with one logged reason; an invalid answer fails its batch; silence ends the session after
// a timeout, and a closed socket at once. Whatever ends a session, its batches return to the
// scheduler, each exactly once.
//
// # Concurrency
//
// All methods of Listener, Supervisor and Dialer may be called from any goroutine.
package containers
