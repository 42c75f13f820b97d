package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Quotas apply on TLS connections and Unix sockets as on plain TCP: to an identity, and for clients
// that show nothing to an address, which on Unix sockets is a user.
func TestQuotasOnEveryTransport(t *testing.T) {
	t.Parallel() // it waits
	k, dir := newPKI(t), t.TempDir()
	s, file := loaded(t, new(logged), func(c *config.Config) {
		c.TLS.Certificates = k.settings("none")
		c.TLS.ClientCA = ""
		for door, list := range map[string]*config.Addrs{"tcp": &c.TCP.Listen, "rest": &c.REST.Listen,
			"grpc": &c.GRPC.Listen} {
			*list = config.Addrs{"127.0.0.1:0", "tls://127.0.0.1:0", "unix:" + filepath.Join(dir, door)}
		}
		c.Server.LimitLoopback = true
		c.Identities = []config.Identity{declared("payer", "infer"), {Name: "anonymous", May: []string{"infer"}}}
	})
	slow := withSlow(t, s)
	trusts := k.config()
	trusts.Certificates, trusts.NextProtos = nil, []string{"h2", "http/1.1"}
	transports := []struct {
		name, address string // of the client that shows nothing
		dial          func(door string, addrs []net.Addr) payingDialer
	}{
		{"tls", "127.0.0.1", func(door string, addrs []net.Addr) payingDialer {
			c := trusts.Clone()
			if door != "grpc" {
				c.NextProtos = nil
			}
			return func(ctx context.Context) (net.Conn, error) {
				return (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", hostport(addrs[1]))
			}
		}},
		{"unix", fmt.Sprintf("uid=%d", os.Getuid()), func(door string, _ []net.Addr) payingDialer {
			return func(ctx context.Context) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, door))
			}
		}},
	}
	doors := []struct {
		name string
		make func(t *testing.T, token string, dial payingDialer) payingClient
	}{
		{"tcp", payShiva}, {"rest", payREST},
		{"grpc", func(t *testing.T, token string, dial payingDialer) payingClient { return payGRPC(t, token, dial) }},
	}
	addrs := map[string][]net.Addr{"tcp": s.Addrs().TCP, "rest": s.Addrs().REST, "grpc": s.Addrs().GRPC}
	for _, byAddress := range []bool{false, true} {
		file.Identities[0].Quota, file.Limits.PerAddress = quotaOf(access.RequestsInFlight, 1), config.Quota{}
		token, another := tokenOf("payer"), ""
		if byAddress {
			file.Identities[0].Quota, file.Limits.PerAddress = config.IdentityQuota{},
				quotaOf(access.RequestsInFlight, 1).Quota
			token, another = another, token
		}
		if _, err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		for _, on := range transports {
			for _, d := range doors {
				t.Run(fmt.Sprintf("%s/%s/by address %v", on.name, d.name, byAddress), func(t *testing.T) {
					dial := on.dial(d.name, addrs[d.name])
					slow.hold()
					first, second, other := d.make(t, token, dial), d.make(t, token, dial), d.make(t, another, dial)
					held := make(chan error, 1)
					go func() { held <- first.ask(t.Context(), "slow", fewRows) }()
					select {
					case <-slow.arrived():
					case err := <-held:
						t.Fatal(err)
					}
					err := second.ask(t.Context(), "echo", fewRows)
					whose := `identity "payer"`
					if byAddress {
						whose = on.address
					}
					if got := refusedBy(t, err); got != "requests_in_flight" ||
						!strings.Contains(strings.ReplaceAll(err.Error(), `\"`, `"`), whose) {
						t.Errorf("refused by %q: %v; want the requests_in_flight of %s", got, err, whose)
					}
					if err := other.ask(t.Context(), "echo", fewRows); err != nil {
						t.Errorf("another one: %v", err)
					}
					slow.letGo()
					if err := <-held; err != nil {
						t.Error(err)
					}
					for _, c := range []payingClient{first, second, other} {
						c.close()
					}
					budgettest.Until(t, "nothing is left", func() bool { return takenOf(s) == "" })
				})
			}
		}
	}
}

// Operators see which payer was refused by which quota: explain has a sentence, status and the
// metrics have figures.
//
// The deadline is long, as the test inspects requests in flight.
func TestQuotasAreTold(t *testing.T) {
	s, _ := loaded(t, new(logged), func(c *config.Config) {
		c.Server.LimitLoopback, c.Defaults.Deadline = true, 10*time.Minute
		c.Limits.PerAddress = quotaOf(access.RequestsInFlight, 1).Quota
		payer := declared("payer", "infer")
		payer.Quota = quotaOf(access.RequestsInFlight, 1)
		payer.Quota.BytesPerSecond = 5 << 20
		c.Identities = []config.Identity{payer, declared("operator", "admin:read"), {Name: "anonymous", May: []string{"infer"}}}
	})
	slow := withSlow(t, s)
	door := from("127.0.0.1", s.Addrs().TCP[0])
	held := make(chan error, 2)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	for _, one := range []struct {
		token, model string
		refusals     int
	}{{tokenOf("payer"), "slow", 3}, {"", "lame", 1}} {
		if one.model != "slow" {
			if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: one.model, Version: "1"},
				scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(slow.Send),
				scheduler.ReplicaOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		first := payShiva(t, one.token, door)
		go func() { held <- first.ask(t.Context(), one.model, fewRows) }()
		<-slow.arrived()
		for range one.refusals {
			c := payShiva(t, one.token, door)
			if got := refusedBy(t, c.ask(t.Context(), "echo", fewRows)); got != "requests_in_flight" {
				t.Errorf("refused by %q", got)
			}
			c.close()
		}
	}
	g := &guardedServer{Server: s}
	size := len(payShiva(t, tokenOf("payer"), door).(*shivaPayer).message("slow", fewRows))
	for path, want := range map[string][]string{
		"/v1/models/echo/explain": {
			`Identity \\"payer\\" is over its quota, requests_in_flight = 1 \(refused so far: 3, the last \d+s ago\)`,
			`Client 127\.0\.0\.1 is over its quota, requests_in_flight = 1 \(refused so far: 1, the last \d+s ago\)`},
		"/metrics": {
			`shivad_identity_requests_total{identity="payer"} 4\n`, fmt.Sprintf(`shivad_identity_request_bytes_total{identity="payer"} %d\n`, size),
			`shivad_identity_refused_total{identity="payer",quota="requests_in_flight"} 3\n`, `shivad_identity_refused_total{identity="payer",quota="bytes_per_second"} 0\n`,
			`shivad_identity_quota{identity="payer",quota="requests_in_flight"} 1\n`, `shivad_identity_quota{identity="payer",quota="bytes_per_second"} 5\.24288e\+06\n`,
			`shivad_identity_used{identity="payer",quota="requests_in_flight"} 1\n`, `shivad_address_refused_total{quota="requests_in_flight"} 1\n`},
		"/v1/status": {fmt.Sprintf(`"name":"identity \\"payer\\"","requests":4,"bytes":%d,"quotas":\[{"quota":"bytes_per_second","limit":5242880,"used":0,"refused":0},{"quota":"requests_in_flight","limit":1,"used":1,"refused":3,"refused_seconds":[0-9.e-]+},`, size),
			`"name":"client 127\.0\.0\.1","requests":2,`},
	} {
		code, body := g.http(t, s.Addrs().Admin.String(), tokenOf("operator"), "GET", path, "")
		if path == "/v1/status" {
			compact := new(bytes.Buffer)
			if err := json.Compact(compact, []byte(body)); err != nil {
				t.Fatal(err)
			}
			body = compact.String()
		}
		for _, line := range want {
			if !regexp.MustCompile(line).MatchString(body) {
				t.Errorf("%s: %d, without %s: %s", path, code, line, body)
			}
		}
	}
	slow.letGo()
	for range 2 {
		if err := <-held; err != nil {
			t.Error(err)
		}
	}
}
