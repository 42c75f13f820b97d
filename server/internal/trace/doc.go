// Package trace records the path of some requests, and sends it as spans to an OpenTelemetry
// collector.
//
//	client --traceparent-> door --Tracer.Begin-> Trace --Trace.Ask-> Ask, the scheduler's Trace
//	                                              |                   |
//	                                              +------ spans ------+--> queue --OTLP--> collector
//
// A traced request has these spans. Those of a model occur once for each model that an application
// asks.
//
//	infer NAME    the whole of it, a child of the client's span
//	  door        from its last byte until it is submitted: what is read, checked and routed
//	  queue       until its first row is sent; why the batch was closed, and links to the spans of
//	              the other requests in it that are followed
//	  container   until the answer; its id is what the container gets as traceparent, so that spans
//	              of the model are its children
//	  cache       in place of these two, if a cache answered
//	  stage NAME  of a pipeline, from when its inputs are there until its last row is answered. Its
//	              children are the spans of one of its rows, or those of the stages of the pipeline
//	              that it asks
//	  answer      from the last model's answer until the request's has been written
//
// The decision to trace a request is made when it arrives: by its client's traceparent if it has
// one, else at random. An untraced request costs a step of a countdown (Gap) or a random number,
// and nothing if tracing is off: a nil *Tracer traces no request, and all methods of a nil *Trace
// and *Ask do nothing.
//
// While a request is served, only times are recorded. A goroutine makes spans from them, for
// hundreds of requests one after the other, in the memory that is sent to the collector: five times
// a second, or whenever a page is full.
//
// An unreachable collector does not slow down any request. Spans wait for it in a queue of
// queueSpans; when the queue is full, new spans are dropped and counted.
//
// Concurrency: everything may be called from any goroutine, except a Gap, which belongs to one
// goroutine.
//
// Sources: W3C Trace Context, level 1; the OpenTelemetry protocol, OTLP/HTTP with protobuf.
package trace
