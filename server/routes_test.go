package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

func routeTo(to string, metadata map[string]any) config.Route {
	return config.Route{To: to, Metadata: metadata}
}

// routed starts a server with routes to the model of a stage.
func routed(t *testing.T) (*Server, *stage) {
	s := start(t, func(c *config.Config) {
		c.Routes = config.Routes{
			"robot":  routeTo("m/latest", map[string]any{"stream": "left", "wait": false}),
			"second": routeTo("robot", map[string]any{"stream": "right"}),
			"plain":  routeTo("m", nil),
			"exact":  routeTo("m/1", nil),
		}
	})
	return s, newStage(t, s, "m", 1)
}

// TestRoutesThroughEveryDoor: a route is a name like others, through every door. Over Shiva it
// takes constant bytes, whatever they are.
func TestRoutesThroughEveryDoor(t *testing.T) {
	s, g := routed(t)
	doors := cameraDoors(t, s)
	for i, stream := range []string{"left", "right"} {
		answer := doors[0].ask("plain", frameOf(stream, 10+i))
		g.answer(0, int32(10+i))
		g.expect(answer, "a camera that sends to a route", fmt.Sprintf("frame %d is %d, skipped 0", 10+i, 10+i))
	}
	const left, right = "frame 10 is 10, skipped 0", "frame 11 is 11, skipped 0"
	for _, p := range pollers(t, s) {
		for route, want := range map[string]string{"robot": left, "second": right} {
			if got := p.ask(route, map[string]any{"stream": "other"}); got.String() != want {
				t.Errorf("%s, newest of %s: %v (%v), want %s", p.name, route, got, got.err, want)
			}
		}
		if got := p.ask("plain", map[string]any{"stream": "left"}); got.String() != left {
			t.Errorf("%s, newest of a route to a model: %v (%v)", p.name, got, got.err)
		}
	}

	// As an inference.
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	do := func(m *shiva.Message) shown {
		a, err := client.Do(t.Context(), m)
		if err != nil {
			return shown{err: shivaFault(err).(*refusal)}
		}
		return shownBy(t, a)
	}
	cpp := frameOf("other", 3).message(t, "robot")
	cpp.Metadata = []byte(`{"__tensors__":["a","b"],"counter":0,"seq":7,"max_age":"soon"}`)
	for _, m := range []*shiva.Message{{Namespace: "robot"}, {Namespace: "v2/models/robot/infer"}, cpp} {
		if got := do(m); got.String() != left {
			t.Errorf("%s %s: %v (%v)", m.Namespace, m.Metadata, got, got.err)
		}
	}
	web, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0])
	q, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, web.base+"/v2/models/robot/infer",
		strings.NewReader(`{"inputs":[]}`))
	if got := shownOverHTTP(web, q); got.String() != left {
		t.Errorf("POST infer: %v (%v)", got, got.err)
	}
	if a, err := rpc.client.ModelInfer(t.Context(), &pb.ModelInferRequest{ModelName: "robot"}); err != nil ||
		shownIn(a).String() != left {
		t.Errorf("ModelInfer: %v (%v)", a, err)
	}
	if _, err := rpc.client.ModelInfer(t.Context(),
		&pb.ModelInferRequest{ModelName: "robot",
			Parameters: map[string]*pb.InferParameter{"max_age_ms": inferParameter("soon")}}); err == nil ||
		!strings.Contains(err.Error(), "max_age_ms") {
		t.Errorf("ModelInfer with a faulty max_age_ms: %v", err)
	}
}

// TestRoutesAreDescribed: a route is listed and described as models are, without inputs where none
// are sent.
func TestRoutesAreDescribed(t *testing.T) {
	s, _ := routed(t)
	web, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0])
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for route, want := range map[string]string{
		"plain/2": `has no version "2"`, "exact/2": `stands for version "1"`, "plain/1/x": `no version`, "robo": `nearest: "robot"`,
	} {
		if a, err := client.Do(t.Context(), &shiva.Message{Namespace: route}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v (%v), want %s", route, a, err, want)
		}
	}
	get := func(path string) string {
		resp, err := http.Get(web.base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.Status + " " + string(text)
	}
	for path, want := range map[string]string{
		"/v2/models/robot":        `"name":"robot","versions":["1"],"platform":"","inputs":[],"outputs":[{"name":"x"`,
		"/v2/models/plain":        `"inputs":[{"name":"x"`,
		"/v2/models/robot/ready":  `200 OK {"name":"robot","ready":true}`,
		"/v2/models/robot/config": `"route":{"string_value":"m/latest"}`,
		"/v2/models/exact/stats":  `"name":"m"`,
		"/v2/models":              `"exact","m","plain","robot","second"`,
	} {
		if got := get(path); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if m, err := rpc.client.ModelMetadata(t.Context(), &pb.ModelMetadataRequest{Name: "robot"}); err != nil ||
		m.Name != "robot" || len(m.Inputs) != 0 {
		t.Errorf("ModelMetadata: %v (%v)", m, err)
	}
	if m, err := rpc.client.ModelReady(t.Context(), &pb.ModelReadyRequest{Name: "second"}); err != nil || !m.Ready {
		t.Errorf("ModelReady: %v (%v)", m, err)
	}
	list, err := client.Do(t.Context(), &shiva.Message{Namespace: shiva.ModelsNamespace})
	if want := `{"name":"second","to":"robot, stream = \"right\", wait = false","ready":true}`; err != nil ||
		!strings.Contains(string(list.Metadata), want) {
		t.Errorf("!models: %s (%v), want %s", list.Metadata, err, want)
	}
	if index, err := rpc.client.RepositoryIndex(t.Context(), &pb.RepositoryIndexRequest{}); err != nil ||
		!slices.ContainsFunc(index.Models, func(m *pb.RepositoryIndexResponse_ModelIndex) bool {
			return m.Name == "robot" && m.State == "READY"
		}) {
		t.Errorf("index: %v (%v)", index, err)
	}
}

// TestRoutesFixMetadata: what a route fixes reaches the model, and the server, in the place of what
// the client sends.
func TestRoutesFixMetadata(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Routes = config.Routes{"tank": routeTo("inner", map[string]any{"tank": "north", "priority": int64(0),
			"timeout_ms": int64(60_000)}),
			"inner": routeTo("tanks", map[string]any{"tank": "south", "unit": []any{"mm"}})}
	})
	seen := make(chan string, 1)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	worker := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		seen <- fmt.Sprint(string(b.Parts[0].Parameters), " ", b.Parts[0].Priority)
		return echo(b)
	})
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "tanks", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, worker, scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for metadata, want := range map[string]string{
		`{}`: `{"tank":"north","unit":["mm"]} 0`,
		`{"tank":"east","mine":1,"priority":9,"timeout_ms":1e-9}`: `{"mine":1,"tank":"north","unit":["mm"]} 0`,
	} {
		x, _ := tensor.FromSlice(tensor.Shape{1, 2}, []int32{1, 2})
		if _, err := client.Do(t.Context(),
			&shiva.Message{Namespace: "tank", Metadata: []byte(metadata), Tensors: []tensor.Tensor{x}}); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got != want {
			t.Errorf("%s: the model gets %s, want %s", metadata, got, want)
		}
	}
}

// TestRoutesWhoMay: a route gives no rights. Whoever may ask for what it stands for may ask for it,
// and for nobody else it exists.
func TestRoutesWhoMay(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Identities = []config.Identity{declared("may", "infer:echo"), declared("only-route", "infer:way"),
			declared("none", "infer:other")}
		c.Routes = config.Routes{"way": routeTo("echo", nil)}
	})
	for who, want := range map[string]string{"may": "", "only-route": shiva.NotFound, "none": shiva.PermissionDenied} {
		_, err := askAs(t, s, who, frameOf("cam", 1).message(t, "way"))
		remote, _ := errors.AsType[*shiva.RemoteError](err)
		if want == "" && err != nil || want != "" && (remote == nil || remote.Type != want) {
			t.Errorf("%s: %v, want %s", who, err, want)
		}
		list, err := askAs(t, s, who, &shiva.Message{Namespace: shiva.ModelsNamespace})
		if err != nil || strings.Contains(string(list.Metadata), "way") != (want == "") {
			t.Errorf("%s sees %s (%v)", who, list.Metadata, err)
		}
	}
}

// TestRoutesReload: routes come, change and go with the file; one that has the name of a model
// hides it, and status says so.
func TestRoutesReload(t *testing.T) {
	var file config.Config
	s := start(t, func(c *config.Config) { file = c.Clone() })
	s.ReloadFrom(func() (config.Config, error) { return file.Clone(), nil }, nil)
	newStage(t, s, "m", 1)
	ask := func(name string) error {
		_, err := s.Infer(context.Background(), &Request{Name: name, Inputs: frameOf("", 1).message(t, name).Tensors})
		return err
	}
	if err := ask("way"); err == nil {
		t.Error("a route that is not there answers")
	}
	file.Routes = config.Routes{"way": routeTo("echo", nil), "m": routeTo("echo", nil)}
	if done, err := s.Reload(); err != nil || len(done.Changed) != 2 || len(done.Waiting) != 0 {
		t.Fatal(done, err)
	}
	for _, name := range []string{"way", "m"} {
		if err := ask(name); err != nil {
			t.Error(name, err)
		}
	}
	if got := s.report.Status().Warnings; !slices.ContainsFunc(got, func(w string) bool { return strings.Contains(w, `route "m" hides the model of this name`) }) {
		t.Errorf("warnings: %q", got)
	}
	file.Routes["way"] = routeTo("way", nil)
	if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), "a cycle: way -> way") {
		t.Error(err)
	}
	file.Routes = nil
	if _, err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := ask("way"); err == nil {
		t.Error("a route that is gone answers")
	}
}
