// Package server assembles shivad from its parts: doors for clients, the gate, the scheduler, and
// the listener that model containers connect to.
//
//	clients ─Shiva───► tcp ───────────► gate ─► scheduler ─► containers ──ZMTP─► containers
//	clients ─V2/HTTP─► rest ─► predict ──┤
//	clients ─gRPC────► grpc ─► predict ──┤
//	a program ─Server.Ask───────────► predict ──┘
//	operator ─HTTP───► server/admin                    supervisor ─────► their processes
//
// A Go program may embed the whole server: it makes one with [New], adds its own models to its
// [Server.Scheduler] or lets containers connect, and asks with [Server.Ask]. A door whose listen
// address is "" is left out, even all of them: the example asks an application that learns and a
// model with a cache without any socket.
//
// Concurrency: all methods may be called from any goroutine, Start once. Before Start has returned,
// and after Shutdown has begun, Ask and Learn return errors.
//
// Memory: the inputs of a question belong to the caller, the outputs of an answer are valid until
// Release. Both count against limits.payload_bytes.
//
// A Server is started once and shut down once. It owns every goroutine it starts and has joined
// all of them when Shutdown returns.
//
//	start: admin door, containers' listener, client doors, supervised processes, then ready
//	stop:  not ready; the gate refuses new requests; the scheduler answers what it has, within the
//	       drain limit; answers leave and client connections end; processes stop; containers get
//	       their goodbye; the admin door closes last, so that a drain can be watched
package server
