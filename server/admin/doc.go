// Package admin is the operator's door: health, metrics, state and management of a server over
// HTTP.
//
//	GET /livez                             200 while the process answers at all
//	GET /readyz                            200 when ready, 503 with the reason when not: Readiness
//	GET /metrics                           for Prometheus
//	GET, POST /v1/apps                     {"apps": [App, ...]}; POST makes one
//	GET, PUT, PATCH, DELETE /v1/apps/{name}        App; PATCH is a JSON merge patch
//	POST, DELETE /v1/apps/{name}/links     {"model": "digits/2"}; DELETE with ?model=digits/2
//	GET, DELETE /v1/apps/{name}/policy     Learned, by user: ?user=, ?limit=; DELETE forgets it
//	POST /v1/apps/{name}/feedback          what became of a request, as name/update takes it
//	GET /v1/policies                       {"policies": [Policy, ...]}: names, parameters,
//	                                       defaults
//	GET /v1/models                         {"models": [Model, ...]}, by name and version
//	GET /v1/models/{name}                  {"name", "default_version", "versions": [Model, ...]};
//	                                       also as .../versions
//	PATCH /v1/models/{name}                changes settings while it serves:
//	                                       {"objective": "20ms"}; null goes back to the file's
//	PUT /v1/models/{name}/default_version  {"version": "2"}, "" for the newest that is ready
//	GET /v1/models/{name}/explain          Explanations: why batches are small, what limits it,
//	                                       what to change
//	GET /v1/models/{name}/cache            ModelCache, if it has one
//	DELETE /v1/models/{name}/cache         empties it: Cleared
//	GET /v1/models/{name}/versions/{v}     Model
//	POST /v1/models/{name}/load            starts all containers of a model and waits until it is
//	                                       ready, by the right load: Loaded; unload likewise
//	POST /v1/models/{name}/try             {"input": ...}: Tried, what it answers and where the time
//	                                       went
//	GET /v1/watch                          events of all of this while it changes; ?model= one's
//	                                       insights
//	GET /v1/containers                     Containers: those of the file, and who is connected
//	POST /v1/containers/{name}/start       and waits until its model is ready; stop likewise
//	GET /v1/audit                          Audit: who did what last, or was refused it
//	GET /v1/logs                           Logs: the last lines of the log; ?limit=, ?level=warn,
//	                                       ?after=ID of the newest that is known
//	GET /v1/export                         Document: applications, what policies have learned,
//	                                       changed settings
//	POST /v1/import                        takes a Document; ?dry_run=true only says what would
//	                                       change
//	GET /v1/status                         Status
//	GET /v1/config                         every setting in effect, in the words of the file
//	POST /v1/config/reload                 reads the file again: Reloaded; 400 and no change if
//	                                       it is wrong
//	GET /v1/openapi.json                   all of this in OpenAPI 3.1
//	GET /debug/pprof/                      profiles of the Go runtime, if they are on
//
// GET / is a page for browsers, whose files are in /page/, and the list of these paths for others.
// Every answer is JSON, but for these, events, metrics and profiles. An error is {"error": "..."},
// whatever it is: no such path, wrong method, a bug, or all that is wrong with what was sent. The
// fields of answers are what programs may rely on: fields are added, never renamed or given another
// meaning.
//
// Every change is in the log, with its author and the values before and after. A request that
// changes something must be sent as application/json, even without a body.
//
// Without declared identities the door asks for no credentials, so it listens on localhost unless
// told otherwise. It answers programs, and pages of the hosts that its [Access] lists: 403 says
// that a page of another site may have sent the request.
//
// The package knows no types of the rooms that it shows: everything comes from its [Sources], whose
// interfaces it declares.
package admin
