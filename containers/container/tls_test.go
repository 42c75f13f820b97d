package container_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A text holds the text that was logged.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), part)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// secured returns a server on real sockets, with a TLS address and then a plain one.
func secured(t *testing.T, own certtest.Issue, auth tls.ClientAuthType,
	clients *certtest.Authority) (s *server, log *text) {
	t.Helper()
	config := &tls.Config{Certificates: []tls.Certificate{own.Pair(t)}, ClientAuth: auth}
	if clients != nil {
		config.ClientCAs = clients.Pool()
	}
	s, log = &server{pool: tensor.NewPool(1 << 30)}, new(text)
	var err error
	if s.sched, err = scheduler.New(scheduler.Config{Pool: s.pool,
		Default: scheduler.ModelConfig{Strategy: "static"}}); err != nil {
		t.Fatal(err)
	}
	s.Listener, err = containers.Listen(containers.Config{
		Addrs: []string{"tls://127.0.0.1:0", "tcp://127.0.0.1:0"}, Scheduler: s.sched, Pool: s.pool,
		Log: slog.New(slog.NewTextHandler(log, nil)),
		Secure: func(c net.Conn) (*tls.Conn, error) {
			t := tls.Server(c, config)
			return t, t.Handshake()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop(t) })
	return s, log
}

// encrypted and plain are the addresses of a secured server.
func (s *server) encrypted() string { return s.Addrs()[0].String() }
func (s *server) plain() string     { return "tcp://" + s.Addrs()[1].String() }

// echoes serves a model that answers with its input, and ends with the test.
func echoes(t *testing.T, log io.Writer, change func(*container.Model), addrs ...string) {
	t.Helper()
	spec := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}}
	m := container.Model{Name: "m", Version: "1", Inputs: spec, Outputs: spec,
		Log:     slog.New(slog.NewTextHandler(log, nil)),
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil }}
	if change != nil {
		change(&m)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- container.Serve(ctx, m, addrs...) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestTLS: a container registers over TLS where both sides trust each other, and answers bit for
// bit with the request. Where they do not, both log the reason.
func TestTLS(t *testing.T) {
	ours, other := certtest.New(t, "ours"), certtest.New(t, "other")
	good := ours.Server(nil)
	elsewhere := ours.Server(func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"shivad.example"} })
	expired := ours.Server(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	early := ours.Server(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) })
	mine := ours.Client("camera", nil)
	trust := func(a *certtest.Authority, own ...certtest.Issue) *tls.Config {
		c := &tls.Config{RootCAs: a.Pool()}
		for _, i := range own { // including one of an authority that the server does not name
			pair := i.Pair(t)
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return c
	}
	named := trust(ours)
	named.ServerName = "shivad.example"
	for _, tt := range []struct {
		name                      string
		own                       certtest.Issue
		auth                      tls.ClientAuthType
		config                    *tls.Config
		containerSays, serverSays string // empty: it registers
	}{
		{"good", good, tls.NoClientCert, trust(ours), "", ""},
		{"good, with a certificate of its own", good, tls.RequireAndVerifyClientCert, trust(ours, mine), "", ""},
		{"for another name", elsewhere, tls.NoClientCert, named, "", ""},
		{"of others", good, tls.NoClientCert, trust(other), "signed by unknown authority", "bad certificate"},
		{"for another host", elsewhere, tls.NoClientCert, trust(ours), "127.0.0.1", "bad certificate"},
		{"expired", expired, tls.NoClientCert, trust(ours), "certificate has expired", "bad certificate"},
		{"early", early, tls.NoClientCert, trust(ours), "not yet valid", "bad certificate"},
		{"no certificate", good, tls.RequireAndVerifyClientCert, trust(ours), "certificate required", "client didn't provide a certificate"},
		{"a certificate of others", good, tls.RequireAndVerifyClientCert, trust(ours, other.Client("camera", nil)),
			"remote error: tls", "unknown authority"},
		{"an expired certificate", good, tls.RequireAndVerifyClientCert,
			trust(ours, ours.Client("old", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })),
			"expired certificate", "certificate has expired"},
		{"a server's certificate", good, tls.RequireAndVerifyClientCert, trust(ours, good), "bad certificate", "incompatible key usage"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, said := secured(t, tt.own, tt.auth, ours)
			log := new(text)
			echoes(t, log, func(m *container.Model) { m.TLS = tt.config }, s.encrypted())
			if tt.containerSays == "" {
				budgettest.Until(t, "the container to register", func() bool { return s.live() == 1 })
				s.answers(t)
				return
			}
			where := `server=` + s.encrypted()
			budgettest.Until(t, "both to say why", func() bool {
				return log.has(tt.containerSays) && log.has(where) && said.has(tt.serverSays)
			})
			if s.live() > 0 {
				t.Error("it serves")
			}
		})
	}
}

// answers sends tensors of several sizes, which must return unchanged.
func (s *server) answers(t *testing.T) {
	t.Helper()
	for _, rows := range []int{1, 3, 1000, 60_001} {
		values := make([]float32, 2*rows)
		for i := range values {
			values[i] = float32(i) * 1.1
		}
		in := row(values...)
		out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{in}})
		if err != nil || !bytes.Equal(out[0].Data, in.Data) {
			t.Fatalf("%d rows: %v", rows, err)
		}
		out[0].Release()
	}
}

// TestTLSAndPlain: where only one side speaks TLS, both sides report it.
func TestTLSAndPlain(t *testing.T) {
	ours := certtest.New(t, "ours")
	s, said := secured(t, ours.Server(nil), tls.NoClientCert, nil)
	config := &tls.Config{RootCAs: ours.Pool()}
	log := new(text)
	echoes(t, log, func(m *container.Model) { m.TLS = config }, "tls://"+strings.TrimPrefix(s.plain(), "tcp://"))
	budgettest.Until(t, "both to say it", func() bool {
		return log.has("the server does not answer in TLS") && said.has("the peer speaks TLS, and this address is plain")
	})
	log = new(text)
	echoes(t, log, nil, "tcp://"+strings.TrimPrefix(s.encrypted(), "tls://"))
	budgettest.Until(t, "both to say it", func() bool {
		return log.has("this address speaks TLS (tls://)") && said.has("this address speaks TLS (tls://): expected a TLS handshake")
	})
	if s.live() > 0 {
		t.Error("one serves")
	}
}

// TestTLSOfEnvironment: without Model.TLS the environment names the files. They are read again for
// each connection.
func TestTLSOfEnvironment(t *testing.T) {
	ours := certtest.New(t, "ours")
	mine := ours.Client("camera", nil)
	named := ours.Server(func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"shivad.example"} })
	s, _ := secured(t, named, tls.RequireAndVerifyClientCert, ours)
	dir := t.TempDir()
	files := certtest.Write(t, dir, "ca", certtest.New(t, "other").PEM(), "cert", mine.Cert, "key", mine.Key)
	t.Setenv(container.TLSCAEnv, files[0])
	t.Setenv(container.TLSCertEnv, files[1])
	t.Setenv(container.TLSKeyEnv, files[2])
	t.Setenv(container.TLSNameEnv, "shivad.example")
	log := new(text)
	echoes(t, log, nil, s.encrypted())
	budgettest.Until(t, "it to distrust the server", func() bool { return log.has("signed by unknown authority") })
	certtest.Write(t, dir, "ca", ours.PEM())
	budgettest.Until(t, "it to register", func() bool { return s.live() == 1 })

	for name, tt := range map[string]struct{ key, value, want string }{
		"no file":         {container.TLSCAEnv, filepath.Join(dir, "none"), "$SHIVA_TLS_CA: open"},
		"no PEM":          {container.TLSCAEnv, files[2], "expected certificates in PEM in " + files[2]},
		"key of another":  {container.TLSKeyEnv, certtest.Write(t, dir, "key2", ours.Client("b", nil).Key)[0], "private key does not match public key"},
		"no certificate":  {container.TLSCertEnv, "", "$SHIVA_TLS_CERT is missing"},
		"insecure, maybe": {container.TLSInsecureEnv, "maybe", `$SHIVA_TLS_INSECURE: expected true or false, got "maybe"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(tt.key, tt.value)
			spec := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}}
			m := container.Model{Name: "m", Version: "1", Inputs: spec, Outputs: spec,
				Predict: func(context.Context, *container.Batch) ([]tensor.Tensor, error) { return nil, errors.New("unused") }}
			if err := container.Serve(t.Context(), m, s.encrypted()); err == nil ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
	t.Setenv(container.TLSCAEnv, "")
	t.Setenv(container.TLSNameEnv, "")
	t.Setenv(container.TLSInsecureEnv, "true")
	log = new(text)
	echoes(t, log, func(m *container.Model) { m.Version = "2" }, s.encrypted())
	budgettest.Until(t, "it to register with whomever answers", func() bool { return log.has("container: registered") })
	m := container.Model{Name: "m", Version: "1", Inputs: []tensor.Spec{{}}, Outputs: []tensor.Spec{{}},
		Batched: new(true), TLS: new(tls.Config),
		Predict: func(context.Context, *container.Batch) ([]tensor.Tensor, error) { return nil, errors.New("unused") }}
	if err := container.Serve(t.Context(), m, s.plain()); err == nil || !strings.Contains(err.Error(), "expected an address tls://host:port with TLS") {
		t.Errorf("TLS without an address of TLS: %v", err)
	}
}
