package server

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Questions about health cost nothing, on any door, and no other bytes travel with them for free.
func TestHealthIsNoUpload(t *testing.T) {
	p, _ := newBytePayer(t, nil)
	const size = 40 << 10
	load := []tensor.Tensor{zeros(size / 8)}
	long := fmt.Appendf(nil, `{"note":%q}`, strings.Repeat("x", size))
	send := func(m *shiva.Message) func() error { return func() error { return p.shiva(m) } }
	at := func(door net.Addr, method, path string, body io.Reader) func() error {
		return func() error {
			q, err := http.NewRequestWithContext(t.Context(), method, "http://"+door.String()+path, body)
			if err != nil {
				return err
			}
			a, err := http.DefaultClient.Do(q)
			if err == nil {
				_, err = io.Copy(io.Discard, a.Body)
				a.Body.Close()
			}
			return err
		}
	}
	get := func(method, path string, body []byte) func() error {
		return at(p.Addrs().REST[0], method, path, bytes.NewReader(body))
	}
	health := healthpb.NewHealthClient(p.conn)
	check := func(service string) func() error {
		return func() error {
			_, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			return err
		}
	}
	charged := func(what string, ask func() error) (requests, bytes int64) {
		before := p.usage()
		if err := ask(); err != nil {
			t.Logf("%s: %v", what, err)
		}
		after := p.usage()
		return after.Requests - before.Requests, after.Bytes - before.Bytes
	}
	for what, ask := range map[string]func() error{
		"Shiva, !live":          send(&shiva.Message{Namespace: shiva.LiveNamespace}),
		"Shiva, !ready":         send(&shiva.Message{Namespace: shiva.ReadyNamespace}),
		"Shiva, v2/health/live": send(&shiva.Message{Namespace: "v2/health/live"}),
		"HTTP":                  get("GET", "/v2/health/ready", nil),
		"HTTP, /livez":          at(p.Addrs().Admin, "GET", "/livez", nil),
		"gRPC, Check":           check(""),
		"gRPC, ServerLive": func() error {
			_, err := p.rpc.ServerLive(t.Context(), &pb.ServerLiveRequest{})
			return err
		},
	} {
		if requests, bytes := charged(what, ask); requests+bytes > 0 {
			t.Errorf("%s: %d requests and %d bytes are charged", what, requests, bytes)
		}
	}
	for what, ask := range map[string]func() error{
		"Shiva, !live with tensors":              send(&shiva.Message{Namespace: shiva.LiveNamespace, Tensors: load}),
		"Shiva, !live! with tensors":             send(&shiva.Message{Namespace: "!live!", Tensors: load}),
		"Shiva, !ready with metadata":            send(&shiva.Message{Namespace: shiva.ReadyNamespace, Metadata: long}),
		"Shiva, v2/health/live with tensors":     send(&shiva.Message{Namespace: "v2/health/live", Tensors: load}),
		"Shiva, v2/health/anything with tensors": send(&shiva.Message{Namespace: "v2/health/anything", Tensors: load}),
		"HTTP, /v2/health/live with a body":      get("GET", "/v2/health/live", long),
		"HTTP, /v2/health/live by POST":          get("POST", "/v2/health/live", long),
		"HTTP, /v2/health/anything with a body":  get("POST", "/v2/health/anything", long),
		"HTTP, a path that does not exist":       get("POST", "/nosuch", long),
		"admin, /livez with a body":              at(p.Addrs().Admin, "GET", "/livez", bytes.NewReader(long)),
		"admin, /readyz by POST":                 at(p.Addrs().Admin, "POST", "/readyz", bytes.NewReader(long)),
		"admin, a path that does not exist":      at(p.Addrs().Admin, "PUT", "/nosuch", bytes.NewReader(long)),
		"gRPC, Check of a long name":             check(strings.Repeat("x", size)),
	} {
		if requests, bytes := charged(what, ask); requests != 1 || bytes < size {
			t.Errorf("%s: %d requests and %d bytes are charged, want 1 and at least %d", what, requests, bytes, size)
		}
	}
	live := new(pb.ServerLiveRequest)
	live.ProtoReflect().SetUnknown(append([]byte{0x7a, 0x80, 0xc0, 0x02}, make([]byte, size)...))
	if _, err := p.rpc.ServerLive(t.Context(), live); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("gRPC, ServerLive of %d bytes: %v", size, err)
	}
}
