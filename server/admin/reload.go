package admin

// Reloaded is the answer to /v1/config/reload: which settings differ in the configuration that was
// loaded.
type Reloaded struct {
	Changed []Setting `json:"changed"` // in effect from now on
	Waiting []Setting `json:"waiting"` // in effect from the next start on
}

// A Setting is a setting whose value differs. Passwords are hidden.
type Setting struct {
	Key    string `json:"key"`
	Before any    `json:"before"` // null: there was none
	After  any    `json:"after"`  // null: there is none
}
