// Package operate is what operators see of a server and change in it: the containers that it runs,
// the state and the settings of its models and applications, and the admin API over HTTP. The
// documents of the API are in package admin.
//
//	Sessions, Processes   containers: connections with them, and the processes that it starts
//	Store                 what must survive a restart, in the state store
//	Settings              settings in effect: the file's, and those that operators have changed
//	Report, History       the state of the server, and what served when
//	Demand                how many replicas all servers that share a store need
//	Journal               the last lines of the log
//	Sources, Handler      the admin API
//	Listen                its address
//
// # Containers
//
// A server has sessions with containers that connect and with containers that it dials, and keeps
// the processes of the configuration running. Clients load and unload models through
// [predict.Repository], which Loadable implements; operators start, stop and restart by the name
// of a [[container]]. Where a [[container]] has a range of replicas, processes are started and
// ended according to the load (scale.go), by a rule that uses only numbers and times (scaling.go).
// Versions that a newer one has replaced are retired (retire.go), once their time is up and nothing
// uses them.
//
// Lock order: the changing of a process before its mu. Neither is held together with the mu of
// Sessions or Processes.
//
// # State
//
// The state store opens after the types here are made, and several servers may share it. Until it
// is open, operations that need it fail with an [Error] of status 503.
//
// # Errors
//
// An error meant for the client is an Error (see refusal); any other error is a bug, and the API
// logs it and answers 500.
//
// # Settings and reload
//
//   - A reload adopts the settings that can change and checks the result as a whole: the new
//     settings together with those that wait for a restart. A file that is valid by itself but not
//     together with these (a larger cache out of more payload memory) changes nothing, as half of
//     it would be a third configuration that no one wrote. The tag of each setting tells whether it
//     can change, and a test changes each in the file and expects it to be in effect or reported.
//     Changes by operators still override the file, as at a start. Listeners, options that the gRPC
//     library takes once, and settings by which the memory was divided, wait for a restart.
//   - A door's settings are one value behind a pointer (Settings and Configure of each door,
//     open.go). It is loaded once at the start of each unit of work: a turn of a loop, a request, a
//     gRPC message when its first byte arrives, a write, a container's connection. Code that reads
//     two settings sees both from one configuration, and the hot path pays one load, where an
//     atomic for each field would cost one each and mix configurations. State that outlives a turn
//     is updated as it is used: a decoder gets its limits between two messages, an outbox its limit
//     with the next request (gRPC: by Configure, as waiting requests there would otherwise not be
//     woken). Connections are counted for every host, also for hosts without a limit, so that the
//     counts are right when limit_loopback is switched on.
//   - Settings in the store that contradict a file are left out, not fatal. A store may be
//     unreachable when the server starts, and servers with different files may share one Redis: a
//     setting made at one server would keep another from starting. The log has both values, and
//     every door shows the effective ones.
//
// # Admin door, metrics and history
//
//   - An audit entry records an action of an operator or an owner, not requests of clients.
//     Feedback changes a policy, but is a request that may come ten thousand times a second. The
//     package that performs an action for all doors reports it: admin in its handlers, predict for
//     load and unload, regions, operate for containers, server for a reload. An import is one
//     entry, and so is a reload.
//
//   - When the trail is full, the source with the most entries loses its oldest. If the oldest of
//     all were dropped, a client that is refused a thousand times could push out real changes. All
//     clients that are refused without an identity are one source.
//
//   - The admin door's connections give way instead of waiting. It holds 16. The next one is
//     accepted, and one without a current request is closed: the one idle for longest, of the
//     address with the most connections. If new connections had to wait, 16 silent ones would fill
//     the limit, and the balancer's /livez would get no answer. net/http's own states do not tell
//     which connections have a request: it calls a connection active from the first byte of a head
//     on.
//
//   - One snapshot is made for all watches, by the watch that wakes first. A separate goroutine
//     would have to be started and stopped with the watches, and with a snapshot for each, every
//     page would cost the server more. Ticks follow the clock, so that all watches wake together,
//     and a part of the snapshot is encoded once and sent only when it has changed. A watch never
//     waits for a slow one: each takes the newest of each part when it can write. One page costs
//     nothing measurable, eight cost 0.1 % of a core (an idle server takes 0.2 % with or without a
//     page).
//
//   - The last ten minutes are kept even if no page is open, as operators open one after something
//     has been slow. A sample every five seconds has six numbers per model, computed from the
//     counts of the status; they are float32, and 200 models take 600 KiB. While a page is open, it
//     takes a sample each second by itself.
//
//   - The page reads its events by fetch, since an EventSource cannot send a token in a header. The
//     alternatives were a token in the address, or a cookie, which other sites' pages could use.
//
//   - A request that is tried on the page goes through the admin door, not the HTTP door: the
//     page's own policy forbids other origins, and a server may have no HTTP door.
//
//   - The command line is not among the profiles. It may contain the password of a Redis. The rest
//     of /debug/pprof exposes memory and costs time, so it is off by default.
//
//   - Counts of deleted models are dropped, not added to another series. If they were added to
//     _other, rate() would take an hour's requests of a deleted model for those of the last minute.
//     The doors' counts never fall.
//
//   - A model without requests has a single zero series: 260 series of zeros for each registered
//     name were 35 MB a scrape. From the first request on, all outcomes exist, so that a rate of
//     errors begins at 0.
//
//   - History is spans, not registrations. A version that serves is one event with a beginning and
//     an end, so that a container in a crash loop writes a line and not a page. The last hundred
//     events of a name and 256 names are kept, names that serve first: otherwise any client that
//     may register could fill the store, or push out important events. A separate goroutine writes
//     the history, a few times a second at most; a question writes what it asks for first, so that
//     an operator finds the change just made. While the store is unreachable, events beyond these
//     limits are lost.
//
//   - An import creates and replaces, and deletes nothing except the learned state of another
//     application of the same name. It is planned as a whole, checked change by change and then all
//     together, and written in one step (state.Store.Write): when it was written key by key, a
//     fault or a full disk in the middle left half of it. Unlike models set, it accepts a default
//     version that nothing serves yet: the importing server may be empty. It takes 0.5 ms for each
//     application with a state and a setting, for 500 and for 8,000 of them (go test -run '^$'
//     -bench Import ./server).
package operate
