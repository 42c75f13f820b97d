package config

import (
	"cmp"
	"io/fs"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// A Config has every setting of the server. Its toml tags are the keys of the file; joined by dots,
// they name a setting in errors, in Set and at the admin door. A setting with the tag restart
// cannot change while the server runs, for the reason in the tag; a model's setting with the tag
// file can change in the file only. The tag default is the value without a file, as Set takes it;
// min and max are its bounds. Without max, the bound is [setting.MaxWait] for durations and
// [setting.MaxBytes] for sizes. Settings that belong to a room have their defaults and bounds in
// that room.
type Config struct {
	Server     Server     `toml:"server"`
	Log        Log        `toml:"log"`
	TCP        TCP        `toml:"tcp"`
	REST       REST       `toml:"rest"`
	GRPC       GRPC       `toml:"grpc"`
	Frigate    Frigate    `toml:"frigate"`
	Containers Containers `toml:"containers"`
	Admin      Admin      `toml:"admin"`
	Traces     Traces     `toml:"traces"`
	TLS        TLS        `toml:"tls"`
	State      State      `toml:"state" restart:"it is open"`
	Limits     Limits     `toml:"limits"`
	// SharedMemory is for clients on the same machine.
	SharedMemory SharedMemory `toml:"shared_memory"`
	Defaults     Policy       `toml:"defaults"`
	// Models has the settings of each model, by name, for all of its versions. They are complete:
	// settings that the file leaves out come from Defaults. Routes are names that stand for others.
	Models map[string]Model `toml:"model"`
	Routes Routes           `toml:"route"`
	// Pipelines are names for graphs of models, by name, besides those of the state store.
	Pipelines map[string]admin.Pipeline `toml:"pipeline"`
	// Supervised are processes that the server starts and stops, and containers that it connects
	// to.
	Supervised []Container `toml:"container"`
	// ModelFiles are files that are models, ModelFolders directories of them.
	ModelFiles   []ModelFile   `toml:"model_file"`
	ModelFolders []ModelFolder `toml:"model_folder"`
	// Identities are those that clients, operators and containers can have; none = all callers have
	// all rights.
	Identities []Identity `toml:"identity"`

	origins map[string]origin // key -> origin of its value; without an entry it has its default
	blank   bool              // see Blank
}

// Bytes is a size: see [setting.Bytes].
type Bytes = setting.Bytes

// Addrs is a list of addresses; the file may give a single string.
type Addrs []string

// Server has the settings of the process as a whole.
type Server struct {
	// Drain is how long a shutdown waits for requests in flight; the rest are then answered
	// Draining.
	Drain time.Duration `toml:"drain" default:"30s" min:"0s"`
	// LimitLoopback applies connections_per_address to clients on this machine, too.
	LimitLoopback bool `toml:"limit_loopback"`
	// RequiredModels are "name" or "name/version"; the server is ready only while each of them has
	// a live replica.
	RequiredModels []string `toml:"required_models" default:""`
	// ReadyWhen says what else the server needs to be ready: ReadyModels or ReadyRequired.
	ReadyWhen string `toml:"ready_when" default:"models"`
	// Repository says who may load and unload models over HTTP and gRPC: RepositoryLocal,
	// RepositoryAll or RepositoryNone.
	Repository string `toml:"repository" default:"local"`
}

// Values of Server.Repository.
const (
	RepositoryLocal = "local" // through doors that listen for this machine only
	RepositoryAll   = "all"
	RepositoryNone  = "none"
)

// Values of Server.ReadyWhen.
const (
	// ReadyModels requires a live replica for the models of every [[container]], except those that
	// were unloaded.
	ReadyModels = "models"
	// ReadyRequired requires nothing else.
	ReadyRequired = "required"
)

// Log has the settings of the server's own log, on standard error.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `toml:"level" default:"info"`
	// Format is text or json.
	Format string `toml:"format" default:"text" restart:"every line of a log has one"`
}

// Door are the settings that all doors for clients have.
type Door struct {
	Socket
	TLS Certificates `toml:"tls"` // these settings override Config.TLS
	DoorBounds
}

// DoorBounds bounds the clients of one door. The fields are those of listen.Bounds.
type DoorBounds struct {
	// ConnectionsPerAddress is the most for one client address; 0 = half of the door's Connections.
	// See Server.LimitLoopback.
	ConnectionsPerAddress int `toml:"connections_per_address" min:"0" max:"16777216"`
	// MessageTimeout is the time for a message to become complete once it has begun; each 16 KiB of
	// the message adds a second; 0 = no limit.
	MessageTimeout time.Duration `toml:"message_timeout" default:"10s" min:"0s"`
	// StallTimeout closes a connection whose client reads none of the waiting answers.
	StallTimeout time.Duration `toml:"stall_timeout" default:"10s" min:"100ms"`
}

// TCP is the Shiva door.
type TCP struct {
	// Listen has addresses: "host:port", where port 0 stands for any free port, "tls://host:port",
	// or "unix:PATH"; a string or a list. Without an address, the door is not opened.
	Listen Addrs `toml:"listen" default:":6174" restart:"it is open"`
	Door
	// Loops is the number of event loops; 0 = one for two processors for plain TCP, and one per
	// processor for Unix sockets and TLS.
	Loops int `toml:"loops" min:"0" max:"1024" restart:"gnet takes it once"`
	// Connections is the most that may be open; the process's descriptors may allow fewer.
	Connections int `toml:"connections" default:"65536" min:"1" max:"16777216"`
	// InFlightPerConnection is how many requests of one connection may wait for their answers;
	// further requests are answered Overloaded.
	InFlightPerConnection int `toml:"in_flight_per_connection" default:"256" min:"1" max:"1048576"`
	// IdleTimeout closes a connection with nothing in flight and nothing half-received; 0 = never.
	IdleTimeout time.Duration `toml:"idle_timeout" min:"0s" max:"8760h"`
	// OutboundBytes is how many bytes of answers a client may leave unread, including answers still
	// to come. Beyond that, requests wait until the client reads. A client that reads may have up
	// to eight times as much.
	OutboundBytes Bytes `toml:"outbound_bytes" default:"8MiB" min:"64KiB"`
	// CancelOnClose cancels the queued requests of a client that has closed its connection; a
	// client that has only ended its sending side still gets its answers.
	CancelOnClose bool `toml:"cancel_on_close"`
	// Resync makes the door look for the next valid header after invalid bytes instead of closing,
	// for serial bridges. ResyncBytes is how many bytes it skips before it closes the connection
	// after all; at least a header.
	Resync      bool  `toml:"resync"`
	ResyncBytes Bytes `toml:"resync_bytes" default:"1MiB" min:"12B"`
	// Stream is the stream of a request that names none: StreamNone or StreamConnection. Keep
	// applies to StreamConnection; 0 = as the application or the model is configured.
	Stream string       `toml:"stream" default:"none"`
	Keep   setting.Keep `toml:"keep"`
}

// Socket says who may connect to the Unix sockets of a door, or as a container: users with write
// permission on their files. Abstract names, "unix:@name" or "ipc://@name", have no files, and
// admit every user of the machine.
type Socket struct {
	Mode string `toml:"socket_mode" default:"0660" restart:"it is open"` // permissions, in octal
	// Owner and Group are names or numbers; "" = those of the server.
	Owner string `toml:"socket_owner" restart:"it is open"`
	Group string `toml:"socket_group" restart:"it is open"`
}

// Access returns the permissions for opening the sockets. s must be valid.
func (s Socket) Access() unixsocket.Access {
	mode, _ := strconv.ParseUint(s.Mode, 8, 32)
	return unixsocket.Access{Mode: fs.FileMode(mode), Owner: s.Owner, Group: s.Group}
}

// Values of TCP.Stream.
const (
	StreamNone       = "none"
	StreamConnection = "connection" // each connection is a stream
)

// REST is the door for the Predict Protocol V2 over HTTP. Fields without a comment mean the same as
// in TCP.
type REST struct {
	Listen Addrs `toml:"listen" default:":8000" restart:"it is open"`
	Door
	Connections int `toml:"connections" default:"4096" min:"1" max:"16777216"`
	// IdleTimeout closes a connection on which no request begins, 0 = never. HeaderTimeout is the
	// time for the head of a request to become complete once it has begun, MessageTimeout that for
	// its body.
	IdleTimeout   time.Duration `toml:"idle_timeout" default:"15m" min:"0s" max:"8760h"`
	HeaderTimeout time.Duration `toml:"header_timeout" default:"10s" min:"10ms"`
	// CORSOrigins are origins whose pages may read answers in a browser, "https://example.org" or
	// "*"; none = pages of the server's own address only.
	CORSOrigins []string `toml:"cors_origins" default:""`
	// ForwardHeaders are names of request headers, in any case, that reach the model as parameters.
	ForwardHeaders []string `toml:"forward_headers" default:""`
}

// GRPC is the door for the Predict Protocol V2 over gRPC. Fields without a comment mean the same as
// in TCP.
type GRPC struct {
	Listen Addrs `toml:"listen" default:":8001" restart:"it is open"`
	Door
	Connections int `toml:"connections" default:"1024" min:"1" max:"16777216"`
	// StreamsPerConnection is how many calls one connection may have at a time; the client's
	// library holds back further calls.
	StreamsPerConnection int `toml:"streams_per_connection" default:"256" min:"1" max:"1048576" restart:"grpc-go takes it once"`
	// InFlightPerStream is how many requests of one ModelStreamInfer may wait for their answers;
	// further requests are not read.
	InFlightPerStream int   `toml:"in_flight_per_stream" default:"64" min:"1" max:"65536"`
	OutboundBytes     Bytes `toml:"outbound_bytes" default:"8MiB" min:"64KiB"`
	// ForwardHeaders are names of metadata of calls, as REST.ForwardHeaders.
	ForwardHeaders []string `toml:"forward_headers" default:""`
	// IdleTimeout asks a client whose connection has no call to disconnect; 0 = never.
	IdleTimeout time.Duration `toml:"idle_timeout" default:"15m" min:"0s" max:"8760h" restart:"grpc-go takes it once"`
	// PingInterval is the silence on a connection after which the server pings it, PingTimeout how
	// long the client has to answer before the connection is closed. A connection on which the
	// client pings more often than MinPingInterval is closed. The library rounds PingInterval up to
	// a second.
	PingInterval    time.Duration `toml:"ping_interval" default:"1m" min:"1s" restart:"grpc-go takes it once"`
	PingTimeout     time.Duration `toml:"ping_timeout" default:"20s" min:"10ms" restart:"grpc-go takes it once"`
	MinPingInterval time.Duration `toml:"min_ping_interval" default:"100ms" min:"1ms" restart:"grpc-go takes it once"`
}

// Containers has the addresses to which model containers connect.
type Containers struct {
	// Listen has addresses: "host:port", "tcp://host:port", "tls://host:port" or "ipc://path"; a
	// string or a list. The other Listen fields are for generations that Listen cannot distinguish:
	// see [containers.Dialect].
	Listen Addrs `toml:"listen" default:"127.0.0.1:7000" restart:"it is open"`
	// ListenV1b is for RPC v1b and v3: v1b registers exactly like v1.
	ListenV1b Addrs `toml:"listen_v1b" default:"" restart:"it is open"`
	// ListenV2 is for v1 and v2: v2's heartbeat is v3's.
	ListenV2 Addrs `toml:"listen_v2" default:"" restart:"it is open"`
	// ListenV2a is for v1 and v2a, which is v2 with floats as answers.
	ListenV2a Addrs `toml:"listen_v2a" default:"" restart:"it is open"`
	Socket
	// TLS has the certificates of the addresses with TLS. HandshakeTimeout and Handshakes below
	// include their TLS handshakes; those of Config.TLS do not apply.
	TLS Certificates `toml:"tls"`
	// The other settings are [containers.Settings].
	Heartbeat        time.Duration `toml:"heartbeat"`
	HandshakeTimeout time.Duration `toml:"handshake_timeout"`
	WriteTimeout     time.Duration `toml:"write_timeout"`
	MessageBytes     Bytes         `toml:"message_bytes" default:"1GiB"`
	Frames           int           `toml:"frames"`
	Sessions         int           `toml:"sessions"`
	// Arena puts large payloads into memory that containers on this machine map, if they can,
	// instead of receiving the bytes; false = all tensors are sent as bytes.
	Arena      bool `toml:"arena" default:"true" restart:"payloads lie in it"`
	Handshakes int  `toml:"handshakes"`
	// ExpectedWithin is for how long after the start of the server, and after a reload, models that
	// it does not know are Unavailable, as their containers may still be connecting; 0: never.
	// After a start it ends early if all containers that come are new ones.
	ExpectedWithin time.Duration `toml:"expected_within" default:"10s" min:"0s"`
}

// Settings returns the settings of the listener for containers.
func (k Containers) Settings() containers.Settings {
	return containers.Settings{
		Limits: containers.Limits{
			MessageBytes: int64(k.MessageBytes), Frames: k.Frames, Sessions: k.Sessions, Handshakes: k.Handshakes,
		},
		Bytes:     !k.Arena,
		Heartbeat: k.Heartbeat, HandshakeTimeout: k.HandshakeTimeout, WriteTimeout: k.WriteTimeout,
	}
}

// Others returns the addresses for containers that Listen cannot distinguish.
func (k Containers) Others() (list []containers.Address) {
	for _, of := range []struct {
		dialect containers.Dialect
		addrs   Addrs
	}{{containers.DialectV1b, k.ListenV1b}, {containers.DialectV2, k.ListenV2}, {containers.DialectV2a, k.ListenV2a}} {
		for _, a := range of.addrs {
			list = append(list, containers.Address{Addr: a, Dialect: of.dialect})
		}
	}
	return list
}

// Admin is the operator's HTTP door.
type Admin struct {
	Listen string `toml:"listen" default:"127.0.0.1:8002" restart:"it is open"` // as in TCP.Listen
	Socket
	TLS Certificates `toml:"tls"`
	// Health is an address, as Listen but no Unix socket, with /livez and /readyz alone, for probes
	// from other machines; "" = none.
	Health string `toml:"health" default:"" restart:"it is open"`
	// Hosts are host names, besides addresses and localhost, that requests may be addressed to and
	// whose pages may use the door; "*" = requests may be addressed to any name.
	Hosts []string `toml:"hosts" default:""`
	// Profiling offers profiles of the process under /debug/pprof/.
	Profiling bool `toml:"profiling"`
	// ImportBytes is the size of the largest document that can be imported.
	ImportBytes Bytes `toml:"import_bytes" default:"256MiB" min:"4KiB"`
	// MetricsModels is how many models and applications have their own series on /metrics; all
	// others share series.
	MetricsModels int `toml:"metrics_models" default:"256" min:"1" max:"100000"`
	// MetricsTriton adds series under Triton's names, nv_inference_*.
	MetricsTriton bool `toml:"metrics_triton"`
}

// Traces says which requests are traced, and where the traces go.
type Traces struct {
	// Endpoint is the URL of a collector for OTLP over HTTP, such as "http://127.0.0.1:4318"; "" =
	// no traces.
	Endpoint string `toml:"endpoint" restart:"endpoints have or have not got what follows requests"`
	// OneIn traces one in that many requests without a traceparent; 0 = none of them. A request
	// with a traceparent is traced if the traceparent says so.
	OneIn int `toml:"one_in" default:"100" min:"0" max:"1000000000"`
}

// Redacted returns Endpoint without its password.
func (t Traces) Redacted() string { return redacted(t.Endpoint) }

// State is the store of applications and of what their policies have learned.
type State struct {
	// At is the path of a file, or "redis://host:port/db", which several servers can share; "" = in
	// memory, lost when the server stops.
	At string `toml:"at"`
	// Required makes the server fail to start while Redis cannot be read.
	Required bool `toml:"required" default:"true"`
	// Users is for how many users of each application the learned state is stored; beyond that the
	// least recently used are forgotten.
	Users int `toml:"users" default:"10000" min:"1" max:"10000000"`
	// Namespace is the prefix of all keys in Redis, so that one Redis can serve several clusters.
	Namespace string `toml:"namespace" default:"shivad"`
}

// Limits are the bounds of a client's message, the same through every door.
type Limits struct {
	// Tensors and Rank each have one byte on the Shiva wire.
	MessageBytes  Bytes `toml:"message_bytes" default:"256MiB" min:"4KiB"`
	MetadataBytes Bytes `toml:"metadata_bytes" default:"1MiB" min:"64B"`
	Tensors       int   `toml:"tensors" default:"255" min:"1" max:"255"`
	Rank          int   `toml:"rank" default:"64" min:"1" max:"255"`
	JSONDepth     int   `toml:"json_depth" default:"128" min:"1" max:"10000"`
	// ImagePixels is the size of the largest picture that a client may send as a file, which a
	// container decodes, and of all regions that a request cuts, for a model that resizes none.
	ImagePixels int `toml:"image_pixels" default:"67108864" min:"1" max:"2147483647"`
	// PayloadBytes is the memory of the process for payloads in both directions; beyond that,
	// requests are answered Overloaded.
	PayloadBytes Bytes `toml:"payload_bytes" default:"4GiB" min:"1MiB" restart:"caches and the limit of the heap follow it"`
	// LatestBytes is the part of PayloadBytes for the newest answers of streams, a quarter at most;
	// beyond that, the server forgets those of the stream that has been silent for longest.
	LatestBytes Bytes `toml:"latest_bytes" default:"64MiB" min:"0B"`
	// A compressed request that unpacks to more than UnpackRatio times its size is charged to
	// UnpackBytes, a part of PayloadBytes that such requests share; beyond that, they are answered
	// Overloaded. 0 = a quarter. Deflate reaches a ratio of 1,032 at most.
	UnpackRatio int   `toml:"unpack_ratio" default:"32" min:"1" max:"2000"`
	UnpackBytes Bytes `toml:"unpack_bytes" restart:"it is a part of payload_bytes"`
	// PerAddress is the quota of each address, for clients without an identity. See
	// Server.LimitLoopback; each door has its own connections_per_address.
	PerAddress Quota `toml:"per_address"`
}

// A Quota limits how much a client may ask for per second, and have at a time; 0 = no limit.
// Requests above a quota are answered Overloaded. Package quota has the bounds.
type Quota struct {
	RequestsPerSecond int `toml:"requests_per_second"`
	// BytesPerSecond counts the bytes of requests, including their tensors in shared memory. Over
	// Shiva what is refused is not read faster, either.
	BytesPerSecond   Bytes `toml:"bytes_per_second" default:"0B"`
	RequestsInFlight int   `toml:"requests_in_flight"`
	BytesInFlight    Bytes `toml:"bytes_in_flight" default:"0B"` // of the requests in flight
	// UnreadBytes is how many bytes of answers may wait to be read, including answers still to
	// come.
	UnreadBytes Bytes `toml:"unread_bytes" default:"0B"`
	GRPCStreams int   `toml:"grpc_streams"` // calls; each is a stream of HTTP/2
	// Burst is how much of the rate may arrive at once, as a time; 0 = one second's worth.
	Burst time.Duration `toml:"burst"`
}

// limits converts the quota to package access's form.
func (q Quota) limits() access.Limits {
	return access.Limits{Burst: q.Burst, Of: [access.Quotas]int64{
		access.RequestsPerSecond: int64(q.RequestsPerSecond), access.BytesPerSecond: int64(q.BytesPerSecond),
		access.RequestsInFlight: int64(q.RequestsInFlight), access.BytesInFlight: int64(q.BytesInFlight),
		access.UnreadBytes: int64(q.UnreadBytes), access.GRPCStreams: int64(q.GRPCStreams),
	}}
}

// AddressQuota returns the quota of one address.
func (l Limits) AddressQuota() access.Limits { return l.PerAddress.limits() }

// SharedMemory says which files clients may register as regions of shared memory, for tensors that
// are not sent over the connection.
type SharedMemory struct {
	// Directory holds these files, usually /dev/shm; "" = no client may register a region.
	Directory string `toml:"directory"`
	// Owners are the users, by name or number, that may own these files; "*" = all users, none =
	// only the server's own user.
	Owners []string `toml:"owners" default:""`
	// RegionBytes is the size of the largest region, Regions the most regions at a time: each is an
	// open file.
	RegionBytes Bytes `toml:"region_bytes" default:"1GiB" min:"1B"`
	Regions     int   `toml:"regions" default:"256" min:"1" max:"65536"`
	// Clients says who may register and use regions: ClientsLocal or ClientsAll.
	Clients string `toml:"clients" default:"local"`
}

// Values of SharedMemory.Clients.
const (
	ClientsLocal = "local" // clients on this machine: over loopback or a Unix socket
	ClientsAll   = "all"
)

// Latest is how many bytes the newest answers of streams may have.
func (l Limits) Latest() int64 { return int64(min(l.LatestBytes, l.PayloadBytes/4)) }

// Unpacked returns the part of payload_bytes for requests that unpack to far more than their size.
func (l Limits) Unpacked() Bytes { return cmp.Or(l.UnpackBytes, l.PayloadBytes/4) }

// Shared reports whether the state can be shared with other servers.
func (s State) Shared() bool { return strings.Contains(s.At, "://") }

// Redacted returns At without its password.
func (s State) Redacted() string { return redacted(s.At) }

// password matches the password in a URL, even a malformed one: from the first colon after the
// scheme to the last @ before a space.
var password = regexp.MustCompile(`(://[^\s:/?#@]*:)\S*@`)

// redacted returns text without the passwords of URLs in it.
func redacted(text string) string { return password.ReplaceAllString(text, "${1}xxxxx@") }

// Policy says how requests to a model are batched, bounded and retried. Except for Deadline and
// Cast it is [scheduler.ModelConfig], which explains each field.
type Policy struct {
	Strategy   string        `toml:"strategy"`
	Objective  time.Duration `toml:"objective"`
	MaxBatch   int           `toml:"max_batch"`
	BatchBytes Bytes         `toml:"batch_bytes"`
	Delay      time.Duration `toml:"delay"`
	QueueRows  int           `toml:"queue_rows"`
	QueueBytes Bytes         `toml:"queue_bytes"`
	// Deadline applies to requests without one.
	Deadline         time.Duration `toml:"deadline" default:"30s" min:"1ms" file:"only"`
	ExecutionTimeout time.Duration `toml:"execution_timeout"`
	Retry            bool          `toml:"retry"`
	Shed             bool          `toml:"shed"`
	Together         bool          `toml:"together"`
	Slots            int           `toml:"slots"`
	Keep             setting.Keep  `toml:"keep"`
	StreamInterval   time.Duration `toml:"stream_interval"`
	StreamsPerClient int           `toml:"streams_per_client"`
	Pad              bool          `toml:"pad"`
	Batched          bool          `toml:"batched" default:"true" file:"only" restart:"replicas have registered by it"`
	// Cast says which inputs of other dtypes are accepted.
	Cast setting.Cast `toml:"cast" file:"only"`
	// Latest says whose answers are kept for those who ask for the newest one of a stream.
	Latest setting.Latest `toml:"latest" file:"only"`
}

// Scheduler returns the scheduler's part of a policy.
func (p Policy) Scheduler() scheduler.ModelConfig {
	return scheduler.ModelConfig{
		Strategy:       p.Strategy,
		Objective:      p.Objective,
		MaxBatch:       p.MaxBatch,
		BatchBytes:     int64(p.BatchBytes),
		Delay:          p.Delay,
		QueueRows:      p.QueueRows,
		QueueBytes:     int64(p.QueueBytes),
		ExecTimeout:    p.ExecutionTimeout,
		Retry:          &p.Retry,
		Shed:           &p.Shed,
		Together:       &p.Together,
		Slots:          p.Slots,
		Keep:           p.Keep,
		Streams:        p.StreamsPerClient,
		Batched:        &p.Batched,
		Pad:            p.Pad,
		StreamInterval: p.StreamInterval,
	}
}

// SchedulerModels returns the scheduler's part of the settings of each model in Models.
func (c Config) SchedulerModels() map[string]scheduler.ModelConfig {
	out := make(map[string]scheduler.ModelConfig, len(c.Models))
	for name, m := range c.Models {
		out[name] = m.Scheduler()
	}
	return out
}

// Model has the settings of one model.
type Model struct {
	Policy
	// DefaultVersion is the version that the bare name stands for; "" = the newest version that is
	// ready.
	DefaultVersion string `toml:"default_version"`
	// RetireAfter is how long containers of older versions are kept; 0 = for ever.
	RetireAfter time.Duration `toml:"retire_after"`
	// Cache is the memory for answers to equal requests, of all versions together and part of
	// limits.payload_bytes; 0 = none. CacheTTL is how long an answer is valid; 0 = until it is
	// evicted.
	Cache    Bytes         `toml:"cache"`
	CacheTTL time.Duration `toml:"cache_ttl"`
}

// Container is a process that the server starts, restarts and stops, and that connects like any
// other container; or, with an address, a container of RPC v0 that runs elsewhere and waits for a
// connection.
type Container struct {
	// Name identifies the container in logs and status; unique.
	Name string `toml:"name"`
	// Command is the program and its arguments; no shell.
	Command []string `toml:"command"`
	// Dir is the working directory, relative to the file; "" = the server's own.
	Dir string `toml:"dir"`
	Process

	Address string `toml:"address"` // "tcp://host:port" or "ipc://path", instead of a command
	RPC     string `toml:"rpc"`     // "v0": all other generations connect by themselves
	// Model and Version are what the container serves, since containers of RPC v0 do not say. For a
	// command, Model is the model that the processes serve, any version of it, and the name for
	// loading and unloading the container; "" = Name.
	Model string `toml:"model"`
	// Serve lists what else the processes of a command may register: names of models or patterns,
	// with a version or without, as "cat", "cat/2*" or "*". They may register nothing else.
	Serve   []string `toml:"serve"`
	Version string   `toml:"version"`
	Input   string   `toml:"input"` // for RPC v0, too: see [containers.Input]
}

// Process has the settings of processes that the server starts.
type Process struct {
	// Replicas is the number of processes.
	Replicas Replicas `toml:"replicas" default:"1"`
	// CPUs is how many processors each process takes; 0 = unknown. As the load grows, processes are
	// started only while they fit onto the server's processors and, given Memory, into its memory.
	// Numeric libraries are told to start that many threads.
	CPUs int `toml:"cpus" min:"0" max:"4096"`
	// Env is added to the variables that InheritEnv names.
	Env map[string]string `toml:"env"`
	// StopTimeout is the time from SIGTERM to SIGKILL.
	StopTimeout time.Duration `toml:"stop_timeout" default:"10s" min:"1ms"`

	// Their privileges: see [containers.Privileges].
	User string `toml:"user"` // name or number; "" = the server's
	// InheritEnv are the variables that a process inherits from the server; a name may end in *.
	InheritEnv    []string `toml:"inherit_env" default:"*"`
	NewPrivileges bool     `toml:"new_privileges"`          // may gain privileges, as by sudo
	ReadOnly      bool     `toml:"read_only"`               // may change files below Writable only
	Writable      []string `toml:"writable"`                // directories, relative to the file
	Memory        Bytes    `toml:"memory" default:"0B"`     // of each process; 0 = no own limit
	FileBytes     Bytes    `toml:"file_bytes" default:"0B"` // size of a file; 0 = no own limit
	OpenFiles     int      `toml:"open_files"`              // open descriptors; 0 = no own limit
	Processes     int      `toml:"processes"`               // of the user, including threads
}

// Privileges returns the privileges of the processes.
func (p Process) Privileges() containers.Privileges {
	return containers.Privileges{
		User: p.User, InheritEnv: p.InheritEnv, NewPrivileges: p.NewPrivileges, ReadOnly: p.ReadOnly,
		Writable: p.Writable,
		Memory:   int64(p.Memory), FileBytes: int64(p.FileBytes), OpenFiles: p.OpenFiles, Processes: p.Processes,
	}
}

// Default returns the configuration of a server that is started without a file. Its maps and slices
// belong to the caller.
func Default() Config {
	policy, sessions := scheduler.Defaults(), containers.DefaultSettings()
	c := Config{
		// The values for doors without their own.
		TLS: TLS{Certificates: Certificates{ClientAuth: AuthNone, MinVersion: listen.Version13}},
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
			Together:         *policy.Together,
			Keep:             policy.Keep,
			StreamInterval:   policy.StreamInterval,
			StreamsPerClient: policy.Streams,
		},
		Models:    map[string]Model{},
		Routes:    Routes{},
		Pipelines: map[string]admin.Pipeline{},
	}
	setDefaults(reflect.ValueOf(&c).Elem())
	return c
}

// NewContainer returns the table of a container that runs a command, with its defaults.
func NewContainer(name string, command ...string) Container {
	c := Container{Name: name, Command: command}
	setDefaults(reflect.ValueOf(&c).Elem())
	return c
}

// setDefaults sets the settings of a table to the values of their tags.
func setDefaults(v reflect.Value) {
	for f := range fieldsOf(v) {
		if text, ok := f.tag.Lookup("default"); ok {
			set(&faults{}, f.value, f.key, nil, text)
		} else if f.value.Kind() == reflect.Struct {
			setDefaults(f.value)
		}
	}
}

// Model returns the settings that apply to the model of that name.
func (c Config) Model(name string) Model {
	if m, ok := c.Models[name]; ok {
		return m
	}
	return Model{Policy: c.Defaults}
}

// Redacted returns a copy that may be shown and logged. It replaces the values of environment
// variables, which often are passwords, and passwords in URLs: those of Redis and of the collector
// of traces, and in the commands of containers. It keeps only the first digits of token hashes,
// enough to tell them apart, since a token that a person made up could be guessed from its whole
// hash.
func (c Config) Redacted() Config {
	c = c.Clone()
	c.State.At = c.State.Redacted()
	c.Traces.Endpoint = c.Traces.Redacted()
	for _, p := range c.Supervised {
		for i, arg := range p.Command {
			p.Command[i] = redacted(arg)
		}
		hide(p.Env)
	}
	for _, m := range c.ModelFiles {
		hide(m.Env)
	}
	for _, m := range c.ModelFolders {
		hide(m.Env)
	}
	for _, one := range c.Identities {
		for i, hash := range one.TokenSHA256 {
			one.TokenSHA256[i] = hash[:min(8, len(hash))] + "…"
		}
	}
	return c
}
