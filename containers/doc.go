// Package containers serves model containers: processes of any language that connect over
// ZeroMQ, register a model, and answer batches. Each session is a replica of its model in the
// scheduler.
//
//	l, err := containers.Listen(containers.Config{Addrs: []string{"tcp://127.0.0.1:7000"}, Scheduler: s})
//
// Every generation of Clipper's protocol is served, and v4, which is ours and is documented in
// DESIGN.md together with the life of a session, the lock order and the file map. They are told
// apart by a connection's first message, and by the address where that does not tell: see
// [Dialect]. Package container is v4's other side in Go, python/ the same in Python, and
// containertest a scripted container for tests.
//
// # What a container can do to the server
//
// End its own session. Everything it sends is checked before memory is taken or a batch
// completed: broken frames and broken rules end the session with one logged reason, a wrong
// answer fails its batch, silence is noticed by the clock, and a socket that closes at once.
// Whatever ends a session, its batches go back to the scheduler, each exactly once.
//
// # Concurrency
//
// All methods of Listener and Supervisor may be called from anywhere.
package containers
