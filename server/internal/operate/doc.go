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
// [predict.Repository], which Processes implements; operators start, stop and restart by the name
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
package operate
