package server

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A certified client asks through all doors, each over one connection.
type certified struct {
	*guardedServer
	name  string
	token string // in addition to the certificate; "": none
	raw   *shiva.Client
	web   *http.Client
	rpc   pb.GRPCInferenceServiceClient
}

// certify makes a client with a certificate of the given common name and DNS name; "" is none.
func (g *guardedServer) certify(t *testing.T, k *pki, name, commonName, dnsName, token string) *certified {
	t.Helper()
	k.client = tls.Certificate{}
	if commonName != "" {
		k.client = k.authority.Client(commonName, func(c *x509.Certificate) {
			if dnsName != "" {
				c.DNSNames = []string{dnsName}
			}
		}).Pair(t)
	}
	a := g.Addrs()
	return &certified{g, name, token, k.shiva(a.TCP[1]).client, &k.http(a.REST[1]).client, k.grpc(a.GRPC[1]).client}
}

// doors returns the client's result at each door: it asks a model, and reads operators' data.
func (c *certified) doors(t *testing.T) map[string]string {
	t.Helper()
	over := func(method, url, body string) string {
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if r.Header.Set("Content-Type", "application/json"); c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := c.web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body) // otherwise the connection is not reused
		return verdict(t, resp.StatusCode)
	}
	a := c.Addrs()
	_, err := c.rpc.ModelInfer(as(t, c.token), inferRequest("cat"))
	return map[string]string{
		"tcp":   verdict(t, orNil(c.shivaOn(t, c.raw, c.token, "cat", "", row()))),
		"rest":  over("POST", "https://"+hostport(a.REST[1])+"/v2/models/cat/infer", `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`),
		"grpc":  verdict(t, orNil(err)),
		"admin": over("GET", "https://"+hostport(a.Admin)+"/v1/models", ""),
	}
}

func (c *certified) expect(t *testing.T, asks, operates string) {
	t.Helper()
	for door, got := range c.doors(t) {
		want := asks
		if door == "admin" {
			want = operates
		}
		if got != want {
			t.Errorf("%s at %s: %s, expected %s", c.name, door, got, want)
		}
	}
}

// A certificate identifies its client on every door, alone and with a token, and open connections
// follow the last reload.
func TestCertificates(t *testing.T) {
	t.Parallel()
	k, log := newPKI(t), new(logged)
	s, file := loaded(t, log, func(c *config.Config) {
		encrypted(k, config.AuthOptional)(c)
		c.Identities = []config.Identity{
			{Name: "cameras", Certificate: config.Patterns{"dns:*.cameras.test"}, May: []string{"infer:cat"}},
			{Name: "operators", Certificate: config.Patterns{"cn:operator-*"}, May: []string{"admin:write"}},
			declared("infer", "infer"),
		}
	})
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "cat", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	g := &guardedServer{Server: s, file: file, log: log}
	g.certify(t, k, "nobody", "", "", "").expect(t, unauthenticated, unauthenticated)
	g.certify(t, k, "a token alone", "", "", tokenOf("infer")).expect(t, allowed, denied)
	camera := g.certify(t, k, "a camera", "camera", "seven.Cameras.test", "")
	camera.expect(t, allowed, denied)
	operator := g.certify(t, k, "an operator", "operator-1", "", "")
	operator.expect(t, denied, allowed)
	g.certify(t, k, "a stranger", "stranger", "", "").expect(t, unauthenticated, unauthenticated)
	g.certify(t, k, "a stranger with a token", "stranger", "", tokenOf("infer")).expect(t, allowed, denied)
	g.certify(t, k, "a camera with another's token", "camera", "seven.cameras.test", tokenOf("infer")).
		expect(t, unauthenticated, unauthenticated)
	g.certify(t, k, "a camera with an unknown token", "camera", "seven.cameras.test", "unknown").
		expect(t, unauthenticated, unauthenticated)
	g.certify(t, k, "a lying name", "operator-\nidentity=cameras", "", "").expect(t, unauthenticated, unauthenticated)
	g.certify(t, k, "one that is of two", "operator-2", "eight.cameras.test", "").
		expect(t, unauthenticated, unauthenticated)
	if text := log.String(); !strings.Contains(text, "matches the patterns of two identities") || strings.Count(text, "operator-2") != 1 {
		t.Errorf("the log does not say once whose certificate is of two identities: %s", text)
	}

	before := file.Clone()
	file.Identities[1].Certificate = append(file.Identities[1].Certificate, "dns:seven.cameras.test")
	if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), `identity[1].certificate: "dns:seven.cameras.test" matches certificates of identity[0], "cameras"`) {
		t.Errorf("patterns that overlap: %v", err)
	}
	camera.expect(t, allowed, denied)
	*file = before.Clone()
	reloads(t, s, file, func(c *config.Config) { c.Identities[0].Certificate = config.Patterns{"dns:*.lamps.test"} })
	camera.expect(t, unauthenticated, unauthenticated)
	operator.expect(t, denied, allowed)
	reloads(t, s, file, func(c *config.Config) {
		c.Identities[1].Certificate = append(c.Identities[1].Certificate, "dns:seven.*")
	})
	camera.expect(t, denied, allowed)
	reloads(t, s, file, func(c *config.Config) {
		c.Identities = []config.Identity{declared("infer", "infer"), {Name: "anonymous", May: []string{"infer"}}}
	})
	camera.expect(t, allowed, unauthenticated)
	reloads(t, s, file, func(c *config.Config) { c.Identities = nil })
	camera.expect(t, allowed, allowed)
}

// A reload reads the lists of revoked certificates: on every door the next handshake of a revoked
// client fails, others do not, and an invalid list leaves the previous one in effect.
func TestReloadOfRevocations(t *testing.T) {
	t.Parallel() // it waits
	k, log := newPKI(t), new(logged)
	stolen, good := k.authority.Client("stolen", nil), k.authority.Client("good", nil)
	certtest.Write(t, k.dir, "crl.pem", k.authority.Revoke())
	s, _ := loaded(t, log, func(c *config.Config) {
		encrypted(k, config.AuthRequired)(c)
		c.TLS.ClientCRL, c.TLS.MinVersion = k.file("crl.pem"), "1.2"
	})
	a := s.Addrs()
	let := func(when string, who certtest.Issue, why string) {
		t.Helper()
		for door, addr := range map[string]net.Addr{"tcp": a.TCP[1], "rest": a.REST[1], "grpc": a.GRPC[1],
			"containers": a.Containers[1], "admin": a.Admin} {
			trust := k.config()
			trust.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return new(who.Pair(t)), nil
			} // whoever is asked for
			trust.MaxVersion = tls.VersionTLS12 // whose handshake tells the client how it ended
			c, err := tls.Dial("tcp", hostport(addr), trust)
			if err == nil {
				c.Close()
			}
			if (err == nil) != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
				t.Errorf("%s, %s: %s: %v, expected %q", when, door, who.Leaf.Subject.CommonName, err, why)
			}
		}
	}
	let("at first", stolen, "")
	let("expired", k.authority.Client("old", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }), "expired certificate")
	let("signed by others", certtest.New(t, "other").Client("good", nil), "unknown certificate authority")
	let("of a server", k.authority.Server(nil), "bad certificate")
	certtest.Write(t, k.dir, "crl.pem", k.authority.Revoke(stolen.Leaf))
	if _, err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	let("revoked", stolen, "bad certificate")
	let("revoked", good, "")
	for name, list := range map[string][]byte{
		"is signed by no certificate in client_ca": certtest.New(t, "other").Revoke(),
		"has no list":    k.authority.PEM(),
		"cannot be read": nil,
	} {
		if list == nil {
			os.Remove(k.file("crl.pem"))
		} else {
			certtest.Write(t, k.dir, "crl.pem", list)
		}
		if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), "nothing was changed") ||
			!strings.Contains(err.Error(), "tls.client_crl: "+k.file("crl.pem")) ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("a list that %s: %v", name, err)
		}
		let("a list that "+name, stolen, "bad certificate")
		let("a list that "+name, good, "")
	}
}

// The certificate that a browser shows for a page of another origin is ignored.
func TestPagesBringNoCertificate(t *testing.T) {
	k := newPKI(t)
	s := start(t, func(c *config.Config) {
		encrypted(k, config.AuthOptional)(c)
		c.Identities = []config.Identity{{Name: "a", Certificate: config.Patterns{"cn:camera"}, May: []string{"infer"}}}
	})
	client := k.http(s.Addrs().REST[1])
	for origin, want := range map[string]int{"": 200, client.base: 200, "https://evil.example": 401} {
		r, _ := http.NewRequestWithContext(t.Context(), "POST", client.base+"/v2/models/echo/infer", strings.NewReader(`{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`))
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		resp, err := client.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("from %q: %d, expected %d", origin, resp.StatusCode, want)
		}
	}
}

// A clock by which a certificate is not yet or no longer valid makes a reload fail only if the
// certificate is not the one in use: that one stays in use anyway.
func TestReloadByAnotherClock(t *testing.T) {
	k := newPKI(t)
	var wall settableClock
	around := system
	around.wallClock = wall.now
	s, file := loadedIn(t, new(logged), around, func(c *config.Config) {
		c.REST.Listen, c.TLS.Certificates = config.Addrs{"tls://127.0.0.1:0"}, k.settings(config.AuthNone)
		c.TLS.ClientCA = ""
	})
	for _, one := range []struct {
		ahead time.Duration
		why   string
	}{{-72 * time.Hour, "is valid only from 2"}, {20 * 365 * 24 * time.Hour, "expired on 2"}} {
		before := s.certificates.config("rest")
		wall.ahead.Store(int64(one.ahead))
		file.Defaults.Objective++
		if done, err := s.Reload(); err != nil || len(done.Changed) != 1 || s.certificates.config("rest") != before {
			t.Errorf("%v ahead, with the same certificate: %+v, %v", one.ahead, done, err)
		}
		k.renew(nil)
		file.Defaults.Objective++
		if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), "nothing was changed: ") ||
			!strings.Contains(err.Error(), one.why) || s.certificates.config("rest") != before {
			t.Errorf("%v ahead, with another: %v", one.ahead, err)
		}
		wall.ahead.Store(0)
		if _, err := s.Reload(); err != nil || s.certificates.config("rest") == before {
			t.Errorf("when the clock is right again: %v", err)
		}
	}
}

// A certificate that expires is in the status, and repeatedly in the log, even after it has
// expired.
func TestCertificatesThatExpire(t *testing.T) {
	k, log := newPKI(t), new(logged)
	k.renew(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	s, _ := loaded(t, log, func(c *config.Config) {
		c.REST.Listen, c.TLS.Certificates = config.Addrs{"tls://127.0.0.1:0"}, k.settings(config.AuthNone)
		c.TLS.ClientCA = ""
	})
	status := func(want string) {
		t.Helper()
		if got := s.report.Status().Warnings; len(got) != 1 || !strings.HasPrefix(got[0], want) ||
			!strings.Contains(got[0], "shivactl reload") {
			t.Errorf("the status warns: %q, expected %s", got, want)
		}
	}
	status("the certificate of rest expires on 2")
	if n := strings.Count(log.String(), "a certificate expires soon"); n != 1 {
		t.Errorf("%d warnings at the start", n)
	}
	s.watching.Go(func() { s.certificates.watch(time.Millisecond, s.stopping) })
	budgettest.Until(t, "more warnings", func() bool { return strings.Count(log.String(), "a certificate expires soon") > 2 })
	expired := *s.certificates.config("rest")
	expired.Until = time.Now().Add(-time.Minute)
	s.certificates.current.Store(&map[string]*listen.TLS{"rest": &expired})
	status("the certificate of rest expired on 2")
	budgettest.Until(t, "the log to say so", func() bool {
		return strings.Contains(log.String(), `"a certificate has expired: clients refuse it" door=rest on=2`)
	})
	k.renew(nil)
	if _, err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := s.report.Status().Warnings; len(got) != 0 {
		t.Errorf("after another was read the status warns: %q", got)
	}
}
