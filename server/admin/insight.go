package admin

// A BatchList describes the batches of every version of every model.
type BatchList struct {
	Models []Batches `json:"models"`
}

// Batches describes the batches of a version of a model in the last minute, or in the last minute
// that had any, and how its requests ended then.
type Batches struct {
	Name    string  `json:"name"`
	Version string  `json:"version"`
	Span    float64 `json:"span_seconds"` // length of that minute
	Ago     float64 `json:"ago_seconds"`  // since it ended; 0: it is the last one
	Batches uint64  `json:"batches"`      // sent
	Rows    uint64  `json:"rows"`         // in them
	Failed  uint64  `json:"failed"`       // batches
	// Closed counts batches by the reason why they were not larger, in the words of the metrics.
	Closed map[string]uint64 `json:"closed"`
	// Waits counts waits of idle replicas for clients that ask again on each answer, and WaitedRows
	// the rows that came during them. LastWait is the end of a sentence about the latest one; "":
	// there was none.
	Waits       uint64 `json:"waits"`
	WaitedRows  uint64 `json:"waited_rows"`
	WaitsInVain uint64 `json:"waits_in_vain"` // fewer than half of the expected rows came
	LastWait    string `json:"last_wait"`
	// Outcomes counts requests by how they ended: ok, or the reason why there is no result.
	Outcomes map[string]uint64 `json:"outcomes"`
}

// An InsightList has the insights into the model, or the application, that a watch names.
type InsightList struct {
	Name     string    `json:"name"`
	Versions []Insight `json:"versions"`
}

// An Insight describes how a version of a model works, and why. That of an application has only
// sentences.
type Insight struct {
	Version   string    `json:"version"`
	Replicas  []Replica `json:"replicas"`
	Sent      []Batch   `json:"sent"`    // its last batches, the oldest first
	Streams   []Stream  `json:"streams"` // those with the oldest frames
	Known     int       `json:"known_streams"`
	Sentences []string  `json:"sentences"` // as .../explain gives them
}

// A Batch is a batch that was sent.
type Batch struct {
	At     float64 `json:"at"` // seconds since 1970
	Rows   int     `json:"rows"`
	Closed string  `json:"closed"` // why it was not larger
}

// A Replica is one container of a model as the scheduler knows it.
type Replica struct {
	Name      string `json:"name"`
	State     string `json:"state"`      // live, failing, suspect, draining
	InFlight  int    `json:"in_flight"`  // batches
	Slots     int    `json:"slots"`      // most batches in flight
	MostRows  int    `json:"most_rows"`  // most rows that a batch would have now
	Batches   uint64 `json:"batches"`    // answered
	Rows      uint64 `json:"rows"`       // in them
	Failed    uint64 `json:"failed"`     // batches
	LastError string `json:"last_error"` // of the failed batches
	// Measured are the latest measurements of its execution times, newest first. Fitted is the
	// curve by rows that is derived from them, and by which batches are planned.
	Measured []Measured `json:"measured"`
	Fitted   []Fitted   `json:"fitted"`
}

// A Measured is how long a batch took to execute.
type Measured struct {
	Rows int     `json:"rows"`
	Took float64 `json:"seconds"`
}

// A Fitted is the time that a batch of a number of rows should take.
type Fitted struct {
	Rows    int     `json:"rows"`
	Typical float64 `json:"typical_seconds"`
	Planned float64 `json:"planned_seconds"` // hardly ever exceeded
}
