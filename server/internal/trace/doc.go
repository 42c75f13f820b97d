// Package trace follows some of the requests on their way, and sends what it saw of them to a
// collector of OpenTelemetry.
//
//	client --traceparent-> door --Tracer.Begin-> Trace --Trace.Ask-> Ask, the scheduler's Trace
//	                                              |                   |
//	                                              +------ spans ------+--> queue --OTLP--> collector
//
// A request that is followed has these spans. Those of a model are there once for each model that
// an application asks.
//
//	infer NAME    the whole of it, a child of the client's span
//	  door        from its last byte until it is submitted: what is read, checked and routed
//	  queue       until its first row is sent; why the batch was closed, and links to the spans of
//	              the other requests in it that are followed
//	  container   until the answer; its id is what the container gets as traceparent, so that spans
//	              of the model are its children
//	  cache       in place of these two, if a cache answered
//	  answer      from the last model's answer until the request's has been written
//
// Whether a request is followed is decided when it arrives: by its client's traceparent, if it has
// one, else by chance. One that is not costs a step of a countdown (Gap) or a random number, and
// nothing while nothing is traced: a nil *Tracer follows nobody, and all methods of a nil *Trace
// and *Ask do nothing.
//
// On the way of a request only times are noted. A goroutine makes spans of them, of hundreds of
// requests one after the other, in the memory that is sent to the collector: five times a second,
// or as often as there is a page full of them.
//
// A collector that is away costs nobody anything. Spans wait in a queue of queueSpans for it, and
// those that find it full are dropped and counted.
//
// Concurrency: everything may be called from any goroutine, but for a Gap, which belongs to one.
//
// Sources: W3C Trace Context, level 1; the OpenTelemetry protocol, OTLP/HTTP with protobuf.
package trace
