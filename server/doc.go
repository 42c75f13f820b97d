// Package server assembles shivad from its parts: doors for clients, the gate, the scheduler, and
// the listener that model containers connect to.
//
//	clients   - Shiva --> tcp --------------> gate -> scheduler -> containers - ZMTP -> processes
//	clients   - HTTP ---> rest ---> predict ---^
//	clients   - gRPC ---> grpc ---> predict ---^
//	a program - Infer ------------> predict ---^
//	operators - HTTP ---> operate, which starts processes, too
//
// A Go program may embed the whole server: it makes one with [New], adds its own models to its
// [Server.Scheduler] or lets containers connect, and asks with [Server.Infer]. A door whose listen
// address is "" is left out, even all of them: the example asks an application that learns and a
// model with a cache without any socket.
//
// Concurrency: all methods may be called from any goroutine, Start once. Before Start has returned,
// and after Shutdown has begun, Infer and Learn return errors.
//
// Memory: the inputs of a request belong to the caller, the outputs of a response are valid until
// Release. Both count against limits.payload_bytes.
//
// A Server is started once and shut down once. It owns every goroutine it starts and has joined
// all of them when Shutdown returns.
//
//	start: admin door, containers' listener, client doors, supervised processes, then ready
//	stop:  not ready; the gate refuses new requests; the scheduler answers what it has, within the
//	       drain limit; answers leave and client connections end; processes stop; containers get
//	       their goodbye; the admin door closes last, so that a drain can be watched
//
// # Memory of the process
//
//   - The payload budget is limited by the memory of the process. capacity.Memory takes the
//     smallest limit of the process's cgroups (v1 and v2), the machine and GOMEMLIMIT; three
//     thirteenths of it, 56 MiB at least, stay free for the program, its heap and garbage. A
//     default that does not fit is lowered, with a warning that has both figures; a configured
//     budget that does not fit is an error at the start. Without this limit a server with the
//     default 4 GiB is killed in any smaller container.
//   - Garbage of large buffers counts. A budget of 200 MiB was 281 MiB resident under three times
//     the load: memory that the pool releases is garbage until a collection. A memory limit for the
//     runtime alone (the budget and a tenth, cmd/shivad/memory.go) works on a quiet machine; on a
//     busy one the collector is late, and 260 MiB were seen. So a Get that needs fresh memory waits
//     for a collection if memory in use, kept and released exceeds the budget by a sixteenth: 20
//     collections in 6 s of that load, 233 to 236 MiB. Buffers hold no pointers, which makes
//     collections short. Tried before: releasing earlier, which makes more garbage.
//   - Idle memory is returned every ten seconds (idle.go): what was not needed since the last time.
//     256 MiB of the arena stay for minutes (containers/DESIGN.md, "Shared memory"). Waiting
//     for the runtime's collections, one in two minutes on an idle server, took a quarter of an
//     hour.
//   - Inputs of Server.Infer are copied unless they are counted memory. A container whose batch was
//     given up, or a shadow, may read them after Infer has returned; if the caller had to wait for
//     that, it could not have a deadline. Doors make the same copy from their sockets.
package server
