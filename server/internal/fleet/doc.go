// Package fleet manages the containers of a server: sessions with those that connect to it and
// those that it dials ([Sessions]), and the processes of its configuration, which it keeps running
// ([Processes]). It knows no door: clients load and unload models through [predict.Repository],
// which Processes implements, and operators start, stop and restart by the name of a [[container]].
//
// Where a [[container]] has a range of replicas, processes are started and ended by the load
// (scale.go), by a rule that knows only numbers and times (scaling.go).
//
// The package also retires versions that a newer one has replaced (retire.go), once their time is
// up and nobody asks for them.
//
// Lock order: a process's changing before its mu. Neither is held together with the mu of Sessions
// or Processes.
package fleet
