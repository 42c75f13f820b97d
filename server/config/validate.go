package config

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/naming"
)

// The formats and levels that exist.
var (
	formats  = []string{"text", "json"}
	levels   = []string{"debug", "info", "warn", "error"}
	reaches  = []string{"local", "all", "none"}
	v0Inputs = []string{"bytes", "ints", "doubles", "strings"}
)

// Upper bounds of settings that have no natural one. They lie far above any use, and far enough
// below what 64 bits hold that the doors can add and multiply without a look at each sum: a
// message of maxBytes that may take a second for each 16 KiB has 34 years, which is still a
// [time.Duration].
const (
	maxBytes = Bytes(16 << 40)
	maxWait  = 24 * time.Hour       // for what somebody waits for
	maxIdle  = 365 * 24 * time.Hour // for what nobody waits for
	maxCount = 1 << 20
	maxRows  = 1 << 24
)

// Validate checks every value and the rules between values, and reports all faults at once as
// an *Error. A setting that makes another unreachable is a fault that gives both numbers.
func (c Config) Validate() error {
	fs := &faults{origins: c.origins}
	c.validateServer(fs)
	c.validateTCP(fs)
	c.validateREST(fs)
	c.validateState(fs)
	c.validateAdmin(fs)
	c.validateGRPC(fs)
	c.validateContainers(fs)
	c.validateLimits(fs)
	c.validateListeners(fs)

	c.validatePolicy(fs, "defaults", c.Defaults)
	inherited := map[string]bool{}
	for _, f := range fs.list {
		if key, ok := strings.CutPrefix(f.Key, "defaults."); ok {
			inherited[key+"\n"+f.Text] = true
		}
	}
	var caches Bytes
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		m := c.Models[name]
		// What a model has from [defaults] is said once, there.
		own := &faults{origins: c.origins}
		c.validateModel(own, name, m)
		for _, f := range own.list {
			if !inherited[strings.TrimPrefix(f.Key, joinKey("model", name)+".")+"\n"+f.Text] {
				fs.list = append(fs.list, f)
			}
		}
		c.validateCaches(fs, joinKey("model", name, "cache"), caches, m.Cache)
		caches += m.Cache
	}
	return fs.err()
}

// validateModel checks the settings of one model.
func (c Config) validateModel(fs *faults, name string, m Model) {
	key := joinKey("model", name)
	fs.named(key, naming.CheckModel(name))
	if m.DefaultVersion != "" {
		fs.named(key+".default_version", naming.CheckVersion(m.DefaultVersion))
	}
	fs.duration(key+".retire_after", m.RetireAfter, 0, maxIdle)
	validateCache(fs, key, m)
	c.validatePolicy(fs, key, m.Policy)
}

// validateCache checks the cache of one model.
func validateCache(fs *faults, key string, m Model) {
	if m.Cache != 0 {
		fs.size(key+".cache", m.Cache, 64<<10, maxBytes)
	}
	if m.CacheTTL != 0 {
		fs.duration(key+".cache_ttl", m.CacheTTL, time.Millisecond, maxIdle)
	}
	if m.Cache == 0 && m.CacheTTL > 0 {
		fs.add(key+".cache_ttl", "%s has no meaning without a cache: give cache a size", formatDuration(m.CacheTTL))
	}
}

// validateCaches checks that full caches leave requests the memory to be served with: one
// beside those of that many bytes.
func (c Config) validateCaches(fs *faults, key string, others, one Bytes) {
	room := c.Limits.PayloadBytes - c.Limits.MessageBytes
	switch {
	case one == 0 || others > room: // said of the first that is too much
	case others+one <= room || room < 0: // less than a message fits anyway: said elsewhere
	case others == 0:
		fs.add(key, "%v is above limits.payload_bytes, %v, less limits.message_bytes, %v: what is kept counts against that memory, and no message of that size would fit beside a full cache",
			one, c.Limits.PayloadBytes, c.Limits.MessageBytes)
	default:
		fs.add(key, "with it the caches of the models have %v, which is above limits.payload_bytes, %v, less limits.message_bytes, %v: what is kept counts against that memory, and no message of that size would fit beside full caches",
			others+one, c.Limits.PayloadBytes, c.Limits.MessageBytes)
	}
}

func (c Config) validateServer(fs *faults) {
	fs.duration("server.drain", c.Server.Drain, 0, maxWait)
	for i, m := range c.Server.RequiredModels {
		name, version, versioned := strings.Cut(m, "/")
		key := indexKey("server.required_models", i)
		fs.named(key, naming.CheckModel(name))
		if versioned {
			fs.named(key, naming.CheckVersion(version))
		}
	}
	fs.oneOf("server.repository", c.Server.Repository, reaches)
	fs.oneOf("server.ready_when", c.Server.ReadyWhen, []string{ReadyModels, ReadyRequired})
	fs.oneOf("log.level", c.Log.Level, levels)
	fs.oneOf("log.format", c.Log.Format, formats)
}

func (c Config) validateAdmin(fs *faults) {
	for i, name := range c.Admin.Hosts {
		if u, err := url.Parse("//" + name); name != "*" && (err != nil || u.Hostname() != name || name == "") {
			fs.add(indexKey("admin.hosts", i), `%q: expected "*" or the name of a host without scheme and port, as "shivad.example.org"`, name)
		}
	}
	fs.size("admin.import_bytes", c.Admin.ImportBytes, 4<<10, maxBytes)
	fs.between("admin.metrics_models", c.Admin.MetricsModels, 1, 100000)
}

func (c Config) validateState(fs *faults) {
	if scheme, _, isURL := strings.Cut(c.State.At, "://"); isURL && !slices.Contains([]string{"redis", "rediss", "unix"}, scheme) {
		fs.add("state.at", "scheme %q: expected redis://host:port/db, rediss://, unix://path?db=n, or the path of a file", scheme)
	}
	fs.between("state.users", c.State.Users, 1, 10_000_000)
	if n := c.State.Namespace; n == "" || len(n) > 64 || strings.ContainsAny(n, " \t\r\n") {
		fs.add("state.namespace", "%q: expected 1 to 64 bytes without white space", n)
	}
}

func (c Config) validateTCP(fs *faults) {
	t := c.TCP
	fs.between("tcp.loops", t.Loops, 0, 1024)
	fs.between("tcp.connections", t.Connections, 1, 1<<24)
	fs.between("tcp.connections_per_address", t.ConnectionsPerAddress, 0, 1<<24)
	fs.between("tcp.in_flight_per_connection", t.InFlightPerConnection, 1, 1<<20)
	fs.duration("tcp.idle_timeout", t.IdleTimeout, 0, maxIdle)
	fs.duration("tcp.message_timeout", t.MessageTimeout, 0, maxWait)
	fs.size("tcp.outbound_bytes", t.OutboundBytes, 64<<10, maxBytes)
	fs.duration("tcp.stall_timeout", t.StallTimeout, 100*time.Millisecond, maxWait)
	fs.size("tcp.resync_bytes", t.ResyncBytes, 12, maxBytes) // a header
}

// isOrigin reports whether s is what a browser calls the origin of a page, or all of them.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return s == "*" || err == nil && u.Hostname() != "" && s == strings.ToLower(u.Scheme+"://"+u.Host)
}

func (c Config) validateREST(fs *faults) {
	r := c.REST
	fs.between("rest.connections", r.Connections, 1, 1<<24)
	fs.between("rest.connections_per_address", r.ConnectionsPerAddress, 0, 1<<24)
	fs.duration("rest.idle_timeout", r.IdleTimeout, 0, maxIdle)
	fs.duration("rest.header_timeout", r.HeaderTimeout, 10*time.Millisecond, maxWait)
	fs.duration("rest.message_timeout", r.MessageTimeout, 0, maxWait)
	fs.duration("rest.stall_timeout", r.StallTimeout, 100*time.Millisecond, maxWait)
	for i, origin := range r.CORSOrigins {
		if !isOrigin(origin) {
			fs.add(indexKey("rest.cors_origins", i), `%q: expected "*", or scheme://host or scheme://host:port in lower case, as a browser says it`, origin)
		}
	}
}

func (c Config) validateGRPC(fs *faults) {
	g := c.GRPC
	fs.between("grpc.connections", g.Connections, 1, 1<<24)
	fs.between("grpc.connections_per_address", g.ConnectionsPerAddress, 0, 1<<24)
	fs.between("grpc.streams_per_connection", g.StreamsPerConnection, 1, 1<<20)
	fs.between("grpc.in_flight_per_stream", g.InFlightPerStream, 1, 1<<16)
	fs.duration("grpc.message_timeout", g.MessageTimeout, 0, maxWait)
	fs.size("grpc.outbound_bytes", g.OutboundBytes, 64<<10, maxBytes)
	fs.duration("grpc.stall_timeout", g.StallTimeout, 100*time.Millisecond, maxWait)
	fs.duration("grpc.idle_timeout", g.IdleTimeout, 0, maxIdle)
	fs.duration("grpc.ping_interval", g.PingInterval, time.Second, maxWait) // what the library rounds up to
	fs.duration("grpc.ping_timeout", g.PingTimeout, 10*time.Millisecond, maxWait)
	fs.duration("grpc.min_ping_interval", g.MinPingInterval, time.Millisecond, maxWait)
}

func (c Config) validateContainers(fs *faults) {
	k := c.Containers
	fs.duration("containers.heartbeat", k.Heartbeat, 10*time.Millisecond, maxWait)
	fs.duration("containers.handshake_timeout", k.HandshakeTimeout, 10*time.Millisecond, maxWait)
	fs.duration("containers.write_timeout", k.WriteTimeout, 10*time.Millisecond, maxWait)
	fs.size("containers.message_bytes", k.MessageBytes, 64<<10, maxBytes)
	fs.between("containers.frames", k.Frames, 8, maxCount)
	fs.between("containers.sessions", k.Sessions, 1, maxCount)
	fs.between("containers.handshakes", k.Handshakes, 1, maxCount)
	if k.MessageBytes < c.Limits.MessageBytes {
		fs.add("containers.message_bytes", "%v is below limits.message_bytes, %v: a request of that size could be asked but never answered in kind", k.MessageBytes, c.Limits.MessageBytes)
	}

	names := map[string]int{}
	commands := 0
	for i, p := range c.Supervised {
		key := indexKey("container", i)
		switch first, taken := names[p.Name]; {
		case p.Name == "":
			fs.add(key+".name", "missing: the name of the process in logs and in shivactl status")
		case taken:
			fs.add(key+".name", "%q is already the name of container[%d]", p.Name, first)
		case strings.ContainsFunc(p.Name, unicode.IsControl):
			fs.add(key+".name", "%q has control characters", p.Name)
		default:
			names[p.Name] = i
		}
		if p.Address != "" {
			validateCalled(fs, key, p)
			continue
		}
		commands++
		for _, f := range []struct{ key, value string }{{"rpc", p.RPC}, {"version", p.Version}, {"input", p.Input}} {
			if f.value != "" {
				fs.add(key+"."+f.key, "has no meaning without address: a container that connects says so itself")
			}
		}
		if p.Model != "" {
			fs.named(key+".model", naming.CheckModel(p.Model))
		}
		if len(p.Command) == 0 || p.Command[0] == "" {
			fs.add(key+".command", `missing: program and arguments, as ["python3", "model.py"]`)
		}
		fs.between(key+".replicas", p.Replicas, 1, 1024)
		fs.duration(key+".stop_timeout", p.StopTimeout, time.Millisecond, maxWait)
		for name := range p.Env {
			if name == "" || strings.ContainsAny(name, "=\x00") {
				fs.add(joinKey(key+".env", name), "not a name of an environment variable")
			}
		}
	}
	if commands > 0 && len(k.Listen) == 0 {
		fs.add("containers.listen", "empty, but there are %d [[container]] to connect: give it an address, such as 127.0.0.1:0", commands)
	}
}

// validateCalled checks a container that the server calls.
func validateCalled(fs *faults, key string, p Container) {
	switch rest, ipc := strings.CutPrefix(p.Address, "ipc://"); {
	case ipc && rest == "":
		fs.add(key+".address", "ipc:// without a path")
	case !ipc:
		if _, port, fault := splitAddr(strings.TrimPrefix(p.Address, "tcp://")); fault != "" || port == "0" {
			fs.add(key+".address", `%q is not where a container can be called: want tcp://host:port, as "tcp://10.0.0.7:6001"`, p.Address)
		}
	}
	if p.RPC != "v0" {
		fs.add(key+".rpc", `expected "v0", got %q: containers of all other generations call the server`, p.RPC)
	}
	fs.named(key+".model", naming.CheckModel(p.Model))
	fs.named(key+".version", naming.CheckVersion(p.Version))
	fs.oneOf(key+".input", p.Input, v0Inputs)
	process := newContainer()
	for _, f := range []struct {
		key string
		set bool
	}{{"command", len(p.Command) > 0}, {"replicas", p.Replicas != process.Replicas}, {"env", len(p.Env) > 0}, {"dir", p.Dir != ""}, {"stop_timeout", p.StopTimeout != process.StopTimeout}} {
		if f.set {
			fs.add(key+"."+f.key, "has no meaning with address: that container is not a process of this server")
		}
	}
}

func (c Config) validateLimits(fs *faults) {
	l := c.Limits
	fs.size("limits.message_bytes", l.MessageBytes, 4<<10, maxBytes)
	fs.size("limits.metadata_bytes", l.MetadataBytes, 64, maxBytes)
	fs.between("limits.tensors", l.Tensors, 1, 255) // a count of one byte on the Shiva wire
	fs.between("limits.rank", l.Rank, 1, 255)       // likewise
	fs.between("limits.json_depth", l.JSONDepth, 1, 10000)
	fs.size("limits.payload_bytes", l.PayloadBytes, 1<<20, maxBytes)
	fs.between("limits.unpack_ratio", l.UnpackRatio, 1, 2000) // deflate ends at 1,032
	if l.UnpackBytes != 0 {
		fs.size("limits.unpack_bytes", l.UnpackBytes, 256<<10, l.PayloadBytes)
	}
	if l.MetadataBytes > l.MessageBytes {
		fs.add("limits.metadata_bytes", "%v is above limits.message_bytes, %v: the message ends first", l.MetadataBytes, l.MessageBytes)
	}
	if l.PayloadBytes < l.MessageBytes {
		fs.add("limits.payload_bytes", "%v is below limits.message_bytes, %v: a message of that size never fits", l.PayloadBytes, l.MessageBytes)
	}
}

// validatePolicy checks [defaults] or a model's table, and it against the doors' limits.
func (c Config) validatePolicy(fs *faults, table string, p Policy) {
	key := func(k string) string { return table + "." + k }
	fs.oneOf(key("strategy"), p.Strategy, scheduler.Strategies())
	fs.duration(key("objective"), p.Objective, 100*time.Microsecond, maxWait)
	fs.between(key("max_batch"), p.MaxBatch, 0, maxRows)
	fs.size(key("batch_bytes"), p.BatchBytes, 0, maxBytes)
	fs.duration(key("delay"), p.Delay, 0, maxWait)
	fs.between(key("queue_rows"), p.QueueRows, 1, maxRows)
	fs.size(key("queue_bytes"), p.QueueBytes, 1, maxBytes)
	fs.duration(key("deadline"), p.Deadline, time.Millisecond, maxWait)
	fs.duration(key("execution_timeout"), p.ExecutionTimeout, time.Millisecond, scheduler.MaxExecTimeout)
	fs.between(key("slots"), p.Slots, 0, scheduler.MaxSlots)

	if p.MaxBatch > p.QueueRows {
		fs.add(key("max_batch"), "%d is above queue_rows, %d: so many rows never wait together", p.MaxBatch, p.QueueRows)
	}
	// Where gRPC is left out, whose streams carry many requests each.
	if reach, how := c.reach(); how != "" && c.GRPC.Listen == "" && p.MaxBatch > reach {
		fs.add(key("max_batch"), "%d is above what can be in flight, %d (%s): no batch of single rows gets so large", p.MaxBatch, reach, how)
	}
	if p.QueueBytes < c.Limits.MessageBytes {
		fs.add(key("queue_bytes"), "%v is below limits.message_bytes, %v: a message of that size is accepted but can never wait", p.QueueBytes, c.Limits.MessageBytes)
	}
	if p.BatchBytes > p.QueueBytes {
		fs.add(key("batch_bytes"), "%v is above queue_bytes, %v: so many bytes never wait together", p.BatchBytes, p.QueueBytes)
	}
	if p.Delay > 0 && p.Delay >= p.Objective {
		fs.add(key("delay"), "%v is not below objective, %v: the wait alone would take what the whole batch may", formatDuration(p.Delay), formatDuration(p.Objective))
	}
	if p.Objective > p.Deadline {
		fs.add(key("objective"), "%v is above deadline, %v: batches of that length are always late", formatDuration(p.Objective), formatDuration(p.Deadline))
	}
	if p.ExecutionTimeout <= p.Objective {
		fs.add(key("execution_timeout"), "%v is not above objective, %v: a replica would be suspected for a batch of the wanted length", formatDuration(p.ExecutionTimeout), formatDuration(p.Objective))
	}
	if !p.Shed && p.Strategy == "deadline" {
		fs.add(key("shed"), `false has no meaning for strategy "deadline", which is to shed; use "aimd", "quantile" or "static"`)
	}
	if p.Pad && p.Strategy != "static" {
		fs.add(key("pad"), `true has no meaning for strategy %q; use "static"`, p.Strategy)
	}
}

// reach is how many requests can be in flight, and by which settings; "" if no door is open.
func (c Config) reach() (n int, how string) {
	if t := c.TCP; t.Listen != "" {
		n = t.Connections * t.InFlightPerConnection
		how = fmt.Sprintf("tcp.connections %d x tcp.in_flight_per_connection %d", t.Connections, t.InFlightPerConnection)
	}
	if r := c.REST; r.Listen != "" {
		n += r.Connections
		how = strings.TrimPrefix(how+fmt.Sprintf(" + rest.connections %d", r.Connections), " + ")
	}
	return n, how
}

// validateListeners checks every address, and that no two doors want the same one.
func (c Config) validateListeners(fs *faults) {
	type door struct{ key, host, port string }
	var taken []door
	check := func(key, addr string) {
		host, port, fault := splitAddr(addr)
		if fault != "" {
			fs.add(key, "%s", fault)
			return
		}
		if port == "0" {
			return
		}
		for _, d := range taken {
			if d.port == port && (d.host == host || d.host == "" || host == "") {
				fs.add(key, "%s is already taken by %s", addr, d.key)
				return
			}
		}
		taken = append(taken, door{key, host, port})
	}
	if c.TCP.Listen != "" {
		check("tcp.listen", c.TCP.Listen)
	}
	if c.REST.Listen != "" {
		check("rest.listen", c.REST.Listen)
	}
	if c.GRPC.Listen != "" {
		check("grpc.listen", c.GRPC.Listen)
	}
	paths := map[string]bool{}
	k := c.Containers
	for _, door := range []struct {
		key   string
		addrs Addrs
	}{{"listen", k.Listen}, {"listen_v1b", k.ListenV1b}, {"listen_v2", k.ListenV2}, {"listen_v2a", k.ListenV2a}} {
		for i, addr := range door.addrs {
			key := indexKey("containers."+door.key, i)
			switch path, ipc := strings.CutPrefix(addr, "ipc://"); {
			case !ipc:
				check(key, strings.TrimPrefix(addr, "tcp://"))
			case path == "":
				fs.add(key, "ipc:// without a path")
			case len(path) > 107: // sockaddr_un of Linux
				fs.add(key, "the path of a Unix socket has at most 107 bytes, this one has %d", len(path))
			case paths[path]:
				fs.add(key, "%s is listed twice", addr)
			default:
				paths[path] = true
			}
		}
	}
	if c.Admin.Listen != "" {
		check("admin.listen", c.Admin.Listen)
	}
}

// splitAddr splits host:port. Wildcard hosts become "".
func splitAddr(addr string) (host, port, fault string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", strconv.Quote(addr) + ` is not an address: want host:port, as "127.0.0.1:6174" or ":6174"`
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", strconv.Quote(addr) + " has the port " + strconv.Quote(port) + ": want a number from 0 (any free one) to 65535"
	} else {
		port = strconv.FormatUint(n, 10)
	}
	if host == "0.0.0.0" || host == "::" {
		host = ""
	}
	return host, port, ""
}

// named adds what package naming has against a name.
func (fs *faults) named(key string, err error) {
	if err != nil {
		fs.add(key, "%v", err)
	}
}

func (fs *faults) between(key string, n, low, high int) {
	if n < low || n > high {
		fs.add(key, "expected %d to %d, got %d", low, high, n)
	}
}

func (fs *faults) size(key string, b, low, high Bytes) {
	if b < low || b > high {
		fs.add(key, "expected %v to %v, got %v", low, high, b)
	}
}

func (fs *faults) duration(key string, d, low, high time.Duration) {
	if d < low || d > high {
		fs.add(key, "expected %s to %s, got %s", formatDuration(low), formatDuration(high), formatDuration(d))
	}
}

func (fs *faults) oneOf(key, s string, list []string) {
	if !slices.Contains(list, s) {
		fs.add(key, "expected one of %s, got %q", strings.Join(list, ", "), s)
	}
}
