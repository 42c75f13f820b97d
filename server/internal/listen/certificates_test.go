package listen

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/certtest"
)

func TestCut(t *testing.T) {
	for addr, want := range map[string]string{"tls://:6175": ":6175", "tls:h:1": "h:1", "tls://[::1]:2": "[::1]:2"} {
		if got, ok := CutTLS(addr); !ok || got != want {
			t.Errorf("%s: %q, %v", addr, got, ok)
		}
	}
	for _, addr := range []string{":6175", "unix:/tls:", "tcp://a:1", "TLS://a:1"} {
		if _, ok := CutTLS(addr); ok {
			t.Errorf("%s is an address of TLS", addr)
		}
	}
	a := TLSAddr{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7}}
	if a.Network() != "tls" || a.String() != "tls://127.0.0.1:7" {
		t.Errorf("%s %s", a.Network(), a)
	}
}

// A fault of a file is reported with the setting, the file and its contents.
func TestFaults(t *testing.T) {
	dir := t.TempDir()
	authority, other := certtest.New(t, "authority"), certtest.New(t, "other")
	server, second := authority.Server(nil), authority.Server(nil)
	expired := authority.Server(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	early := authority.Server(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) })
	client := authority.Client("camera", nil)
	encrypted := "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
	certtest.Write(t, dir, "cert", server.Cert, "key", server.Key, "key2", second.Key, "expired", expired.Cert,
		"expiredkey", expired.Key,
		"early", early.Cert, "earlykey", early.Key, "client", client.Cert, "clientkey", client.Key, "ca",
		authority.PEM(), "empty", []byte{}, "der", server.Leaf.Raw,
		"encrypted", []byte(encrypted), "crl", authority.Revoke(client.Leaf), "othercrl", other.Revoke(client.Leaf),
		"brokencrl", []byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"), "brokencert", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	at := func(name string) string {
		if name == "" {
			return ""
		}
		return filepath.Join(dir, name)
	}
	for _, c := range []struct {
		name               string
		cert, key, ca, crl string
		want               []string // key: part of the text
	}{
		{"good", "cert", "key", "ca", "crl", nil},
		{"missing", "nothing", "none", "ca", "", []string{"cert: nothing cannot be read: no such file", "key: none cannot be read: no such file"}},
		{"a directory", "cert", "../" + filepath.Base(dir), "", "", []string{"key: cannot be read: is a directory"}},
		{"key of another", "cert", "key2", "", "", []string{"key: key2 does not fit the certificate of CN=localhost in"}},
		{"swapped", "key", "cert", "", "", []string{`cert: has no certificate, but a block "PRIVATE KEY"`, `key: has no key, but a block "CERTIFICATE"`}},
		{"not PEM", "der", "empty", "", "", []string{"cert: der has no PEM in it", "key: empty has no PEM in it"}},
		{"broken", "brokencert", "key", "", "", []string{"cert: certificate 1: x509"}},
		{"encrypted key", "cert", "encrypted", "", "", []string{"key: is encrypted"}},
		{"expired", "expired", "expiredkey", "", "", []string{"cert: the certificate of CN=localhost expired on 2"}},
		{"early", "early", "earlykey", "", "", []string{"cert: is valid only from 2"}},
		{"of a client", "client", "clientkey", "", "", []string{"cert: CN=camera is not for servers"}},
		{"no authority", "cert", "key", "empty", "", []string{"client_ca: empty: no certificate"}},
		{"expired authority", "cert", "key", "expired", "", []string{"client_ca: expired on 2"}},
		{"list of others", "cert", "key", "ca", "othercrl", []string{"client_crl: list 1, of CN=other, is signed by no certificate in client_ca"}},
		{"no list", "cert", "key", "ca", "cert", []string{"client_crl: cert has no list"}},
		{"broken list", "cert", "key", "ca", "brokencrl", []string{"client_crl: list 1: x509"}},
	} {
		f := TLSFiles{Cert: at(c.cert), Key: at(c.key), ClientCA: at(c.ca), ClientCRL: at(c.crl),
			ClientAuth: AuthRequired, MinVersion: Version13}
		got, faults := f.Load(time.Now(), nil)
		if (got == nil) != (len(c.want) > 0) || len(faults) != len(c.want) {
			t.Errorf("%s: %v, want %q", c.name, faults, c.want)
			continue
		}
		for i, want := range c.want {
			key, words, _ := strings.Cut(want, ": ")
			if faults[i].Key != key || !strings.Contains(faults[i].Text, words) {
				t.Errorf("%s: %v, want %q", c.name, faults[i], want)
			}
		}
	}
}

// Unchanged files are the same TLS, and changed ones are another.
func TestLoadAgain(t *testing.T) {
	dir := t.TempDir()
	authority := certtest.New(t, "authority")
	server := authority.Server(nil)
	paths := certtest.Write(t, dir, "cert", server.Cert, "key", server.Key)
	f := TLSFiles{Cert: paths[0], Key: paths[1], ClientAuth: AuthNone, MinVersion: Version12}
	first, faults := f.Load(time.Now(), nil)
	if first == nil || !first.Until.Equal(server.Leaf.NotAfter) {
		t.Fatal(first, faults)
	}
	if again, _ := f.Load(time.Now(), first); again != first {
		t.Error("the same files are another Config")
	}
	if _, faults := f.Load(time.Unix(0, 0), nil); len(faults) > 0 {
		t.Errorf("with a clock that was never set: %v", faults)
	}
	for _, now := range []time.Time{server.Leaf.NotBefore.Add(-time.Hour), server.Leaf.NotAfter.Add(time.Hour)} {
		if again, faults := f.Load(now, first); again != first {
			t.Errorf("the same files at %v: %v", now, faults)
		}
		if _, faults := f.Load(now, nil); len(faults) != 1 {
			t.Errorf("at %v for the first time: %v, expected one fault", now, faults)
		}
	}
	marked := certtest.Write(t, dir, "marked", append([]byte("\xef\xbb\xbf"), server.Cert...))
	if c, faults := (TLSFiles{Cert: marked[0], Key: paths[1], ClientAuth: AuthNone, MinVersion: Version12}).
		Load(time.Now(), nil); c == nil {
		t.Errorf("with a byte order mark, as editors of Windows write: %v", faults)
	}
	f.MinVersion = Version13
	if again, _ := f.Load(time.Now(), first); again == first || again.MinVersion <= first.MinVersion {
		t.Error("another version is the same Config")
	}
	f.MinVersion = Version12
	second := authority.Server(nil)
	for len(second.Cert) != len(server.Cert) || len(second.Key) != len(server.Key) { // lengths vary a little
		second = authority.Server(nil)
	}
	certtest.Write(t, dir, "cert", second.Cert, "key", second.Key)
	if again, faults := f.Load(time.Now(), first); again == first || again == nil {
		t.Errorf("another certificate is the same Config: %v", faults)
	}
}

// A client that presents a certificate does so in each handshake: a resumed session would carry a
// certificate verified under earlier settings. A client without one may resume.
func TestResumption(t *testing.T) {
	authority := certtest.New(t, "authority")
	server := authority.Server(nil)
	paths := certtest.Write(t, t.TempDir(), "cert", server.Cert, "key", server.Key, "ca", authority.PEM())
	for auth, want := range map[string]bool{AuthNone: true, AuthOptional: false, AuthRequired: false} {
		f := TLSFiles{Cert: paths[0], Key: paths[1], ClientCA: paths[2], ClientAuth: auth, MinVersion: Version12}
		config, faults := f.Load(time.Now(), nil)
		if config == nil {
			t.Fatal(faults)
		}
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			trust := &tls.Config{
				RootCAs: authority.Pool(), ServerName: "localhost", MaxVersion: version,
				ClientSessionCache: tls.NewLRUClientSessionCache(1),
				Certificates:       []tls.Certificate{authority.Client("camera", nil).Pair(t)},
			}
			var resumed bool
			for range 2 {
				near, far := net.Pipe()
				_ = far.SetDeadline(time.Now().Add(time.Minute)) // for a test that fails
				go func() {
					s := tls.Server(near, config.Config)
					_, _ = io.WriteString(s, "x") // after the ticket
					s.Close()
				}()
				c := tls.Client(far, trust)
				if text, err := io.ReadAll(c); err != nil || string(text) != "x" {
					t.Errorf("%s: %q, %v", auth, text, err)
				}
				resumed = c.ConnectionState().DidResume
				c.Close()
			}
			if resumed != want {
				t.Errorf("client_auth = %s, %s: resumed %v, expected %v", auth, tls.VersionName(version), resumed, want)
			}
		}
	}
}

// A client is refused if every chain from it has a certificate that is revoked, its own or that of
// an authority in between, and only through a list of the same issuer.
func TestNotRevoked(t *testing.T) {
	one, other := certtest.New(t, "one"), certtest.New(t, "other")
	stolen, good, between := one.Client("stolen", nil).Leaf, one.Client("good", nil).Leaf, one.Client("between", nil).Leaf
	namesake := other.Client("namesake", nil).Leaf // with the serial number of the stolen one
	revoked := map[string]bool{}
	for _, c := range []*x509.Certificate{stolen, between} {
		revoked[serial(c.RawIssuer, c.SerialNumber.Bytes())] = true
	}
	type chains = [][]*x509.Certificate
	for name, c := range map[string]struct {
		shown chains
		want  string
	}{
		"none":                    {nil, ""},
		"good":                    {chains{{good}}, ""},
		"stolen":                  {chains{{stolen}}, "the certificate of CN=stolen, number 2, is revoked"},
		"by who signed it":        {chains{{good, between}}, "the certificate of CN=between, number 4, is revoked"},
		"by one of two":           {chains{{good, between}, {good}}, ""},
		"by both":                 {chains{{good, between}, {stolen}}, "is revoked"},
		"a number of two issuers": {chains{{namesake}}, ""},
	} {
		err := notRevoked(c.shown, revoked)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if namesake.SerialNumber.Cmp(stolen.SerialNumber) != 0 {
		t.Errorf("numbers are %v and %v, expected the same", namesake.SerialNumber, stolen.SerialNumber)
	}
}
