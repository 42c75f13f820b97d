package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/admin/admintest"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/shivatest"
)

// Both doors over TLS, and bench: one set of flags for all commands. A fault of a certificate is
// reported with the address and a hint.
func TestTLSOfDoors(t *testing.T) {
	ours, others := certtest.New(t, "ours"), certtest.New(t, "others")
	serve := func(i certtest.Issue, auth tls.ClientAuthType) (tcp, adminAddr string) {
		config := &tls.Config{Certificates: []tls.Certificate{i.Pair(t)}, ClientAuth: auth, ClientCAs: ours.Pool()}
		s := shivatest.Serve(tls.NewListener(listen(t, "tcp"), config), func(c *shivatest.Conn, q *shiva.Message) {
			if strings.HasPrefix(q.Namespace, "v2/") {
				_ = c.Send(&shiva.Message{Namespace: q.Namespace, Metadata: []byte(fakeModels["digits"].metadata)})
				return
			}
			good(c, q)
		})
		t.Cleanup(s.Close)
		h := httptest.NewUnstartedServer(admintest.Handler(admintest.New(fakeList, fakeStatus).Sources()))
		h.TLS, h.Config.ErrorLog = config, log.New(io.Discard, "", 0)
		h.StartTLS()
		t.Cleanup(h.Close)
		return "tls://" + s.Addr(), "tls://" + h.Listener.Addr().String()
	}
	camera := ours.Client("camera", nil)
	files := certtest.Write(t, t.TempDir(), "ca.pem", ours.PEM(), "others.pem", others.PEM(), "camera.pem", camera.Cert,
		"camera.key", camera.Key, "other.key", others.Client("x", nil).Key)
	ca, foreign, cert, key, unfit := files[0], files[1], files[2], files[3], files[4]
	tcp, adminAddr := serve(ours.Server(nil), tls.NoClientCert)
	askingTCP, askingAdmin := serve(ours.Server(nil), tls.RequireAndVerifyClientCert)
	oldTCP, oldAdmin := serve(ours.Server(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }),
		tls.NoClientCert)
	named, _ := serve(ours.Server(func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"models.example"} }),
		tls.NoClientCert)
	plainTCP, plainAdmin := fake(t, "tcp")
	t.Chdir(t.TempDir())
	digit(t, "seven.png", 7, 8)
	write(t, "zeros.json", `[`+strings.Repeat("0,", 63)+`0]`)
	for _, k := range []struct {
		args string
		code int
		want []string
	}{
		{"infer digits seven.png --addr " + tcp + " --tls-ca " + ca, exitOK, []string{"seven.png"}},
		{"infer digits seven.png --addr " + tcp + " --tls-insecure", exitOK, []string{"seven.png"}},
		{"infer digits seven.png --addr " + named + " --tls-name models.example --tls-ca " + ca, exitOK, []string{"seven.png"}},
		{"infer digits seven.png --addr " + askingTCP + " --tls-ca " + ca + " --tls-cert " + cert + " --tls-key " + key,
			exitOK, []string{"seven.png"}},
		{"bench digits --data zeros.json --for 100ms --conns 2 --addr " + tcp + " --tls-ca " + ca, exitOK, []string{"digits over tcp at " + tcp}},
		{"models --admin " + adminAddr + " --tls-ca " + ca, exitOK, []string{"digits"}},
		{"models --admin https:" + strings.TrimPrefix(adminAddr, "tls:") + " --tls-ca " + ca, exitOK, []string{"digits"}},
		{"models --admin " + askingAdmin + " --tls-ca " + ca + " --tls-cert " + cert + " --tls-key " + key, exitOK,
			[]string{"digits"}},

		{"infer digits seven.png --addr " + tcp, exitUnreachable, []string{tcp, "unknown authority", "--tls-ca"}},
		{"infer digits seven.png --addr " + tcp + " --tls-ca " + foreign, exitUnreachable,
			[]string{tcp, "unknown authority", "--tls-ca"}},
		{"infer digits seven.png --addr " + oldTCP + " --tls-ca " + ca, exitUnreachable, []string{oldTCP, "expired"}},
		{"infer digits seven.png --addr " + named + " --tls-ca " + ca, exitUnreachable, []string{named, "127.0.0.1", "--tls-name"}},
		{"infer digits seven.png --addr " + askingTCP + " --tls-ca " + ca, exitUnreachable,
			[]string{askingTCP, "certificate required", "--tls-cert"}},
		{"infer digits seven.png --addr tls://" + plainTCP + " --tls-ca " + ca, exitUnreachable,
			[]string{plainTCP, "does not answer in TLS", "leave tls:// out"}},
		{"infer digits seven.png --addr " + strings.TrimPrefix(tcp, "tls://"), exitUnreachable,
			[]string{strings.TrimPrefix(tcp, "tls://"), "tls://"}},
		{"bench digits --addr " + tcp, exitUnreachable, []string{tcp, "unknown authority", "--tls-ca"}},
		{"models --admin " + adminAddr, exitUnreachable, []string{adminAddr, "unknown authority", "--tls-ca"}},
		{"models --admin " + oldAdmin + " --tls-ca " + ca, exitUnreachable, []string{oldAdmin, "expired"}},
		{"models --admin " + askingAdmin + " --tls-ca " + ca, exitUnreachable,
			[]string{askingAdmin, "certificate required", "--tls-cert"}},
		{"models --admin tls://" + plainAdmin + " --tls-ca " + ca, exitUnreachable, []string{plainAdmin, "leave tls:// out"}},

		{"models --admin " + adminAddr + " --tls-ca nothing.pem", exitUsage, []string{"--tls-ca", "nothing.pem: no such file"}},
		{"models --admin " + adminAddr + " --tls-ca " + key, exitUsage, []string{"--tls-ca " + key, "expected certificates in PEM"}},
		{"infer digits seven.png --addr " + tcp + " --tls-cert " + cert, exitUsage, []string{"--tls-cert " + cert, "expected --tls-key"}},
		{"infer digits seven.png --addr " + tcp + " --tls-key " + key, exitUsage, []string{"--tls-key " + key, "expected --tls-cert"}},
		{"infer digits seven.png --addr " + tcp + " --tls-cert " + cert + " --tls-key " + unfit, exitUsage,
			[]string{cert, unfit, "does not match"}},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append(strings.Fields(k.args), "--timeout", "10s"), nil, &out, &errs)
		printed := out.String() + errs.String()
		for _, want := range k.want {
			if code != k.code || !strings.Contains(printed, want) {
				t.Errorf("%s: exit %d, expected %d and %q:\n%s", k.args, code, k.code, want, printed)
				break
			}
		}
	}
}
