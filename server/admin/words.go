package admin

import (
	"iter"
	"time"
)

// The states of a server.
const (
	Starting = "starting"
	Serving  = "serving"
	Draining = "draining"
)

// Readiness says whether to send requests here, and if not, why.
type Readiness struct {
	Ready  bool   `json:"ready"`
	State  string `json:"state"`            // starting, serving, draining
	Reason string `json:"reason,omitempty"` // a sentence, if not ready
	// Missing are the models that should have a live replica but have none.
	Missing []string `json:"missing_models,omitempty"`
	// Degraded is a sentence about what does not work although requests are served.
	Degraded string `json:"degraded,omitempty"`
}

// A Model is one version of a model.
type Model struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Default  bool   `json:"default"` // what the bare name means
	Ready    bool   `json:"ready"`   // it has a live replica, or gets one for a request
	Replicas int    `json:"replicas"`
	Platform string `json:"platform"`
	MaxBatch int    `json:"max_batch"` // rows, in effect
	// Batched is false if each request is one execution, and no dimension counts rows.
	Batched    bool     `json:"batched"`
	Inputs     []Tensor `json:"inputs"`
	Outputs    []Tensor `json:"outputs"`
	QueueRows  int      `json:"queue_rows"`
	QueueBytes int64    `json:"queue_bytes"`
	Policy     any      `json:"policy"` // in effect, with the keys of [model.NAME] in the file
	Cache      *Cache   `json:"cache,omitempty"`
}

// A Tensor is a declared input or output, as the Predict Protocol V2 writes it.
type Tensor struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"`
	Optional bool   `json:"optional,omitempty"` // an input that may be left out
	Ragged   string `json:"ragged,omitempty"`   // the output that counts this one's values per row
	Image    string `json:"image,omitempty"`    // to what the input decodes files of pictures
}

// Status is the state of a server.
type Status struct {
	Host      string    `json:"host"` // the machine's name; "" if it has none
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	Started   time.Time `json:"started"`
	Uptime    float64   `json:"uptime_seconds"`
	Readiness Readiness `json:"readiness"`
	Warnings  []string  `json:"warnings"` // what an operator should look at, in sentences
	Listen    Addresses `json:"listen"`
	Doors     []Door    `json:"doors"`
	Clients   []Client  `json:"clients"`       // identities, and addresses over or near a quota
	Payload   Usage     `json:"payload_bytes"` // memory for payloads
	Shared    Shared    `json:"shared_bytes"`  // of it, shared with containers on this machine
	Regions   Regions   `json:"regions"`       // of clients' own shared memory
	Queue     Queue     `json:"queue"`         // of all models
	Models    []Health  `json:"models"`        // and applications
	// Pipelines have how their stages did in the last minute; nil: there are none.
	Pipelines []PipelineLoad `json:"pipelines,omitempty"`
	Routes    []Route        `json:"routes"`  // of the configuration
	Newest    Newest         `json:"newest"`  // answers of streams, for those who ask for them
	Streams   []Seen         `json:"streams"` // at most 20: first those that somebody waits for
	State     State          `json:"state"`
	Sessions  []Session      `json:"sessions"`  // of containers
	Processes []Process      `json:"processes"` // supervised ones
	Limits    any            `json:"limits"`    // in effect, with the keys of [limits] in the file
}

// A Route is a name that stands for another one: a [route.NAME] of the configuration.
type Route struct {
	Name  string `json:"name"`
	To    string `json:"to"`    // and the metadata that it adds to each request
	Ready bool   `json:"ready"` // what it stands for is
	// Hides is what no request reaches because the route has its name, in a sentence; "": nothing.
	Hides string `json:"hides,omitempty"`
}

// Addresses are the addresses in use; for port 0 in the configuration, the port that was chosen.
type Addresses struct {
	TCP        []string `json:"tcp,omitempty"`
	REST       []string `json:"rest,omitempty"`
	GRPC       []string `json:"grpc,omitempty"`
	Frigate    []string `json:"frigate,omitempty"`
	Containers []string `json:"containers,omitempty"`
	V1b        []string `json:"containers_v1b,omitempty"` // for containers of RPC v1b, and so on
	V2         []string `json:"containers_v2,omitempty"`
	V2a        []string `json:"containers_v2a,omitempty"`
	Admin      string   `json:"admin,omitempty"`
	Health     string   `json:"health,omitempty"`
}

// Doors are the addresses of the endpoints for clients, by name.
func (a *Addresses) Doors() iter.Seq2[string, *[]string] {
	return func(yield func(string, *[]string) bool) {
		_ = yield("tcp", &a.TCP) && yield("rest", &a.REST) && yield("grpc", &a.GRPC) && yield("frigate", &a.Frigate)
	}
}

// Health is how well a version of a model, or an application, serves its requests. Counts begin
// when the server first knew of it.
type Health struct {
	Name     string `json:"name"`
	Version  string `json:"version"`        // "" of an application or a pipeline
	Kind     string `json:"kind,omitempty"` // which of these; "" of a model
	Replicas int    `json:"replicas"`       // live ones
	Failing  int    `json:"failing"`        // live ones that fail on every batch
	// Absence is why it has no live replica, where that is no outage: another version answers in
	// its place, or a process starts with the next request.
	Absence string `json:"absence"`
	// Needed is how many replicas would answer all requests in time; 0 for an application.
	Needed int `json:"needed"`
	// Load is that number before rounding up, and ReplicaRows how many rows per second one replica
	// can execute; 0: none has answered enough yet, and Needed is a guess.
	Load        float64 `json:"load"`
	ReplicaRows float64 `json:"replica_rows_per_second"`
	// QueueRows are the rows that wait for a batch; 0 for an application, whose requests wait at
	// its models.
	QueueRows int     `json:"queue_rows"`
	Requests  uint64  `json:"requests"`    // answered, with results or errors
	SLO       float64 `json:"slo_seconds"` // the bound of InTime; 0: none
	InTime    uint64  `json:"in_time"`     // results within the SLO, except defaults
	// Judged are the requests that InTime is a share of: all but those that their client withdrew
	// (a newer frame came, it cancelled, or hung up) or got wrong.
	Judged   uint64 `json:"judged"`
	Failed   uint64 `json:"failed"`   // answered with an error, and not withdrawn
	Defaults uint64 `json:"defaults"` // answers that were a default output
	// MissingVoices counts answers of applications in which it had no part; for an application,
	// those in which no model had a part.
	MissingVoices uint64  `json:"missing_voices"`
	NoMemory      uint64  `json:"no_memory"`            // answers without payload memory for them
	OldestRow     float64 `json:"oldest_row_seconds"`   // of the row that waits for longest
	OldestBatch   float64 `json:"oldest_batch_seconds"` // of the oldest batch without an answer
	// Streams counts streams with a frame in the last minute, or with an unanswered one.
	Streams    int    `json:"streams"`
	Superseded uint64 `json:"superseded"` // frames, by newer ones of their streams
	// FrameAge is the age, when it was answered, of the oldest frame answered in the last minute.
	FrameAge float64 `json:"frame_age_seconds"`
	// Durations are how long requests took, whatever their answer, shortest first. Empty classes
	// are left out.
	Durations []DurationClass `json:"durations"`
}

// A DurationClass counts the requests that took longer than Above, and at most UpTo.
type DurationClass struct {
	Above    float64 `json:"above_seconds"`
	UpTo     float64 `json:"up_to_seconds"` // 0: there is no bound
	Requests uint64  `json:"requests"`
}

// A Door is one way in for clients.
type Door struct {
	Name        string `json:"name"`
	Connections int    `json:"connections"`
	InFlight    int    `json:"in_flight"` // requests not answered yet
}

// A Client is an identity, or an address, with its use of its quotas.
type Client struct {
	Name     string  `json:"name"`     // identity "cam", address 192.0.2.1
	Requests int64   `json:"requests"` // so far, including refused ones
	Bytes    int64   `json:"bytes"`    // of these
	Quotas   []Quota `json:"quotas"`   // those with a limit, or with any use
}

// A Quota is one quota of a client.
type Quota struct {
	Quota   string  `json:"quota"` // its key in the file
	Limit   int64   `json:"limit"` // requests, bytes, connections or streams; 0: none
	Used    int64   `json:"used"`  // now; 0 for a rate
	Refused uint64  `json:"refused"`
	Since   float64 `json:"refused_seconds,omitempty"` // since the last refusal; left out: none
}

// Usage is how much of a limit is in use.
type Usage struct {
	Used    int64  `json:"used"`
	Limit   int64  `json:"limit"`
	Refused uint64 `json:"refused"` // requests for more than is left
}

// Shared is the memory for payloads that containers on this machine share. All of it counts as
// memory for payloads.
type Shared struct {
	Inputs   int64 `json:"inputs"`   // the arena: segments that containers read, in use and free
	Used     int64 `json:"used"`     // of it, in use
	Readable int64 `json:"readable"` // of that, what containers may be reading
	// Replaced is the part of Inputs in segments that were replaced and that requests or containers
	// still hold.
	Replaced int64 `json:"replaced"`
	Limit    int64 `json:"limit"` // of inputs; 0: nothing is shared
	// Outputs are segments that containers write, which count whole until their sessions end.
	Outputs int64 `json:"outputs"`
}

// Regions are the shared memory that clients on this machine have registered.
type Regions struct {
	Used    int    `json:"used"`
	Limit   int    `json:"limit"`   // 0: shared memory is off
	Bytes   int64  `json:"bytes"`   // of all of them
	Made    int64  `json:"made"`    // of memory that outputs have taken in files without any there
	Refused uint64 `json:"refused"` // registrations; the metrics have the reasons
}

// Queue describes what waits for a batch.
type Queue struct {
	Rows        int     `json:"rows"`
	Bytes       int64   `json:"bytes"`
	OldestRow   float64 `json:"oldest_row_seconds"`   // of the row that waits for longest
	OldestBatch float64 `json:"oldest_batch_seconds"` // of the oldest batch without an answer
}

// State is the condition of the state store.
type State struct {
	At string `json:"at"` // as in the file, without a password; "" = in memory
	// Healthy means that it can be changed; while not, the server goes on with what it knows.
	Healthy bool      `json:"healthy"`
	Since   time.Time `json:"since"`           // when Healthy became what it is
	Error   string    `json:"error,omitempty"` // why it is not healthy
}

// A Session is one connected container.
type Session struct {
	Model    string `json:"model"` // "" until it has registered; also Version
	Version  string `json:"version"`
	Instance string `json:"instance,omitempty"` // the name that it gives itself
	Remote   string `json:"remote"`
	// RPC is the generation: v1, v1b, v2, v2a, v3, v4; empty until its first message.
	RPC string `json:"rpc"`
	// State is connecting, serving, failing (on every batch), hung (it does not answer), draining,
	// leaving, calling, retired (replaced, but its RPC has no goodbye) or unserved (it cannot be
	// served as it is).
	State       string  `json:"state"`
	Connected   float64 `json:"connected_seconds"`
	Silent      float64 `json:"silent_seconds"`    // since its last message
	Batches     int64   `json:"batches"`           // sent
	Rows        int64   `json:"rows"`              // in them
	Failures    int64   `json:"failures"`          // batches it failed, or answered invalidly
	Pending     int     `json:"pending"`           // batches that it has not answered yet
	Oldest      float64 `json:"oldest_seconds"`    // since the oldest of them was sent
	Slots       int     `json:"slots,omitempty"`   // most batches at a time; 0: not known yet
	AtOnce      int     `json:"at_once,omitempty"` // batches that it executes at once; 0: as above
	LastFailure string  `json:"last_failure,omitempty"`
	Reason      string  `json:"reason,omitempty"` // why it is ending, or should

	Feedback int64 `json:"feedback,omitempty"` // sent to a container that asks for it
	// Arena is what goes by shared memory: "inputs", "outputs" or "inputs, outputs".
	Arena    string `json:"arena,omitempty"`
	Readable int64  `json:"readable_bytes,omitempty"` // inputs in it that the container may read
	Outputs  int64  `json:"output_bytes,omitempty"`   // segments for outputs; whole until it ends
	Replaced int64  `json:"replaced_bytes,omitempty"` // replaced segments that it has not unmapped

	ReplacedFor float64 `json:"replaced_seconds,omitempty"` // since the first of them was

	// FeedbackDropped counts feedback not sent, as the container had not taken earlier feedback.
	FeedbackDropped int64 `json:"feedback_dropped,omitempty"`
}

// A Process is one process that the server started.
type Process struct {
	Name     string   `json:"name"`
	Replica  int      `json:"replica"` // from 0
	PID      int      `json:"pid,omitempty"`
	State    string   `json:"state"`
	Since    float64  `json:"since_seconds"` // in this state
	Restarts int      `json:"restarts"`
	LastExit string   `json:"last_exit,omitempty"`
	Log      []string `json:"log,omitempty"` // its last lines
}
