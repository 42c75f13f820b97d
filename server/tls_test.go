package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A pki has the files of a server's certificate, and clients that trust it.
type pki struct {
	t         *testing.T
	dir       string
	authority *certtest.Authority
	client    tls.Certificate
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	k := &pki{t: t, dir: t.TempDir(), authority: certtest.New(t, "authority")}
	k.client = k.authority.Client("camera", nil).Pair(t)
	certtest.Write(t, k.dir, "ca.pem", k.authority.PEM())
	k.renew(nil)
	return k
}

// renew writes a new certificate of the server, and its key.
func (k *pki) renew(change func(*x509.Certificate)) (serial string) {
	k.t.Helper()
	server := k.authority.Server(change)
	certtest.Write(k.t, k.dir, "cert.pem", server.Cert, "key.pem", server.Key)
	return server.Leaf.SerialNumber.String()
}

// twice writes a second version of each file, which is also valid with the first version of the
// others.
func (k *pki) twice() {
	k.t.Helper()
	for _, name := range []string{"cert", "key", "ca"} {
		text, err := os.ReadFile(k.file(name + ".pem"))
		if err != nil {
			k.t.Fatal(err)
		}
		certtest.Write(k.t, k.dir, name+"2.pem", append([]byte("A comment\n"), text...))
	}
	certtest.Write(k.t, k.dir, "crl.pem", k.authority.Revoke(), "crl2.pem",
		k.authority.Revoke(k.authority.Client("stolen", nil).Leaf))
}

// complete adds the file of the given setting to a table that lacks it, for a certificate together
// with its key.
func (k *pki) complete(c *config.Certificates, key string) {
	switch key {
	case "cert", "key":
		c.Cert, c.Key = k.file("cert2.pem"), k.file("key2.pem")
	case "client_ca":
		c.ClientCA = k.file("ca2.pem")
	case "client_crl":
		c.ClientCRL = k.file("crl2.pem")
	}
}

func (k *pki) file(name string) string { return filepath.Join(k.dir, name) }

// settings returns the TLS settings of all doors.
func (k *pki) settings(auth string) config.Certificates {
	return config.Certificates{Cert: k.file("cert.pem"), Key: k.file("key.pem"), ClientCA: k.file("ca.pem"),
		ClientAuth: auth, MinVersion: "1.3"}
}

func (k *pki) config() *tls.Config {
	return &tls.Config{RootCAs: k.authority.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{k.client}}
}

// hostport returns the host and port of a TLS address.
func hostport(a net.Addr) string { return strings.TrimPrefix(a.String(), "tls://") }

func (k *pki) shiva(a net.Addr) *tcpClient {
	k.t.Helper()
	d := &tls.Dialer{Config: k.config()}
	c, err := shiva.Dial(k.t.Context(), hostport(a), shiva.WithDialer(d.DialContext))
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { c.Close() })
	return &tcpClient{hostport(a), c}
}

func (k *pki) http(a net.Addr) *httpClient {
	c := &httpClient{base: "https://" + hostport(a),
		client: http.Client{Transport: &http.Transport{TLSClientConfig: k.config(), ForceAttemptHTTP2: true}}}
	k.t.Cleanup(c.client.CloseIdleConnections)
	return c
}

func (k *pki) grpc(a net.Addr) *grpcClient {
	k.t.Helper()
	conn, err := grpc.NewClient(hostport(a), grpc.WithTransportCredentials(credentials.NewTLS(k.config())),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { conn.Close() })
	return &grpcClient{conn, pb.NewGRPCInferenceServiceClient(conn)}
}

// serial returns the serial number of the certificate that a door shows to a new connection.
func (k *pki) serial(a net.Addr) string {
	k.t.Helper()
	c, err := tls.Dial("tcp", hostport(a), k.config())
	if err != nil {
		k.t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

type asking func(context.Context, string, tensor.Tensor, time.Duration) (tensor.Tensor, error)

// encrypted makes every door listen on TLS, and the doors of clients and containers also on a plain
// address.
func encrypted(k *pki, auth string) func(*config.Config) {
	return func(c *config.Config) {
		c.TLS.Certificates = k.settings(auth)
		for _, list := range []*config.Addrs{&c.TCP.Listen, &c.REST.Listen, &c.GRPC.Listen, &c.Containers.Listen} {
			*list = config.Addrs{"127.0.0.1:0", "tls://127.0.0.1:0"}
		}
		c.Admin.Listen = "tls://127.0.0.1:0"
	}
}

// Every door answers over TLS as it does without, bit for bit, to small and large tensors.
func TestTLS(t *testing.T) {
	t.Parallel()
	k := newPKI(t)
	s := start(t, encrypted(k, config.AuthRequired))
	x := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, -1}}}
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "floats", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x, Platform: "echo"},
		scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	a := s.Addrs()
	for _, columns := range []int{1, 300, budgettest.Rounds(700_001)} {
		values := make([]float32, columns)
		for i := range values {
			values[i] = float32(i) * 1.1
		}
		question, err := tensor.FromSlice(tensor.Shape{1, columns}, values)
		if err != nil {
			t.Fatal(err)
		}
		question.Name = "x"
		for name, ask := range map[string]asking{
			"tcp": newTCP(t, a.TCP[0]).ask, "tcp, tls": k.shiva(a.TCP[1]).ask,
			"rest": newHTTP(t, a.REST[0]).askBinary, "rest, tls": k.http(a.REST[1]).askBinary,
			"rest json, tls": k.http(a.REST[1]).askJSON,
			"grpc":           newGRPC(t, a.GRPC[0]).askRaw, "grpc, tls": k.grpc(a.GRPC[1]).askRaw,
		} {
			y, err := ask(t.Context(), "floats", question, 0)
			if err != nil || !bytes.Equal(y.Data, question.Data) {
				t.Errorf("%s, %d columns: %d bytes, %v", name, columns, len(y.Data), err)
			}
		}
	}
	resp, err := k.http(a.Admin).client.Get("https://" + hostport(a.Admin) + "/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(text), a.TCP[1].String()) || !strings.HasPrefix(a.TCP[1].String(), "tls://127.0.0.1:") {
		t.Errorf("the status does not say where TLS is spoken: %s, %v", text, err)
	}
	// No door answers a client without a certificate or with a TLS version below min_version;
	// without TLS each reports what it expects, or closes.
	for name, addr := range map[string]net.Addr{"tcp": a.TCP[1], "rest": a.REST[1], "grpc": a.GRPC[1], "admin": a.Admin} {
		bare, err := tls.Dial("tcp", hostport(addr),
			&tls.Config{RootCAs: k.authority.Pool(), ServerName: "localhost", NextProtos: []string{"h2", "http/1.1"}})
		if err == nil {
			_, _ = io.WriteString(bare, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
			_, err = bare.Read(make([]byte, 1))
			bare.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "certificate required") {
			t.Errorf("%s: without a certificate: %v", name, err)
		}
		old := k.config()
		old.MaxVersion = tls.VersionTLS12
		if c, err := tls.Dial("tcp", hostport(addr), old); err == nil || !strings.Contains(err.Error(), "protocol version not supported") {
			t.Errorf("%s: by TLS 1.2: %v", name, err)
			if err == nil {
				c.Close()
			}
		}
		plain, err := net.Dial("tcp", hostport(addr))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(plain, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if reply := ends(t, plain); name != "grpc" && name != "admin" && !strings.Contains(reply, "this address speaks TLS") {
			t.Errorf("%s: without TLS: %q", name, reply)
		}
		plain.Close()
	}
}

// A reload reads certificates again although no setting has changed. Connections stay; new ones see
// the new certificate. An invalid file changes nothing, and the error says what is wrong.
func TestReloadOfCertificates(t *testing.T) {
	t.Parallel() // it waits
	k, log := newPKI(t), new(logged)
	s, file := loaded(t, log, encrypted(k, config.AuthRequired))
	join(t, s, "m", tensor.Float32, tensor.Shape{-1, 3}, nil)
	x := rows(tensor.Float32, 2, false)
	a := s.Addrs()
	clients := map[string]asking{"tcp": k.shiva(a.TCP[1]).ask, "rest": k.http(a.REST[1]).askBinary,
		"grpc": k.grpc(a.GRPC[1]).askRaw}
	ask := func(when string) {
		t.Helper()
		for name, ask := range clients {
			if _, err := ask(t.Context(), "m", x, 0); err != nil {
				t.Errorf("%s, %s: %v", name, when, err)
			}
		}
	}
	doors := map[string]net.Addr{"tcp": a.TCP[1], "rest": a.REST[1], "grpc": a.GRPC[1], "containers": a.Containers[1], "admin": a.Admin}
	shows := func(when, want string) {
		t.Helper()
		for name, addr := range doors {
			if got := k.serial(addr); got != want {
				t.Errorf("%s, %s: certificate %s, expected %s", name, when, got, want)
			}
		}
	}
	ask("at first")
	second := reloadKeepsConnections(t, k, s, doors)
	shows("renewed", second)
	ask("renewed")
	if text := log.String(); !strings.Contains(text, "certificates reloaded") || !strings.Contains(text, "door=grpc") {
		t.Errorf("the log does not say so:\n%s", text)
	}

	for name, c := range map[string]struct {
		breaks func()
		want   string
	}{
		"expired": {func() { k.renew(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }) },
			"tls.cert: " + k.file("cert.pem") + ": the certificate of CN=localhost expired on"},
		"unlike": {func() { certtest.Write(t, k.dir, "key.pem", k.authority.Server(nil).Key) },
			"tls.key: " + k.file("key.pem") + " does not fit"},
		"cut short": {func() { certtest.Write(t, k.dir, "cert.pem", []byte("-----BEGIN CERT")) },
			"tls.cert: " + k.file("cert.pem") + " has no PEM in it"},
		"gone": {func() { os.Remove(k.file("ca.pem")) }, "tls.client_ca: " + k.file("ca.pem") + " cannot be read: no such file"},
	} {
		c.breaks()
		if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), "nothing was changed") ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		shows(name, second)
		ask(name)
		certtest.Write(t, k.dir, "ca.pem", k.authority.PEM())
		k.renew(nil)
	}
	third := k.renew(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	file.TLS.ClientAuth = config.AuthNone
	file.TLS.ClientCA = ""
	if _, err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	shows("good again", third)
	if !strings.Contains(log.String(), "a certificate expires soon") {
		t.Errorf("the log does not warn of a certificate that expires in an hour:\n%s", log)
	}
	k.client = tls.Certificate{}
	shows("without clients' certificates", third)
	ask("good again")
}

// reloadKeepsConnections renews the certificate and reloads, which idle connections must not
// notice. Doors close such a connection after ten seconds: a round that took half as long, on a
// busy machine, proves nothing, and is repeated.
func reloadKeepsConnections(t *testing.T, k *pki, s *Server, doors map[string]net.Addr) (serial string) {
	t.Helper()
	for {
		began := time.Now()
		open := map[string]*tls.Conn{}
		for door, addr := range doors {
			if door == "containers" { // it sends first, and disconnects clients that do not register
				continue
			}
			c, err := tls.Dial("tcp", hostport(addr), k.config())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			open[door] = c
		}
		serial = k.renew(nil)
		done, err := s.Reload()
		if err != nil || len(done.Changed)+len(done.Waiting) > 0 {
			t.Fatal(done, err)
		}
		var parted []string
		for door, c := range open {
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				parted = append(parted, fmt.Sprintf("%s: %v", door, err))
			}
		}
		if time.Since(began) > 5*time.Second {
			continue
		}
		if len(parted) > 0 {
			t.Errorf("connections from before: %q", parted)
		}
		return serial
	}
}

// A container connects over TLS with a certificate, and may serve the models that its token or its
// certificate permits. Clients get its outputs over TLS, and a reload of certificates loses no
// request.
func TestContainersOverTLS(t *testing.T) {
	t.Parallel() // it waits
	k, log := newPKI(t), new(logged)
	s, _ := loaded(t, log, func(c *config.Config) {
		encrypted(k, config.AuthRequired)(c)
		c.Identities = []config.Identity{
			declared("container", "serve:m"), {Name: "anonymous", May: []string{"infer"}},
			{Name: "camera", Certificate: config.Patterns{"cn:camera"}, May: []string{"serve:certified", "infer"}},
		}
	})
	at, spec := s.Addrs().Containers[1].String(),
		[]tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 3}}}
	unknown := k.config()
	unknown.Certificates = []tls.Certificate{k.authority.Client("unknown", nil).Pair(t)}
	serve := func(name, token string, trust *tls.Config) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { // ends with ctx
			done <- container.Serve(ctx, container.Model{
				Name: name, Version: "1", Inputs: spec, Outputs: spec, Token: token, TLS: trust,
				Log:     slog.New(slog.DiscardHandler),
				Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil },
			}, at)
		}()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	defer serve("m", tokenOf("container"), unknown)()
	defer serve("certified", "", k.config())()
	defer serve("other", tokenOf("container"), unknown)()
	defer serve("nobody", "", unknown)()
	budgettest.Until(t, "those that may to serve", func() bool { return serves(s, "m", "1") && serves(s, "certified", "1") })
	budgettest.Until(t, "the others to be refused", func() bool {
		said := log.String()
		return strings.Contains(said, "lacks the right serve:other/1") && strings.Contains(said, "matches no identity of this server")
	})
	if serves(s, "other", "1") || serves(s, "nobody", "1") {
		t.Error("a container serves without the right")
	}
	x, ask := rows(tensor.Float32, 7, false), k.shiva(s.Addrs().TCP[1]).ask
	var asking sync.WaitGroup
	reloaded := make(chan struct{})
	for range 4 {
		asking.Go(func() { // ends when all reloads are done
			for over := false; !over; {
				select {
				case <-reloaded:
					over = true
				default:
				}
				if y, err := ask(t.Context(), "m", x, 0); err != nil || !bytes.Equal(y.Data, x.Data) {
					t.Errorf("%d bytes, %v", len(y.Data), err)
				}
			}
		})
	}
	for range 5 {
		want := k.renew(nil)
		if _, err := s.Reload(); err != nil {
			t.Error(err)
		}
		if got := k.serial(s.Addrs().Containers[1]); got != want {
			t.Errorf("certificate %s, expected %s", got, want)
		}
	}
	close(reloaded)
	asking.Wait()
	if n := strings.Count(log.String(), "container registered"); n != 2 {
		t.Errorf("%d registrations, expected two: reloads lost the container\n%s", n, log)
	}
}

// A process of the server registers over TLS if there is no plain address.
func TestProcessesOverTLS(t *testing.T) {
	t.Parallel() // it waits
	k := newPKI(t)
	s := start(t, func(c *config.Config) {
		encrypted(k, config.AuthNone)(c)
		c.TLS.ClientCA = ""
		c.Containers.Listen = config.Addrs{"tls://127.0.0.1:0"}
		c.Supervised = []config.Container{sdk(t, "p", "own/1", 1)}
		c.Supervised[0].Env[container.TLSCAEnv] = k.file("ca.pem")
	})
	budgettest.Until(t, "it to serve", func() bool { return serves(s, "own", "1") })
}

// Clients that must show a certificate are not strangers.
func TestNoWarningOfCertifiedClients(t *testing.T) {
	k := newPKI(t)
	for auth, want := range map[string]bool{config.AuthRequired: false, config.AuthOptional: true} {
		log := new(logged)
		startLogging(t, slog.New(slog.NewTextHandler(log, nil)), func(c *config.Config) {
			c.TLS.Certificates = k.settings(auth)
			c.Admin.Listen = "tls://0.0.0.0:0"
			c.Containers.Listen = config.Addrs{"tls://127.0.0.1:0"} // not reachable from other machines
		})
		if strings.Contains(log.String(), "containers.listen") {
			t.Errorf("the log warns of an address of this machine:\n%s", log)
		}
		if got := strings.Contains(log.String(), "without authentication"); got != want {
			t.Errorf("%s: the log warns: %v\n%s", auth, got, log)
		}
	}
}
