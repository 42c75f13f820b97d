// Package rest is the door for clients that speak the Predict Protocol V2 over HTTP.
//
//	GET  /v2, /v2/health/live, /v2/health/ready, /v2/docs/openapi.json
//	GET  /v2/models
//	GET  /v2/models/M[/versions/V], …/ready, …/config, …/stats, /v2/models/stats
//	POST /v2/models/M[/versions/V]/infer
//	POST /v2/repository/index, /v2/repository/models/M/load, …/unload
//
//	net/http -> route -> body -> request -> predict.Door.Infer -> output -> net/http
//	                     limits, unpacking,      the gate's way in   from the answer's
//	                     JSON and bytes into                         memory
//	                     the pool's memory
//
// Every answer is JSON, except that of a binary inference, and every error is {"error": "..."}. The
// exception is net/http's answer to a malformed head, before any handler: 400, 417, 431, 501 or 505
// as plain text, after which it closes the connection.
//
// Concurrency: net/http has a goroutine for each connection, which serves its requests one by one.
// Requests share nothing but the Door.
//
// Memory: the text of a request and its tensors are in buffers of the pool, which grow as bytes
// arrive. The text is released before Infer, which takes over the tensors. Outputs are written from
// the buffers of the container's answer.
//
// Sources: the protocol's text (Predict Protocol, version 2, HTTP/REST), and the extension for
// binary tensor data as Triton documents it.
//
// # Bodies and connections
//
//   - net/http detects that a client has disconnected only after it has read the whole body, and
//     then by a read of its own. So every body is read to its end before inference, and a read
//     deadline never outlives the body (conn.arrived).
//   - net/http reads the rest of an unread body, 256 KiB at most, before it answers: without a
//     deadline a slow client would hold its connection forever. conn.arrived sets one.
//   - net/http's own answers (to a bad head, or one that is too long) are plain text and end the
//     connection. Making them JSON would take parsing its writes to the socket before a handler has
//     begun, for clients that send no valid HTTP; conn.Write only counts them, as closed for
//     protocol.
//   - The memory of a request over HTTP has one owner at every moment, which releases it in a
//     deferred call: the body owns the buffer that it fills, the request its inputs (from before
//     they have memory), Infer its arguments. So a panic between two owners leaks nothing.
//   - HTTP's idle and header timeouts are rest.conn's. net/http reads its own without a lock, so
//     they could not change. A connection sets the deadline before each read until the head of a
//     request has arrived; net/http then clears it.
//
// # JSON
//
//   - FP32 in JSON is read as the nearest float, as strconv does, by way of a float64 that is at
//     most three units off: unless that lies within four units of the midpoint of two floats, both
//     round alike (nearest).
//   - A body without JSON is answered in bytes, as Triton does, unless Accept names
//     application/json.
//   - GET /v2/models has KServe's form, a list of names: the protocol has no such path, and clients
//     that ask for it expect KServe's form. States and versions are in the repository index.
//
// # Pages in browsers
//
//   - Allowed origins of pages are listed, or all are; by default none is. The browser's
//     credentials are never requested, so * exposes no more than the address does. A page can still
//     send a request that a form could, but cannot read the answer.
//   - A page is recognised by what its browser adds: Origin, Sec-Fetch-Site, and the name in Host
//     (internal/listen). For the browser a rebound name has the same origin as the server, so only
//     the name reveals it. Hence the admin door answers only to addresses and to names that the
//     operator lists, and so do load and unload when a page asks; inference and reading ignore the
//     name, as clients use any name that their network has. The alternative, a token in a header,
//     would be one more thing to hand out for a door that has no passwords.
//   - Load and unload depend on where the door listens, not on the client's address. Behind a proxy
//     on the same machine every client has that machine's address. A request without Content-Type
//     is a program's unless a browser's headers say otherwise: Triton's client sends none.
//
// # What a request over HTTP costs
//
// go test -run '^$' -bench 'Data|Infer' ./server/internal/rest. A data array of 150,528 floats is
// read at 9 to 12 times the speed of encoding/json into a slice, in the same run, with the shortest
// digits, and at 13 times and more as Python writes float32 (17 digits). A request makes 60
// allocations, 4 KB in all, whatever the size of its tensors, more than half of them in net/http;
// TestAllocations bounds that.
//
// An answer in JSON costs more than the question: of 14 ms for 150,528 floats both ways, strconv
// takes two thirds to find and write the shortest digits, and reading takes a fifth.
package rest
