package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
)

// A Config is everything that can be set. Its toml tags are the keys of the file; the same
// keys, joined by dots, name a setting in faults, in Set and in the answers of the admin door. A
// setting with the tag restart cannot change while the server runs, for the reason that it gives;
// one of a model with the tag file changes with the file alone.
type Config struct {
	Server     Server     `toml:"server"`
	Log        Log        `toml:"log"`
	TCP        TCP        `toml:"tcp"`
	REST       REST       `toml:"rest"`
	GRPC       GRPC       `toml:"grpc"`
	Containers Containers `toml:"containers"`
	Admin      Admin      `toml:"admin"`
	State      State      `toml:"state" restart:"it is open"`
	Limits     Limits     `toml:"limits"`
	Defaults   Policy     `toml:"defaults"`
	// Models are by model name, for all versions of a model, and complete: what the file leaves
	// out is from Defaults.
	Models map[string]Model `toml:"model"`
	// Supervised are processes that the server starts and stops itself, and containers that it
	// calls.
	Supervised []Container `toml:"container"`

	origins map[string]origin // key -> where its value is from; a key that is missing has its default
}

// Bytes is a size: see [setting.Bytes].
type Bytes = setting.Bytes

// Addrs is a list of addresses; the file may give a single string.
type Addrs []string

// Server is what concerns the process as a whole.
type Server struct {
	// Drain is the longest time that a shutdown waits for requests in flight; the rest is
	// answered Draining.
	Drain time.Duration `toml:"drain"`
	// LimitLoopback has connections_per_address hold for clients on this machine, too.
	LimitLoopback bool `toml:"limit_loopback"`
	// RequiredModels are "name" or "name/version"; the server is ready only while each has a
	// live replica.
	RequiredModels []string `toml:"required_models"`
	// ReadyWhen is what else that asks for: ReadyModels or ReadyRequired.
	ReadyWhen string `toml:"ready_when"`
	// Repository is who may load and unload models over HTTP and gRPC: RepositoryLocal,
	// RepositoryAll or RepositoryNone.
	Repository string `toml:"repository"`
}

// Values of Server.Repository.
const (
	RepositoryLocal = "local" // by doors that listen on this machine alone
	RepositoryAll   = "all"
	RepositoryNone  = "none"
)

// Values of Server.ReadyWhen.
const (
	ReadyModels   = "models"   // the models of every [[container]] have a live replica, but for those that were unloaded
	ReadyRequired = "required" // nothing else
)

// Log is how the server writes about itself, on standard error.
type Log struct {
	Level  string `toml:"level"`                                        // debug, info, warn, error
	Format string `toml:"format" restart:"every line of a log has one"` // text, json
}

// TCP is the Shiva door.
type TCP struct {
	// Listen is host:port, and port 0 takes a free one; "" leaves the door out.
	Listen string `toml:"listen" restart:"it is open"`
	// Loops is the number of event loops; 0 = one per core.
	Loops int `toml:"loops" restart:"gnet takes it once"`
	// Connections is the most there are, and never more than the process's descriptors allow;
	// ConnectionsPerAddress the most of one client address, 0 = half of them. See
	// Server.LimitLoopback.
	Connections           int `toml:"connections"`
	ConnectionsPerAddress int `toml:"connections_per_address"`
	// InFlightPerConnection is how many requests of one connection may wait for an answer; one
	// more is answered Overloaded.
	InFlightPerConnection int `toml:"in_flight_per_connection"`
	// IdleTimeout is after what a connection with nothing in flight and nothing half-received is
	// closed; 0 = never.
	IdleTimeout time.Duration `toml:"idle_timeout"`
	// MessageTimeout is for a message to be complete that has begun, and a second more for each
	// 16 KiB of it; 0 = no limit.
	MessageTimeout time.Duration `toml:"message_timeout"`
	// OutboundBytes is how much of answers a client may leave unread, with what it is about to
	// get; beyond it requests wait until it reads. One that reads gets up to eight times as much.
	OutboundBytes Bytes `toml:"outbound_bytes"`
	// StallTimeout is after what a client is closed that takes nothing of the answers that wait
	// for it.
	StallTimeout time.Duration `toml:"stall_timeout"`
	// Resync has the door look for the next valid header after rubbish instead of closing, for
	// serial bridges; ResyncBytes is how much it skips before the connection is closed after all.
	Resync      bool  `toml:"resync"`
	ResyncBytes Bytes `toml:"resync_bytes"`
}

// REST is the door for the Predict Protocol V2 over HTTP. Fields without a comment are as those
// of TCP.
type REST struct {
	Listen                string        `toml:"listen" restart:"it is open"`
	Connections           int           `toml:"connections"`
	ConnectionsPerAddress int           `toml:"connections_per_address"`
	IdleTimeout           time.Duration `toml:"idle_timeout"`    // of a connection on which no request begins; 0 = none
	HeaderTimeout         time.Duration `toml:"header_timeout"`  // for the head of a request to be complete that has begun
	MessageTimeout        time.Duration `toml:"message_timeout"` // for its body, likewise
	StallTimeout          time.Duration `toml:"stall_timeout"`
	// CORSOrigins are those whose pages may read answers in a browser, "https://example.org" or
	// "*"; none = the server's own address alone.
	CORSOrigins []string `toml:"cors_origins"`
}

// GRPC is the door for clients that speak the Predict Protocol V2 over gRPC. Fields without a
// comment are as those of TCP.
type GRPC struct {
	Listen                string `toml:"listen" restart:"it is open"`
	Connections           int    `toml:"connections"`
	ConnectionsPerAddress int    `toml:"connections_per_address"`
	// StreamsPerConnection is how many calls one connection has at a time; a client's library
	// holds more back.
	StreamsPerConnection int `toml:"streams_per_connection" restart:"grpc-go takes it once"`
	// InFlightPerStream is how many requests of one ModelStreamInfer wait for an answer; more
	// are not read.
	InFlightPerStream int           `toml:"in_flight_per_stream"`
	MessageTimeout    time.Duration `toml:"message_timeout"`
	OutboundBytes     Bytes         `toml:"outbound_bytes"`
	StallTimeout      time.Duration `toml:"stall_timeout"`
	// IdleTimeout is after what a connection without a call is told to go; 0 = never.
	IdleTimeout time.Duration `toml:"idle_timeout" restart:"grpc-go takes it once"`
	// PingInterval is after what a silent connection is pinged, PingTimeout how long it has to
	// answer before it is closed. A client that pings more often than MinPingInterval is closed.
	PingInterval    time.Duration `toml:"ping_interval" restart:"grpc-go takes it once"`
	PingTimeout     time.Duration `toml:"ping_timeout" restart:"grpc-go takes it once"`
	MinPingInterval time.Duration `toml:"min_ping_interval" restart:"grpc-go takes it once"`
}

// Containers is where model containers connect.
type Containers struct {
	// Listen are "host:port", "tcp://host:port" or "ipc://path"; a string or a list. The others
	// are addresses for generations that cannot be told apart there: see [containers.Dialect].
	Listen    Addrs `toml:"listen" restart:"it is open"`
	ListenV1b Addrs `toml:"listen_v1b" restart:"it is open"` // RPC v1b and v3, as v1b registers like v1
	ListenV2  Addrs `toml:"listen_v2" restart:"it is open"`  // v1 and v2, as v2 beats like v3
	ListenV2a Addrs `toml:"listen_v2a" restart:"it is open"` // v1 and v2a, which is v2 with floats for answers
	// The other settings are [containers.Settings].
	Heartbeat        time.Duration `toml:"heartbeat"`
	HandshakeTimeout time.Duration `toml:"handshake_timeout"`
	WriteTimeout     time.Duration `toml:"write_timeout"`
	MessageBytes     Bytes         `toml:"message_bytes"`
	Frames           int           `toml:"frames"`
	Sessions         int           `toml:"sessions"`
	Handshakes       int           `toml:"handshakes"`
}

// Settings are those that the listener of containers takes.
func (k Containers) Settings() containers.Settings {
	return containers.Settings{
		Limits: containers.Limits{
			MessageBytes: int64(k.MessageBytes), Frames: k.Frames, Sessions: k.Sessions, Handshakes: k.Handshakes,
		},
		Heartbeat: k.Heartbeat, HandshakeTimeout: k.HandshakeTimeout, WriteTimeout: k.WriteTimeout,
	}
}

// Admin is the operator's HTTP door.
type Admin struct {
	Listen string `toml:"listen" restart:"it is open"` // as TCP.Listen
	// Hosts are names that the door may be asked by beside addresses and localhost, and whose
	// pages may use it; "*" = be asked by any.
	Hosts       []string `toml:"hosts"`
	Profiling   bool     `toml:"profiling"`    // show profiles of the process under /debug/pprof/
	ImportBytes Bytes    `toml:"import_bytes"` // of the largest document that an import takes
	// MetricsModels is how many models and applications have series of their own on /metrics;
	// others share.
	MetricsModels int `toml:"metrics_models"`
}

// State is where applications, and what their policies have learned, are stored.
type State struct {
	// At is the path of a file, or "redis://host:port/db", which several servers share; "" = in
	// memory, until the server stops.
	At       string `toml:"at"`
	Required bool   `toml:"required"` // the server does not start while Redis cannot be read
	// Users is for how many of each application it is stored what the policy has learned; beyond
	// it the least recently used go.
	Users int `toml:"users"`
	// Namespace begins the names of all keys in Redis, so that one Redis serves several clusters.
	Namespace string `toml:"namespace"`
}

// Limits is what a client's message may be, whatever door it comes through.
type Limits struct {
	MessageBytes  Bytes `toml:"message_bytes"`
	MetadataBytes Bytes `toml:"metadata_bytes"`
	Tensors       int   `toml:"tensors"`
	Rank          int   `toml:"rank"`
	JSONDepth     int   `toml:"json_depth"`
	// PayloadBytes is the memory of the process for payloads, in and out; beyond it requests are
	// answered Overloaded.
	PayloadBytes Bytes `toml:"payload_bytes" restart:"caches and the limit of the heap follow it"`
	// A compressed request that unpacks to more than UnpackRatio times its size is charged to
	// UnpackBytes, the part of PayloadBytes that such requests share; beyond it they are answered
	// Overloaded. 0 = a quarter.
	UnpackRatio int   `toml:"unpack_ratio"`
	UnpackBytes Bytes `toml:"unpack_bytes" restart:"it is a part of payload_bytes"`
}

// Unpacked is the part of payload_bytes for requests that unpack to far more than their size.
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

// Policy is how requests for a model are batched, bounded and tried again. But for Deadline and
// Cast it is [scheduler.ModelConfig], which has the meaning of each field.
type Policy struct {
	Strategy         string        `toml:"strategy"`
	Objective        time.Duration `toml:"objective"`
	MaxBatch         int           `toml:"max_batch"`
	BatchBytes       Bytes         `toml:"batch_bytes"`
	Delay            time.Duration `toml:"delay"`
	QueueRows        int           `toml:"queue_rows"`
	QueueBytes       Bytes         `toml:"queue_bytes"`
	Deadline         time.Duration `toml:"deadline" file:"only"` // of a request that brings none
	ExecutionTimeout time.Duration `toml:"execution_timeout"`
	Retry            bool          `toml:"retry"`
	Shed             bool          `toml:"shed"`
	Slots            int           `toml:"slots"`
	Pad              bool          `toml:"pad"`
	Batched          bool          `toml:"batched" file:"only" restart:"replicas have registered by it"`
	Cast             bool          `toml:"cast" file:"only"` // accept other dtypes when no value changes
}

// Scheduler is the part of a policy that the scheduler follows.
func (p Policy) Scheduler() scheduler.ModelConfig {
	return scheduler.ModelConfig{
		Strategy:    p.Strategy,
		Objective:   p.Objective,
		MaxBatch:    p.MaxBatch,
		BatchBytes:  int64(p.BatchBytes),
		Delay:       p.Delay,
		QueueRows:   p.QueueRows,
		QueueBytes:  int64(p.QueueBytes),
		ExecTimeout: p.ExecutionTimeout,
		Retry:       &p.Retry,
		Shed:        &p.Shed,
		Slots:       p.Slots,
		Batched:     &p.Batched,
		Pad:         p.Pad,
	}
}

// SchedulerModels is the scheduler's part of the settings of each model in Models.
func (c Config) SchedulerModels() map[string]scheduler.ModelConfig {
	out := make(map[string]scheduler.ModelConfig, len(c.Models))
	for name, m := range c.Models {
		out[name] = m.Scheduler()
	}
	return out
}

// Model is the policy of one model, with what only makes sense for one.
type Model struct {
	Policy
	// DefaultVersion is what the bare name means; "" = the newest version that is ready.
	DefaultVersion string `toml:"default_version"`
	// RetireAfter is how long containers of older versions stay; 0 = for ever.
	RetireAfter time.Duration `toml:"retire_after"`
	// Cache is the memory for answers to equal requests, of all versions together and out of
	// limits.payload_bytes; 0 = none. CacheTTL is how long an answer serves; 0 = until others
	// need the room.
	Cache    Bytes         `toml:"cache"`
	CacheTTL time.Duration `toml:"cache_ttl"`
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
	// Model and Version are what is served: a container of RPC v0 cannot say it. Of a command,
	// Model is what loads and unloads it; "" = its name.
	Model   string `toml:"model"`
	Version string `toml:"version"`
	Input   string `toml:"input"` // of RPC v0, likewise: see [containers.Input]
}

// newContainer is what a [[container]] begins as.
func newContainer() Container { return Container{Replicas: 1, StopTimeout: 10 * time.Second} }

// Default returns the configuration of a server started without a file. The maps and slices are the
// caller's.
func Default() Config {
	policy, sessions := scheduler.Defaults(), containers.DefaultSettings()
	return Config{
		Server: Server{Drain: 30 * time.Second, RequiredModels: []string{}, Repository: RepositoryLocal, ReadyWhen: ReadyModels},
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
			Heartbeat:        sessions.Heartbeat,
			HandshakeTimeout: sessions.HandshakeTimeout,
			WriteTimeout:     sessions.WriteTimeout,
			MessageBytes:     1 << 30,
			Frames:           sessions.Limits.Frames,
			Sessions:         sessions.Limits.Sessions,
			Handshakes:       sessions.Limits.Handshakes,
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
			Strategy:         policy.Strategy,
			Objective:        policy.Objective,
			QueueRows:        policy.QueueRows,
			QueueBytes:       Bytes(policy.QueueBytes),
			Deadline:         30 * time.Second,
			ExecutionTimeout: policy.ExecTimeout,
			Retry:            *policy.Retry,
			Shed:             *policy.Shed,
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
	c.Models = cloned(c.Models)
	c.Supervised = slices.Clone(c.Supervised)
	for i := range c.Supervised {
		p := &c.Supervised[i]
		p.Command = slices.Clone(p.Command)
		p.Env = maps.Clone(p.Env)
	}
	c.origins = cloned(c.origins)
	return c
}

// cloned is a copy that can be written to, also of nil.
func cloned[V any](m map[string]V) map[string]V {
	out := make(map[string]V, len(m))
	maps.Copy(out, m)
	return out
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
