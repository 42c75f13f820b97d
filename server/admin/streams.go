package admin

// StreamList is the answer to /v1/models/{name}/streams.
type StreamList struct {
	Versions []VersionStreams `json:"versions"`
}

// VersionStreams are the streams of a version of a model: those that wait for answers and get none,
// then those with the oldest frames.
type VersionStreams struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Known   int      `json:"known"` // with a frame in the last minute, or one unanswered
	Streams []Stream `json:"streams"`
}

// A Stream is one source of frames, and how its latest frames ended.
type Stream struct {
	Name       string  `json:"name"`
	Connection bool    `json:"connection"` // that of a connection, named by the client's address
	Keep       any     `json:"keep"`       // of its newest frame: "all", "latest" or a number
	Waiting    int     `json:"waiting"`    // frames without an answer
	Span       float64 `json:"span_seconds"`
	Frames     int     `json:"frames"` // accepted in that span, as are the others counted
	Answered   int     `json:"answered"`
	Superseded int     `json:"superseded"`
	Age        float64 `json:"age_seconds"`    // of the oldest frame that was answered, when it was
	Late       float64 `json:"late_seconds"`   // worst time from a frame's capture to its arrival
	Silent     float64 `json:"silent_seconds"` // since its newest frame
}
