// Package manage provides what operators see of a server and change in it. It implements the
// interfaces of package admin: the state of the server ([Report]), its settings ([Settings]),
// applications ([Applications]) and what their policies have learned ([Learning]), containers
// ([Containers]), history ([History]) and one document of all that ([Documents]). It has no door of
// its own: the admin door is one user of it, the functions of package server are another.
//
// What must survive a restart is in the state store ([Store]), which several servers may share. It
// opens after the types here are made; until then, operations that need it fail with an admin.Error
// of status 503.
//
// An error meant for the client is an admin.Error (see refusal); any other error is a bug, and the
// door logs it.
package manage
