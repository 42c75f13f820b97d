// Package admin is the operator's door: health, metrics, models and state of a server over HTTP.
//
//	GET /livez                             200 while the process answers at all
//	GET /readyz                            200 when ready, 503 with the reason when not: Readiness
//	GET /metrics                           for Prometheus
//	GET /v1/models                         {"models": [Model, ...]}, by name and version
//	GET /v1/models/{name}                  {"name", "default_version", "versions": [Model, ...]}
//	PATCH /v1/models/{name}                changes settings while it serves: {"objective": "20ms"}; answers as GET
//	GET /v1/models/{name}/explain          Explanations: why batches are small, what limits it, what to change
//	GET /v1/models/{name}/cache            ModelCache, if it has one
//	DELETE /v1/models/{name}/cache         lets go what is kept: Cleared
//	GET /v1/models/{name}/versions/{v}     Model
//	GET /v1/status                         Status
//	GET /v1/config                         every setting in effect, in the words of the file
//	GET /debug/pprof/                      profiles of the Go runtime
//
// Every answer is JSON, but for metrics and profiles. An error is {"error": "..."}, whatever it is: no such
// path, wrong method, a bug. The fields of [Model], [Status] and [Readiness] are what programs may rely on:
// fields are added, never renamed or given another meaning.
//
// The door asks for no credentials, so it listens on localhost unless told otherwise.
//
// The package knows no other room: what it shows comes from the functions of [Sources].
package admin
