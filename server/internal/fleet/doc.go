// Package fleet manages the containers of a server: sessions with containers that connect and with
// containers that it dials ([Sessions]), and the processes of the configuration, which it keeps
// running ([Processes]). It does not depend on any door: clients load and unload models through
// [predict.Repository], which Processes implements, and operators start, stop and restart by the
// name of a [[container]].
//
// Where a [[container]] has a range of replicas, processes are started and ended according to the
// load (scale.go), by a rule that uses only numbers and times (scaling.go).
//
// The package also retires versions that a newer one has replaced (retire.go), once their time is
// up and nothing uses them.
//
// Lock order: the changing of a process before its mu. Neither is held together with the mu of
// Sessions or Processes.
package fleet
