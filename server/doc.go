// Package server puts the rooms together: doors for clients, the gate, the scheduler, and the listener
// that model containers connect to.
//
//	clients ──Shiva───► server/tcp ─────────────► gate ─► scheduler ─► containers ──ZMTP──► model containers
//	clients ──V2/HTTP─► server/rest ─► predict ────┤
//	clients ──gRPC────► server/grpc ─► predict ────┘
//	operator ─HTTP────► server/admin                        supervisor ──────► their processes
//
// A Server is started once and shut down once. It owns every goroutine it starts and has joined all of
// them when Shutdown returns.
//
//	start: admin door, containers' listener, client doors, supervised processes, then ready
//	stop:  not ready; the gate refuses new requests; the scheduler answers what it has, within the drain
//	       limit; answers leave and client connections end; processes stop; containers get their goodbye;
//	       the admin door closes last, so that a drain can be watched
package server
