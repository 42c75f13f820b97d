package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Config is everything that can be set. Its toml tags are the keys of the file; the same
// keys, joined by dots, name a setting in faults, in Set and in the answers of the admin door.
type Config struct {
	Server     Server           `toml:"server"`
	Log        Log              `toml:"log"`
	TCP        TCP              `toml:"tcp"`
	REST       REST             `toml:"rest"`
	GRPC       GRPC             `toml:"grpc"`
	Containers Containers       `toml:"containers"`
	Admin      Admin            `toml:"admin"`
	State      State            `toml:"state"`
	Limits     Limits           `toml:"limits"`
	Defaults   Policy           `toml:"defaults"`
	Models     map[string]Model `toml:"model"`     // by model name, for all its versions; complete: what the file leaves out is from Defaults
	Supervised []Container      `toml:"container"` // processes that the server starts and stops itself, and containers that it calls

	origins map[string]origin // key -> where its value came from; a key that is missing has its default
}

// Server is what concerns the process as a whole.
type Server struct {
	Drain          time.Duration `toml:"drain"`           // longest time a shutdown waits for requests in flight; the rest is answered Draining
	LimitLoopback  bool          `toml:"limit_loopback"`  // connections_per_address holds for clients on this machine, too
	RequiredModels []string      `toml:"required_models"` // "name" or "name/version"; the server is ready only while each has a live replica
	ReadyWhen      string        `toml:"ready_when"`      // what else that asks for: see ReadyModels and ReadyRequired
	Repository     string        `toml:"repository"`      // who may load and unload models over HTTP and gRPC: local (by doors that listen on this machine alone), all, none
}

// Values of Server.ReadyWhen.
const (
	ReadyModels   = "models"   // the models of every [[container]] have a live replica, but for those that were unloaded
	ReadyRequired = "required" // nothing else
)

// Log is how the server writes about itself, on standard error.
type Log struct {
	Level  string `toml:"level"`  // debug, info, warn, error
	Format string `toml:"format"` // text, json
}

// TCP is the Shiva door.
type TCP struct {
	Listen                string        `toml:"listen"`                   // host:port; port 0 takes a free one; "" leaves the door out
	Loops                 int           `toml:"loops"`                    // event loops; 0 = one per core
	Connections           int           `toml:"connections"`              // at most this many, and never more than the process's descriptors allow
	ConnectionsPerAddress int           `toml:"connections_per_address"`  // at most this many of one client address; 0 = half of them. See Server.LimitLoopback
	InFlightPerConnection int           `toml:"in_flight_per_connection"` // requests of one connection that wait for an answer; one more is answered Overloaded
	IdleTimeout           time.Duration `toml:"idle_timeout"`             // a connection with nothing in flight and nothing half-received is closed after this; 0 = never
	MessageTimeout        time.Duration `toml:"message_timeout"`          // a message that has begun must be complete after this, and a second more for each 16 KiB of it; 0 = no limit
	OutboundBytes         Bytes         `toml:"outbound_bytes"`           // answers that a client has not read, and is about to get; beyond it requests wait until it reads. One that reads gets up to eight times as much
	StallTimeout          time.Duration `toml:"stall_timeout"`            // a client that takes nothing of the answers that wait for it for this long is closed
	Resync                bool          `toml:"resync"`                   // after rubbish look for the next valid header instead of closing (serial bridges)
	ResyncBytes           Bytes         `toml:"resync_bytes"`             // rubbish skipped in one search before the connection is closed after all
}

// REST is the door for the Predict Protocol V2 over HTTP.
type REST struct {
	Listen                string        `toml:"listen"`                  // host:port; port 0 takes a free one; "" leaves the door out
	Connections           int           `toml:"connections"`             // at most this many, and never more than the process's descriptors allow
	ConnectionsPerAddress int           `toml:"connections_per_address"` // at most this many of one client address; 0 = half of them. See Server.LimitLoopback
	IdleTimeout           time.Duration `toml:"idle_timeout"`            // a connection on which no request begins is closed after this; 0 = never
	HeaderTimeout         time.Duration `toml:"header_timeout"`          // the head of a request that has begun must be complete after this
	MessageTimeout        time.Duration `toml:"message_timeout"`         // likewise its body, and a second more for each 16 KiB that have come; 0 = no limit
	StallTimeout          time.Duration `toml:"stall_timeout"`           // a client that takes nothing of its answer for this long is closed
	CORSOrigins           []string      `toml:"cors_origins"`            // whose pages may read answers in a browser, "https://example.org" or "*"; none = the server's own address alone
}

// GRPC is the door for clients that speak the Predict Protocol V2 over gRPC.
type GRPC struct {
	Listen                string        `toml:"listen"`                  // host:port; port 0 takes a free one; "" leaves the door out
	Connections           int           `toml:"connections"`             // at most this many
	ConnectionsPerAddress int           `toml:"connections_per_address"` // at most this many of one client address; 0 = half of them. See Server.LimitLoopback
	StreamsPerConnection  int           `toml:"streams_per_connection"`  // calls of one connection at one time; a client's library holds more back
	InFlightPerStream     int           `toml:"in_flight_per_stream"`    // requests of one ModelStreamInfer that wait for an answer; more are not read
	MessageTimeout        time.Duration `toml:"message_timeout"`         // a message that has begun must be complete after this, and a second more for each 16 KiB of it; 0 = no limit
	OutboundBytes         Bytes         `toml:"outbound_bytes"`          // answers that a connection has not read, and is about to get; beyond it requests wait until it reads. One that reads gets up to eight times as much
	StallTimeout          time.Duration `toml:"stall_timeout"`           // a connection that takes nothing of the answers that wait for it for this long is closed
	IdleTimeout           time.Duration `toml:"idle_timeout"`            // a connection without a call is asked to go after this; 0 = never
	PingInterval          time.Duration `toml:"ping_interval"`           // a connection that says nothing for this long is pinged
	PingTimeout           time.Duration `toml:"ping_timeout"`            // and closed if it does not answer for this long
	MinPingInterval       time.Duration `toml:"min_ping_interval"`       // a client that pings more often than this is closed
}

// Containers is where model containers connect.
type Containers struct {
	Listen           Addrs         `toml:"listen"`            // "host:port", "tcp://host:port" or "ipc://path"; a string or a list
	ListenV1b        Addrs         `toml:"listen_v1b"`        // likewise, for containers of RPC v1b and v3, as v1b registers like v1
	ListenV2         Addrs         `toml:"listen_v2"`         // for those of v1 and v2, as v2 beats like v3
	ListenV2a        Addrs         `toml:"listen_v2a"`        // for those of v1 and v2a, which is v2 with floats for answers
	Heartbeat        time.Duration `toml:"heartbeat"`         // either side beats when it sent nothing for this long; dead after three
	HandshakeTimeout time.Duration `toml:"handshake_timeout"` // from the connection's start to the container's registration
	WriteTimeout     time.Duration `toml:"write_timeout"`     // a container that takes not one byte of what is due for this long is lost
	MessageBytes     Bytes         `toml:"message_bytes"`     // largest message taken from a container
	Frames           int           `toml:"frames"`            // most frames in one message taken from a container
	Sessions         int           `toml:"sessions"`          // most containers connected at once
	Handshakes       int           `toml:"handshakes"`        // most of them that have not registered yet
}

// Admin is the operator's HTTP door.
type Admin struct {
	Listen        string   `toml:"listen"`         // host:port; port 0 takes a free one; "" leaves the door out
	Hosts         []string `toml:"hosts"`          // names that it may be asked by beside addresses and localhost, and whose pages may use it; "*" = be asked by any
	Profiling     bool     `toml:"profiling"`      // show profiles of the process under /debug/pprof/
	ImportBytes   Bytes    `toml:"import_bytes"`   // largest document that an import takes
	MetricsModels int      `toml:"metrics_models"` // models and applications that have series of their own on /metrics; others share
}

// State is where applications, and what their policies have learned, are kept.
type State struct {
	At        string `toml:"at"`        // path of a file, or "redis://host:port/db", which several servers share; "" = in memory, until the server stops
	Required  bool   `toml:"required"`  // the server does not start while Redis cannot be read
	Users     int    `toml:"users"`     // of each application, for whom what its policy has learned is kept; beyond it the least recently used go
	Namespace string `toml:"namespace"` // begins the names of all keys in Redis, so that one Redis serves several clusters
}

// Limits is what a client's message may be, whatever door it comes through.
type Limits struct {
	MessageBytes  Bytes `toml:"message_bytes"`
	MetadataBytes Bytes `toml:"metadata_bytes"`
	Tensors       int   `toml:"tensors"`
	Rank          int   `toml:"rank"`
	JSONDepth     int   `toml:"json_depth"`
	PayloadBytes  Bytes `toml:"payload_bytes"` // memory of the process for payloads, in and out; beyond it requests are answered Overloaded
	UnpackRatio   int   `toml:"unpack_ratio"`  // a compressed request that unpacks to more than so many times what came of it takes from UnpackBytes
	UnpackBytes   Bytes `toml:"unpack_bytes"`  // the part of PayloadBytes that such requests share; beyond it they are answered Overloaded. 0 = a quarter
}

// Unpacked is the part of payload_bytes for requests that unpack to far more than came.
func (l Limits) Unpacked() Bytes {
	if l.UnpackBytes > 0 {
		return l.UnpackBytes
	}
	return l.PayloadBytes / 4
}

// Shared reports whether other servers may share the state.
func (s State) Shared() bool { return strings.Contains(s.At, "://") }

// Redacted is At without a password.
func (s State) Redacted() string { return redacted(s.At) }

// password finds one in a URL, also in one that no parser takes: from the first colon after the
// scheme to the last @ before a space.
var password = regexp.MustCompile(`(://[^\s:/?#@]*:)\S*@`)

// redacted is text without the passwords of URLs in it.
func redacted(text string) string { return password.ReplaceAllString(text, "${1}xxxxx@") }

// Policy is how requests for a model are batched, bounded and tried again.
type Policy struct {
	Strategy         string        `toml:"strategy"`          // deadline, aimd, quantile, static
	Objective        time.Duration `toml:"objective"`         // what a batch should take; it sizes batches
	MaxBatch         int           `toml:"max_batch"`         // rows; 0 = what the container declares, else 128
	BatchBytes       Bytes         `toml:"batch_bytes"`       // of the inputs of a batch of more than one row; 0 = 256MiB, or QueueBytes if that is less
	Delay            time.Duration `toml:"delay"`             // wait this long for more rows although a replica is idle; 0 = never
	QueueRows        int           `toml:"queue_rows"`        // rows waiting for one model version; beyond it Overloaded
	QueueBytes       Bytes         `toml:"queue_bytes"`       // bytes waiting for one model version; beyond it Overloaded
	Deadline         time.Duration `toml:"deadline"`          // of a request that brings none
	ExecutionTimeout time.Duration `toml:"execution_timeout"` // a batch not answered after this makes its replica suspect
	Retry            bool          `toml:"retry"`             // batches of a lost replica run once more elsewhere; false for models that are not idempotent
	Shed             bool          `toml:"shed"`              // refuse rows that cannot make their deadline; false: the published form of aimd and static
	Slots            int           `toml:"slots"`             // batches out at one replica; 0: what it executes at once and one more
	Pad              bool          `toml:"pad"`               // static: fill every batch to max_batch by repeating its last row
	Batched          bool          `toml:"batched"`           // false: each request is one execution, for containers that cannot say so themselves
	Cast             bool          `toml:"cast"`              // accept other dtypes when no value changes
}

// Model is the policy of one model, with what only makes sense for one.
type Model struct {
	Policy
	DefaultVersion string        `toml:"default_version"` // the version that the bare name means; "" = the newest that is ready
	RetireAfter    time.Duration `toml:"retire_after"`    // containers of versions older than that are told goodbye after so long; 0 = they stay
	Cache          Bytes         `toml:"cache"`           // answers of all its versions that are kept for equal requests, out of limits.payload_bytes; 0 = none
	CacheTTL       time.Duration `toml:"cache_ttl"`       // for so long after they came; 0 = until others need the room
}

// Container is a process that the server starts, restarts and stops, and that connects like any
// other; or, with an address, a container of RPC v0 that runs elsewhere and waits to be called.
type Container struct {
	Name        string            `toml:"name"`         // in logs and status; unique
	Command     []string          `toml:"command"`      // program and arguments; no shell
	Replicas    int               `toml:"replicas"`     // processes; 1 if the file does not say
	Env         map[string]string `toml:"env"`          // added to the server's environment
	Dir         string            `toml:"dir"`          // working directory, relative to the file; "" = the server's own
	StopTimeout time.Duration     `toml:"stop_timeout"` // from SIGTERM to SIGKILL; 10s if the file does not say

	Address string `toml:"address"` // "tcp://host:port" or "ipc://path", instead of a command
	RPC     string `toml:"rpc"`     // "v0": those of all other generations call the server
	Model   string `toml:"model"`   // what it serves: a container of RPC v0 cannot say. Of a command, what loads and unloads it; "" = its name
	Version string `toml:"version"` // likewise
	Input   string `toml:"input"`   // likewise: bytes, ints, doubles or strings
}

// newContainer is what a [[container]] begins as.
func newContainer() Container { return Container{Replicas: 1, StopTimeout: 10 * time.Second} }

// Default returns the configuration of a server started without a file. The maps and slices are the
// caller's.
func Default() Config {
	return Config{
		Server: Server{Drain: 30 * time.Second, RequiredModels: []string{}, Repository: "local", ReadyWhen: ReadyModels},
		Log:    Log{Level: "info", Format: "text"},
		TCP: TCP{
			Listen:                ":6174",
			Connections:           65536,
			InFlightPerConnection: 256,
			MessageTimeout:        10 * time.Second,
			OutboundBytes:         8 << 20,
			StallTimeout:          10 * time.Second,
			ResyncBytes:           1 << 20,
		},
		REST: REST{
			Listen:         ":8000",
			Connections:    4096,
			IdleTimeout:    15 * time.Minute,
			HeaderTimeout:  10 * time.Second,
			MessageTimeout: 10 * time.Second,
			StallTimeout:   10 * time.Second,
			CORSOrigins:    []string{},
		},
		GRPC: GRPC{
			Listen:               ":8001",
			Connections:          1024,
			StreamsPerConnection: 256,
			InFlightPerStream:    64,
			MessageTimeout:       10 * time.Second,
			OutboundBytes:        8 << 20,
			StallTimeout:         10 * time.Second,
			IdleTimeout:          15 * time.Minute,
			PingInterval:         time.Minute,
			PingTimeout:          20 * time.Second,
			MinPingInterval:      100 * time.Millisecond,
		},
		Containers: Containers{
			Listen:           Addrs{"127.0.0.1:7000"},
			ListenV1b:        Addrs{},
			ListenV2:         Addrs{},
			ListenV2a:        Addrs{},
			Heartbeat:        time.Second,
			HandshakeTimeout: 10 * time.Second,
			WriteTimeout:     10 * time.Second,
			MessageBytes:     1 << 30,
			Frames:           8192,
			Sessions:         1024,
			Handshakes:       128,
		},
		Admin: Admin{Listen: "127.0.0.1:8002", Hosts: []string{}, ImportBytes: 256 << 20, MetricsModels: 256},
		State: State{Required: true, Users: 10000, Namespace: "shivad"},
		Limits: Limits{
			MessageBytes:  256 << 20,
			MetadataBytes: 1 << 20,
			Tensors:       255,
			Rank:          64,
			JSONDepth:     128,
			PayloadBytes:  4 << 30,
			UnpackRatio:   32,
		},
		Defaults: Policy{
			Strategy:         "deadline",
			Objective:        100 * time.Millisecond,
			QueueRows:        65536,
			QueueBytes:       1 << 30,
			Deadline:         30 * time.Second,
			ExecutionTimeout: 30 * time.Second,
			Retry:            true,
			Shed:             true,
			Batched:          true,
		},
		Models: map[string]Model{},
	}
}

// Model returns what is in effect for the model of that name.
func (c Config) Model(name string) Model {
	if m, ok := c.Models[name]; ok {
		return m
	}
	return Model{Policy: c.Defaults}
}

// Clone returns a copy that shares nothing with c.
func (c Config) Clone() Config {
	c.Server.RequiredModels = slices.Clone(c.Server.RequiredModels)
	c.REST.CORSOrigins = slices.Clone(c.REST.CORSOrigins)
	c.Admin.Hosts = slices.Clone(c.Admin.Hosts)
	for _, addrs := range []*Addrs{&c.Containers.Listen, &c.Containers.ListenV1b, &c.Containers.ListenV2, &c.Containers.ListenV2a} {
		*addrs = slices.Clone(*addrs)
	}
	c.Models = maps.Clone(c.Models)
	c.Supervised = slices.Clone(c.Supervised)
	for i := range c.Supervised {
		p := &c.Supervised[i]
		p.Command = slices.Clone(p.Command)
		p.Env = maps.Clone(p.Env)
	}
	c.origins = maps.Clone(c.origins)
	return c
}

// Redacted returns a copy for eyes and logs: the values of environment variables, which is
// where people put passwords, are replaced, and so are those in URLs: of Redis, and in the
// commands of containers.
func (c Config) Redacted() Config {
	c = c.Clone()
	c.State.At = c.State.Redacted()
	for _, p := range c.Supervised {
		for i, arg := range p.Command {
			p.Command[i] = redacted(arg)
		}
		for name := range p.Env {
			p.Env[name] = "(hidden)"
		}
	}
	return c
}
