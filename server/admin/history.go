package admin

import (
	"time"
)

// A History is the answer to /v1/history/{name}: which versions served under the name of a model or
// application, and who changed it.
type History struct {
	Name   string  `json:"name"`
	Events []Event `json:"events"` // the oldest first
}

// An Event is a version that served, or a change.
type Event struct {
	At      time.Time  `json:"at"`
	Until   *time.Time `json:"until,omitempty"` // when it stopped serving; absent while it serves
	What    string     `json:"what"`            // served, default, changed
	Version string     `json:"version,omitempty"`
	// By is the author: the container that registered last, or the address of an operator or
	// client.
	By            string `json:"by,omitempty"`
	Registrations int    `json:"registrations,omitempty"` // of containers, while it served
	Detail        string `json:"detail,omitempty"`        // of a change: before and after
	Server        string `json:"server"`                  // the server that wrote this event
}
