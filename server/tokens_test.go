package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Tokens, valid and unknown ones, are in nothing that a server logs, answers or passes on.
func TestTokensAreTold(t *testing.T) {
	t.Parallel() // it waits
	log := new(logged)
	s := startLogging(t, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		func(c *config.Config) {
			guarded(c)
			c.Identities = append(c.Identities, declared("all", "infer", "feedback", "load", "serve", "admin:write"))
			c.Admin.Profiling = true
			c.Supervised[0].Command = []string{"tail", "-f", "/dev/null"} // which shows its arguments
		})
	g := &guardedServer{Server: s}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	container, err := containertest.Dial(t.Context(), s.Addrs().Containers[0].String(),
		containertest.Model{Name: "cat", Version: "1", Inputs: x, Outputs: x, Token: tokenOf("all")})
	if err != nil {
		t.Fatal(err)
	}
	defer container.Close()
	budgettest.Until(t, "the container to serve", func() bool { return serves(s, "cat", "1") })
	g.grpc = dialGRPC(t, s)

	var told bytes.Buffer
	client := pb.NewGRPCInferenceServiceClient(g.grpc)
	for _, token := range []string{tokenOf("all"), tokenOf("serve"), tokenOf("nobody")} {
		for _, namespace := range []string{"cat", "absent", "cats/update", "!models", "!whoami", "v2/models/cat"} {
			fmt.Fprintln(&told, g.shiva(t, token, namespace, `"color":"red"`, row()))
			fmt.Fprintln(&told, g.shiva(t, "", namespace, `"token":["`+token+`"]`, row()))
		}
		for _, path := range []string{"/v2/models", "/v2/models/cat/config", "/v2/models/absent"} {
			_, body := g.http(t, s.Addrs().REST[0].String(), token, "GET", path, "")
			told.WriteString(body)
		}
		c := dial(t, s) // for another identity
		fmt.Fprintln(&told, g.shivaOn(t, c, tokenOf("infer"), "cat", "", row()), g.shivaOn(t, c, token, "cat", "", row()))
		c.Close()
		_, err := client.ModelInfer(as(t, token), inferRequest("cat"))
		fmt.Fprintln(&told, err)
		dog, err := containertest.Dial(t.Context(), s.Addrs().Containers[0].String(),
			containertest.Model{Name: "dog", Version: "1", Inputs: x, Outputs: x, Token: token})
		fmt.Fprintln(&told, err)
		if err == nil {
			dog.Close()
		}
	}
	for _, path := range []string{"/", "/metrics", "/v1/config", "/v1/status", "/v1/models", "/v1/containers",
		"/v1/export", "/v1/models/cat/explain", "/v1/whoami", "/v1/audit", "/v1/logs", "/debug/pprof/goroutine?debug=2",
		"/debug/pprof/cmdline"} {
		code, body := g.http(t, s.Addrs().Admin.String(), tokenOf("all"), "GET", path, "")
		if code != 200 {
			t.Errorf("%s: %d", path, code)
		}
		told.WriteString(body)
	}
	told.WriteString(ofProcess(t, s, "cmdline"))
	told.WriteString(ofProcess(t, s, "environ"))
	if !strings.Contains(told.String(), "SHIVA_SERVERS=") {
		t.Error("the environment of a process is not there, so that the test sees nothing of it")
	}
	if !strings.Contains(told.String(), `shivad_identity_requests_total{identity="all"}`) {
		t.Error("identities are not in the metrics, so that the test sees nothing of them there")
	}
	for _, b := range container.Batches() {
		for _, p := range b.Parameters {
			told.WriteString(p)
		}
	}
	told.WriteString(log.String())
	if !strings.Contains(told.String(), `"color"`) {
		t.Error("parameters do not reach the container, so that the test sees nothing there")
	}
	if i := strings.Index(told.String(), "7Qx9s3cretZ"); i >= 0 {
		t.Errorf("a token is told: …%s", told.String()[max(0, i-300):i+20])
	}
	for _, i := range s.cfg.Identities {
		if strings.Contains(told.String(), i.TokenSHA256[0]) {
			t.Errorf("the hash of the token of %s is told", i.Name)
		}
	}
}

// A token in the wrong place for its door does not count: the refusal names the right place, even
// if "anonymous" is declared, the token is not disclosed, and in the right place it still works.
func TestMisplacedTokens(t *testing.T) {
	g := startGuarded(t)
	reloads(t, g.Server, g.file, func(c *config.Config) {
		c.Identities = append(c.Identities, config.Identity{Name: "anonymous", May: []string{"infer:dog"}})
	})
	rest, door, token := g.Addrs().REST[0].String(), g.Addrs().Admin.String(), tokenOf("infer")
	var told strings.Builder
	refused := func(where, said, place string) {
		t.Helper()
		told.WriteString(said)
		if !strings.Contains(strings.ToLower(said), "unauthenticated") || !strings.Contains(said, place) {
			t.Errorf("%s: %s, expected %s", where, said, place)
		}
	}
	for _, members := range []string{`"authorization":"Bearer TOKEN"`, `"Token":"TOKEN"`,
		`"parameters":{"token":"TOKEN"}`, `"user":"TOKEN"`, `"id":"TOKEN"`} {
		err := g.shiva(t, "", "cat", strings.ReplaceAll(members, "TOKEN", token), row())
		refused("Shiva, "+members, strings.ReplaceAll(fmt.Sprint(err), token, "ID"), `metadata "token" of the connection's first message`)
	}
	c := dial(t, g.Server)
	refused("Shiva, no token", fmt.Sprint(g.shivaOn(t, c, "", "cat", "", row())), `metadata "token" of the connection's first message`)
	refused("Shiva, a second message", fmt.Sprint(g.shivaOn(t, c, token, "cat", "", row())), "the first message of this connection had another token or none: send this token over a new connection")
	over := func(addr, path string, header http.Header, body string) (said string) {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header
		header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return fmt.Sprintf("%s %s %q", resp.Status, text, resp.Header)
	}
	const question = `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`
	for where, h := range map[string]http.Header{
		"nowhere": {}, "Token": {"Token": {token}}, "X-Api-Key": {"X-Api-Key": {token}},
		"a cookie": {"Cookie": {"token=" + token}}, "the proxy's": {"Proxy-Authorization": {"Bearer " + token}},
		"no scheme": {"Authorization": {token}}, "another scheme": {"Authorization": {"Token " + token}},
		"twice": {"Authorization": {"Bearer " + token, "Bearer " + token}},
	} {
		const place = `the header \"Authorization: Bearer TOKEN\"`
		refused("HTTP, "+where, over(rest, "/v2/models/cat/infer", h.Clone(), question), place)
		refused("admin, "+where, over(door, "/v1/config/reload", h.Clone(), "{}"), place)
		ctx := t.Context()
		for key, values := range h {
			for _, v := range values {
				ctx = metadata.AppendToOutgoingContext(ctx, strings.ToLower(key), v)
			}
		}
		_, err := pb.NewGRPCInferenceServiceClient(g.grpc).ModelInfer(ctx, inferRequest("cat"))
		refused("gRPC, "+where, fmt.Sprint(err), `the call's metadata "authorization: Bearer TOKEN"`)
	}
	for _, query := range []string{"?token=" + token, "?access_token=" + token} {
		refused("HTTP, "+query, over(rest, "/v2/models/cat/infer"+query, http.Header{}, question), "the header")
		refused("admin, "+query, over(door, "/v1/config/reload"+query, http.Header{}, "{}"), "the header")
	}
	refused("HTTP, the body",
		over(rest, "/v2/models/cat/infer", http.Header{}, `{"parameters":{"token":"`+token+`"},`+question[1:]), "the header")
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	_, err := containertest.Dial(t.Context(), g.Addrs().Containers[0].String(),
		containertest.Model{Name: "cat", Version: "9", Inputs: x, Outputs: x})
	refused("a container", fmt.Sprint(err), `"token" of the container's hello`)

	told.WriteString(g.log.String())
	for _, e := range g.trail.List(1000) {
		fmt.Fprintf(&told, "%+v", e)
	}
	if i := strings.Index(told.String(), token); i >= 0 {
		t.Errorf("the token is told: …%s", told.String()[max(0, i-300):i])
	}
	if err := g.shiva(t, token, "cat", "", row()); err != nil {
		t.Errorf("in its place: %v", err)
	}
}

// ofProcess returns a file of /proc for the server's only process, which is empty while the process
// loads its program.
func ofProcess(t *testing.T, s *Server, file string) (text string) {
	t.Helper()
	budgettest.Until(t, "the process runs", func() bool {
		pid := s.processes.List()[0].PID
		if pid == 0 {
			return false
		}
		read, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			t.Fatal(err)
		}
		text = string(read)
		return text != ""
	})
	return text
}

// A process gets one of the addresses, so that it registers once.
func TestProcessHasOneAddress(t *testing.T) {
	path := "ipc://" + filepath.Join(t.TempDir(), "s")
	s := start(t, func(c *config.Config) {
		c.Containers.Listen = config.Addrs{"127.0.0.1:0", path}
		c.Supervised = []config.Container{{Name: "p", Command: []string{"sleep", "600"},
			Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}}}
	})
	if text := ofProcess(t, s, "environ"); !strings.Contains(text, "\x00SHIVA_SERVERS="+path+"\x00") {
		t.Errorf("environment %q", text)
	}
}

// A container of the SDK shows the token of its model, or of the environment, and a process of the
// server needs none.
func TestContainersShowTokens(t *testing.T) {
	log := new(logged)
	s := startLogging(t, slog.New(slog.NewTextHandler(log, nil)), func(c *config.Config) {
		guarded(c)
		c.Supervised = []config.Container{sdk(t, "p", "own/1", 1)}
	})
	budgettest.Until(t, "the server's own process to serve", func() bool { return serves(s, "own", "1") })
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	serveWith := func(name, token string) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { // ends with ctx
			done <- container.Serve(ctx,
				container.Model{Name: name, Version: "1", Inputs: x, Outputs: x, Token: token,
					Log: slog.New(slog.DiscardHandler),
					Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
						return b.Inputs, nil
					}}, s.Addrs().Containers[0].String())
		}()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	t.Setenv("SHIVA_TOKEN", tokenOf("serve"))
	defer serveWith("catfish", "")()
	budgettest.Until(t, "the container with the token of the environment", func() bool { return serves(s, "catfish", "1") })
	defer serveWith("catnip", tokenOf("infer"))()
	defer serveWith("dog", "")()
	budgettest.Until(t, "two refusals", func() bool {
		reply := log.String()
		return strings.Contains(reply, `identity \"infer\" lacks the right serve:catnip/1`) && strings.Contains(reply, `identity \"serve\" lacks the right serve:dog/1`)
	})
	if serves(s, "catnip", "1") || serves(s, "dog", "1") {
		t.Error("a container serves without the right")
	}
}

// The log warns about listeners that other machines reach: all without identities; with identities,
// those through which clients that show nothing can change something.
func TestWarningsOfStrangers(t *testing.T) {
	for _, c := range []struct {
		identities []config.Identity
		want       []string // each is part of a log line
	}{
		{nil,
			[]string{`change the configuration and stop processes`, `serve and replace models`,
				`ask every model: no [[identity]] is configured" setting=tcp.listen`,
				`is configured" setting=rest.listen`, `is configured" setting=grpc.listen`}},
		{[]config.Identity{declared("a", "infer")}, nil},
		{[]config.Identity{declared("a", "infer"), {Name: "anonymous", May: []string{"infer", "admin:write"}}},
			[]string{`change the configuration and stop processes`}},
	} {
		log := new(logged)
		startLogging(t, slog.New(slog.NewTextHandler(log, nil)), func(cfg *config.Config) {
			all := config.Addrs{":0"}
			cfg.TCP.Listen, cfg.REST.Listen, cfg.GRPC.Listen, cfg.Admin.Listen, cfg.Containers.Listen = all, all, all,
				all[0], all
			cfg.Identities = c.identities
		})
		warned := strings.Count(log.String(), "without authentication")
		if warned != len(c.want) {
			t.Errorf("%d warnings, expected %q: %s", warned, c.want, log)
		}
		for _, part := range c.want {
			if !strings.Contains(log.String(), part) {
				t.Errorf("no warning that they can %s", part)
			}
		}
	}
}

// The log warns that strangers can load and unload models through a TLS door, unless it requires a
// certificate of every client.
func TestWarningsOfStrangersByTLS(t *testing.T) {
	k := newPKI(t)
	for auth, want := range map[string]int{config.AuthNone: 1, config.AuthRequired: 0} {
		log := new(logged)
		startLogging(t, slog.New(slog.NewTextHandler(log, nil)), func(cfg *config.Config) {
			cfg.REST.Listen, cfg.Server.Repository = config.Addrs{"tls://:0"}, config.RepositoryAll
			cfg.TLS.Certificates = k.settings(auth)
			if auth == config.AuthNone {
				cfg.TLS.ClientCA = ""
			}
		})
		if got := strings.Count(log.String(), `"load and unload models"`); got != want {
			t.Errorf("client_auth %q: %d warnings, expected %d: %s", auth, got, want, log)
		}
	}
}
