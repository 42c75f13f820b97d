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

// Newest counts the newest answers of streams that the server keeps for those who ask for them.
type Newest struct {
	Bytes    int64  `json:"bytes"` // with their bookkeeping
	Limit    int64  `json:"limit"`
	Streams  int    `json:"streams"`
	Waiting  int    `json:"waiting"`  // questions
	Answered uint64 `json:"answered"` // questions that got an answer
	Failed   uint64 `json:"failed"`   // and those that got an error
	Evicted  uint64 `json:"evicted"`  // streams that were forgotten because of the limit
}

// Seen is a stream, how old its newest answer is, and who waits for the next one.
type Seen struct {
	Model      string   `json:"model"` // or application that its frames are sent to
	Name       string   `json:"name"`
	Connection bool     `json:"connection"`  // that of a connection, named by the client's address
	Client     string   `json:"client"`      // the user or the machine that sends it
	Identity   string   `json:"identity"`    // whose it is, if somebody asks for it
	Known      bool     `json:"known"`       // false: no frame has come of what somebody waits for
	Age        *float64 `json:"age_seconds"` // of its newest answer, now; null: there is none
	Waiting    int      `json:"waiting"`     // questions for its newest answer
	Askers     []string `json:"askers"`      // identities or machines of some of those who wait
}

// A NewestList is the answer to /v1/models/{name}/latest: the newest answer of each stream that the
// operator may see, by name.
type NewestList struct {
	Known   int            `json:"known"` // streams
	Answers []NewestAnswer `json:"answers"`
}

// A NewestAnswer is what a stream's newest frame was answered with.
type NewestAnswer struct {
	Name       string        `json:"name"` // of the stream
	Connection bool          `json:"connection"`
	Client     string        `json:"client"`
	Identity   string        `json:"identity"`
	Seq        int64         `json:"seq"`
	Age        float64       `json:"age_seconds"` // of the frame, now
	Skipped    int           `json:"skipped"`     // frames superseded since the one executed before
	Model      string        `json:"model"`       // that answered
	Version    string        `json:"version"`
	Outputs    []TriedOutput `json:"outputs"`
}
