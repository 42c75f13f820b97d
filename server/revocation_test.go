package server

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva/tensor"
)

// A reload applies to the next request on open HTTP and gRPC connections, including those to the
// admin door, and to watches. Requests in flight are answered.
func TestRevocationOverHTTP(t *testing.T) {
	t.Parallel() // it waits
	g := startGuarded(t)
	rest, admin := g.Addrs().REST[0].String(), g.Addrs().Admin.String()
	web := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}} // the long request has another
	defer web.CloseIdleConnections()
	opened := 0
	over := func(client *http.Client, addr, method, path, body, token string) any {
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(),
			&httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
				if !got.Reused {
					opened++
				}
			}}), method, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	const question = `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`
	rpc := pb.NewGRPCInferenceServiceClient(g.grpc)
	watch, err := healthpb.NewHealthClient(g.grpc).Watch(as(t, tokenOf("infer")), &healthpb.HealthCheckRequest{Service: "cat"})
	if err != nil {
		t.Fatal(err)
	}
	watched := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if got, err := watch.Recv(); err != nil || got.Status != want {
			t.Errorf("the watched model: %v, %v, expected %v", got.GetStatus(), err, want)
		}
	}
	expect := func(when, asks, operates string) {
		t.Helper()
		_, err := rpc.ModelInfer(as(t, tokenOf("infer")), inferRequest("cat"))
		for door, got := range map[string]any{
			"rest":  over(web, rest, "POST", "/v2/models/cat/infer", question, tokenOf("infer")),
			"grpc":  orNil(err),
			"admin": over(web, admin, "PATCH", "/v1/models/cat", `{"objective":"70ms"}`, tokenOf("admin:write")),
		} {
			want := asks
			if door == "admin" {
				want = operates
			}
			if got := verdict(t, got); got != want {
				t.Errorf("%s, %s: %s, expected %s", when, door, got, want)
			}
		}
	}
	expect("at first", allowed, allowed)
	watched(healthpb.HealthCheckResponse_SERVING)

	held, let := make(chan struct{}), make(chan struct{})
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	if _, err := g.Scheduler().AddReplica(scheduler.ModelID{Name: "catnap", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			close(held)
			go func() { // until the test releases it
				<-let
				_ = echo(b)
			}()
			return nil
		}), scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	long := make(chan any, 1)
	before := opened
	go func() {
		long <- over(http.DefaultClient, rest, "POST", "/v2/models/catnap/infer", question, tokenOf("infer"))
	}()
	<-held
	all := g.file.Clone().Identities
	reloads(t, g.Server, g.file, func(c *config.Config) {
		c.Identities[0].May, c.Identities[5].May = []string{"infer:dog"}, []string{"admin:read"}
	})
	expect("with fewer rights", denied, denied)
	watched(healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
	reloads(t, g.Server, g.file, func(c *config.Config) { c.Identities = c.Identities[1:5] })
	expect("without the tokens", unauthenticated, unauthenticated)
	close(let)
	if got := verdict(t, <-long); got != allowed {
		t.Errorf("what was in flight: %s", got)
	}
	reloads(t, g.Server, g.file, func(c *config.Config) { c.Identities = all })
	expect("with all again", allowed, allowed)
	watched(healthpb.HealthCheckResponse_SERVING)
	if before != 2 || opened > 3 {
		t.Errorf("%d connections at first and %d in the end: those that were refused did not stay", before, opened)
	}
}
