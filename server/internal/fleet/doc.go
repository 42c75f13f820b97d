// Package fleet is the containers of a server: those that connect to it and those that it calls
// ([Sessions]), and the processes of its configuration, which it keeps alive ([Processes]). It
// knows no door: clients load and unload models through [predict.Repository], which Processes is,
// and operators start, stop and restart by the name of a [[container]].
//
// A version that a newer one has replaced is told goodbye here (retire.go), when its time is up and
// nobody asks for it.
//
// Lock order: a process's changing before its mu. Neither is held while Sessions' or Processes' mu
// is.
package fleet
