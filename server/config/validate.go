package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler/naming"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// Validate checks every value and the rules between values, and reports all faults at once as an
// *Error. A setting that makes another one unreachable is a fault that gives both numbers. Each
// room checks its own settings; this package checks the bounds in tags, and the rules between
// rooms.
func (c Config) Validate() error {
	fs := &faults{origins: c.origins}
	checkBounds(&fs.Faults, "", reflect.ValueOf(c))
	c.validateServer(fs)
	c.validateContainers(fs)
	c.validateModelFiles(fs)
	c.validateRoutes(fs)
	c.validateLimits(fs)
	c.validateListeners(fs)
	c.validateTLS(fs)
	c.validateSharedMemory(fs)
	c.validateFrigate(fs)
	c.validateIdentities(fs)
	c.validatePipelines(fs)

	defaults := c.policyFaults(c.Defaults)
	fs.of("defaults", defaults)
	var caches Bytes
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		m := c.Models[name]
		own := c.modelFaults(name, m, caches)
		// A fault that a model inherits from [defaults] is reported once, there.
		fs.of(joinKey("model", name),
			slices.DeleteFunc(own, func(f setting.Fault) bool { return slices.Contains(defaults, f) }))
		caches += m.Cache
	}
	return fs.err()
}

// checkBounds adds faults for the settings in a table, and in tables within it, that exceed the
// bounds in their tags.
func checkBounds(fs *setting.Faults, table string, v reflect.Value) {
	for f := range fieldsOf(v) {
		key, low, high := joinKey(table, f.key), f.tag.Get("min"), f.tag.Get("max")
		switch n := f.value.Interface().(type) {
		case int:
			within(fs, key, n, low, high, strconv.Atoi)
		case Bytes:
			within(fs, key, n, low, cmp.Or(high, setting.MaxBytes.String()), setting.ParseBytes)
		case time.Duration:
			within(fs, key, n, low, cmp.Or(high, setting.MaxWait.String()), setting.ParseDuration)
		case Policy: // [defaults], which policyFaults checks
		default:
			if f.value.Kind() == reflect.Struct {
				checkBounds(fs, key, f.value)
			}
		}
	}
}

func within[N int | Bytes | time.Duration](fs *setting.Faults, key string, n N, low, high string,
	parse func(string) (N, error)) {
	if low == "" {
		return // its room or another rule checks it
	}
	least, err := parse(low)
	most, wrong := parse(high)
	if err != nil || wrong != nil {
		// A bug: tags are constants.
		panic(fmt.Sprintf("config: the bounds of %s: %v, %v", key, err, wrong))
	}
	setting.Between(fs, key, n, least, most)
}

// modelFaults returns the faults of one model; caches is the size of the other models' caches.
func (c Config) modelFaults(name string, m Model, caches Bytes) (fs setting.Faults) {
	fs.Check("", naming.CheckModel(name))
	if m.DefaultVersion != "" {
		fs.Check("default_version", naming.CheckVersion(m.DefaultVersion))
	}
	setting.Between(&fs, "retire_after", m.RetireAfter, 0, setting.MaxIdle)
	if m.Cache != 0 {
		setting.Between(&fs, "cache", m.Cache, 64<<10, setting.MaxBytes)
	}
	if m.CacheTTL != 0 {
		setting.Between(&fs, "cache_ttl", m.CacheTTL, time.Millisecond, setting.MaxIdle)
	}
	if m.Cache == 0 && m.CacheTTL > 0 {
		fs.Add("cache_ttl", "%s has no meaning without a cache: give cache a size", setting.FormatDuration(m.CacheTTL))
	}
	fs = append(fs, c.policyFaults(m.Policy)...)

	// Full caches must leave memory for requests.
	room := c.Limits.PayloadBytes - c.Limits.MessageBytes
	switch {
	case m.Cache == 0 || caches > room: // the first model that exceeds room reports it
	case caches+m.Cache <= room || room < 0: // room for less than a message is reported elsewhere
	case caches == 0:
		fs.Add("cache", "%v is above limits.payload_bytes, %v, less limits.message_bytes, %v: cached answers count against that memory, and no message of that size would fit beside a full cache",
			m.Cache, c.Limits.PayloadBytes, c.Limits.MessageBytes)
	default:
		fs.Add("cache", "with it the caches of the models have %v, which is above limits.payload_bytes, %v, less limits.message_bytes, %v: cached answers count against that memory, and no message of that size would fit beside full caches",
			caches+m.Cache, c.Limits.PayloadBytes, c.Limits.MessageBytes)
	}
	return fs
}

// policyFaults returns the faults of [defaults] or of a model: the scheduler's, and those that
// depend on other settings.
func (c Config) policyFaults(p Policy) setting.Faults {
	fs := p.Scheduler().Faults()
	checkBounds(&fs, "", reflect.ValueOf(p))
	// The limit applies only without gRPC, each of whose streams carries many requests.
	if most, how := c.maxInFlight(); how != "" && len(c.GRPC.Listen) == 0 && p.MaxBatch > most {
		fs.Add("max_batch", "%d is above what can be in flight, %d (%s): no batch of single rows gets so large",
			p.MaxBatch, most, how)
	}
	if p.QueueBytes < c.Limits.MessageBytes {
		fs.Add("queue_bytes",
			"%v is below limits.message_bytes, %v: a message of that size is accepted but can never wait",
			p.QueueBytes, c.Limits.MessageBytes)
	}
	if p.Objective > p.Deadline {
		fs.Add("objective", "%v is above deadline, %v: batches of that length are always late",
			setting.FormatDuration(p.Objective), setting.FormatDuration(p.Deadline))
	}
	return fs
}

// maxInFlight returns how many requests can be in flight, and the settings that limit that number;
// "" if no door is open.
func (c Config) maxInFlight() (n int, how string) {
	var terms []string
	for _, d := range c.Doors() {
		most, term := *d.Connections, fmt.Sprintf("%s.connections %d", d.Name, *d.Connections)
		if d.Name == "tcp" {
			each := c.TCP.InFlightPerConnection
			most, term = most*each, fmt.Sprintf("%s x tcp.in_flight_per_connection %d", term, each)
		}
		if len(*d.Listen) > 0 && (d.oneByOne || d.Name == "tcp") {
			n += most
			terms = append(terms, term)
		}
	}
	return n, strings.Join(terms, " + ")
}

func (c Config) validateServer(fs *faults) {
	for i, m := range c.Server.RequiredModels {
		name, version, versioned := strings.Cut(m, "/")
		key := indexKey("server.required_models", i)
		fs.Check(key, naming.CheckModel(name))
		if versioned {
			fs.Check(key, naming.CheckVersion(version))
		}
	}
	fs.OneOf("server.repository", c.Server.Repository, RepositoryLocal, RepositoryAll, RepositoryNone)
	fs.OneOf("server.ready_when", c.Server.ReadyWhen, ReadyModels, ReadyRequired)
	fs.OneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	fs.OneOf("log.format", c.Log.Format, "text", "json")
	for i, name := range c.Admin.Hosts {
		if u, err := url.Parse("//" + name); name != "*" && (err != nil || u.Hostname() != name || name == "") {
			fs.Add(indexKey("admin.hosts", i),
				`%q: expected "*" or the name of a host without scheme and port, as "shivad.example.org"`, name)
		}
	}
	for i, origin := range c.REST.CORSOrigins {
		if !isOrigin(origin) {
			fs.Add(indexKey("rest.cors_origins", i),
				`%q: expected "*", or scheme://host or scheme://host:port in lower case, as a browser says it`, origin)
		}
	}
	checkForwarded(fs, "rest.forward_headers", c.REST.ForwardHeaders)
	checkForwarded(fs, "grpc.forward_headers", c.GRPC.ForwardHeaders)
	if endpoint := c.Traces.Endpoint; endpoint != "" {
		if _, ok := trace.Endpoint(endpoint); !ok {
			fs.Add("traces.endpoint",
				`expected the URL of a collector's OTLP over HTTP, such as "http://127.0.0.1:4318", got %q`,
				redacted(endpoint))
		}
	}
	fs.OneOf("tcp.stream", c.TCP.Stream, StreamNone, StreamConnection)
	if keep := c.TCP.Keep; keep != 0 && !keep.Valid() {
		fs.Add("tcp.keep", "expected %s, got %v", setting.KeepValues, keep)
	} else if keep != 0 && c.TCP.Stream != StreamConnection {
		fs.Add("tcp.keep", "%v has no meaning with stream = %q: it is of streams that are connections, stream = %q",
			keep, c.TCP.Stream, StreamConnection)
	}
	fs.Check("state.at", state.CheckTarget(c.State.At))
	fs.Check("state.namespace", state.CheckNamespace(c.State.Namespace))
}

// isOrigin reports whether s is an origin of pages, as browsers write it, or "*".
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return s == "*" || err == nil && u.Hostname() != "" && s == strings.ToLower(u.Scheme+"://"+u.Host)
}

func checkForwarded(fs *faults, key string, names []string) {
	for i, name := range names {
		if why := parameter.CheckForward(strings.ToLower(name)); why != "" {
			fs.Add(indexKey(key, i), "%q: %s", name, why)
		}
	}
}

func (c Config) validateContainers(fs *faults) {
	k := c.Containers
	fs.of("containers", k.Settings().Faults())
	if k.MessageBytes < c.Limits.MessageBytes {
		fs.Add("containers.message_bytes",
			"%v is below limits.message_bytes, %v: a request of that size is accepted, and an answer of the same size is not",
			k.MessageBytes, c.Limits.MessageBytes)
	}

	names := map[string]int{}
	commands := 0
	for i, p := range c.Supervised {
		key := indexKey("container", i)
		switch first, taken := names[p.Name]; {
		case p.Name == "":
			fs.Add(key+".name", "missing: the name of the process in logs and in shivactl status")
		case taken:
			fs.Add(key+".name", "%q is already the name of container[%d]", p.Name, first)
		case strings.ContainsFunc(p.Name, unicode.IsControl):
			fs.Add(key+".name", "%q has control characters", p.Name)
		default:
			names[p.Name] = i
		}
		if p.Address != "" {
			fs.of(key, calledFaults(p))
		} else {
			commands++
			fs.of(key, commandFaults(p))
		}
	}
	if commands > 0 && len(k.Listen) == 0 {
		fs.Add("containers.listen",
			"empty, but there are %d [[container]] to connect: give it an address, such as 127.0.0.1:0", commands)
	}
	c.validateTrust(fs)
}

// validateTrust checks that containers which the server starts have certificates to trust, if they
// can only connect with TLS.
func (c Config) validateTrust(fs *faults) {
	plain := func(addr string) bool { _, encrypted := listen.CutTLS(addr); return !encrypted }
	if list := c.Containers.Listen; len(list) == 0 || slices.ContainsFunc(list, plain) {
		return
	}
	check := func(list string, i int, env map[string]string) {
		if env[trustEnv] == "" {
			fs.Add(indexKey(list, i)+".env",
				"%s is missing, and containers.listen has addresses of TLS alone: say whom the container trusts, or give containers.listen an address on this machine, such as ipc:///run/shivad/containers.sock",
				trustEnv)
		}
	}
	for i, p := range c.Supervised {
		if p.Address == "" {
			check("container", i, p.Env)
		}
	}
	for i, m := range c.ModelFiles {
		check("model_file", i, m.Env)
	}
	for i, m := range c.ModelFolders {
		check("model_folder", i, m.Env)
	}
}

// trustEnv is the variable with the file of certificates that a container trusts.
const trustEnv = "SHIVA_TLS_CA"

// commandFaults returns the faults of a container that the server starts.
func commandFaults(p Container) (fs setting.Faults) {
	for _, f := range []struct{ key, value string }{{"rpc", p.RPC}, {"version", p.Version}, {"input", p.Input}} {
		if f.value != "" {
			fs.Add(f.key, "has no meaning without address: a container that connects says so itself")
		}
	}
	if p.Model != "" {
		fs.Check("model", naming.CheckModel(p.Model))
	}
	for i, pattern := range p.Serve {
		fs.Check(indexKey("serve", i), access.CheckServe(pattern))
	}
	if len(p.Command) == 0 || p.Command[0] == "" {
		fs.Add("command", `missing: program and arguments, as ["python3", "model.py"]`)
	}
	return append(fs, p.Process.faults()...)
}

func (p Process) faults() (fs setting.Faults) {
	p.Replicas.faults(&fs, "replicas")
	checkBounds(&fs, "", reflect.ValueOf(p))
	for name := range p.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			fs.Add(joinKey("env", name), "not a name of an environment variable")
		}
	}
	return append(fs, p.Privileges().Faults()...)
}

// calledFaults returns the faults of a container that the server connects to.
func calledFaults(p Container) (fs setting.Faults) {
	switch rest, ipc := strings.CutPrefix(p.Address, "ipc://"); {
	case ipc && rest == "":
		fs.Add("address", "ipc:// without a path")
	case !ipc:
		if _, port, err := splitAddr(strings.TrimPrefix(p.Address, "tcp://")); err != nil || port == "0" {
			fs.Add("address",
				`%q is not where a container can be called: want tcp://host:port, as "tcp://10.0.0.7:6001"`, p.Address)
		}
	}
	if p.RPC != containers.DialRPC {
		fs.Add("rpc", `expected %q, got %q: containers of all other generations call the server`,
			containers.DialRPC, p.RPC)
	}
	fs.Check("model", naming.CheckModel(p.Model))
	fs.Check("version", naming.CheckVersion(p.Version))
	_, err := containers.Input(p.Input)
	fs.Check("input", err)
	process := NewContainer("")
	for _, f := range []struct {
		key string
		set bool
	}{{"command", len(p.Command) > 0}, {"replicas", p.Replicas != process.Replicas}, {"cpus", p.CPUs != 0},
		{"env", len(p.Env) > 0}, {"dir", p.Dir != ""}, {"stop_timeout", p.StopTimeout != process.StopTimeout},
		{"serve", len(p.Serve) > 0}} {
		if f.set {
			fs.Add(f.key, "has no meaning with address: that container is not a process of this server")
		}
	}
	// A program in Go, unlike a file, may leave them all at their zero values.
	if has := p.Privileges(); !reflect.DeepEqual(has, process.Privileges()) &&
		!reflect.DeepEqual(has, new(Container).Privileges()) {
		fs.Add("", "a user, privileges and limits have no meaning with address: that container is not a process of this server")
	}
	return fs
}

func (c Config) validateLimits(fs *faults) {
	l := c.Limits
	if l.UnpackBytes != 0 {
		setting.Between(&fs.Faults, "limits.unpack_bytes", l.UnpackBytes, 256<<10, l.PayloadBytes)
	}
	if l.MetadataBytes > l.MessageBytes {
		fs.Add("limits.metadata_bytes", "%v is above limits.message_bytes, %v: the message ends first",
			l.MetadataBytes, l.MessageBytes)
	}
	perAddress := l.AddressQuota()
	fs.of("limits.per_address", perAddress.Faults())
	if l.PayloadBytes < l.MessageBytes {
		fs.Add("limits.payload_bytes", "%v is below limits.message_bytes, %v: a message of that size never fits",
			l.PayloadBytes, l.MessageBytes)
	}
}

func (c Config) validateSharedMemory(fs *faults) {
	m := c.SharedMemory
	if m.Directory != "" && !filepath.IsAbs(m.Directory) {
		fs.Add("shared_memory.directory", "%q: expected an absolute path, as \"/dev/shm\", or \"\" for none",
			m.Directory)
	}
	_, err := m.OwnerIDs()
	fs.Check("shared_memory.owners", err)
	fs.OneOf("shared_memory.clients", m.Clients, ClientsLocal, ClientsAll)
}

func (c Config) validateIdentities(fs *faults) {
	all := c.Declarations()
	names := map[string]int{}
	for i, one := range all {
		key := indexKey("identity", i)
		fs.of(key, one.Faults())
		if first, taken := names[one.Name]; taken && one.Name != "" {
			fs.Add(key+".name", "%q is already the name of identity[%d]", one.Name, first)
		} else {
			names[one.Name] = i
		}
		if other := access.SameToken(all[:i+1]); other >= 0 {
			fs.Add(key+".token_sha256", "it has a token of identity[%d], %q: a client that shows it could be either",
				other, all[other].Name)
		}
		if other, mine, theirs := access.SameCertificate(all[:i+1]); other >= 0 {
			fs.Add(key+".certificate",
				"%q matches certificates of identity[%d], %q, whose pattern is %q: a client that shows one could be either",
				mine, other, all[other].Name, theirs)
		}
		for k, pattern := range c.Identities[i].Regions {
			if _, err := path.Match(pattern, ""); err != nil || strings.Trim(pattern, "/") == "" {
				fs.Add(key+".regions["+strconv.Itoa(k)+"]",
					"%.100q is no pattern of keys: expected the name of a file in shared_memory.directory, such as \"/camera-*\"",
					pattern)
			}
		}
		if len(one.Certificates) > 0 && !c.verifiesClients() {
			fs.Add(key+".certificate",
				"has no meaning: no listener verifies certificates of clients: give one an address of TLS, a client_ca, and client_auth = %q or %q",
				AuthOptional, AuthRequired)
		}
	}
}

// validateListeners checks every address, and that no address occurs twice.
func (c Config) validateListeners(fs *faults) {
	type door struct{ key, host, port string }
	var taken []door
	paths := map[string]string{} // path -> key of the setting
	unix := func(key, addr, path string) {
		if err := unixsocket.Check(path); err != nil {
			fs.Add(key, "%q: %v", addr, err)
			return
		}
		if !unixsocket.Abstract(path) {
			path = filepath.Clean(path)
		}
		if first, ok := paths[path]; ok {
			fs.Add(key, "%s is already taken by %s", addr, first)
			return
		}
		paths[path] = key
	}
	check := func(key, addr string) {
		host, port, err := splitAddr(addr)
		if fs.Check(key, err); err != nil || port == "0" {
			return
		}
		for _, d := range taken {
			if d.port == port && (d.host == host || d.host == "" || host == "") {
				fs.Add(key, "%s is already taken by %s", addr, d.key)
				return
			}
		}
		taken = append(taken, door{key, host, port})
	}
	admin := ClientDoor{Name: "admin", Listen: &Addrs{}, Door: &Door{Socket: c.Admin.Socket}}
	if c.Admin.Listen != "" {
		*admin.Listen = Addrs{c.Admin.Listen}
	}
	for _, d := range append(c.Doors(), admin) {
		for i, addr := range *d.Listen {
			key := d.Name + ".listen"
			if len(*d.Listen) > 1 {
				key = indexKey(key, i)
			}
			if path, ok := unixsocket.Cut(addr); ok {
				unix(key, addr, path)
			} else if hostport, ok := listen.CutTLS(addr); ok {
				check(key, hostport)
			} else if strings.Contains(addr, "/") {
				fs.Add(key, "%q is not an address: want host:port, tls://host:port, or unix:PATH for a Unix socket",
					addr)
			} else {
				check(key, addr)
			}
		}
		d.Socket.validate(fs, d.Name)
	}
	if addr := c.Admin.Health; addr != "" {
		hostport, _ := listen.CutTLS(addr)
		check("admin.health", hostport)
	}
	k := c.Containers
	k.Socket.validate(fs, "containers")
	for _, list := range []struct {
		key   string
		addrs Addrs
	}{{"listen", k.Listen}, {"listen_v1b", k.ListenV1b}, {"listen_v2", k.ListenV2}, {"listen_v2a", k.ListenV2a}} {
		for i, addr := range list.addrs {
			key := indexKey("containers."+list.key, i)
			if path, ipc := strings.CutPrefix(addr, "ipc://"); ipc {
				unix(key, addr, path)
			} else {
				check(key, strings.TrimPrefix(strings.TrimPrefix(addr, "tcp://"), "tls://"))
			}
		}
	}
}

// validate checks the permissions. Whether users and groups exist is checked when the sockets are
// opened.
func (s Socket) validate(fs *faults, table string) {
	mode, err := strconv.ParseUint(s.Mode, 8, 32)
	if err != nil || mode > 0o777 || mode&0o222 == 0 {
		fs.Add(table+".socket_mode",
			`%q: expected permissions in octal, from "0200" to "0777", with a write bit: a client needs write permission to connect`,
			s.Mode)
	}
}

// splitAddr splits host:port. Wildcard hosts become "".
func splitAddr(addr string) (host, port string, err error) {
	if addr == "none" || addr == "off" { // an operator may try the words of shivad's help text
		return "", "", fmt.Errorf(`%q is not an address: "" opens none`, addr)
	}
	host, port, err = net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf(`%q is not an address: want host:port, as "127.0.0.1:6174" or ":6174"`, addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", "", fmt.Errorf("%q has the port %q: want a number from 0 (any free one) to 65535", addr, port)
	}
	if host == "0.0.0.0" || host == "::" {
		host = ""
	}
	return host, strconv.FormatUint(n, 10), nil
}
