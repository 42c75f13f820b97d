// Package manage is what operators see of a server and change in it. It implements the interfaces
// of package admin: the state of the server ([Report]), its settings ([Settings]), applications
// ([Applications]) and what their policies have learned ([Learning]), containers ([Containers]),
// history ([History]) and the document of all that ([Documents]). It has no door of its own:
// admin's is one user of it, the functions of package server another.
//
// What must survive a restart is in the state store ([Store]), which several servers may share.
// It opens after the types here are made; until then, what needs it fails with an admin.Error of
// status 503.
//
// An error that is for the client is an admin.Error (refusal); any other is a bug, and the door
// logs it.
package manage
