package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// tokenOf returns the token of an identity of the tests. Its ending occurs in no other text.
func tokenOf(name string) string {
	return "token-of-" + strings.ReplaceAll(name, ":", "-") + "-7Qx9s3cretZ"
}

func declared(name string, may ...string) config.Identity {
	sum := sha256.Sum256([]byte(tokenOf(name)))
	return config.Identity{Name: name, TokenSHA256: config.Hashes{hex.EncodeToString(sum[:])}, May: may,
		Regions: []string{"*"}}
}

// rightsOfCats are all rights, for "cat" if they have names. Each has an identity of the same name
// with that right only.
var rightsOfCats = []string{"infer", "feedback", "load", "serve", "admin:read", "admin:write"}

func guarded(c *config.Config) {
	for _, right := range rightsOfCats {
		may := right
		if !strings.HasPrefix(right, "admin") {
			may += ":cat*"
		}
		c.Identities = append(c.Identities, declared(right, may))
	}
	c.Supervised = []config.Container{{Name: "catprocess", Command: []string{"sh", "-c", "exec sleep 600"},
		Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}}}
}

// A guardedServer has the models cat and secret, and the application cats.
type guardedServer struct {
	*Server
	file *config.Config
	log  *logged
	grpc *grpc.ClientConn
}

func startGuarded(t *testing.T) *guardedServer {
	t.Helper()
	log, dir := new(logged), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 8), 0o600); err != nil {
		t.Fatal(err)
	}
	s, file := loaded(t, log, func(c *config.Config) {
		guarded(c)
		c.SharedMemory.Directory = dir
	})
	g := &guardedServer{Server: s, file: file, log: log, grpc: dialGRPC(t, s)}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	for _, name := range []string{"cat", "secret"} {
		if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: name, Version: "1"},
			scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if code, body := g.http(t, s.Addrs().Admin.String(), tokenOf("admin:write"), "POST", "/v1/apps",
		`{"name":"cats","models":["cat"]}`); code != 201 {
		t.Fatalf("the application: %d %s", code, body)
	}
	return g
}

// http asks with a token, "" for none, and returns the status and the body.
func (g *guardedServer) http(t *testing.T, addr, token, method, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if challenge := resp.Header.Get("WWW-Authenticate"); (resp.StatusCode == 401) != (challenge != "") {
		t.Errorf("%s %s: status %d with WWW-Authenticate %q", method, path, resp.StatusCode, challenge)
	}
	return resp.StatusCode, string(text)
}

// shiva sends a message on a new connection.
func (g *guardedServer) shiva(t *testing.T, token, namespace, members string, tensors ...tensor.Tensor) error {
	t.Helper()
	c := dial(t, g.Server)
	defer c.Close()
	return g.shivaOn(t, c, token, namespace, members, tensors...)
}

func (g *guardedServer) shivaOn(t *testing.T, c *shiva.Client, token, namespace, members string,
	tensors ...tensor.Tensor) error {
	t.Helper()
	if token != "" {
		members = strings.TrimPrefix(members+fmt.Sprintf(`,"token":%q`, token), ",")
	}
	answer, err := c.Do(t.Context(), &shiva.Message{Namespace: namespace, Metadata: []byte("{" + members + "}"),
		Tensors: tensors})
	if err == nil {
		answer.Release()
	}
	return err
}

func row() tensor.Tensor {
	return tensor.Tensor{DType: tensor.Int32, Shape: tensor.Shape{1, 2}, Data: make([]byte, 8)}
}

// as returns a context for calls with a token.
func as(t *testing.T, token string) context.Context {
	if token == "" {
		return t.Context()
	}
	return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
}

func inferRequest(model string) *pb.ModelInferRequest {
	return &pb.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{make([]byte, 8)},
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: []int64{1, 2}}}}
}

const (
	allowed         = "allowed"
	unauthenticated = "Unauthenticated"
	denied          = "PermissionDenied"
)

// verdict returns what an error, or a status, tells about rights.
func verdict(t *testing.T, what any) string {
	t.Helper()
	if what == nil {
		return allowed
	}
	if code, ok := what.(int); ok {
		switch code {
		case 200, 201:
			return allowed
		case 401:
			return unauthenticated
		case 403:
			return denied
		}
		return fmt.Sprint("HTTP ", code)
	}
	err := what.(error)
	if e, ok := errors.AsType[*shiva.RemoteError](err); ok {
		return e.Type
	}
	if e, ok := errors.AsType[*containertest.RefusedError](err); ok {
		switch {
		case strings.HasPrefix(e.Reason, "unauthenticated"):
			return unauthenticated
		case strings.HasPrefix(e.Reason, "permission denied"):
			return denied
		}
	}
	switch status.Code(err) {
	case codes.OK:
		return allowed
	case codes.Unauthenticated:
		return unauthenticated
	case codes.PermissionDenied:
		return denied
	}
	return err.Error()
}

// An action is something that a client, an operator or a container does, and the rights of which it
// requires one; empty: it requires an identity; nil: it is allowed to everyone.
type action struct {
	what   string
	rights []string
	do     func(token string) any // for verdict
}

func (g *guardedServer) actions(t *testing.T) []action {
	rest, admin := g.Addrs().REST[0].String(), g.Addrs().Admin.String()
	over := func(addr, method, path, body string) func(string) any {
		return func(token string) any { code, _ := g.http(t, addr, token, method, path, body); return code }
	}
	client := pb.NewGRPCInferenceServiceClient(g.grpc)
	serve := func(token string) any {
		x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
		c, err := containertest.Dial(t.Context(), g.Addrs().Containers[0].String(),
			containertest.Model{Name: "catfish", Version: "2", Inputs: x, Outputs: x, Token: token})
		if err != nil {
			return err
		}
		c.Close()
		return nil
	}
	asks := func(namespace, members string, tensors ...tensor.Tensor) func(token string) any {
		return func(token string) any { return orNil(g.shiva(t, token, namespace, members, tensors...)) }
	}
	sees := []string{"infer", "feedback", "load", "admin:read", "admin:write"}
	reads, writes, anybody := []string{"admin:read", "admin:write"}, []string{"admin:write"}, []string{}
	const question = `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`
	const lesson = `{"input":[1,2],"loss":0.5}`
	all := []action{
		{"Shiva infer", []string{"infer"}, asks("cat", "", row())},
		{"Shiva infer by version", []string{"infer"}, asks("cat/1", "", row())},
		{"Shiva infer by path", []string{"infer"}, asks("v2/models/cat/infer", "", row())},
		{"Shiva infer by application", []string{"infer"}, asks("cats", "", row())},
		{"Shiva feedback", []string{"feedback"}, asks("cats/update", `"loss":0.5`, row())},
		{"Shiva metadata", sees, asks("v2/models/cat", "")},
		{"Shiva list", anybody, asks("!models", "")},
		{"Shiva whoami", anybody, asks("!whoami", "")},
		{"Shiva server", anybody, asks("!server", "")},
		{"Shiva index", anybody, asks("v2/repository/index", "")},
		{"Shiva live", nil, asks("!live", "")},
		{"Shiva ready", nil, asks("v2/health/live", "")},

		{"HTTP infer", []string{"infer"}, over(rest, "POST", "/v2/models/cat/infer", question)},
		{"HTTP predict", []string{"infer"}, over(rest, "POST", "/cat/predict", `{"input":[1,2]}`)},
		{"HTTP update", []string{"feedback"}, over(rest, "POST", "/cats/update", lesson)},
		{"HTTP metadata", sees, over(rest, "GET", "/v2/models/cat", "")},
		{"HTTP config", sees, over(rest, "GET", "/v2/models/cat/config", "")},
		{"HTTP stats", sees, over(rest, "GET", "/v2/models/cat/stats", "")},
		{"HTTP ready of a model", sees, over(rest, "GET", "/v2/models/cat/versions/1/ready", "")},
		{"HTTP list", anybody, over(rest, "GET", "/v2/models", "")},
		{"HTTP index", anybody, over(rest, "POST", "/v2/repository/index", "{}")},
		{"HTTP server", anybody, over(rest, "GET", "/v2", "")},
		{"HTTP unload", []string{"load"}, over(rest, "POST", "/v2/repository/models/catprocess/unload", "{}")},
		{"HTTP live", nil, over(rest, "GET", "/v2/health/live", "")},
		{"HTTP openapi", nil, over(rest, "GET", "/v2/docs/openapi.json", "")},

		{"gRPC infer", []string{"infer"}, func(token string) any {
			_, err := client.ModelInfer(as(t, token), inferRequest("cat"))
			return orNil(err)
		}},
		{"gRPC stream", []string{"infer"}, func(token string) any { return g.streams(t, token) }},
		{"gRPC metadata", sees, func(token string) any {
			_, err := client.ModelMetadata(as(t, token), &pb.ModelMetadataRequest{Name: "cat"})
			return orNil(err)
		}},
		{"gRPC index", anybody, func(token string) any {
			_, err := client.RepositoryIndex(as(t, token), &pb.RepositoryIndexRequest{})
			return orNil(err)
		}},
		{"gRPC unload", []string{"load"}, func(token string) any {
			_, err := client.RepositoryModelUnload(as(t, token), &pb.RepositoryModelUnloadRequest{ModelName: "catprocess"})
			return orNil(err)
		}},
		{"gRPC live", nil, func(token string) any {
			_, err := client.ServerLive(as(t, token), &pb.ServerLiveRequest{})
			return orNil(err)
		}},

		{"admin reads", reads, over(admin, "GET", "/v1/models", "")},
		{"admin config", reads, over(admin, "GET", "/v1/config", "")},
		{"admin metrics", reads, over(admin, "GET", "/metrics", "")},
		{"admin root", reads, over(admin, "GET", "/", "")},
		{"admin writes", writes, over(admin, "PATCH", "/v1/models/cat", `{"objective":"70ms"}`)},
		{"admin reloads", writes, over(admin, "POST", "/v1/config/reload", "{}")},
		{"admin whoami", anybody, over(admin, "GET", "/v1/whoami", "")},
		{"admin live", nil, over(admin, "GET", "/livez", "")},

		{"a container registers", []string{"serve"}, serve},
	}
	return append(all, g.changes(t)...)
}

// streams asks once over ModelStreamInfer, and returns a value for verdict.
func (g *guardedServer) streams(t *testing.T, token string) any {
	s, err := pb.NewGRPCInferenceServiceClient(g.grpc).ModelStreamInfer(as(t, token))
	if err != nil {
		return err
	}
	_ = s.Send(inferRequest("cat")) // if the call was refused meanwhile, Recv has the reason
	_ = s.CloseSend()
	answer, err := s.Recv()
	switch {
	case err != nil:
		return err
	case strings.HasPrefix(answer.ErrorMessage, "PermissionDenied"):
		return status.Error(codes.PermissionDenied, answer.ErrorMessage)
	case answer.ErrorMessage != "":
		return errors.New(answer.ErrorMessage)
	}
	return nil
}

// changes returns more actions that change something; each continues from the state that the one
// before has left.
func (g *guardedServer) changes(t *testing.T) (list []action) {
	memory := g.memoryDoors(t)
	for _, door := range []string{"tcp", "rest", "grpc"} {
		list = append(list,
			action{door + " registers a region", []string{"infer"}, func(token string) any {
				return g.verdictOf(memory[door].register(token, door, "file"))
			}},
			action{door + " unregisters a region", []string{"infer"}, func(token string) any {
				return g.verdictOf(memory[door].unregister(token, door))
			}})
	}
	for _, c := range []struct{ what, method, path, body string }{
		{"creates", "POST", "/v1/apps", `{"name":"catsanddogs","models":["cat"]}`},
		{"puts", "PUT", "/v1/apps/catsanddogs", `{"name":"catsanddogs","models":["cat"],"slo":"1s"}`},
		{"patches", "PATCH", "/v1/apps/catsanddogs", `{"slo":"2s"}`},
		{"links", "POST", "/v1/apps/catsanddogs/links", `{"model":"secret"}`},
		{"unlinks", "DELETE", "/v1/apps/catsanddogs/links?model=secret", ""},
		{"forgets", "DELETE", "/v1/apps/catsanddogs/policy", ""},
		{"deletes", "DELETE", "/v1/apps/catsanddogs", ""},
		{"gives a cache", "PATCH", "/v1/models/cat", `{"cache":"1MiB"}`},
		{"clears", "DELETE", "/v1/models/cat/cache", ""},
		{"sets a version", "PUT", "/v1/models/cat/default_version", `{"version":"1"}`},
		{"stops", "POST", "/v1/containers/catprocess/stop", "{}"},
		{"imports", "POST", "/v1/import?discard=true", `{"format":1,"applications":[],"policies":[],"settings":{}}`},
	} {
		list = append(list, action{"admin " + c.what, []string{"admin:write"}, func(token string) any {
			code, body := g.http(t, g.Addrs().Admin.String(), token, c.method, c.path, c.body)
			if code != 200 && code != 201 && code != 401 && code != 403 {
				t.Log(body)
			}
			return code
		}})
	}
	return list
}

// verdictOf passes a value that is already a verdict through verdict.
func (g *guardedServer) verdictOf(v any) any {
	switch v {
	case allowed:
		return nil
	case unauthenticated:
		return 401
	case denied:
		return 403
	}
	return fmt.Errorf("%v", v)
}

func orNil(err error) any {
	if err == nil {
		return nil
	}
	return err
}

// Each right is required for its actions and permits no others, on every door.
func TestRightsOnEveryDoor(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	for _, a := range g.actions(t) {
		expect := func(who, token, want string) {
			if a.rights == nil {
				want = allowed
			}
			if got := verdict(t, a.do(token)); got != want {
				t.Errorf("%s as %s: %s, expected %s", a.what, who, got, want)
			}
		}
		expect("nobody", "", unauthenticated)
		expect("somebody unknown", "unknown", unauthenticated)
		for _, right := range rightsOfCats {
			want := denied
			if a.rights != nil && (len(a.rights) == 0 || slices.Contains(a.rights, right)) {
				want = allowed
			}
			expect(right, tokenOf(right), want)
		}
	}
}

// A model that an identity may not use is refused like one that does not exist, and is in no list
// and no text.
func TestHiddenNames(t *testing.T) {
	t.Parallel() // it waits
	g := startGuarded(t)
	rest, admin := g.Addrs().REST[0].String(), g.Addrs().Admin.String()
	client := pb.NewGRPCInferenceServiceClient(g.grpc)
	for _, right := range []string{"infer", "feedback", "load", "serve"} {
		token := tokenOf(right)
		about := func(name string) (all []string) {
			add := func(text any) { all = append(all, strings.ReplaceAll(fmt.Sprint(text), name, "NAME")) }
			for _, namespace := range []string{name, name + "/1", name + "/7", name + "/update", "v2/models/" + name,
				"v2/models/" + name + "/infer", "v2/models/" + name + "/stats"} {
				add(g.shiva(t, token, namespace, "", row()))
			}
			for _, path := range []string{"", "/config", "/stats", "/ready", "/versions/1", "/versions/7"} {
				code, body := g.http(t, rest, token, "GET", "/v2/models/"+name+path, "")
				add(fmt.Sprint(code, body))
			}
			for _, path := range []string{"/v2/models/" + name + "/infer", "/v2/repository/models/" + name + "/load",
				"/v2/repository/models/" + name + "/unload", "/" + name + "/predict", "/" + name + "/update"} {
				code, body := g.http(t, rest, token, "POST", path, `{"input":[1,2],"label":1,"inputs":[]}`)
				add(fmt.Sprint(code, body))
			}
			_, err := client.ModelInfer(as(t, token), inferRequest(name))
			add(err)
			_, err = client.ModelMetadata(as(t, token), &pb.ModelMetadataRequest{Name: name})
			add(err)
			ready, err := client.ModelReady(as(t, token), &pb.ModelReadyRequest{Name: name})
			add(fmt.Sprint(ready.GetReady(), err))
			return all
		}
		is, isNot := about("secret"), about("absent")
		for i := range is {
			if is[i] != isNot[i] {
				t.Errorf("as %s, %q of a model that there is, and %q of one that there is not", right, is[i], isNot[i])
			}
			if !strings.Contains(is[i], "lacks") && !strings.Contains(is[i], "false") {
				t.Errorf("as %s: %q, expected the missing right", right, is[i])
			}
		}
		told := new(strings.Builder)
		for _, path := range []string{"/v2/models", "/v2/models/stats", "/v2/models/cay", "/v2/models/cat/versions/9", "/v2/health/ready"} {
			_, body := g.http(t, rest, token, "GET", path, "")
			told.WriteString(body)
		}
		_, body := g.http(t, rest, token, "POST", "/v2/repository/index", "{}")
		told.WriteString(body)
		_, body = g.http(t, rest, token, "POST", "/v2/repository/models/caty/load", "{}")
		told.WriteString(body)
		_, body = g.http(t, admin, "", "GET", "/readyz", "")
		told.WriteString(body)
		for _, namespace := range []string{"!models", "!ready", "v2/models", "v2/repository/index"} {
			c := dial(t, g.Server)
			m, err := c.Do(t.Context(), &shiva.Message{Namespace: namespace, Metadata: fmt.Appendf(nil, `{"token":%q}`, token)})
			if err != nil {
				t.Fatal(err)
			}
			told.Write(m.Metadata)
			m.Release()
		}
		told.WriteString(fmt.Sprint(g.shiva(t, token, "cay", "", row()), g.shiva(t, token, "cat/9", "", row())))
		if strings.Contains(told.String(), "secret") {
			t.Errorf("as %s, a hidden model is named: %s", right, told)
		}
		if right != "serve" && !strings.Contains(told.String(), "cat") {
			t.Errorf("as %s, what may be used is not named: %s", right, told)
		}
	}
}

// A reload applies to the next request on open connections, and to containers; an invalid file
// changes nothing.
func TestRevocation(t *testing.T) {
	t.Parallel() // it waits
	g := startGuarded(t)
	c := dial(t, g.Server)
	ask := func() string { return verdict(t, orNil(g.shivaOn(t, c, "", "cat", "", row()))) }
	if got := verdict(t, orNil(g.shivaOn(t, c, tokenOf("infer"), "cat", "", row()))); got != allowed {
		t.Fatal(got)
	}
	stream, err := pb.NewGRPCInferenceServiceClient(g.grpc).ModelStreamInfer(as(t, tokenOf("infer")))
	if err != nil {
		t.Fatal(err)
	}
	streamed := func() string {
		if err := stream.Send(inferRequest("cat")); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer.ErrorMessage
	}
	if got := streamed(); got != "" {
		t.Fatal(got)
	}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	container, err := containertest.Dial(t.Context(), g.Addrs().Containers[0].String(),
		containertest.Model{Name: "catfish", Version: "2", Inputs: x, Outputs: x, Token: tokenOf("serve")})
	if err != nil {
		t.Fatal(err)
	}
	defer container.Close()

	before := g.file.Clone()
	g.file.Identities[1].TokenSHA256 = g.file.Identities[0].TokenSHA256
	if _, err := g.Reload(); err == nil || !strings.Contains(err.Error(), `identity[1].token_sha256: it has a token of identity[0], "infer"`) {
		t.Errorf("two identities with one token: %v", err)
	}
	if got := ask(); got != allowed {
		t.Errorf("after a broken file: %s", got)
	}

	*g.file = before.Clone() // fewer rights
	g.file.Identities[0].May = []string{"infer:dog"}
	reloads(t, g.Server, g.file, func(*config.Config) {})
	if got := ask(); got != denied {
		t.Errorf("after the right has gone: %s", got)
	}
	if got := streamed(); !strings.HasPrefix(got, "PermissionDenied") {
		t.Errorf("after the right has gone, on a stream: %q", got)
	}
	if !strings.Contains(g.log.String(), `identity=infer rights=[infer:dog]`) {
		t.Errorf("no warning of a pattern that matches nothing: %s", g.log)
	}

	reloads(t, g.Server, g.file, func(c *config.Config) { c.Identities = c.Identities[1:] })
	if got := ask(); got != unauthenticated {
		t.Errorf("after the token has gone: %s", got)
	}
	if got := streamed(); !strings.HasPrefix(got, "Unauthenticated") {
		t.Errorf("after the token has gone, on a stream: %q", got)
	}
	select {
	case <-container.Gone():
		t.Fatal("a container went whose right stayed")
	default:
	}
	reloads(t, g.Server, g.file, func(c *config.Config) { c.Identities = c.Identities[:2] })
	select {
	case <-container.Gone():
		if bye := container.Goodbye(); bye == nil || !strings.Contains(bye.Reason, "unauthenticated") ||
			!bye.Reconnect {
			t.Errorf("goodbye %+v", bye)
		}
	case <-time.After(10 * time.Second):
		t.Error("a container without the right stays")
	}

	reloads(t, g.Server, g.file, func(c *config.Config) { c.Identities = nil })
	if got := ask(); got != allowed {
		t.Errorf("without any identity: %s", got)
	}
	reloads(t, g.Server, g.file, func(c *config.Config) { c.Identities = before.Identities })
	if got := ask(); got != allowed {
		t.Errorf("with the token again: %s", got)
	}
}

// A client that shows nothing has the identity "anonymous", if that is declared. An unknown token
// is not the same as none.
func TestAnonymous(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Identities = []config.Identity{{Name: "anonymous", May: []string{"infer:echo", "serve:free"}},
			declared("all", "infer", "serve")}
	})
	g := &guardedServer{Server: s}
	for _, c := range []struct{ token, namespace, want string }{
		{"", "echo", allowed}, {"", "other", unauthenticated}, {"unknown", "echo", unauthenticated},
		{tokenOf("all"), "echo", allowed}, {tokenOf("all"), "other", "NotFound"},
	} {
		if got := verdict(t, orNil(g.shiva(t, c.token, c.namespace, "", row()))); got != c.want {
			t.Errorf("%q at %s: %s, expected %s", c.token, c.namespace, got, c.want)
		}
	}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	for name, want := range map[string]string{"free": allowed, "echo": unauthenticated} {
		c, err := containertest.Dial(t.Context(), s.Addrs().Containers[0].String(),
			containertest.Model{Name: name, Version: "9", Inputs: x, Outputs: x})
		if got := verdict(t, orNil(err)); got != want {
			t.Errorf("a container of %s: %s, expected %s", name, got, want)
		}
		if err == nil {
			c.Close()
		}
	}
}

// Tokens in the wrong form, place or message are refused with an error, and change no client's
// identity.
func TestHostileTokens(t *testing.T) {
	t.Parallel() // it waits
	g := startGuarded(t)
	rest := g.Addrs().REST[0].String()
	long := strings.Repeat("x", 500<<10)
	for what, members := range map[string]string{
		"a long one": `"token":"` + long + `"`, "a number": `"token":7`, "an empty one": `"token":""`,
		"a list":           `"token":["` + tokenOf("infer") + `"]`,
		"one with a space": `"token":"` + tokenOf("infer") + ` "`, "a null": `"token":null`,
		"among the parameters": `"parameters":{"token":"` + tokenOf("infer") + `"}`,
	} {
		if got := verdict(t, orNil(g.shiva(t, "", "cat", members, row()))); got != unauthenticated {
			t.Errorf("Shiva, %s: %s", what, got)
		}
	}
	if got := verdict(t, orNil(g.shiva(t, tokenOf("infer"), "cat", `"token":"`+tokenOf("infer")+`"`, row()))); got != "InvalidInput" {
		t.Errorf("Shiva, two: %s", got)
	}

	c := dial(t, g.Server)
	for i, step := range []struct{ token, want string }{
		{tokenOf("infer"), allowed}, {"", allowed}, {tokenOf("infer"), allowed}, {tokenOf("feedback"), unauthenticated},
		{"unknown", unauthenticated}, {"", allowed},
	} {
		if got := verdict(t, orNil(g.shivaOn(t, c, step.token, "cat", "", row()))); got != step.want {
			t.Errorf("message %d of a connection: %s, expected %s", i, got, step.want)
		}
	}
	c = dial(t, g.Server)
	for i, step := range []struct{ token, namespace, want string }{
		{"", "!live", allowed}, {tokenOf("infer"), "cat", unauthenticated}, {"", "!live", allowed},
	} {
		if got := verdict(t, orNil(g.shivaOn(t, c, step.token, step.namespace, "", row()))); got != step.want {
			t.Errorf("message %d of a connection that showed nothing: %s, expected %s", i, got, step.want)
		}
	}

	for what, headers := range map[string][]string{
		"two": {"Bearer " + tokenOf("infer"), "Bearer " + tokenOf("infer")}, "a password": {"Basic Y2F0OmNhdA=="},
		"none behind the scheme": {"Bearer "}, "no scheme": {tokenOf("infer")},
		"a long one": {"Bearer " + long[:40<<10]},
	} {
		r, _ := http.NewRequest("GET", "http://"+rest+"/v2/models", nil)
		r.Header["Authorization"] = headers
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 401 {
			t.Errorf("HTTP, %s: %d %s", what, resp.StatusCode, body)
		}
		ctx := t.Context()
		for _, h := range headers {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", h)
		}
		_, err = pb.NewGRPCInferenceServiceClient(g.grpc).ModelInfer(ctx, inferRequest("cat"))
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("gRPC, %s: %v", what, err)
		}
	}
	if code, body := g.http(t, rest, "", "GET", "/v2/models?token="+tokenOf("infer"), ""); code != 401 {
		t.Errorf("in the query: %d %s", code, body)
	}

	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	for _, token := range []string{long, "\x00", tokenOf("infer")} {
		if c, err := containertest.Dial(t.Context(), g.Addrs().Containers[0].String(),
			containertest.Model{Name: "cat", Version: "999999", Inputs: x, Outputs: x, Token: token}); err == nil {
			c.Close()
			t.Errorf("a container with the token %.20q registers", token)
		}
	}
	if list := g.gate.Models(); len(list) != 2 {
		t.Errorf("models %+v", list)
	}
}
