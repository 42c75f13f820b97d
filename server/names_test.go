package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// In TestNobodyIsToldNames all of the server's names contain hiddenName, and clients ask for
// nearName, so similar that the error names the real one to identities that may know it.
const hiddenName, nearName = "zsecret", "zsecre"

// An identity without rights learns no name from any answer of any door: the walk uses every path,
// call and namespace. To an identity with all rights each door tells names, which shows that the
// walk goes where they are.
func TestNobodyIsToldNames(t *testing.T) {
	t.Parallel() // it waits
	s, _ := loaded(t, new(logged), func(c *config.Config) {
		c.Identities = []config.Identity{declared("nothing", "infer:nothing"), declared("server", "serve:nothing"),
			declared("all", "infer", "feedback", "load", "serve", "admin:write")}
		c.Server.RequiredModels = []string{hiddenName, hiddenName + "gone"}
		c.Supervised = []config.Container{{Name: hiddenName + "s", Model: hiddenName + "t",
			Command: []string{"sleep", "600"},
			Process: config.Process{Replicas: config.Fixed(1), StopTimeout: time.Second}}}
		c.SharedMemory.Directory = t.TempDir()
		c.Admin.Profiling = true
		if err := os.WriteFile(c.SharedMemory.Directory+"/"+hiddenName, make([]byte, 8), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: hiddenName, Version: hiddenName + "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	g := &guardedServer{Server: s}
	if code, body := g.http(t, s.Addrs().Admin.String(), tokenOf("all"), "POST", "/v1/apps",
		`{"name":"zsecrets","models":["zsecret"]}`); code != 201 {
		t.Fatalf("the application: %d %s", code, body)
	}
	w := &nameWalk{t: t, s: s, grpc: payGRPC(t, "", from("127.0.0.1", s.Addrs().GRPC[0])).conn}
	for _, one := range []struct {
		door  string
		walk  func(token string)
		least int // questions
	}{
		{"rest", func(token string) { w.http(token, s.Addrs().REST[0], "/v2/docs/openapi.json", "/v2/modelz", "/") }, 60},
		{"admin", func(token string) {
			w.http(token, s.Addrs().Admin, "/v1/openapi.json", "/", "/page/main.js", "/v1/watch?model="+nearName, "/v1",
				"/debug/pprof/", "/debug/pprof/goroutine?debug=2")
		}, 60},
		{"tcp", w.shiva, 25},
		{"gRPC", w.calls, 15},
		{"containers", w.registers, 3}, // last: once nearName exists, no error names similar ones
	} {
		door, walk := one.door, one.walk
		for _, token := range []string{"", "unknown", tokenOf("nothing"), tokenOf("server")} {
			w.asked = 0
			w.told.Reset()
			walk(token)
			if told := w.told.String(); strings.Contains(told, hiddenName) {
				at := strings.Index(told, hiddenName)
				t.Errorf("%s tells names to whoever shows %q: …%s", door, token,
					told[max(0, at-300):min(len(told), at+100)])
			}
			if w.asked < one.least {
				t.Errorf("%s: %d questions, there are at least %d", door, w.asked, one.least)
			}
		}
		w.told.Reset()
		walk(tokenOf("all"))
		if !strings.Contains(w.told.String(), hiddenName) && door != "containers" { // which never tells names
			t.Errorf("%s tells nobody a name, so that the walk would notice none: %s", door, &w.told)
		}
	}
}

// A nameWalk records all answers of the doors.
type nameWalk struct {
	t     *testing.T
	s     *Server
	grpc  *grpc.ClientConn
	asked int
	told  strings.Builder
}

func (w *nameWalk) note(what ...any) {
	w.asked++
	fmt.Fprintln(&w.told, what...)
}

// http requests all paths of a door's OpenAPI document, with all methods, and some more.
func (w *nameWalk) http(token string, door net.Addr, document string, more ...string) {
	ask := func(method, path, body string) string {
		r, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+door.String()+path,
			strings.NewReader(body))
		if err != nil {
			w.t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			w.t.Fatal(err)
		}
		defer a.Body.Close()
		var text []byte
		if a.Header.Get("Content-Type") == "text/event-stream" { // it has no end
			for lines := bufio.NewScanner(a.Body); !bytes.Contains(text, []byte("event: logs")) && lines.Scan(); {
				text = append(text, lines.Text()...)
			}
		} else if text, err = io.ReadAll(a.Body); err != nil {
			w.t.Fatal(err)
		}
		w.note(method, path, a.Status, a.Header, string(text), a.Trailer)
		return string(text)
	}
	var all struct{ Paths map[string]any }
	if code, text := (&guardedServer{Server: w.s}).
		http(w.t, door.String(), tokenOf("all"), "GET", document, ""); code != 200 ||
		json.Unmarshal([]byte(text), &all) != nil {
		w.t.Fatal(code, text)
	}
	for _, path := range more {
		all.Paths[path] = nil
	}
	for path := range all.Paths {
		path = strings.NewReplacer("{model}", nearName, "{name}", nearName, "{region}", nearName, "{version}", "1").
			Replace(path)
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"} {
			body := "{}"
			if strings.HasSuffix(path, "/infer") {
				body = `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`
			}
			ask(method, path, body)
		}
	}
}

// shiva uses all namespaces of the server, and those of models and applications.
func (w *nameWalk) shiva(token string) {
	namespaces := strings.Fields("!live !ready !server !models !whoami !zsecre v2 v2/repository/index v2/systemsharedmemory/status v2/systemsharedmemory/region/NAME/status " +
		"v2/systemsharedmemory/region/NAME/register NAME NAME/1 NAME/update v2/models/NAME/infer nothing nothing/1 nothing/update")
	for _, of := range []string{"v2/models/NAME", "v2/models/NAME/versions/1"} {
		namespaces = append(namespaces, of, of+"/ready", of+"/config", of+"/stats")
	}
	namespaces = append(namespaces, "v2/models", "v2/models/stats", "v2/health/live", "v2/health/ready")
	for _, namespace := range namespaces {
		c := dial(w.t, w.s)
		m := &shiva.Message{Namespace: strings.ReplaceAll(namespace, "NAME", nearName), Metadata: []byte(`{}`),
			Tensors: []tensor.Tensor{row()}}
		if token != "" {
			m.Metadata = fmt.Appendf(nil, `{"token":%q}`, token)
		}
		a, err := c.Do(w.t.Context(), m)
		w.note(m.Namespace, err)
		if err == nil {
			w.told.Write(a.Metadata)
			a.Release()
		}
		c.Close()
	}
}

// calls makes all gRPC calls, with names in all text fields.
func (w *nameWalk) calls(token string) {
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	for _, name := range []protoreflect.FullName{"inference.GRPCInferenceService", "grpc.health.v1.Health"} {
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			w.t.Fatal(err)
		}
		methods := found.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			m := methods.Get(i)
			q, a := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
			for k := range m.Input().Fields().Len() {
				if f := m.Input().Fields().Get(k); f.Kind() == protoreflect.StringKind && !f.IsList() && f.Name() != "model_version" {
					q.Set(f, protoreflect.ValueOfString(nearName))
				}
			}
			stream, err := w.grpc.NewStream(ctx,
				&grpc.StreamDesc{ClientStreams: m.IsStreamingClient(), ServerStreams: m.IsStreamingServer()},
				fmt.Sprintf("/%s/%s", name, m.Name()))
			if err == nil {
				_ = stream.SendMsg(q) // the answer has the error
				_ = stream.CloseSend()
				err = stream.RecvMsg(a)
			}
			s, _ := status.FromError(err)
			w.note(m.FullName(), a, err, s.Details())
			if err != nil {
				header, _ := stream.Header()
				w.note(header, stream.Trailer())
			}
		}
	}
}

// registers tries to register as a container.
func (w *nameWalk) registers(token string) {
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	for _, name := range []string{nearName, "zsecret/1", ""} {
		c, err := containertest.Dial(w.t.Context(), w.s.Addrs().Containers[0].String(),
			containertest.Model{Name: name, Version: "9", Inputs: x, Outputs: x, Token: token})
		if err != nil {
			err = fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "zsecret/1", "NAME"))
		} else {
			c.Close()
		}
		w.note(err)
	}
}
