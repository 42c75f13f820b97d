package shiva_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/shivatest"
)

// serveTLS runs an echo server at the address that it returns.
func serveTLS(t *testing.T, config *tls.Config) (addr string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	s := shivatest.Serve(l, func(c *shivatest.Conn, m *shiva.Message) { _ = c.Send(m) })
	t.Cleanup(s.Close)
	return "tls://" + s.Addr()
}

// echoed dials, and sends one request.
func echoed(t *testing.T, addr string, options ...shiva.Option) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := shiva.Dial(ctx, addr, options...)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Do(ctx, &shiva.Message{Namespace: "m"})
	return err
}

// With valid certificates requests are answered; with an invalid one the error has the fault and
// the address.
func TestClientTLS(t *testing.T) {
	ours, others := certtest.New(t, "ours"), certtest.New(t, "others")
	server := func(i certtest.Issue, auth tls.ClientAuthType) string {
		return serveTLS(t,
			&tls.Config{Certificates: []tls.Certificate{i.Pair(t)}, ClientAuth: auth, ClientCAs: ours.Pool()})
	}
	good := ours.Server(nil)
	expired := ours.Server(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	elsewhere := ours.Server(func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"models.example"} })
	open, closed := server(good, tls.NoClientCert), server(good, tls.RequireAndVerifyClientCert)
	trust := func(a *certtest.Authority, own ...certtest.Issue) *tls.Config {
		c := &tls.Config{RootCAs: a.Pool()}
		for _, i := range own {
			c.Certificates = append(c.Certificates, i.Pair(t))
		}
		return c
	}
	named := trust(ours)
	named.ServerName = "models.example"
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := shivatest.Serve(plain, func(c *shivatest.Conn, m *shiva.Message) { _ = c.Send(m) })
	t.Cleanup(s.Close)
	for name, k := range map[string]struct {
		addr   string
		config *tls.Config
		want   string // "": an answer
	}{
		"trusted":                    {open, trust(ours), ""},
		"one colon":                  {strings.Replace(open, "//", "", 1), trust(ours), ""},
		"a client's certificate":     {closed, trust(ours, ours.Client("camera", nil)), ""},
		"another name":               {server(elsewhere, tls.NoClientCert), named, ""},
		"of nobody we know":          {open, trust(others), "certificate signed by unknown authority"},
		"of nobody the system knows": {open, nil, "certificate signed by unknown authority"},
		"expired":                    {server(expired, tls.NoClientCert), trust(ours), "certificate has expired"},
		"for another host":           {server(elsewhere, tls.NoClientCert), trust(ours), "127.0.0.1"},
		"no client's certificate":    {closed, trust(ours), "certificate required"},
		"a server without TLS":       {"tls://" + s.Addr(), trust(ours), "does not look like a TLS handshake"},
		"TLS where it is not said":   {strings.TrimPrefix(open, "tls://"), trust(ours), "expected tls://host:port"},
	} {
		var options []shiva.Option
		if k.config != nil {
			options = append(options, shiva.WithTLS(k.config))
		}
		err := echoed(t, k.addr, options...)
		where := strings.TrimPrefix(strings.TrimPrefix(k.addr, "tls:"), "//")
		if k.want == "" && err != nil || k.want != "" &&
			(err == nil || !strings.Contains(err.Error(), k.want) || !strings.Contains(err.Error(), where)) {
			t.Errorf("%s: %v; expected %q", name, err, k.want)
		}
	}
}
