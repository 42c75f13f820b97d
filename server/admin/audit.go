package admin

import "time"

// An Audit is the answer to /v1/audit: the latest actions, done or refused, and by whom.
type Audit struct {
	Entries []Entry `json:"entries"` // the oldest first
}

// An Entry is one action, done or refused. Its texts are bounded and printable, since clients
// choose many of the names in them.
type Entry struct {
	At time.Time `json:"at"`
	Source
	// Action is create, change, delete, load, register, …, or the method of an HTTP request that
	// was refused.
	Action  string `json:"action"`
	What    string `json:"what"` // kind of object: application, model, region, …, or an HTTP path
	Name    string `json:"name,omitempty"`
	Before  string `json:"before,omitempty"` // JSON
	After   string `json:"after,omitempty"`  // JSON
	Refused bool   `json:"refused,omitempty"`
	Error   string `json:"error,omitempty"` // why it was refused or failed
}

// A Source identifies the origin of an action: the identity, the address and the door.
type Source struct {
	Identity string `json:"identity,omitempty"` // empty: unknown, or no identities are declared
	// Container is the [[container]] whose process it is; empty: none of this server.
	Container string `json:"container,omitempty"`
	Address   string `json:"address,omitempty"` // of the client; empty: the server itself
	// Door is a section of the configuration (tcp, rest, grpc, admin, containers), or "server" for
	// the server's own actions, or "program" for the embedding program and for signals.
	Door string `json:"door"`
}

// String formats a source for the history of a model.
func (s Source) String() string {
	switch {
	case s.Container != "":
		return "container " + s.Container + " at " + s.Address
	case s.Identity == "":
		return s.Address
	}
	return s.Identity + " at " + s.Address
}
