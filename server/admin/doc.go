// Package admin has the documents of the admin API, for programs that use it: health, metrics,
// state and management of a server over HTTP.
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
//	GET /v1/models/{name}/streams          StreamList: streams of frames, by version
//	GET /v1/models/{name}/latest           NewestList: the newest answer of each stream, with the
//	                                       right to infer; identities without admin:write see those
//	                                       of their own streams, or of models that share them
//	GET /v1/history/{name}                 History: versions that served, and changes
//	POST /v1/models/{name}/load            starts all containers of a model and waits until it is
//	                                       ready, with the right load: Loaded; also .../unload
//	POST /v1/models/{name}/try             {"input": ...}: Tried, what it answers and where the time
//	                                       went
//	GET /v1/watch                          events of all of this as it changes; ?model= adds the
//	                                       insights of one model
//	GET /v1/containers                     Containers: those of the file, and those connected
//	POST /v1/containers/{name}/start       and waits until its model is ready; also .../stop and
//	                                       .../restart
//	GET /v1/audit                          Audit: the latest actions, done or refused, by whom
//	GET /v1/logs                           Logs: the last lines of the log; ?limit=, ?level=warn,
//	                                       ?after=ID of the newest that is known
//	GET /v1/export                         Document: applications, what policies have learned,
//	                                       changed settings
//	POST /v1/import                        takes a Document; ?dry_run=true only reports what would
//	                                       change
//	GET /v1/status                         Status
//	GET /v1/whoami                         the client's identity and what it may do
//	GET /v1/config                         every setting in effect, in the words of the file
//	POST /v1/config/reload                 reads the file again: Reloaded; 400 and no change if
//	                                       it is wrong
//	GET /v1/openapi.json                   all of this in OpenAPI 3.1
//	GET /debug/pprof/                      profiles of the Go runtime, if they are on
//
// GET / is a page for browsers, whose files are in /page/, and a list of these paths for programs.
// Every answer is JSON, except these, events, metrics and profiles. An error is {"error": "..."},
// whatever the cause: no such path, wrong method, a bug, or all that is wrong with the body.
// Programs may rely on the fields of answers: fields are added, never renamed or given another
// meaning.
//
// Every change is in the log, with its author and the values before and after. A request that
// changes something must be sent as application/json, even without a body.
//
// Without declared identities the API asks for no credentials, so it listens on localhost unless
// configured otherwise. It answers programs, and pages of the hosts that admin.hosts lists: 403
// means that a page of another site may have sent the request.
//
// The documents are read as they are: a field that this package lacks comes from a newer server.
package admin
