package config

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/budgettest"
)

func lines(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("%T is not *Error: %v", err, err)
	}
	var out []string
	for _, f := range e.Faults {
		out = append(out, f.String())
	}
	return out
}

// A faulty file is read, or validated, with these faults.
type faulty struct {
	name, file string
	want       []string
}

// permissions is the fault of a socket's mode.
const permissions = `expected permissions in octal, from "0200" to "0777", with a write bit: a client needs write permission to connect`

var unreadable = []faulty{
	{"not toml", "[tcp]\nlisten = \n", []string{`x.toml:2:10: `}},
	{"twice", "[tcp]\nloops = 1\nloops = 2\n", []string{`x.toml:3:1: `}},
	{"unknown table", "\n[tpc]\nloops = 1\n[http]\n[grpc]\nport = 1\n", []string{
		`x.toml:2:2: tpc: unknown key; did you mean tcp?`,
		`x.toml:4:2: http: unknown key; did you mean rest?`, `x.toml:6:1: grpc.port: unknown key; did you mean listen?`}},
	{"unknown key", "[tcp]\nloop = 1\nfrobnicate = true\n", []string{
		`x.toml:2:1: tcp.loop: unknown key; did you mean loops?`,
		`x.toml:3:1: tcp.frobnicate: unknown key; known here: listen, socket_mode, socket_owner, socket_group, tls, connections_per_address, message_timeout, stall_timeout, loops, connections, in_flight_per_connection, idle_timeout, outbound_bytes, cancel_on_close, resync, resync_bytes, stream, keep`}},
	{"how many frames may wait", `
[defaults]
keep = 0
[model.a]
keep = "newest"
[model.b]
keep = 1025
[model.c]
keep = true
[model.d]
keep = -1
[tcp]
stream = 1
keep = 0
`, []string{
		`x.toml:3:1: defaults.keep: expected "all", "latest" or a whole number from 1 to 1024, got the integer 0`,
		`x.toml:5:1: model.a.keep: expected "all", "latest" or a whole number from 1 to 1024, got the string "newest"`,
		`x.toml:7:1: model.b.keep: expected "all", "latest" or a whole number from 1 to 1024, got the integer 1025`,
		`x.toml:9:1: model.c.keep: expected "all", "latest" or a whole number from 1 to 1024, got true`,
		`x.toml:11:1: model.d.keep: expected "all", "latest" or a whole number from 1 to 1024, got the integer -1`,
		`x.toml:13:1: tcp.stream: expected a string, got the integer 1`,
		`x.toml:14:1: tcp.keep: expected "all", "latest" or a whole number from 1 to 1024, got the integer 0`,
	}},
	{"which casts", "[model.a]\ncast = \"nearest\"\n[model.b]\ncast = \"close\"\n[model.c]\ncast = 1\n", []string{
		`x.toml:4:1: model.b.cast: expected false, true or "nearest", got the string "close"`,
		`x.toml:6:1: model.c.cast: expected false, true or "nearest", got the integer 1`,
	}},
	{"a number that is none", "[tcp]\nconnections = 1e999\n", []string{`x.toml:2:15: unable to parse float: "1e999": value out of range`}},
	{"every wrong type at once", `
drain = 3
[tcp]
listen = 6174
loops = "two"
  resync = 1
idle_timeout = 30
outbound_bytes = true
stall_timeout = "10 parsecs"
resync_bytes = "12 MB!"
connections = 1.5
[server]
required_models = "digits"
`, []string{
		`x.toml:2:1: drain: unknown key; known here: server, log, tcp, rest, grpc, frigate, containers, admin, traces, tls, state, limits, shared_memory, defaults, model, route, pipeline, container, model_file, model_folder, identity`,
		`x.toml:4:1: tcp.listen: expected an address or a list of addresses, got the integer 6174`,
		`x.toml:5:1: tcp.loops: expected an integer, got the string "two"`,
		`x.toml:6:3: tcp.resync: expected true or false, got the integer 1`,
		`x.toml:7:1: tcp.idle_timeout: expected a duration such as "30s", got the integer 30`,
		`x.toml:8:1: tcp.outbound_bytes: expected a size such as "256MiB" or a number of bytes, got true`,
		`x.toml:9:1: tcp.stall_timeout: "10 parsecs" is not a duration: expected a number and a unit, such as "30s", "250ms" or "1m30s"`,
		`x.toml:10:1: tcp.resync_bytes: "12 MB!" is not a size: expected a number and a unit, such as "256MiB", "64kB" or "1.5GiB"`,
		`x.toml:11:1: tcp.connections: expected an integer, got the float 1.5`,
		`x.toml:13:1: server.required_models: expected a list of strings, got the string "digits"`,
	}},
	{"tables for values and values for tables", "tcp = 1\nmodel = 2\ncontainer = 3\n[log.level]\n[admin]\nlisten = 1979-05-27\n", []string{
		`x.toml:1:1: tcp: expected a table ([tcp]), got the integer 1`,
		`x.toml:2:1: model: expected tables ([model.NAME]), got the integer 2`,
		`x.toml:3:1: container: expected a list of tables ([[container]]), got the integer 3`,
		`x.toml:4:6: log.level: expected a string, got a table`,
		`x.toml:6:1: admin.listen: expected a string, got the date or time 1979-05-27`,
	}},
	{"inside lists, tables in lists, and odd names", `
[model."a b"]
slots = "x"
[model.c]
policy = 1
[containers]
listen = ["a:1", 2]
[[container]]
name = "one"
command = ["x", 3]
[[container]]
replicas = "many"
env = { A = 1 }
[container.env2]
`, []string{
		`x.toml:3:1: model."a b".slots: expected an integer, got the string "x"`,
		`x.toml:5:1: model.c.policy: unknown key; known here: strategy, objective, max_batch, batch_bytes, delay, queue_rows, queue_bytes, deadline, execution_timeout, retry, shed, together, slots, keep, stream_interval, streams_per_client, pad, batched, cast, latest, default_version, retire_after, cache, cache_ttl`,
		`x.toml:7:1: containers.listen[1]: expected a string, got the integer 2`,
		`x.toml:10:1: container[0].command[1]: expected a string, got the integer 3`,
		`x.toml:12:1: container[1].replicas: expected a number of processes, or a table such as { min = 1, max = 4 }, got the string "many"`,
		`x.toml:13:9: container[1].env.A: expected a string, got the integer 1`,
		`x.toml:14:12: container[1].env2: unknown key; did you mean env?`,
	}},
	{"default_version has no default", "[defaults]\ndefault_version = \"1\"\n", []string{
		`x.toml:2:1: defaults.default_version: unknown key; known here: strategy, objective, max_batch, batch_bytes, delay, queue_rows, queue_bytes, deadline, execution_timeout, retry, shed, together, slots, keep, stream_interval, streams_per_client, pad, batched, cast, latest`}},
}

func TestFileFaults(t *testing.T) {
	for _, c := range unreadable {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse("x.toml", []byte(c.file))
			got := lines(t, err)
			if len(got) != len(c.want) {
				t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			for i, want := range c.want {
				if strings.HasSuffix(want, ": ") && strings.HasPrefix(got[i], want) {
					continue // go-toml's own text
				}
				if got[i] != want {
					t.Errorf("got  %s\nwant %s", got[i], want)
				}
			}
		})
	}
}

var invalid = []faulty{
	{"nothing", "", nil},
	{"ranges", `
[server]
drain = "-1s"
required_models = ["a/b/c", "!x", "ok/1", ""]
[log]
level = "loud"
[tcp]
connections = 0
outbound_bytes = 5
[limits]
tensors = 256
rank = 0
[rest]
listen = ":7000"
connections = 0
header_timeout = "0s"
message_timeout = "-1s"
stall_timeout = "1ms"
idle_timeout = "-1s"
cors_origins = ["*", "https://a.example:8443", "a.example", "https://a.example/", "HTTPS://a.example", "null", "http://[::1]:80"]
forward_headers = ["X-Request-ID", "Authorization", "cookie", "Priority"]
[grpc]
forward_headers = ["x-request-id", "x-bin", "a b"]
`, []string{
		`containers.listen[0]: 127.0.0.1:7000 is already taken by rest.listen`,
		`x.toml:3:1: server.drain: expected 0s to 24h, got -1s`,
		`x.toml:4:1: server.required_models[0]: "b/c" has a '/', which separates model and version in a route`,
		`x.toml:4:1: server.required_models[1]: "!x" begins with '!', which is reserved for the server`,
		`x.toml:4:1: server.required_models[3]: is empty, expected 1 to 128 bytes`,
		`x.toml:6:1: log.level: expected one of debug, info, warn, error, got "loud"`,
		`x.toml:8:1: tcp.connections: expected 1 to 16777216, got 0`,
		`x.toml:9:1: tcp.outbound_bytes: expected 64KiB to 16TiB, got 5B`,
		`x.toml:11:1: limits.tensors: expected 1 to 255, got 256`,
		`x.toml:12:1: limits.rank: expected 1 to 255, got 0`,
		`x.toml:15:1: rest.connections: expected 1 to 16777216, got 0`,
		`x.toml:16:1: rest.header_timeout: expected 10ms to 24h, got 0s`,
		`x.toml:17:1: rest.message_timeout: expected 0s to 24h, got -1s`,
		`x.toml:18:1: rest.stall_timeout: expected 100ms to 24h, got 1ms`,
		`x.toml:19:1: rest.idle_timeout: expected 0s to 8760h, got -1s`,
		`x.toml:20:1: rest.cors_origins[2]: "a.example": expected "*", or scheme://host or scheme://host:port in lower case, as a browser says it`,
		`x.toml:20:1: rest.cors_origins[3]: "https://a.example/": expected "*", or scheme://host or scheme://host:port in lower case, as a browser says it`,
		`x.toml:20:1: rest.cors_origins[4]: "HTTPS://a.example": expected "*", or scheme://host or scheme://host:port in lower case, as a browser says it`,
		`x.toml:20:1: rest.cors_origins[5]: "null": expected "*", or scheme://host or scheme://host:port in lower case, as a browser says it`,
		`x.toml:21:1: rest.forward_headers[1]: "Authorization": it is never forwarded, since it has a client's rights or concerns the connection`,
		`x.toml:21:1: rest.forward_headers[3]: "Priority": the server has a parameter of that name`,
		`x.toml:23:1: grpc.forward_headers[1]: "x-bin": names that begin with grpc- are gRPC's own, and those that end with -bin have bytes instead of a text`,
		`x.toml:23:1: grpc.forward_headers[2]: "a b": expected the name of a header, such as x-request-id`,
	}},
	{"between settings, both numbers", `
[tcp]
connections = 4
in_flight_per_connection = 8
[grpc]
listen = ""
[limits]
message_bytes = "2GiB"
metadata_bytes = "3GiB"
payload_bytes = "1GiB"
[defaults]
queue_bytes = "2GiB"
[model.a]
max_batch = 70000
delay = "200ms"
execution_timeout = "50ms"
[model.b]
objective = "40s"
execution_timeout = "1m"
shed = false
pad = true
strategy = "deadline"
`, []string{
		`containers.message_bytes: 1GiB is below limits.message_bytes, 2GiB: a request of that size is accepted, and an answer of the same size is not`,
		`x.toml:9:1: limits.metadata_bytes: 3GiB is above limits.message_bytes, 2GiB: the message ends first`,
		`x.toml:10:1: limits.payload_bytes: 1GiB is below limits.message_bytes, 2GiB: a message of that size never fits`,
		`x.toml:14:1: model.a.max_batch: 70000 is above queue_rows, 65536: so many rows never wait together`,
		`x.toml:14:1: model.a.max_batch: 70000 is above what can be in flight, 4128 (tcp.connections 4 x tcp.in_flight_per_connection 8 + rest.connections 4096): no batch of single rows gets so large`,
		`x.toml:15:1: model.a.delay: 200ms is not below objective, 100ms: the delay alone would take as long as the whole batch may`,
		`x.toml:16:1: model.a.execution_timeout: 50ms is not above objective, 100ms: a replica would become suspect during a batch that meets the objective`,
		`x.toml:18:1: model.b.objective: 40s is above deadline, 30s: batches of that length are always late`,
		`x.toml:20:1: model.b.shed: false has no meaning with strategy "deadline", which always sheds; use "aimd", "quantile" or "static"`,
		`x.toml:21:1: model.b.pad: true has no meaning with strategy "deadline"; use "static"`,
	}},
	{"queue against message, once for all that inherit it", "[limits]\nmessage_bytes = \"1500MiB\"\n[containers]\nmessage_bytes = \"2GiB\"\n[model.a]\n[model.b]\nqueue_bytes = 1000\nbatch_bytes = 2000\n", []string{
		`defaults.queue_bytes: 1GiB is below limits.message_bytes, 1500MiB: a message of that size is accepted but can never wait`,
		`x.toml:7:1: model.b.queue_bytes: 1000B is below limits.message_bytes, 1500MiB: a message of that size is accepted but can never wait`,
		`x.toml:8:1: model.b.batch_bytes: 2000B is above queue_bytes, 1000B: so many bytes never wait together`,
	}},
	{"containers", `
[containers]
listen = []
message_bytes = "1MiB"
[[container]]
name = "a"
command = ["x"]
replicas = 0
[[container]]
name = "a"
[[container]]
command = [""]
env = { "A=B" = "" }
`, []string{
		`x.toml:3:1: containers.listen: empty, but there are 3 [[container]] to connect: give it an address, such as 127.0.0.1:0`,
		`x.toml:4:1: containers.message_bytes: 1MiB is below limits.message_bytes, 256MiB: a request of that size is accepted, and an answer of the same size is not`,
		`x.toml:8:1: container[0].replicas: expected 1 to 1024, got 0`,
		`x.toml:9:3: container[1].command: missing: program and arguments, as ["python3", "model.py"]`,
		`x.toml:10:1: container[1].name: "a" is already the name of container[0]`,
		`x.toml:11:3: container[2].name: missing: the name of the process in logs and in shivactl status`,
		`x.toml:12:1: container[2].command: missing: program and arguments, as ["python3", "model.py"]`,
		`x.toml:13:9: container[2].env."A=B": not a name of an environment variable`,
	}},
	{"privileges", `
[[container]]
name = "a"
command = ["x"]
user = "no-such-user"
inherit_env = ["A*B"]
writable = ["/tmp"]
open_files = -1
processes = 2000000
[[container]]
name = "b"
address = "tcp://x:1"
rpc = "v0"
model = "m"
version = "1"
input = "ints"
read_only = true
`, []string{
		`x.toml:5:1: container[0].user: "no-such-user" is not a user of this machine: expected a name or a number`,
		`x.toml:6:1: container[0].inherit_env: "A*B" is not the name of a variable, or a prefix followed by *`,
		`x.toml:7:1: container[0].writable: has no meaning without read_only`,
		`x.toml:8:1: container[0].open_files: expected 0 to 1048576, got -1`,
		`x.toml:9:1: container[0].processes: expected 0 to 1048576, got 2000000`,
		`x.toml:10:3: container[1]: a user, privileges and limits have no meaning with address: that container is not a process of this server`,
	}},
	{"routes", `
[model.cells]
[[container]]
name = "arm"
command = ["x"]
[route.cells]
to = "belt/latest"
[route.arm]
to = "belt"
[route.a]
to = "b"
[route.b]
to = "c/latest"
[route.c]
to = "a"
[route.self]
to = "self/latest"
[route."two/parts"]
to = "belt"
[route.nowhere]
stream = "belt"
[route.robot]
to = "inner"
max_age = 500
max_age_ms = "soon"
after = 3
__token__ = "x"
version = 1.5
[route.inner]
to = "belt/latest"
[route.model]
to = "belt/2"
version = 3
tank = "north"
timeout_ms = -1
odd = +inf
when = 1979-05-27
`, []string{
		`x.toml:6:8: route.cells: hides the model "cells" of [model.cells]: requests for it would not reach the model; give the route another name`,
		`x.toml:8:8: route.arm: hides the model "arm" of container[0]: requests for it would not reach the model; give the route another name`,
		`x.toml:11:1: route.a.to: a cycle: a -> b -> c -> a`,
		`x.toml:13:1: route.b.to: a cycle: b -> c -> a -> b`,
		`x.toml:15:1: route.c.to: a cycle: c -> a -> b -> c`,
		`x.toml:17:1: route.self.to: a cycle: self -> self`,
		`x.toml:18:8: route."two/parts": "two/parts" has a '/', which separates model and version in a route`,
		`x.toml:20:8: route.nowhere.to: missing: what the name stands for, as "cells" or "cells/latest"`,
		`x.toml:24:1: route.robot.max_age: unknown key; known here: binary_data_output, max_age_ms, stream, timeout, timeout_ms, user, wait, version`,
		`x.toml:25:1: route.robot.max_age_ms: expected a number of milliseconds above 0, got "soon"`,
		`x.toml:26:1: route.robot.after: is of one request, and has no value that suits all of them`,
		`x.toml:27:1: route.robot.__token__: is of one request, and has no value that suits all of them`,
		`x.toml:28:1: route.robot.version: expected a string or an integer, got the float 1.5`,
		`x.toml:33:1: route.model.version: 3 is not the version of to = "belt/2"`,
		`x.toml:35:1: route.model.timeout_ms: expected a number of milliseconds above 0, got -1`,
		`x.toml:36:1: route.model.odd: expected a value of JSON, got the float +Inf`,
		`x.toml:37:1: route.model.when: expected a value of JSON, got the date or time 1979-05-27`,
	}},
	{"model files", `
[[model_file]]
name = "a"
[[model_file]]
path = "x/a b.onnx"
as = "sort"
batch = 0
device = ["cpu", "a,b"]
replicas = 0
[[model_file]]
path = "a.onnx"
version = "1/2"
[[model_file]]
path = "dir/b.tflite"
[[model_file]]
path = "b.onnx"
[[model_folder]]
path = "m"
device = []
[[model_folder]]
path = "./m"
[[model_folder]]
open_files = -1
[[container]]
name = "a"
command = ["x"]
[[model_file]]
path = "c.onnx"
name = "a/b"
[[model_file]]
path = " d.onnx"
`, []string{
		`x.toml:2:3: model_file[0].path: missing: the file, as "yolo11n.onnx"`,
		`x.toml:6:1: model_file[1].as: expected one of auto, raw, detect, segment, pose, obb, classify, got "sort"`,
		`x.toml:7:1: model_file[1].batch: expected "auto", "off", "force" or a number of rows, got "0"`,
		`x.toml:8:1: model_file[1].device[1]: "a,b": expected a device, as "cpu", "cuda:0" or "openvino:GPU"`,
		`x.toml:9:1: model_file[1].replicas: expected 1 to 1024, got 0`,
		`x.toml:10:3: model_file[2].name: "a" is already the name of a [[container]]`,
		`x.toml:12:1: model_file[2].version: "1/2" has a '/', which separates model and version in a route`,
		`x.toml:15:3: model_file[4].name: "b" is already the name of model_file[3]`,
		`x.toml:19:1: model_folder[0].device: empty: expected a device or "auto"`,
		`x.toml:21:1: model_folder[1].path: "./m" is already the path of model_folder[0]`,
		`x.toml:22:3: model_folder[2].path: missing: the directory, as "models"`,
		`x.toml:23:1: model_folder[2].open_files: expected 0 to 1048576, got -1`,
		`x.toml:29:1: model_file[5].name: "a/b" has a '/', which separates model and version in a route`,
		`x.toml:30:3: model_file[6].name: " d" begins or ends with a space; it is that of the file unless name is set`,
	}},
	{"containers that are called", `
[[container]]
name = "a"
address = "x:1"
rpc = "v3"
model = "a/b"
input = "floats"
command = ["x"]
replicas = 2
dir = "x"
[[container]]
name = "b"
command = ["x"]
input = "ints"
[[container]]
name = "c"
address = "tcp://x:0"
rpc = "v0"
model = "m"
version = "1"
input = "ints"
`, []string{
		`x.toml:2:3: container[0].version: is empty, expected 1 to 128 bytes`,
		`x.toml:5:1: container[0].rpc: expected "v0", got "v3": containers of all other generations call the server`,
		`x.toml:6:1: container[0].model: "a/b" has a '/', which separates model and version in a route`,
		`x.toml:7:1: container[0].input: expected one of bytes, ints, doubles, strings, got "floats"`,
		`x.toml:8:1: container[0].command: has no meaning with address: that container is not a process of this server`,
		`x.toml:9:1: container[0].replicas: has no meaning with address: that container is not a process of this server`,
		`x.toml:10:1: container[0].dir: has no meaning with address: that container is not a process of this server`,
		`x.toml:14:1: container[1].input: has no meaning without address: a container that connects says so itself`,
		`x.toml:17:1: container[2].address: "tcp://x:0" is not where a container can be called: want tcp://host:port, as "tcp://10.0.0.7:6001"`,
	}},
	{"addresses", `
[tcp]
listen = "127.0.0.1:7000"
[containers]
listen = ["tcp://0.0.0.0:7000", "ipc://", "ipc:///tmp/a", "ipc:///tmp/a", "localhost"]
[admin]
listen = ":70000"
`, []string{
		`x.toml:5:1: containers.listen[0]: 0.0.0.0:7000 is already taken by tcp.listen`,
		`x.toml:5:1: containers.listen[1]: "ipc://": a Unix socket without a path`,
		`x.toml:5:1: containers.listen[3]: ipc:///tmp/a is already taken by containers.listen[2]`,
		`x.toml:5:1: containers.listen[4]: "localhost" is not an address: want host:port, as "127.0.0.1:6174" or ":6174"`,
		`x.toml:7:1: admin.listen: ":70000" has the port "70000": want a number from 0 (any free one) to 65535`,
	}},
	{"Unix sockets", `
[tcp]
listen = [":6174", "unix:/run/a.sock", "unix:///run/b.sock", "unix:@a"]
[rest]
listen = ["unix:", "unix:/run/./a.sock", "unix:@a", "/run/c.sock"]
socket_mode = "0444"
[grpc]
listen = "unix:` + strings.Repeat("x", 108) + `"
socket_mode = "rw-rw----"
[containers]
listen = "ipc:///run/b.sock"
socket_mode = "0"
[admin]
listen = "unix:@"
socket_mode = "1777"
`, []string{
		`x.toml:5:1: rest.listen[0]: "unix:": a Unix socket without a path`,
		`x.toml:5:1: rest.listen[1]: unix:/run/./a.sock is already taken by tcp.listen[1]`,
		`x.toml:5:1: rest.listen[2]: unix:@a is already taken by tcp.listen[3]`,
		`x.toml:5:1: rest.listen[3]: "/run/c.sock" is not an address: want host:port, tls://host:port, or unix:PATH for a Unix socket`,
		`x.toml:6:1: rest.socket_mode: "0444": ` + permissions,
		`x.toml:8:1: grpc.listen: "unix:` + strings.Repeat("x", 108) + `": the path of a Unix socket has at most 107 bytes, this one has 108`,
		`x.toml:9:1: grpc.socket_mode: "rw-rw----": ` + permissions,
		`x.toml:11:1: containers.listen[0]: ipc:///run/b.sock is already taken by tcp.listen[2]`,
		`x.toml:12:1: containers.socket_mode: "0": ` + permissions,
		`x.toml:14:1: admin.listen: "unix:@": an abstract Unix socket without a name: expected "@name"`,
		`x.toml:15:1: admin.socket_mode: "1777": ` + permissions,
	}},
	{"detectors of Frigate", `[frigate]
listen = [":5555", ":6174"]
request_timeout = "2ms"
model_directory = "models"
model_bytes = "1GiB"
[frigate.models]
"a.onnx" = "a"
"a.onnx:yolo-generic" = "a/2"
"*:mobilenet" = "b"
"dir/c.onnx" = "c"
":ssd" = "c"
"*" = ""
`, []string{
		`x.toml:2:1: frigate.listen[1]: :6174 is already taken by tcp.listen`,
		`x.toml:3:1: frigate.request_timeout: expected 10ms to 24h, got 2ms`,
		`x.toml:5:1: frigate.model_bytes: 1GiB is above limits.message_bytes, 256MiB: the message ends first`,
		`x.toml:9:1: frigate.models."*:mobilenet": no model_type "mobilenet"; Frigate has dfine, rfdetr, ssd, yologeneric, yolonas, yolox`,
		`x.toml:10:1: frigate.models."dir/c.onnx": expected the name of a file as in the model's path, "*", or one of them, a colon and a model_type, as "yolo.onnx:yolox"`,
		`x.toml:11:1: frigate.models.":ssd": expected the name of a file as in the model's path, "*", or one of them, a colon and a model_type, as "yolo.onnx:yolox"`,
		`x.toml:12:1: frigate.models."*": is empty, expected 1 to 128 bytes`,
	}},
	{"streams of connections", "[tcp]\nstream = \"device\"\nkeep = 2\n[model.a]\nkeep = \"\"\n", []string{
		`x.toml:2:1: tcp.stream: expected one of none, connection, got "device"`,
		`x.toml:3:1: tcp.keep: 2 has no meaning with stream = "device": it is of streams that are connections, stream = "connection"`,
		`x.toml:5:1: model.a.keep: expected "all", "latest" or a whole number from 1 to 1024, got ""`,
	}},
	{"as the model says", "[tcp]\nstream = \"connection\"\nkeep = \"\"\n", nil},
	{"more frames than rows wait", "[model.a]\nqueue_rows = 128\nkeep = 129\n[model.b]\nqueue_rows = 128\nkeep = 128\n", []string{
		`x.toml:3:1: model.a.keep: 129 is above queue_rows, 128: so many frames never wait together`,
	}},
	{"a cache too small, and one that is none", "[model.a]\ncache = \"1KiB\"\n[model.b]\ncache_ttl = \"1m\"\n[model.c]\ncache = \"1MiB\"\ncache_ttl = \"1us\"\n", []string{
		`x.toml:2:1: model.a.cache: expected 64KiB to 16TiB, got 1KiB`,
		`x.toml:4:1: model.b.cache_ttl: 1m has no meaning without a cache: give cache a size`,
		`x.toml:7:1: model.c.cache_ttl: expected 1ms to 8760h, got 1µs`,
	}},
	{"a cache that leaves no room", "[model.a]\ncache = \"3841MiB\"\n", []string{
		`x.toml:2:1: model.a.cache: 3841MiB is above limits.payload_bytes, 4GiB, less limits.message_bytes, 256MiB: cached answers count against that memory, and no message of that size would fit beside a full cache`,
	}},
	{"a cache that leaves just room", "[model.a]\ncache = \"3840MiB\"\n", nil},
	{"caches that leave no room together", "[model.a]\ncache = \"2GiB\"\n[model.b]\ncache = \"2GiB\"\n", []string{
		`x.toml:4:1: model.b.cache: with it the caches of the models have 4GiB, which is above limits.payload_bytes, 4GiB, less limits.message_bytes, 256MiB: cached answers count against that memory, and no message of that size would fit beside full caches`,
	}},
	{"port 0 is never taken", "[tcp]\nlisten = \":0\"\n[admin]\nlisten = \":0\"\n", nil},
	{"model names", "[model.v2]\n[model.\"a/b\"]\n[model.ok]\ndefault_version = \"update\"\n", []string{
		`x.toml:1:8: model.v2: "v2" is reserved: the server has routes of this name`,
		`x.toml:2:8: model."a/b": "a/b" has a '/', which separates model and version in a route`,
		`x.toml:4:1: model.ok.default_version: "update" is reserved: in routes it means something other than a version`,
	}},
}

func TestValidateFaults(t *testing.T) {
	for _, c := range invalid {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := parse("x.toml", []byte(c.file))
			if err != nil {
				t.Fatal(err)
			}
			got, want := lines(t, cfg.Validate()), c.want
			if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
				t.Errorf("got\n%s\nwant\n%s", g, w)
			}
		})
	}
}

func TestInheritance(t *testing.T) {
	c, err := parse("x", []byte("[model.a]\nslots = 3\ndefault_version = \"2\"\n[defaults]\nslots = 4\nobjective = \"20ms\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a := c.Model("a"); a.Slots != 3 || a.Objective != 20*time.Millisecond || a.QueueRows != 65536 ||
		a.DefaultVersion != "2" {
		t.Errorf("model.a is %+v", a)
	}
	if b := c.Model("b"); b.Slots != 4 || b.DefaultVersion != "" {
		t.Errorf("an unnamed model is %+v", b)
	}
}

func TestSet(t *testing.T) {
	c, err := parse("x.toml", []byte("[tcp]\nlisten = \"bad\"\nloops = 3\n"))
	if err != nil {
		t.Fatal(err)
	}
	before := c
	for _, s := range [][2]string{
		{"tcp.listen", "worse"}, {"tcp.loops", "5"}, {"tcp.resync", "true"}, {"tcp.idle_timeout", "1m"},
		{"tcp.outbound_bytes", "1MiB"},
		{"containers.listen", "127.0.0.1:1, ipc:///x"}, {"server.required_models", "a,b"},
		{"model.m.objective", "20ms"}, {"model.m.2.slots", "5"}, {"defaults.slots", "1"},
		{"model.m.cast", "nearest"}, {"defaults.cast", "true"},
	} {
		if err := c.Set(s[0], s[1], "--flag"); err != nil {
			t.Errorf("set %q: %v", s, err)
		}
	}
	if c.TCP.Loops != 5 || !c.TCP.Resync || c.TCP.IdleTimeout != time.Minute || c.TCP.OutboundBytes != 1<<20 ||
		len(c.Containers.Listen) != 2 || c.Containers.Listen[1] != "ipc:///x" || len(c.Server.RequiredModels) != 2 ||
		c.Models["m"].Objective != 20*time.Millisecond || c.Models["m.2"].Slots != 5 || c.Defaults.Slots != 1 ||
		c.Models["m"].Cast != setting.CastNearest || c.Defaults.Cast != setting.CastExact {
		t.Errorf("not set: %+v", c)
	}
	if len(before.Models) != 0 || before.origins["tcp.loops"].name != "x.toml" {
		t.Error("set changed a copy")
	}
	if got := lines(t, c.Validate()); len(got) != 1 || !strings.HasPrefix(got[0], `--flag: tcp.listen: "worse" is not an address`) {
		t.Errorf("the fault does not name the flag: %q", got)
	}
	for _, s := range [][3]string{
		{"tcp.loops", "x", `--f: tcp.loops: expected an integer, got the string "x"`},
		{"tcp.idle_timeout", "5", `--f: tcp.idle_timeout: "5" is not a duration: expected a number and a unit, such as "30s", "250ms" or "1m30s"`},
		{"tcp.lops", "x", `--f: tcp.lops: no such setting; did you mean loops?`},
		{"tcp", "x", `--f: tcp: no such setting`},
		{"tcp.loops.x", "x", `--f: tcp.loops.x: no such setting`},
		{"container", "x", `--f: container: no such setting`},
		{"model.m.slot", "x", `--f: model.m.slot: no such setting; did you mean slots?`},
		{"model.m", "x", `--f: model.m: no such setting`},
	} {
		if got := lines(t, c.Set(s[0], s[1], "--f")); len(got) != 1 || got[0] != s[2] {
			t.Errorf("set %s: got %q, want %q", s[0], got, s[2])
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.toml")
	os.WriteFile(file, []byte("[[container]]\nname = \"a\"\ncommand = [\"x\"]\ndir = \"models\"\n[[container]]\nname = \"b\"\ncommand = [\"x\"]\n"), 0o600)
	c, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Supervised[0].Dir, filepath.Join(dir, "models"); got != want {
		t.Errorf("dir %q, want %q", got, want)
	}
	if c.Supervised[1].Dir != "" || c.Supervised[1].Replicas != Fixed(1) ||
		c.Supervised[1].StopTimeout != 10*time.Second {
		t.Errorf("defaults of a container: %+v", c.Supervised[1])
	}
	for text, want := range map[string]string{ // as editors of Windows save it
		"\xef\xbb\xbf": "", "\xef\xbb\xbf[log]\r\nlevel = \"debug\"\r\n": "", "\xef\xbb\xbf# a comment": "",
		"[log]\r\n":          "",
		"\xff\xfe[\x00l\x00": "expected UTF-8, got UTF-16", "\xfe\xff\x00[\x00l": "expected UTF-8, got UTF-16",
		"[\x00l\x00": "expected UTF-8, got UTF-16", "\x00[\x00l": "expected UTF-8, got UTF-16",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(file); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if e := (&Error{Faults: []Fault{{Key: "a", Text: "x"}, {Key: "b", Text: "y"}}}).Error(); e != "config: 2 faults:\n  a: x\n  b: y" {
		t.Errorf("two faults read %q", e)
	}
}

func TestRedactedAndClone(t *testing.T) {
	c := Default()
	c.Supervised = []Container{{Name: "a", Process: Process{Env: map[string]string{"TOKEN": "s3cret"}},
		Command: []string{"x"}}}
	c.Models["a"] = Model{}
	r := c.Redacted()
	if out, err := r.MarshalJSON(); err != nil || strings.Contains(string(out), "s3cret") ||
		!strings.Contains(string(out), "TOKEN") {
		t.Errorf("redacted: %v %s", err, out)
	}
	if c.Supervised[0].Env["TOKEN"] != "s3cret" {
		t.Error("redacting changed the original")
	}
	fill(reflect.ValueOf(&c).Elem(), new(int))
	unshared(t, "", reflect.ValueOf(c), reflect.ValueOf(c.Clone()))
}

// unshared checks that no list or map of a table, filled by fill, is one of its clone, too.
func unshared(t *testing.T, key string, v, clone reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				unshared(t, key+"."+f.Name, v.Field(i), clone.Field(i))
			}
		}
	case reflect.Slice:
		unshared(t, key+"[0]", v.Index(0), clone.Index(0))
		fallthrough
	case reflect.Map:
		if v.Pointer() == clone.Pointer() {
			t.Errorf("a clone shares %s", key)
		}
	}
}

// The positions of keys agree with the parsed tree: every key in the tree has a position.
func FuzzParse(f *testing.F) {
	raw, err := os.ReadFile(sample)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte("[[container]]\n[container.env]\nA = 'x'\n[[container]]\nname = \"\"\"\nx\"\"\"\nenv.B = 'y'\n"))
	f.Add([]byte("model.a.slots = 3\nmodel.\"x.y\" = {slots = 2}\n[containers]\nlisten = [\n# c\n'a', 'b']\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		budgettest.Input(t)
		c, err := parse("x", raw)
		if err != nil {
			for _, f := range err.(*Error).Faults {
				if f.Line == 0 {
					t.Errorf("no line: %v", f)
				}
			}
			return
		}
		_ = c.Validate()
		again, err := parse("y", []byte(text(t, c)))
		if err != nil {
			t.Fatalf("%v\nin\n%s", err, text(t, c))
		}
		if a, b := text(t, c), text(t, again); a != b {
			t.Errorf("wrote\n%s\nread\n%s", a, b)
		}
		if !maps.Equal(c.Models, again.Models) {
			t.Error("models differ")
		}
	})
}
