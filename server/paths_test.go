package server

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// The protocol's descriptions of the server and of models are the same through every door, path for
// path, except for the extensions of a door. Members without a field in Triton's messages are
// missing over gRPC.
func TestPathsThroughEveryDoor(t *testing.T) {
	s := start(t, nil)
	x, y := tensor.Spec{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}},
		tensor.Spec{Name: "y", DType: tensor.Int8, Shape: tensor.Shape{-1}, Optional: true}
	for _, m := range []containertest.Model{
		{Name: "m", Version: "1", Inputs: []tensor.Spec{x, y}, Outputs: []tensor.Spec{x}, Batched: new(false),
			Parameters: json.RawMessage(`{"colour":"blue"}`)},
		{Name: "latest", Version: "infer", Inputs: []tensor.Spec{x}, Outputs: []tensor.Spec{x}}, // named as verbs are
		{Name: "infer", Version: "latest", Inputs: []tensor.Spec{x}, Outputs: []tensor.Spec{x}},
	} {
		c, err := containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0], m)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	leaving := join(t, s, "stats.m", tensor.Int8, tensor.Shape{-1}, nil)
	budgettest.Until(t, "the models to serve", func() bool {
		return serves(s, "m", "1") && serves(s, "stats.m", "1") && serves(s, "latest", "infer") && serves(s, "infer", "latest")
	})
	if _, err := registry(t, s).Create(t.Context(), apps.Definition{Name: "app", Models: []string{"m"}}); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the application", func() bool {
		target, err := s.gate.Target("app", "")
		return err == nil && target.Live > 0
	})
	web, tcp, rpc := newHTTP(t, s.Addrs().REST[0]), newTCP(t, s.Addrs().TCP[0]), newGRPC(t, s.Addrs().GRPC[0])
	ask := func(route, metadata string) (map[string]any, error) {
		m, err := tcp.client.Do(t.Context(), &shiva.Message{Namespace: route, Metadata: []byte(metadata)})
		if err != nil {
			return nil, shivaFault(err)
		}
		defer m.Release()
		var reply map[string]any
		return reply, json.Unmarshal(m.Metadata, &reply)
	}
	for _, path := range []string{
		"v2", "v2/", "v2/health/live", "v2/health/ready", "v2/models", "v2/models/stats", "v2/models/m",
		"v2/models/m/versions/1", "v2/models/stats.m", "v2/models/app",
		"v2/models/latest", "v2/models/latest/versions/infer", "v2/models/infer", "v2/models/infer/versions/latest",
		"v2/models/m/config", "v2/models/m/versions/1/config", "v2/models/app/config", "v2/models/m/stats",
		"v2/models/m/versions/1/stats", "v2/models/stats.m/stats", "v2/models/app/stats", "v2/models/m/ready", "v2/models/app/ready",
	} {
		var want map[string]any
		if err := web.call("GET", "/"+path, "", &want); err != nil {
			t.Fatal(path, err)
		}
		got, err := ask(path, "")
		if path == "v2" || path == "v2/" {
			delete(want, "extensions")
			delete(got, "extensions")
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s over Shiva: got %v, %v, over HTTP %v", path, got, err, want)
		}
		of, isModel := strings.CutPrefix(path, "v2/models/")
		if name, version, _ := strings.Cut(of, "/versions/"); isModel && !strings.Contains(name+version, "/") &&
			name != "stats" {
			a, err := rpc.client.ModelMetadata(t.Context(), &pb.ModelMetadataRequest{Name: name, Version: version})
			if err != nil {
				t.Fatal(path, err)
			}
			sameMetadata(t, path, a, want)
		}
	}
	var index []any
	if err := web.call("POST", "/v2/repository/index", "", &index); err != nil {
		t.Fatal(err)
	}
	if got, err := ask("v2/repository/index", `{"id": 7}`); err != nil ||
		!reflect.DeepEqual(got, map[string]any{"id": 7.0, "models": index}) {
		t.Errorf("index: got %v, %v, expected %v", got, err, index)
	}
	leaving.Close()
	budgettest.Until(t, "a model to be gone", func() bool { return !serves(s, "stats.m", "1") })
	for metadata, want := range map[string]int{`{"ready":true}`: 5, `{"ready":false}`: 6} {
		if got, err := ask("v2/repository/index", metadata); err != nil || len(got["models"].([]any)) != want {
			t.Errorf("index %s: got %v, %v, expected %d models", metadata, got, err, want)
		}
	}
	for path, want := range map[string]string{
		"v2/models/n/config":            `no model, application or pipeline "n"`,
		"v2/models/n":                   `no model, application or pipeline "n"`,
		"v2/models/n/ready":             `no model, application or pipeline "n"`,
		"v2/models/app/versions/1":      `"app" is an application, which has no versions`,
		"v2/models/m/versions/9/config": `no version "9"`,
		"v2/models/m/versions/9/stats":  `no version "9"`,
		"v2/models/m/configs":           "there are infer, latest, ready, config, stats",
		"v2/repository/models/m/unload": "no model",
	} {
		if got, err := ask(path, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v, expected %s", path, got, err, want)
		}
	}
	if _, err := ask("v2/repository/index", `{"ready":1}`); err == nil || !strings.Contains(err.Error(), "true or false") {
		t.Errorf("ready that is a number: %v", err)
	}
}

// sameMetadata compares a model's metadata over gRPC with the JSON of HTTP.
func sameMetadata(t *testing.T, path string, a *pb.ModelMetadataResponse, want map[string]any) {
	t.Helper()
	text, err := json.Marshal(a) // with the names of the protocol
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	strip := func(object map[string]any) {
		for _, name := range []string{"batched", "optional", "ragged"} {
			delete(object, name)
		}
		for name, value := range object {
			if list, is := value.([]any); is && len(list) == 0 || value == "" {
				delete(object, name)
			}
		}
	}
	strip(want)
	for _, list := range []string{"inputs", "outputs"} {
		for _, one := range want[list].([]any) {
			strip(one.(map[string]any))
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s over gRPC: got %v, over HTTP %v", path, got, want)
	}
}

// A platform that the protocol names has that name through every door; others are shown as the
// container declares them.
func TestPlatforms(t *testing.T) {
	s := start(t, nil)
	web, tcp, rpc := newHTTP(t, s.Addrs().REST[0]), newTCP(t, s.Addrs().TCP[0]), newGRPC(t, s.Addrs().GRPC[0])
	x := []tensor.Spec{{Name: "x", DType: tensor.Int8, Shape: tensor.Shape{-1}}}
	for i, tc := range []struct{ says, want string }{
		{"ONNXRuntime", "onnx_onnxv1"}, {"tensorrt_plan", "tensorrt_plan"}, {"torchscript", "pytorch_torchscript"},
		{"python", "python"}, {"", ""},
	} {
		name := string(rune('a' + i))
		c, err := containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0],
			containertest.Model{Name: name, Version: "1", Platform: tc.says, Inputs: x, Outputs: x})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		budgettest.Until(t, "the container to serve", func() bool { return serves(s, name, "1") })
		var metadata, config, reply struct{ Platform string }
		if err := web.call("GET", "/v2/models/"+name, "", &metadata); err != nil || metadata.Platform != tc.want {
			t.Errorf("%q over HTTP: %+v %v", tc.says, metadata, err)
		}
		if err := web.call("GET", "/v2/models/"+name+"/config", "", &config); err != nil || config.Platform != tc.want {
			t.Errorf("%q in the configuration: %+v %v", tc.says, config, err)
		}
		m, err := tcp.client.Do(t.Context(), &shiva.Message{Namespace: "v2/models/" + name})
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(m.Metadata, &reply); err != nil || reply.Platform != tc.want {
			t.Errorf("%q over Shiva: %+v %v", tc.says, reply, err)
		}
		m.Release()
		if a, err := rpc.client.ModelMetadata(t.Context(), &pb.ModelMetadataRequest{Name: name}); err != nil ||
			a.Platform != tc.want {
			t.Errorf("%q over gRPC: %v %v", tc.says, a, err)
		}
	}
}
