// Package rest is the door for clients that speak the Predict Protocol V2 over HTTP.
//
//	GET  /v2, /v2/health/live, /v2/health/ready, /v2/docs/openapi.json
//	GET  /v2/models
//	GET  /v2/models/M[/versions/V], …/ready, …/config, …/stats, /v2/models/stats
//	POST /v2/models/M[/versions/V]/infer
//	POST /v2/repository/index, /v2/repository/models/M/load, …/unload
//
//	net/http ─► route ─► body ─► request ─► predict.Door.Infer ─► output ─► net/http
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
package rest
