// Package manage is what operators see of a server and change in it, in the words of package admin,
// which declares the interfaces: how it does ([Report]), its settings ([Settings]), applications
// ([Applications]) and what their policies have learned ([Learning]), containers ([Containers]),
// history ([History]) and the document of all that ([Documents]). It has no door: admin's is one,
// the functions of package server another.
//
// What must survive a restart is in the state store ([Store]), which several servers may share.
// It opens after the types here are made; what needs it until then fails with an admin.Error of
// status 503.
//
// An error that is for the client is an admin.Error (refusal); any other is a bug, and the door
// logs it.
package manage
