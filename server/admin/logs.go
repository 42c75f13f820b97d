package admin

import "time"

// Logs is the answer to /v1/logs: the last lines of the server's log.
type Logs struct {
	Entries []LogEntry `json:"entries"` // the oldest first
}

// A LogEntry is one line of the log. Its texts are bounded, with unprintable characters escaped,
// since clients choose some of them.
type LogEntry struct {
	// ID grows from entry to entry, across restarts of the server too: the time of writing in
	// microseconds since 1970, or the next free number.
	ID         int64          `json:"id"`
	At         time.Time      `json:"at"`
	Level      string         `json:"level"` // INFO, WARN, ERROR
	Message    string         `json:"message"`
	Attributes []LogAttribute `json:"attributes"` // in the order of the line
}

// A LogAttribute is a key and value of a line. The names of its groups precede the key, separated
// by dots.
type LogAttribute struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}
