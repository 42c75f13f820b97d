package config

import (
	"io/fs"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/server/internal/quota"
	"github.com/shivad/shivad/server/internal/secure"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// A Config is everything that can be set. Its toml tags are the keys of the file; the same
// keys, joined by dots, name a setting in faults, in Set and in the answers of the admin door. A
// setting with the tag restart cannot change while the server runs, for the reason that it gives;
// one of a model with the tag file changes with the file alone. The tag default is its value
// without a file, in the words of Set, and min and max are its bounds: without max that is
// [setting.MaxWait] of a duration and [setting.MaxBytes] of a size. What a room declares has its
// defaults and bounds there.
type Config struct {
	Server     Server     `toml:"server"`
	Log        Log        `toml:"log"`
	TCP        TCP        `toml:"tcp"`
	REST       REST       `toml:"rest"`
	GRPC       GRPC       `toml:"grpc"`
	Containers Containers `toml:"containers"`
	Admin      Admin      `toml:"admin"`
	Traces     Traces     `toml:"traces"`
	TLS        TLS        `toml:"tls"`
	State      State      `toml:"state" restart:"it is open"`
	Limits     Limits     `toml:"limits"`
	// SharedMemory is for clients on the same machine.
	SharedMemory SharedMemory `toml:"shared_memory"`
	Defaults     Policy       `toml:"defaults"`
	// Models are by model name, for all versions of a model, and complete: what the file leaves
	// out is from Defaults.
	Models map[string]Model `toml:"model"`
	// Supervised are processes that the server starts and stops itself, and containers that it
	// calls.
	Supervised []Container `toml:"container"`
	// Identities are who clients, operators and containers can be; none = everybody may do
	// everything.
	Identities []Identity `toml:"identity"`

	origins map[string]origin // key -> where its value is from; a missing key has its default
}

// Bytes is a size: see [setting.Bytes].
type Bytes = setting.Bytes

// Addrs is a list of addresses; the file may give a single string.
type Addrs []string

// Server is what concerns the process as a whole.
type Server struct {
	// Drain is the longest time that a shutdown waits for requests in flight; the rest is
	// answered Draining.
	Drain time.Duration `toml:"drain" default:"30s" min:"0s"`
	// LimitLoopback has connections_per_address hold for clients on this machine, too.
	LimitLoopback bool `toml:"limit_loopback"`
	// RequiredModels are "name" or "name/version"; the server is ready only while each has a
	// live replica.
	RequiredModels []string `toml:"required_models" default:""`
	// ReadyWhen is what else that asks for: ReadyModels or ReadyRequired.
	ReadyWhen string `toml:"ready_when" default:"models"`
	// Repository is who may load and unload models over HTTP and gRPC: RepositoryLocal,
	// RepositoryAll or RepositoryNone.
	Repository string `toml:"repository" default:"local"`
}

// Values of Server.Repository.
const (
	RepositoryLocal = "local" // by doors that listen on this machine alone
	RepositoryAll   = "all"
	RepositoryNone  = "none"
)

// Values of Server.ReadyWhen.
const (
	// ReadyModels asks that the models of every [[container]] have a live replica, but for those
	// that were unloaded.
	ReadyModels = "models"
	// ReadyRequired asks for nothing else.
	ReadyRequired = "required"
)

// Log is how the server writes about itself, on standard error.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `toml:"level" default:"info"`
	// Format is text or json.
	Format string `toml:"format" default:"text" restart:"every line of a log has one"`
}

// TCP is the Shiva door.
type TCP struct {
	// Listen are "host:port", of which port 0 takes a free one, "tls://host:port", or "unix:PATH";
	// a string or a list. Without any the door is left out.
	Listen Addrs `toml:"listen" default:":6174" restart:"it is open"`
	Socket
	TLS Certificates `toml:"tls"` // whatever is given here, goes before TLS of all doors
	// Loops is the number of event loops; 0 = one per core.
	Loops int `toml:"loops" min:"0" max:"1024" restart:"gnet takes it once"`
	// Connections is the most there are, and never more than the process's descriptors allow;
	// ConnectionsPerAddress the most of one client address, 0 = half of them. See
	// Server.LimitLoopback.
	Connections           int `toml:"connections" default:"65536" min:"1" max:"16777216"`
	ConnectionsPerAddress int `toml:"connections_per_address" min:"0" max:"16777216"`
	// InFlightPerConnection is how many requests of one connection may wait for an answer; one
	// more is answered Overloaded.
	InFlightPerConnection int `toml:"in_flight_per_connection" default:"256" min:"1" max:"1048576"`
	// IdleTimeout is after what a connection with nothing in flight and nothing half-received is
	// closed; 0 = never.
	IdleTimeout time.Duration `toml:"idle_timeout" min:"0s" max:"8760h"`
	// MessageTimeout is for a message to be complete that has begun, and a second more for each
	// 16 KiB of it; 0 = no limit.
	MessageTimeout time.Duration `toml:"message_timeout" default:"10s" min:"0s"`
	// OutboundBytes is how much of answers a client may leave unread, with what it is about to
	// get; beyond it requests wait until it reads. One that reads gets up to eight times as much.
	OutboundBytes Bytes `toml:"outbound_bytes" default:"8MiB" min:"64KiB"`
	// StallTimeout is after what a client is closed that takes nothing of the answers that wait
	// for it.
	StallTimeout time.Duration `toml:"stall_timeout" default:"10s" min:"100ms"`
	// Resync has the door look for the next valid header after rubbish instead of closing, for
	// serial bridges; ResyncBytes is how much it skips before the connection is closed after all,
	// at least a header.
	Resync      bool  `toml:"resync"`
	ResyncBytes Bytes `toml:"resync_bytes" default:"1MiB" min:"12B"`
	// Stream is what requests are frames of that name no stream: StreamNone or StreamConnection.
	// Keep is that of the latter; 0 = as the application or the model is configured.
	Stream string       `toml:"stream" default:"none"`
	Keep   setting.Keep `toml:"keep"`
}

// Socket is who may connect to the Unix sockets of a door, or as a container: whoever may write to
// their files. Abstract names, "unix:@name" or "ipc://@name", have no files, and take every user of
// the machine.
type Socket struct {
	Mode string `toml:"socket_mode" default:"0660" restart:"it is open"` // permissions, in octal
	// Owner and Group are names or numbers; "" = those of the server.
	Owner string `toml:"socket_owner" restart:"it is open"`
	Group string `toml:"socket_group" restart:"it is open"`
}

// Access is that of the sockets to be opened, of a Socket that is valid.
func (s Socket) Access() unixsocket.Access {
	mode, _ := strconv.ParseUint(s.Mode, 8, 32)
	return unixsocket.Access{Mode: fs.FileMode(mode), Owner: s.Owner, Group: s.Group}
}

// Values of TCP.Stream.
const (
	StreamNone       = "none"
	StreamConnection = "connection" // their connection is a stream
)

// REST is the door for the Predict Protocol V2 over HTTP. Fields without a comment are as those
// of TCP.
type REST struct {
	Listen Addrs `toml:"listen" default:":8000" restart:"it is open"`
	Socket
	TLS                   Certificates `toml:"tls"`
	Connections           int          `toml:"connections" default:"4096" min:"1" max:"16777216"`
	ConnectionsPerAddress int          `toml:"connections_per_address" min:"0" max:"16777216"`
	// IdleTimeout is of a connection on which no request begins, 0 = none; HeaderTimeout for the
	// head of a request to be complete that has begun, MessageTimeout for its body, likewise.
	IdleTimeout    time.Duration `toml:"idle_timeout" default:"15m" min:"0s" max:"8760h"`
	HeaderTimeout  time.Duration `toml:"header_timeout" default:"10s" min:"10ms"`
	MessageTimeout time.Duration `toml:"message_timeout" default:"10s" min:"0s"`
	StallTimeout   time.Duration `toml:"stall_timeout" default:"10s" min:"100ms"`
	// CORSOrigins are those whose pages may read answers in a browser, "https://example.org" or
	// "*"; none = the server's own address alone.
	CORSOrigins []string `toml:"cors_origins" default:""`
}

// GRPC is the door for clients that speak the Predict Protocol V2 over gRPC. Fields without a
// comment are as those of TCP.
type GRPC struct {
	Listen Addrs `toml:"listen" default:":8001" restart:"it is open"`
	Socket
	TLS                   Certificates `toml:"tls"`
	Connections           int          `toml:"connections" default:"1024" min:"1" max:"16777216"`
	ConnectionsPerAddress int          `toml:"connections_per_address" min:"0" max:"16777216"`
	// StreamsPerConnection is how many calls one connection has at a time; a client's library
	// holds more back.
	StreamsPerConnection int `toml:"streams_per_connection" default:"256" min:"1" max:"1048576" restart:"grpc-go takes it once"`
	// InFlightPerStream is how many requests of one ModelStreamInfer wait for an answer; more
	// are not read.
	InFlightPerStream int           `toml:"in_flight_per_stream" default:"64" min:"1" max:"65536"`
	MessageTimeout    time.Duration `toml:"message_timeout" default:"10s" min:"0s"`
	OutboundBytes     Bytes         `toml:"outbound_bytes" default:"8MiB" min:"64KiB"`
	StallTimeout      time.Duration `toml:"stall_timeout" default:"10s" min:"100ms"`
	// IdleTimeout is after what a connection without a call is told to go; 0 = never.
	IdleTimeout time.Duration `toml:"idle_timeout" default:"15m" min:"0s" max:"8760h" restart:"grpc-go takes it once"`
	// PingInterval is after what a silent connection is pinged, PingTimeout how long it has to
	// answer before it is closed. A client that pings more often than MinPingInterval is closed.
	// The library rounds PingInterval up to a second.
	PingInterval    time.Duration `toml:"ping_interval" default:"1m" min:"1s" restart:"grpc-go takes it once"`
	PingTimeout     time.Duration `toml:"ping_timeout" default:"20s" min:"10ms" restart:"grpc-go takes it once"`
	MinPingInterval time.Duration `toml:"min_ping_interval" default:"100ms" min:"1ms" restart:"grpc-go takes it once"`
}

// Containers is where model containers connect.
type Containers struct {
	// Listen are "host:port", "tcp://host:port", "tls://host:port" or "ipc://path"; a string or a
	// list. The others are addresses for generations that cannot be told apart there: see
	// [containers.Dialect].
	Listen Addrs `toml:"listen" default:"127.0.0.1:7000" restart:"it is open"`
	// ListenV1b is for RPC v1b and v3, as v1b registers like v1.
	ListenV1b Addrs `toml:"listen_v1b" default:"" restart:"it is open"`
	// ListenV2 is for v1 and v2, as v2 beats like v3.
	ListenV2 Addrs `toml:"listen_v2" default:"" restart:"it is open"`
	// ListenV2a is for v1 and v2a, which is v2 with floats for answers.
	ListenV2a Addrs `toml:"listen_v2a" default:"" restart:"it is open"`
	Socket
	// TLS is whose certificates its addresses of TLS have. A handshake of TLS is part of
	// HandshakeTimeout, and counts among Handshakes, and not those of TLS of all doors.
	TLS Certificates `toml:"tls"`
	// The other settings are [containers.Settings].
	Heartbeat        time.Duration `toml:"heartbeat"`
	HandshakeTimeout time.Duration `toml:"handshake_timeout"`
	WriteTimeout     time.Duration `toml:"write_timeout"`
	MessageBytes     Bytes         `toml:"message_bytes" default:"1GiB"`
	Frames           int           `toml:"frames"`
	Sessions         int           `toml:"sessions"`
	// Arena has large payloads in memory that containers on this machine map instead of receiving
	// them, if they can; false = all tensors go to containers as bytes.
	Arena      bool `toml:"arena" default:"true" restart:"payloads lie in it"`
	Handshakes int  `toml:"handshakes"`
}

// Settings are those that the listener of containers takes.
func (k Containers) Settings() containers.Settings {
	return containers.Settings{
		Limits: containers.Limits{
			MessageBytes: int64(k.MessageBytes), Frames: k.Frames, Sessions: k.Sessions, Handshakes: k.Handshakes,
		},
		Bytes:     !k.Arena,
		Heartbeat: k.Heartbeat, HandshakeTimeout: k.HandshakeTimeout, WriteTimeout: k.WriteTimeout,
	}
}

// Admin is the operator's HTTP door.
type Admin struct {
	Listen string `toml:"listen" default:"127.0.0.1:8002" restart:"it is open"` // as in TCP.Listen
	Socket
	TLS Certificates `toml:"tls"`
	// Hosts are names that the door may be asked by beside addresses and localhost, and whose
	// pages may use it; "*" = be asked by any.
	Hosts []string `toml:"hosts" default:""`
	// Profiling shows profiles of the process under /debug/pprof/.
	Profiling bool `toml:"profiling"`
	// ImportBytes is the size of the largest document that an import takes.
	ImportBytes Bytes `toml:"import_bytes" default:"256MiB" min:"4KiB"`
	// MetricsModels is how many models and applications have series of their own on /metrics;
	// others share.
	MetricsModels int `toml:"metrics_models" default:"256" min:"1" max:"100000"`
	// MetricsTriton shows Triton's nv_inference_* names beside ours.
	MetricsTriton bool `toml:"metrics_triton"`
}

// Traces is which requests are followed on their way, and who is told.
type Traces struct {
	// Endpoint is the URL of a collector that takes OTLP over HTTP, such as
	// "http://127.0.0.1:4318"; "" = no request is followed.
	Endpoint string `toml:"endpoint" restart:"doors have or have not got what follows requests"`
	// OneIn is of how many requests one is followed, of those whose client does not say: a
	// traceparent decides for its request. 0 = none of them.
	OneIn int `toml:"one_in" default:"100" min:"0" max:"1000000000"`
}

// Redacted is Endpoint without a password.
func (t Traces) Redacted() string { return redacted(t.Endpoint) }

// State is where applications, and what their policies have learned, are stored.
type State struct {
	// At is the path of a file, or "redis://host:port/db", which several servers share; "" = in
	// memory, until the server stops.
	At string `toml:"at"`
	// Required keeps the server from starting while Redis cannot be read.
	Required bool `toml:"required" default:"true"`
	// Users is for how many of each application it is stored what the policy has learned; beyond
	// it the least recently used go.
	Users int `toml:"users" default:"10000" min:"1" max:"10000000"`
	// Namespace begins the names of all keys in Redis, so that one Redis serves several clusters.
	Namespace string `toml:"namespace" default:"shivad"`
}

// Limits is what a client's message may be, whatever door it comes through.
type Limits struct {
	// Tensors and Rank are counts of one byte on the Shiva wire.
	MessageBytes  Bytes `toml:"message_bytes" default:"256MiB" min:"4KiB"`
	MetadataBytes Bytes `toml:"metadata_bytes" default:"1MiB" min:"64B"`
	Tensors       int   `toml:"tensors" default:"255" min:"1" max:"255"`
	Rank          int   `toml:"rank" default:"64" min:"1" max:"255"`
	JSONDepth     int   `toml:"json_depth" default:"128" min:"1" max:"10000"`
	// PayloadBytes is the memory of the process for payloads, in and out; beyond it requests are
	// answered Overloaded.
	PayloadBytes Bytes `toml:"payload_bytes" default:"4GiB" min:"1MiB" restart:"caches and the limit of the heap follow it"`
	// A compressed request that unpacks to more than UnpackRatio times its size is charged to
	// UnpackBytes, the part of PayloadBytes that such requests share; beyond it they are answered
	// Overloaded. 0 = a quarter. Deflate ends at a ratio of 1,032.
	UnpackRatio int   `toml:"unpack_ratio" default:"32" min:"1" max:"2000"`
	UnpackBytes Bytes `toml:"unpack_bytes" restart:"it is a part of payload_bytes"`
	// PerAddress is the quota of each address from which clients connect that show no identity. See
	// Server.LimitLoopback; each door has connections_per_address.
	PerAddress Quota `toml:"per_address"`
}

// A Quota is how much a client may ask for in a second, and have at a time; 0 = any. What is above
// it is answered Overloaded. Bounds are those of package quota.
type Quota struct {
	RequestsPerSecond int `toml:"requests_per_second"`
	// BytesPerSecond is of requests, those in shared memory too.
	BytesPerSecond   Bytes `toml:"bytes_per_second" default:"0B"`
	RequestsInFlight int   `toml:"requests_in_flight"`
	BytesInFlight    Bytes `toml:"bytes_in_flight" default:"0B"` // of these requests
	// UnreadBytes is how much of answers may wait to be read, with those that are about to come.
	UnreadBytes Bytes `toml:"unread_bytes" default:"0B"`
	GRPCStreams int   `toml:"grpc_streams"` // calls, each of which is a stream of HTTP/2
	// Burst is how much of a second's requests and bytes may come at once; 0 = those of a second.
	Burst time.Duration `toml:"burst"`
}

// limits are those of package quota.
func (q Quota) limits() quota.Limits {
	return quota.Limits{Burst: q.Burst, Of: [quota.Kinds]int64{
		quota.RequestsPerSecond: int64(q.RequestsPerSecond), quota.BytesPerSecond: int64(q.BytesPerSecond),
		quota.RequestsInFlight: int64(q.RequestsInFlight), quota.BytesInFlight: int64(q.BytesInFlight),
		quota.UnreadBytes: int64(q.UnreadBytes), quota.GRPCStreams: int64(q.GRPCStreams),
	}}
}

// AddressQuota is that of an address.
func (l Limits) AddressQuota() quota.Limits { return l.PerAddress.limits() }

// SharedMemory is which files clients may register as regions of shared memory, for tensors that
// do not travel through their connection.
type SharedMemory struct {
	// Directory is where these files are, as a rule /dev/shm; "" = no client may register any.
	Directory string `toml:"directory"`
	// Owners are users, by name or number, whose files these may be; "*" = all, none = the server's
	// own.
	Owners []string `toml:"owners" default:""`
	// RegionBytes is the largest region, Regions how many there are at one time: each is an open
	// file.
	RegionBytes Bytes `toml:"region_bytes" default:"1GiB" min:"1B"`
	Regions     int   `toml:"regions" default:"256" min:"1" max:"65536"`
	// Clients are those that may register and use regions: ClientsLocal or ClientsAll.
	Clients string `toml:"clients" default:"local"`
}

// Values of SharedMemory.Clients.
const (
	ClientsLocal = "local" // by their address on this machine: loopback, or a Unix socket
	ClientsAll   = "all"
)

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
	Strategy   string        `toml:"strategy"`
	Objective  time.Duration `toml:"objective"`
	MaxBatch   int           `toml:"max_batch"`
	BatchBytes Bytes         `toml:"batch_bytes"`
	Delay      time.Duration `toml:"delay"`
	QueueRows  int           `toml:"queue_rows"`
	QueueBytes Bytes         `toml:"queue_bytes"`
	// Deadline is that of a request that brings none.
	Deadline         time.Duration `toml:"deadline" default:"30s" min:"1ms" file:"only"`
	ExecutionTimeout time.Duration `toml:"execution_timeout"`
	Retry            bool          `toml:"retry"`
	Shed             bool          `toml:"shed"`
	Slots            int           `toml:"slots"`
	Keep             setting.Keep  `toml:"keep"`
	StreamsPerClient int           `toml:"streams_per_client"`
	Pad              bool          `toml:"pad"`
	Batched          bool          `toml:"batched" default:"true" file:"only" restart:"replicas have registered by it"`
	// Cast accepts other dtypes when no value changes.
	Cast bool `toml:"cast" file:"only"`
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
		Keep:        p.Keep,
		Streams:     p.StreamsPerClient,
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
	// Name is what logs and status call it; unique.
	Name string `toml:"name"`
	// Command is the program and its arguments; no shell.
	Command []string `toml:"command"`
	// Replicas is how many processes there are.
	Replicas int `toml:"replicas" default:"1" min:"1" max:"1024"`
	// Env is added to what inherit_env names.
	Env map[string]string `toml:"env"`
	// Dir is the working directory, relative to the file; "" = the server's own.
	Dir string `toml:"dir"`
	// StopTimeout is the time from SIGTERM to SIGKILL.
	StopTimeout time.Duration `toml:"stop_timeout" default:"10s" min:"1ms"`

	// What it may do: see [containers.Privileges].
	User string `toml:"user"` // name or number; "" = the server's
	// InheritEnv is what it gets of the server's environment; * stands for any rest.
	InheritEnv    []string `toml:"inherit_env" default:"*"`
	NewPrivileges bool     `toml:"new_privileges"`          // may gain privileges, as by sudo
	ReadOnly      bool     `toml:"read_only"`               // changes no file but below writable
	Writable      []string `toml:"writable"`                // directories, relative to the file
	Memory        Bytes    `toml:"memory" default:"0B"`     // of each; 0 = no limit of its own
	FileBytes     Bytes    `toml:"file_bytes" default:"0B"` // likewise: the size of a file ...
	OpenFiles     int      `toml:"open_files"`              // ... and open descriptors
	Processes     int      `toml:"processes"`               // of the user, threads with them

	Address string `toml:"address"` // "tcp://host:port" or "ipc://path", instead of a command
	RPC     string `toml:"rpc"`     // "v0": those of all other generations call the server
	// Model and Version are what is served: a container of RPC v0 cannot say it. Of a command,
	// Model is what loads and unloads it; "" = its name.
	Model   string `toml:"model"`
	Version string `toml:"version"`
	Input   string `toml:"input"` // of RPC v0, likewise: see [containers.Input]
}

// Privileges are those of its processes.
func (c Container) Privileges() containers.Privileges {
	return containers.Privileges{
		User: c.User, InheritEnv: c.InheritEnv, NewPrivileges: c.NewPrivileges, ReadOnly: c.ReadOnly, Writable: c.Writable,
		Memory: int64(c.Memory), FileBytes: int64(c.FileBytes), OpenFiles: c.OpenFiles, Processes: c.Processes,
	}
}

// An Identity is a client, an operator or a container, or several of one kind, and what it may.
type Identity struct {
	// Name is in errors, logs and status; unique. identity.Anonymous is whoever shows nothing.
	Name string `toml:"name"`
	// TokenSHA256 are the SHA-256 of its tokens in hexadecimal, as "shivactl tokens new" prints
	// one; a string, or a list while one token follows another.
	TokenSHA256 Hashes `toml:"token_sha256"`
	// Certificate are patterns of names in the certificates that its clients show, each behind the
	// part of a certificate that has the name: "cn:camera-*", "subject:CN=*,O=Cameras",
	// "dns:*.example.org", "email:", "uri:" or "ip:"; a string, or a list. A * stands for
	// characters but a slash. A door whose client_auth is not "none" verifies them.
	Certificate Patterns `toml:"certificate"`
	// May are its rights: "infer", "feedback", "load", "serve", each of all names or, behind a
	// colon, of those that match a pattern ("infer:cat*", "serve:cat/2*"), "admin:read" and
	// "admin:write".
	May []string `toml:"may"`
	// Quota is for all of its clients together, whatever doors they come through.
	Quota IdentityQuota `toml:"quota"`
}

// An IdentityQuota is that of an identity.
type IdentityQuota struct {
	Quota
	Connections int `toml:"connections"` // through all doors
}

// Hashes is a list of hashes; the file may give a single string.
type Hashes []string

// Patterns is a list of patterns; the file may give a single string.
type Patterns []string

// Declarations are the identities as package identity takes them.
func (c Config) Declarations() (list []identity.Declaration) {
	for _, i := range c.Identities {
		limits := i.Quota.limits()
		limits.Of[quota.Connections] = int64(i.Quota.Connections)
		list = append(list, identity.Declaration{Name: i.Name, Tokens: i.TokenSHA256, Certificates: i.Certificate, May: i.May, Quota: limits})
	}
	return list
}

// newContainer is what a [[container]] begins as.
func newContainer() (c Container) {
	setDefaults(reflect.ValueOf(&c).Elem())
	return c
}

// Default returns the configuration of a server started without a file. The maps and slices are the
// caller's.
func Default() Config {
	policy, sessions := scheduler.Defaults(), containers.DefaultSettings()
	c := Config{
		// A door has these unless it has its own.
		TLS: TLS{Certificates: Certificates{ClientAuth: AuthNone, MinVersion: secure.Version13}},
		Containers: Containers{
			Heartbeat:        sessions.Heartbeat,
			HandshakeTimeout: sessions.HandshakeTimeout,
			WriteTimeout:     sessions.WriteTimeout,
			Frames:           sessions.Limits.Frames,
			Sessions:         sessions.Limits.Sessions,
			Handshakes:       sessions.Limits.Handshakes,
		},
		Defaults: Policy{
			Strategy:         policy.Strategy,
			Objective:        policy.Objective,
			QueueRows:        policy.QueueRows,
			QueueBytes:       Bytes(policy.QueueBytes),
			ExecutionTimeout: policy.ExecTimeout,
			Retry:            *policy.Retry,
			Shed:             *policy.Shed,
			Keep:             policy.Keep,
			StreamsPerClient: policy.Streams,
		},
		Models: map[string]Model{},
	}
	setDefaults(reflect.ValueOf(&c).Elem())
	return c
}

// setDefaults gives the settings of a table the values of their tags.
func setDefaults(v reflect.Value) {
	for f := range fieldsOf(v) {
		if text, ok := f.tag.Lookup("default"); ok {
			set(&faults{}, f.value, f.key, nil, text)
		} else if f.value.Kind() == reflect.Struct {
			setDefaults(f.value)
		}
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
	for _, addrs := range []*Addrs{&c.TCP.Listen, &c.REST.Listen, &c.GRPC.Listen, &c.Containers.Listen, &c.Containers.ListenV1b, &c.Containers.ListenV2, &c.Containers.ListenV2a} {
		*addrs = slices.Clone(*addrs)
	}
	c.Models = cloned(c.Models)
	c.Supervised = slices.Clone(c.Supervised)
	for i := range c.Supervised {
		p := &c.Supervised[i]
		p.Command = slices.Clone(p.Command)
		p.Env = maps.Clone(p.Env)
		p.InheritEnv = slices.Clone(p.InheritEnv)
		p.Writable = slices.Clone(p.Writable)
	}
	c.Identities = slices.Clone(c.Identities)
	for i := range c.Identities {
		one := &c.Identities[i]
		one.TokenSHA256, one.Certificate, one.May = slices.Clone(one.TokenSHA256), slices.Clone(one.Certificate), slices.Clone(one.May)
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
// commands of containers. Of the hashes of tokens it has the first digits, which tell them apart: a
// token that somebody has thought up could be guessed by its hash.
func (c Config) Redacted() Config {
	c = c.Clone()
	c.State.At = c.State.Redacted()
	c.Traces.Endpoint = c.Traces.Redacted()
	for _, p := range c.Supervised {
		for i, arg := range p.Command {
			p.Command[i] = redacted(arg)
		}
		for name := range p.Env {
			p.Env[name] = "(hidden)"
		}
	}
	for _, one := range c.Identities {
		for i, hash := range one.TokenSHA256 {
			one.TokenSHA256[i] = hash[:min(8, len(hash))] + "…"
		}
	}
	return c
}
