package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/admin/admintest"
	"github.com/shivad/shivad/server/build"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/shivatest"
)

// fake is a server with both doors.
func fake(t *testing.T, network string) (tcp, adminAddr string) {
	t.Helper()
	s := shivatest.Serve(listen(t, network), func(c *shivatest.Conn, q *shiva.Message) {
		name, isMetadata := strings.CutPrefix(q.Namespace, "v2/models/")
		name, isInfer := strings.CutSuffix(name, "/infer")
		name, isConfig := strings.CutSuffix(name, "/config")
		name, isLatest := strings.CutSuffix(strings.TrimSuffix(name, "/versions/1"), "/latest")
		m, ok := fakeModels[strings.TrimSuffix(name, "/1")]
		var a *shiva.Message
		switch {
		case !ok && !strings.HasSuffix(q.Namespace, "/update"):
			a = refusal(shiva.NotFound, fmt.Sprintf("no model %q; did you mean \"digits\"?", name))
		case strings.HasSuffix(q.Namespace, "/update"):
			a = learn(q)
		case isLatest:
			a = newest(q)
		case isConfig:
			a = answer(`{"name":"` + name + `","parameters":{"labels.other":{"string_value":"[]"},"labels.kinds":` +
				`{"string_value":"[\"daisy\",\"\",\"wild rose\",\"tulip\",\"lily\"]"}}}`)
		case isMetadata && !isInfer:
			a = answer(m.metadata)
		default:
			a = m.answer(q)
		}
		if a.Namespace == "" {
			a.Namespace = q.Namespace
		}
		_ = c.Send(a)
	})
	t.Cleanup(s.Close)
	h := httptest.NewUnstartedServer(admintest.Handler(admintest.New(fakeList, fakeStatus).Sources()))
	h.Listener.Close()
	h.Listener = listen(t, network)
	h.Start()
	t.Cleanup(h.Close)
	return s.Addr(), h.Listener.Addr().String()
}

// learn answers feedback with its content; feedback with the id 1 has been learned before.
func learn(q *shiva.Message) *shiva.Message {
	if q.Namespace != "digits/update" {
		return refusal(shiva.NotFound, "only applications take feedback")
	}
	return answer(fmt.Sprintf(`{"application":"digits","learned":%t,"rounds":3,"was":%s,"tensors":%d}`,
		string(jsonscan.Field(q.Metadata, "id")) != "1", q.Metadata, len(q.Tensors)))
}

var fakeList = []admin.Model{
	{Name: "digits", Version: "2", Ready: false, MaxBatch: 64, Batched: true,
		Inputs: []admin.Tensor{{Name: "image", Datatype: "UINT8", Shape: []int{-1, 8, 8}}}, Outputs: []admin.Tensor{},
		Policy: map[string]any{"slots": 2, "keep": "all", "batched": true, "latest": "shared"},
		Cache:  &admin.Cache{Limit: 64 << 20}},
	{Name: "digits", Version: "1", Default: true, Ready: true, Replicas: 2, Platform: "go", MaxBatch: 64, Batched: true,
		QueueRows: 1,
		Inputs:    []admin.Tensor{{Name: "image", Datatype: "UINT8", Shape: []int{-1, 8, 8}}},
		Outputs: []admin.Tensor{{Name: "scores", Datatype: "FP32", Shape: []int{-1, 10}},
			{Name: "label", Datatype: "INT64", Shape: []int{-1}}},
		Cache: &admin.Cache{Limit: 64 << 20, Entries: 1234, Bytes: 5 << 20, Hits: 700, Shared: 50, Misses: 250,
			Evicted: 3, Expired: 2, NotKept: 1}},
	{Name: "plain", Version: "1", Default: true, Inputs: []admin.Tensor{}, Outputs: []admin.Tensor{}},
}

var fakeStatus = admin.Status{
	Version: "1.2.3", PID: 42, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Uptime: 3723,
	Readiness: admin.Readiness{State: "serving", Reason: "no live replica of iris", Missing: []string{"iris"}},
	Listen: admin.Addresses{TCP: []string{"[::]:6174", "unix:/run/shivad/shiva.sock"}, REST: []string{"[::]:8000"},
		GRPC: []string{"[::]:8001"}, Containers: []string{"127.0.0.1:7000", "ipc:///run/x"},
		V2: []string{"127.0.0.1:7002"}, Admin: "127.0.0.1:8002"},
	Doors: []admin.Door{{Name: "tcp", Connections: 1, InFlight: 12}, {Name: "rest", Connections: 2}},
	Routes: []admin.Route{{Name: "inference", To: `digits/latest, stream = "belt-3"`, Ready: true},
		{Name: "info", To: "iris"}},
	Clients: []admin.Client{
		{Name: `identity "cam"`, Requests: 1200, Bytes: 3 << 20, Quotas: []admin.Quota{
			{Quota: "requests_per_second", Limit: 100, Refused: 17, Since: 3},
			{Quota: "bytes_in_flight", Limit: 64 << 20, Used: 1 << 20},
			{Quota: "connections", Used: 2},
		}},
		{Name: `identity "idle"`, Quotas: []admin.Quota{}},
	},
	Payload: admin.Usage{Used: 1300000, Limit: 4 << 30, Refused: 2},
	Shared: admin.Shared{Inputs: 300 << 20, Used: 12 << 20, Readable: 6 << 20, Replaced: 40 << 20, Limit: 2 << 30,
		Outputs: 31 << 20},
	Regions:  admin.Regions{Used: 2, Limit: 256, Bytes: 128 << 20, Made: 4 << 20, Refused: 3},
	Queue:    admin.Queue{Rows: 3, Bytes: 600, OldestRow: 0.2, OldestBatch: 12},
	Warnings: []string{"container of digits/1 (worker 1) at 127.0.0.1:5555 has not answered a batch for 12s"},
	Models: []admin.Health{
		{Name: "digits", Version: "1", Replicas: 2, Failing: 1, Needed: 3, Load: 2.5, ReplicaRows: 400, QueueRows: 3,
			Requests: 1000, Judged: 1000, Failed: 25, SLO: 0.1, InTime: 875, MissingVoices: 4,
			NoMemory: 1, OldestRow: 0.2, OldestBatch: 12, Streams: 4, Superseded: 4321, FrameAge: 0.43,
			Durations: []admin.DurationClass{
				{Above: 0.008, UpTo: 0.016, Requests: 900}, {Above: 0.016, UpTo: 0.032, Requests: 100}}},
		{Name: "app", Replicas: 2, Requests: 40, Judged: 40, SLO: 0.05, InTime: 30, Defaults: 10, MissingVoices: 4,
			Durations: []admin.DurationClass{}},
	},
	Newest: admin.Newest{Bytes: 3 << 20, Limit: 64 << 20, Streams: 3, Waiting: 13, Answered: 4000, Failed: 20,
		Evicted: 1},
	Streams: []admin.Seen{
		{Model: "digits", Name: "cam-9", Askers: []string{"robot"}, Waiting: 1},
		{Model: "app", Name: "cam-3", Client: "10.0.0.4", Identity: "line", Known: true, Age: new(0.043), Waiting: 12,
			Askers: []string{"plc", "robot"}},
		{Model: "digits", Name: "10.0.0.7:4711", Connection: true, Known: true, Age: new(61.5), Askers: []string{}},
		{Model: "digits", Name: "cam-4", Client: "user ann", Known: true, Askers: []string{}},
	},
	State: admin.State{At: "redis://:xxxxx@10.0.0.9:6379/0", Since: time.Date(2026, 1, 2, 4, 4, 8, 0, time.UTC), Error: "connection refused"},
	Sessions: []admin.Session{
		{Model: "digits", Version: "1", Instance: "worker 1", Remote: "127.0.0.1:5555", RPC: "v4", State: "serving",
			Connected: 3600, Oldest: 12, Batches: 1234, Rows: 56789, Failures: 1, Pending: 2, Slots: 5, AtOnce: 4,
			Silent: 0.4, LastFailure: "IndexError: 3",
			Arena: "inputs, outputs", Readable: 6 << 20, Outputs: 31 << 20, Replaced: 40 << 20, ReplacedFor: 3},
		{Remote: "10.0.0.7:1", State: "handshake", Connected: 1},
	},
	Processes: []admin.Process{
		{Name: "digits", Replica: 0, PID: 43, State: "running", Since: 3700},
		{Name: "iris", Replica: 0, State: "waiting to restart", Since: 2.5, Restarts: 7, LastExit: "exit status 1",
			Log: []string{"Traceback:", "ModuleNotFoundError: numpy"}},
	},
	Limits: map[string]any{"rank": 32},
}

type commandLine struct{ name, stdin, args string }

// commandLines are those of a user; testdata/golden has the output and the exit code of each.
var commandLines = []commandLine{
	{"infer", "", "infer digits seven.png three.png"},
	{"infer-version", "", "infer digits/1 seven.png"},
	{"infer-v2", "", "infer v2/models/digits/versions/1/infer seven.png"},
	{"infer-rows", "", "infer digits rows.json seven.png --top 1"},
	{"infer-batch", "", "infer --batch digits rows.json seven.png"},
	{"infer-some-fail", "", "infer digits seven.png eleven.png eleven.png three.png"},
	{"infer-json", "", "infer digits seven.png eleven.png --json"},
	{"infer-json-batch", "", "--json infer digits seven.png three.png --batch"},
	{"infer-objects", "", "infer yolo seven.png three.png"},
	{"infer-tree", "", "infer street seven.png"},
	{"infer-tree-draw", "", "infer street seven.png --draw tree.png"},
	{"infer-draw", "", "infer yolo seven.png --draw found.png"},
	{"infer-draw-two", "", "infer yolo seven.png three.png --draw found.png"},
	{"infer-draw-gif", "", "infer yolo seven.png --draw found.gif"},
	{"infer-draw-no-objects", "", "infer digits seven.png --draw found.png"},
	{"infer-draw-nowhere", "", "infer yolo seven.png --draw nowhere/found.png"},
	{"infer-draw-no-file", `[[[[0, 0, 0]]]]`, "infer yolo - --draw found.png"},
	{"latest", "", "latest clock cam-3 --wait --max-age 200ms --user ann"},
	{"latest-json", "", "latest clock cam-3 --wait --max-age 200ms --user ann --json"},
	{"latest-unknown", "", "latest clock cam-4"},
	{"latest-nothing", "", "latest"},
	{"latest-bad-top", "", "latest clock cam-3 --top=-1"},
	{"latest-bad-age", "", "latest clock cam-3 --max-age=-1s"},
	{"help-latest", "", "help latest"},
	{"infer-text", "", "infer --text mood happy sad"},
	{"infer-text-json", "", "infer --text mood happy --json"},
	{"infer-text-file", `["happy", "sad"]`, "infer mood -"},
	{"infer-classes", `[1]`, "infer flowers - --top 4"},
	{"infer-named", "", "infer two pair.json"},
	{"infer-named-files", "", "infer two a=a.json,b=b.json --timing"},
	{"infer-odd", `[[1, 2], [3, 4]]`, "infer odd -"},
	{"infer-odd-json", `[[1, 2], [3, 4]]`, "infer odd - --json"},
	{"infer-nan", `[1]`, "infer nan - --json"},
	{"infer-nan-text", `[1]`, "infer nan -"},

	{"infer-no-inputs", "", "infer clock"},
	{"infer-no-inputs-json", "", "infer clock --json"},

	{"infer-file-for-no-inputs", "", "infer clock seven.png"},
	{"infer-batch-of-no-inputs", "", "infer clock --batch"},
	{"infer-wrong-size", "", "infer digits seven.png wide.png"},
	{"infer-wrong-size-json", "", "infer digits wide.png --json"},
	{"infer-no-file", "", "infer digits nothing.png"},
	{"infer-no-such-model", "", "infer digit seven.png"},
	{"infer-text-for-image", "", "infer --text digits seven"},
	{"infer-missing-input", `{"a": [[1, 2]]}`, "infer two -"},
	{"infer-extra-input", `{"a": [[1, 2]], "b": [1], "c": 1}`, "infer two -"},
	{"infer-one-of-two", `[1]`, "infer two -"},
	{"infer-named-twice", "", "infer two a=a.json,a=b.json"},
	{"infer-different-rows", `{"a": [[1, 2]], "b": [1, 2]}`, "infer two -"},
	{"infer-stdin-twice", `[1]`, "infer nan - -"},
	{"infer-no-rows", `[]`, "infer nan -"},
	{"infer-scale-integers", "", "infer digits seven.png --scale 1/255"},
	{"infer-bad-scale", "", "infer digits seven.png --scale 1e9999999"},
	{"infer-batch-of-one", `[[1,2],[3,4]]`, "infer odd - --batch"},
	{"infer-nothing", "", "infer"},
	{"infer-no-files", "", "infer digits"},
	{"infer-refused", "", "infer digits seven.png --addr NOBODY"},
	{"infer-refused-json", "", "infer digits seven.png --addr NOBODY --json"},
	{"infer-wrong-door", "", "infer digits seven.png --addr ADMIN --timeout 300ms"},

	{"bench-nothing", "", "bench"},
	{"bench-no-such-model", "", "bench digit --for 1s"},
	{"bench-undeclared", "", "bench bare"},
	{"bench-data-for-no-inputs", "", "bench clock --data pair.json"},
	{"bench-refused", "", "bench digits --addr NOBODY"},
	{"bench-refused-rest", "", "bench digits --addr NOBODY --door rest"},
	{"bench-refused-grpc-json", "", "bench digits --addr NOBODY --door grpc --json"},
	{"bench-wrong-door", "", "bench digits --addr ADMIN --door rest"},
	{"bench-wrong-size", "", "bench digits --data wide.png"},
	{"bench-no-data", "", "bench digits --data nothing"},
	{"bench-no-files", "", "bench digits --data empty"},
	{"bench-hdr-nowhere", "", "bench digits --hdr nowhere/x.hgrm --for 10ms"},
	{"bench-bad-rate", "", "bench digits --rate -5"},
	{"bench-bad-for", "", "bench digits --for 5"},
	{"bench-bad-conns", "", "bench digits --conns 0"},
	{"bench-bad-door", "", "bench digits --door http"},
	{"bench-bad-keep", "", "bench digits --streams 2 --keep newest"},
	{"bench-bad-search", "", "bench digits --search p99"},
	{"bench-rate-of-streams", "", "bench digits --streams 2 --rate 5"},
	{"bench-fps-alone", "", "bench digits --fps 30"},
	{"bench-search-at-a-rate", "", "bench digits --search p99<50ms --rate 5"},
	{"bench-rest-inflight", "", "bench digits --door rest --inflight 4"},
	{"bench-streams-conns", "", "bench digits --streams 2 --conns 3"},
	{"bench-think-at-a-rate", "", "bench digits --rate 5 --think 5ms"},
	{"bench-search-clients", "", "bench digits --search p99<50ms --clients 4"},
	{"bench-beside-hdr", "", "bench digits --rate 5 --clients 4 --hdr x.hgrm"},
	{"help-bench", "", "help bench"},

	{"models", "", "models"},
	{"models-one", "", "models digits --json"},
	{"models-none", "", "models iris"},
	{"models-mistyped", "", "models digts"},
	{"models-two", "", "models a b"},
	{"models-set-version", "", "models set-version digits 1"},
	{"models-set-newest", "", "models set-version digits"},
	{"models-set-gone", "", "models set-version digits 2"},
	{"models-set-two", "", "models set-version digits 1 2"},
	{"models-set", "", "models set digits objective=20ms delay=1ms"},
	{"models-set-nothing", "", "models set digits"},
	{"models-set-json", "", "models set digits objective=20ms --json"},
	{"models-reset", "", "models reset digits delay"},
	{"models-reset-nothing", "", "models reset digits"},
	{"versions", "", "versions digits"},
	{"versions-none", "", "versions iris"},
	{"versions-which", "", "versions"},
	{"versions-set", "", "versions set digits 1"},
	{"versions-json", "", "versions digits --json"},
	{"history", "", "history digits"},
	{"history-none", "", "history iris"},
	{"history-which", "", "history"},
	{"history-json", "", "history digits --json"},
	{"help-history", "", "help history"},
	{"audit", "", "audit"},
	{"audit-limit", "", "audit --limit 0"},
	{"audit-json", "", "audit --json"},
	{"help-audit", "", "help audit"},
	{"logs", "", "logs"},
	{"logs-some", "", "logs --level warn --limit 1"},
	{"logs-json", "", "logs --json"},
	{"logs-limit", "", "logs --limit 0"},
	{"logs-level", "", "logs --level loud"},
	{"logs-extra", "", "logs digits"},
	{"help-logs", "", "help logs"},
	{"top-extra", "", "top digits"},
	{"top-every", "", "top --every 1ms"},
	{"help-top", "", "help top"},
	{"models-refused", "", "models --admin NOBODY"},
	{"models-wrong-door", "", "models --admin TCP"},
	{"cache-show", "", "cache show"},
	{"cache-show-json", "", "cache show digits --json"},
	{"cache-show-none", "", "cache show plain"},
	{"cache-show-two", "", "cache show a b"},
	{"cache-clear", "", "cache clear digits --yes"},
	{"cache-clear-json", "", "cache clear digits --json --yes"},
	{"cache-clear-nothing", "", "cache clear"},
	{"cache-clear-unasked", "y\n", "cache clear digits"},
	{"cache-clear-unknown", "", "cache clear --yes iris"},
	{"cache-nothing", "", "cache"},
	{"cache-what", "", "cache flush digits"},
	{"cache-mistyped", "", "cache shwo digits"},
	{"streams", "", "streams digits"},
	{"streams-json", "", "streams digits --json"},
	{"streams-nothing", "", "streams"},
	{"streams-unknown", "", "streams iris"},
	{"status", "", "status"},
	{"status-json", "", "status --json"},
	{"status-extra", "", "status now"},
	{"version-none", "", "version --admin NOBODY"},

	{"apps-empty", "", "apps"},
	{"apps-create", "", `apps create one --model digits --model digits/2 --slo 50ms --default {"label":-1} --policy exp4 --param eta=0.3 --param combination=vote`},
	{"apps-create-twice", "", "apps create one --model digits"},
	{"apps-create-faults", "", "apps create two --policy exp5 --slo soon"},
	{"apps-create-json", "", "apps create two --model digits/* --json"},
	{"apps-create-bad-default", "", "apps create two --model digits --default {label:-1}"},
	{"apps-create-bad-param", "", "apps create two --model digits --param eta"},
	{"apps", "", "apps"},
	{"apps-list", "", "apps list --json"},
	{"apps-show", "", "apps one"},
	{"apps-show-json", "", "apps show one --json"},
	{"apps-show-none", "", "apps show three"},
	{"apps-mistyped", "", "apps lsit"},
	{"apps-change", "", "apps change one --default null --param eta= --slo 80ms"},
	{"apps-change-nothing", "", "apps change one"},
	{"apps-change-none", "", "apps change three --slo 1s"},
	{"links", "", "links one"},
	{"links-add", "", "links add one digits/*"},
	{"links-add-json", "", "links add one iris --json"},
	{"links-add-twice", "", "links add one digits"},
	{"links-delete-unasked", "", "links delete one digits/*"},
	{"links-delete", "", "links delete one digits/* --yes"},
	{"links-delete-none", "", "links delete one digits/* --yes"},
	{"links-which", "", "links add one"},
	{"policies", "", "policies"},
	{"policies-one", "", "policies exp4 --json"},
	{"policies-none", "", "policies exp5"},
	{"policies-learned-nothing", "", "policies learned one"},
	{"policies-learned-none", "", "policies learned three"},
	{"policies-forget", "", "policies forget one --yes --json"},
	{"feedback-id", "", "feedback digits --id 7 --user anna --label 3"},
	{"feedback-again", "", "feedback digits --id 1 --loss 0.5"},
	{"feedback-text", "", `feedback digits --id frame-1 --label good --json`},
	{"feedback-input", "", `feedback digits seven.png --losses {"digits/1":0} --json`},
	{"feedback-model", "", "feedback mood --id 1 --loss 0"},
	{"feedback-which", "", "feedback digits --loss 1"},
	{"feedback-what", "", "feedback digits --id 1 --loss 1 --label 3"},
	{"infer-id", "", "infer digits seven.png three.png --id 1"},
	{"containers", "", "containers"},
	{"containers-json", "", "containers --json"},
	{"containers-stop", "", "containers stop digits"},
	{"containers-start", "", "containers start digits --json"},
	{"containers-restart", "", "containers restart digits"},
	{"containers-none", "", "containers stop nobody"},
	{"config", "", "config"},
	{"reload", "", "reload"},
	{"reload-json", "", "reload --json"},
	{"config-json", "", "config --json"},
	{"config-part", "", "config tcp"},
	{"config-none", "", "config tc"},
	{"export", "", "export state.json"},
	{"export-stdout", "", "export -"},
	{"export-json", "", "export state.json --json"},
	{"export-nowhere", "", "export nowhere/state.json"},
	{"import-dry", "", "import state.json --dry-run"},
	{"apps-delete-unasked", "", "apps delete one --json"},
	{"apps-delete", "", "apps delete one --yes"},
	{"apps-delete-none", "", "apps delete one --yes"},
	{"apps-create-unknown", "", "apps create later --model digts --model plain/2 --model nosuch/* --model plain/*"},
	{"apps-change-unknown", "", "apps change later --model plian --json"},
	{"apps-change-known", "", "apps change later --slo 10ms"},
	{"apps-delete-later", "", "apps delete later --yes"},
	{"import", "", "import state.json"},
	{"import-json", `{"format":1,"applications":[{"name":"x","models":["m"]}]}`, "import - --json"},
	{"import-nothing", `{"format":1}`, "import -"},
	{"import-faults", `{"format":1,"applications":[{"name":"x","models":[],"slow":1},{"name":"y"}],"settings":{}}`, "import -"},
	{"import-no-file", "", "import nothing.json"},
	{"completion-which", "", "completion tcsh"},

	{"help-apps", "", "help apps"},
	{"help-apps-create", "", "help apps create"},
	{"help-apps-unknown", "", "help apps frobnicate"},
	{"help-links", "", "links --help"},
	{"help-policies", "", "help policies"},
	{"help-policies-learned", "", "policies learned --help"},
	{"help-versions", "", "help versions"},
	{"help-containers", "", "help containers"},
	{"help-config", "", "help config"},
	{"help-export", "", "help export"},
	{"help-import", "", "help import"},
	{"help-feedback", "", "help feedback"},
	{"help-completion", "", "help completion"},
	{"verb-flag", "", "apps delete one --slo 50ms"},
	{"help", "", "help"},
	{"help-flag", "", "--help"},
	{"help-infer", "", "help infer"},
	{"help-models", "", "models -h"},
	{"help-cache", "", "cache -h"},
	{"help-unknown", "", "help frobnicate"},
	{"no-command", "", ""},
	{"unknown-command", "", "frobnicate"},
	{"mistyped-command", "", "statsu"},
	{"mistyped-flag", "", "status --jsno"},
	{"mistyped-help", "", "help apps chnage"},
	{"watch-often", "", "models --watch=1ms"},
	{"watch-what", "", "version --watch"},
	{"help-profiles", "", "help profiles"},
	{"unknown-flag", "", "status --frobnicate"},
	{"bad-address", "", "infer digits seven.png --addr unix:"},
	{"bad-admin", "", "status --admin unix:@"},
	{"bad-timeout", "", "status --timeout 5"},
	{"no-timeout", "", "status --timeout 0s"},
	{"dashes", "", "infer digits -- seven.png"},
}

func TestCommandLine(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) { testCommandLine(t, network) })
	}
}

func testCommandLine(t *testing.T, network string) {
	golden, err := filepath.Abs("testdata/golden")
	if err != nil {
		t.Fatal(err)
	}
	tcp, adminAddr := fake(t, network)
	t.Chdir(t.TempDir())
	digit(t, "seven.png", 7, 8)
	digit(t, "three.png", 3, 8)
	digit(t, "eleven.png", 11, 8)
	digit(t, "wide.png", 1, 28)
	if err := os.Mkdir("empty", 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, "pair.json", `{"a": [[1, 2]], "b": [0.5]}`)
	write(t, "a.json", `[[1, 2]]`)
	writePipelines(t)
	write(t, "b.json", `[0.5]`)
	write(t, "rows.json", strings.ReplaceAll(`[[[1,0,0,0,0,0,0,0],Z,Z,Z,Z,Z,Z,Z],[[2,0,0,0,0,0,0,0],Z,Z,Z,Z,Z,Z,Z]]`,
		"Z", "[0,0,0,0,0,0,0,0]"))

	nobody := deaf(t, network)
	for _, c := range slices.Concat(commandLines, pipelineLines) {
		t.Run(c.name, func(t *testing.T) {
			real := strings.NewReplacer("NOBODY", nobody, "ADMIN", adminAddr, "TCP", tcp)
			args := strings.Fields(real.Replace(c.args))
			for _, flag := range [][2]string{{"--addr", tcp}, {"--admin", adminAddr}} {
				if !strings.Contains(c.args, flag[0]) && !strings.Contains(c.name, "help") && c.name != "no-command" {
					args = append([]string{flag[0], flag[1]}, args...)
				}
			}
			var stdout, stderr bytes.Buffer
			code := run(context.Background(), args, strings.NewReader(c.stdin), &stdout, &stderr)
			got := fmt.Sprintf("$ shivactl %s\n%s", c.args, stdout.String())
			if stderr.Len() > 0 {
				got += "--- stderr\n" + stderr.String()
			}
			got += fmt.Sprintf("--- exit %d\n", code)
			got = strings.NewReplacer(build.Line("shivactl"), "shivactl VERSION (BUILD)", nobody, "NOBODY", adminAddr,
				"ADMIN", tcp, "TCP").Replace(got)
			got = regexp.MustCompile(`"ms":[0-9.]+`).ReplaceAllString(got, `"ms":1.5`)
			if strings.HasPrefix(c.name, "logs") {
				got = regexp.MustCompile(`[0-9]{4}-[0-9T: .-]+[0-9]Z?`).ReplaceAllString(got, "2026-01-02 03:04:05.006")
				got = regexp.MustCompile(`"id":[0-9]+`).ReplaceAllString(got, `"id":1`)
			}
			got = regexp.MustCompile(` +[0-9.]+ ms`).ReplaceAllString(got, "  1.50 ms")

			file := filepath.Join(golden, c.name+".txt")
			if *update {
				write(t, file, got)
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if strings.Contains(c.args, "--json") && !json.Valid(stdout.Bytes()) {
				t.Errorf("not JSON: %s", stdout.Bytes())
			}
		})
	}
}

// More files than may be in flight at once are all answered, in order.
func TestManyFiles(t *testing.T) {
	tcp, _ := fake(t, "tcp")
	t.Chdir(t.TempDir())
	args := []string{"infer", "digits", "--addr", tcp}
	for i := range 3 * pipelined {
		name := fmt.Sprintf("%03d.png", i)
		digit(t, name, uint8(i%10), 8)
		args = append(args, name)
	}
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), args, nil, &stdout, &stderr); code != 0 {
		t.Fatal(code, stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")[1:]
	for i, line := range lines {
		f := strings.Fields(line)
		if f[0] != fmt.Sprintf("%03d.png", i) || f[len(f)-1] != fmt.Sprint(i%10) {
			t.Errorf("line %d is %q", i, line)
		}
	}
	if len(lines) != 3*pipelined {
		t.Errorf("%d lines", len(lines))
	}
}

// --version needs no server.
func TestOwnVersion(t *testing.T) {
	var stdout bytes.Buffer
	code := run(context.Background(), []string{"--version", "--admin", "127.0.0.1:1"}, nil, &stdout, io.Discard)
	if code != 0 || !strings.HasPrefix(stdout.String(), "shivactl "+build.Version+" (") ||
		strings.Count(stdout.String(), "\n") != 1 {
		t.Errorf("%d %s", code, stdout.String())
	}
}

func TestVersionOfServer(t *testing.T) {
	_, adminAddr := fake(t, "tcp")
	var stdout bytes.Buffer
	code := run(context.Background(), []string{"version", "--admin", adminAddr}, nil, &stdout, io.Discard)
	if code != 0 || !strings.Contains(stdout.String(), "shivad 1.2.3 at "+adminAddr) {
		t.Errorf("%d %s", code, stdout.String())
	}
	stdout.Reset()
	var v map[string]any
	run(context.Background(), []string{"version", "--admin", adminAddr, "--json"}, nil, &stdout, io.Discard)
	if json.Unmarshal(stdout.Bytes(), &v) != nil || v["server"] != "1.2.3" {
		t.Errorf("%s", stdout.String())
	}
}

// A deadline is sent only when the user sets one: the model may have its own.
func TestDeadline(t *testing.T) {
	t.Chdir(t.TempDir())
	digit(t, "a.png", 1, 8)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deadline := make(chan bool, 2)
	s := shivatest.Serve(l, func(c *shivatest.Conn, q *shiva.Message) {
		if strings.HasPrefix(q.Namespace, "v2/") {
			_ = c.Send(answer(fakeModels["digits"].metadata))
			return
		}
		deadline <- jsonscan.Field(q.Metadata, "timeout_ms") != nil
		_ = c.Send(fakeModels["digits"].answer(q))
	})
	defer s.Close()
	for _, timeout := range []string{"", "5s"} {
		args := []string{"infer", "digits", "a.png", "--addr", s.Addr()}
		if timeout != "" {
			args = append(args, "--timeout", timeout)
		}
		if code := run(context.Background(), args, nil, io.Discard, io.Discard); code != exitOK {
			t.Fatal(code)
		}
		if sent := <-deadline; sent != (timeout != "") {
			t.Errorf("--timeout %q: sent %v", timeout, sent)
		}
	}
}

// A server that accepts and stays silent costs no more than the timeout.
func TestTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := shivatest.Serve(l, func(*shivatest.Conn, *shiva.Message) {})
	defer silent.Close()
	for _, args := range [][]string{
		{"infer", "digits", "x.png", "--addr", l.Addr().String(), "--timeout", "50ms"},
		{"status", "--admin", l.Addr().String(), "--timeout", "50ms"},
	} {
		var stderr bytes.Buffer
		code := run(context.Background(), args, nil, io.Discard, &stderr)
		if code != exitUnreachable {
			t.Errorf("%v: exit %d: %s", args, code, stderr.String())
		}
	}
}

func TestInterrupt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := shivatest.Serve(l, func(*shivatest.Conn, *shiva.Message) { cancel() })
	defer s.Close()
	var stderr bytes.Buffer
	code := run(ctx, []string{"infer", "digits", "x.png", "--addr", s.Addr()}, nil, io.Discard, &stderr)
	if code != exitUnreachable || stderr.String() != "shivactl: interrupted\n" {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}

// TestSettingText: settings are printed in no syntax of Go.
func TestSettingText(t *testing.T) {
	for want, v := range map[string]any{
		"-": nil, "20ms": "20ms", "2": 2., "true": true, `["a","b c"]`: []any{"a", "b c"}, `{"a":1}`: map[string]any{"a": 1.},
	} {
		if got := settingText(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
	for _, v := range []any{[]any{}, map[string]any{}} {
		if got := settingText(v); got != "-" {
			t.Errorf("%v: %q", v, got)
		}
	}
}

// The lists of commands and of common flags fit a terminal of 80 columns, and every command has a
// short help.
func TestShortHelp(t *testing.T) {
	c := &cli{given: map[string]bool{}}
	root := c.root()
	var out bytes.Buffer
	root.SetOut(&out)
	overview(root)
	for _, cmd := range root.Commands() {
		list(&out, cmd.Commands())
		for _, one := range append(cmd.Commands(), cmd) {
			if one.Short == "" || one.Long == "" && !one.Hidden {
				t.Errorf("%s has no help", one.CommandPath())
			}
		}
	}
	for line := range strings.Lines(out.String()) {
		if len(strings.TrimSuffix(line, "\n")) > helpColumns {
			t.Errorf("too long: %s", line)
		}
	}
}

// Scripts may have flags with one dash; values and words after "--" stay as they are.
func TestOneDash(t *testing.T) {
	root := (&cli{given: map[string]bool{}}).root()
	for args, want := range map[string]string{
		"models -json -admin=h:1 digits":   "models --json --admin=h:1 digits",
		"-timeout 5s models -h":            "--timeout 5s models -h",
		"infer digits -id -json -":         "infer digits --id -json -",
		"infer digits --id -json -top 1":   "infer digits --id -json --top 1",
		"bench digits --rate -5":           "bench digits --rate -5",
		"bench digits --rate=-5 -for 1s":   "bench digits --rate=-5 --for 1s",
		"models -watch -json":              "models --watch --json",
		"infer mood -text -- -happy -json": "infer mood --text -- -happy -json",
		"status -frobnicate -addr":         "status --frobnicate --addr",
	} {
		if got := strings.Join(twoDashes(root, strings.Fields(args)), " "); got != want {
			t.Errorf("%s: got %s, expected %s", args, got, want)
		}
	}
}

// Packages have a page for each command, and completion for each shell.
func TestManual(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1750000000")
	dir := t.TempDir()
	var errs bytes.Buffer
	if code := run(t.Context(), []string{"man", dir}, nil, io.Discard, &errs); code != exitOK {
		t.Fatalf("exit %d: %s", code, &errs)
	}
	for name, want := range map[string]string{
		"shivactl.1":                    `(?s)"Jun 2025".*Exit code: 0 success.*--tls-ca.*shivactl-whoami`,
		"shivactl-models-set-version.1": `(?s)set-version NAME \[VERSION\].*shivactl-models\(1\)`,
		"shivactl-bench.1":              `(?s)\.EX\n *--rate N +an open loop.*\n\.EE.*--door.*=tcp.*such as p99<50ms`,
		"shivactl.bash":                 "__start_shivactl", "_shivactl": "#compdef", "shivactl.fish": "complete",
		"shivactl.ps1": "Register-ArgumentCompleter",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !regexp.MustCompile(want).Match(text) {
			t.Errorf("%s: %v, expected %s in\n%s", name, err, want, text)
		}
		if name != "shivactl.1" && strings.Contains(string(text), "tls-insecure") {
			t.Errorf("%s says again what shivactl.1 says of all commands", name)
		}
	}
}
