package config

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/certtest"
)

// certificates writes the files of a certificate authority into a directory.
func certificates(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	authority := certtest.New(t, "authority")
	server, second := authority.Server(nil), authority.Server(nil)
	expired := authority.Server(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	certtest.Write(t, dir, "cert.pem", server.Cert, "key.pem", server.Key, "cert2.pem", second.Cert, "key2.pem",
		second.Key, "ca.pem", authority.PEM(),
		"expired.pem", expired.Cert, "expired.key", expired.Key, "crl.pem", authority.Revoke())
	return dir
}

// Faults of TLS settings are reported once, with their position, before a door is opened. A setting
// that protects nothing is a fault.
func TestTLSFaults(t *testing.T) {
	dir := certificates(t)
	const pair = "cert = \"cert.pem\"\nkey = \"key.pem\"\n"
	const doors = "[rest]\nlisten = [\":8000\", \"tls://:8443\"]\n[grpc]\nlisten = \"tls:localhost:8444\"\n"
	for _, c := range []faulty{
		{"plain beside TLS", "[tls]\n" + pair + doors, nil},
		{"all of it", "[tls]\n" + pair + "client_ca = \"ca.pem\"\nclient_crl = \"crl.pem\"\nclient_auth = \"optional\"\nmin_version = \"1.2\"\n" + doors +
			"[grpc.tls]\ncert = \"cert2.pem\"\nkey = \"key2.pem\"\nclient_auth = \"required\"\nmin_version = \"1.3\"\n", nil},
		{"no certificate", doors, []string{
			"x.toml:2:1: rest.listen: tls://:8443 needs a certificate: give tls.cert and tls.key, of all endpoints, or rest.tls.cert and rest.tls.key",
			"x.toml:4:1: grpc.listen: tls:localhost:8444 needs a certificate: give tls.cert and tls.key, of all endpoints, or grpc.tls.cert and grpc.tls.key"}},
		{"half a pair", "[tls]\ncert = \"cert.pem\"\n[rest.tls]\nkey = \"key.pem\"\n" + doors, []string{
			"x.toml:1:2: tls.key: missing: the key of DIR/cert.pem", "x.toml:3:7: rest.tls.cert: missing: the certificate of the key DIR/key.pem"}},
		{"words", "[tls]\n" + pair + "client_auth = \"yes\"\n[rest.tls]\nmin_version = \"1.1\"\n" + doors, []string{
			`x.toml:4:1: tls.client_auth: expected one of none, optional, required, got "yes"`, `x.toml:6:1: rest.tls.min_version: expected one of 1.2, 1.3, got "1.1"`}},
		{"expired, for two doors", "[tls]\ncert = \"expired.pem\"\nkey = \"expired.key\"\n" + doors, []string{
			"x.toml:2:1: tls.cert: DIR/expired.pem: the certificate of CN=localhost expired on 2"}},
		{"a key of another", "[tls]\n" + pair + doors + "[grpc.tls]\ncert = \"cert2.pem\"\nkey = \"key.pem\"\n", []string{
			"x.toml:10:1: grpc.tls.key: DIR/key.pem does not fit the certificate of CN=localhost in DIR/cert2.pem: "}},
		{"nobody to sign", "[tls]\n" + pair + "client_auth = \"required\"\n[tcp]\nlisten = \"tls://:1\"\n", []string{
			`x.toml:4:1: tls.client_auth: "required" needs client_ca: a file with the CA certificates that sign those of clients`}},
		{"nobody is asked", "[tls]\n" + pair + "client_ca = \"ca.pem\"\n" + doors, []string{
			`x.toml:4:1: tls.client_ca: has no meaning with client_auth = "none": say "optional" or "required"`}},
		{"no address", "[tls]\n" + pair + "[admin.tls]\n" + pair, []string{
			`x.toml:2:1: tls.cert: has no meaning: no endpoint without a certificate of its own has an address of TLS, such as rest.listen = "tls://:8443"`,
			"x.toml:5:1: admin.tls.cert: has no meaning: admin.listen has no address of TLS: expected one as tls://host:port"}},
		{"containers", "[tls]\n" + pair + "[containers]\nlisten = \"tls://:1\"\nlisten_v2 = \"tls:x:1\"\n[containers.tls]\nclient_auth = \"required\"\n[[container]]\nname = \"a\"\ncommand = [\"a\"]\n" +
			"[[container]]\nname = \"b\"\ncommand = [\"b\"]\nenv = { SHIVA_TLS_CA = \"ca.pem\" }\n", []string{
			`x.toml:6:1: containers.listen_v2[0]: "tls:x:1" is not an address: want host:port, as "127.0.0.1:6174" or ":6174"`,
			`x.toml:8:1: containers.tls.client_auth: "required" needs client_ca: a file with the CA certificates that sign those of clients`,
			`x.toml:9:3: container[0].env: SHIVA_TLS_CA is missing, and containers.listen has addresses of TLS alone: say whom the container trusts, or give containers.listen an address on this machine, such as ipc:///run/shivad/containers.sock`}},
		{"taken twice", "[tls]\n" + pair + "[tcp]\nlisten = [\":7\", \"tls://localhost:7\"]\n[rest]\nlisten = \"tls://x\"\n", []string{
			"x.toml:5:1: tcp.listen[1]: localhost:7 is already taken by tcp.listen[0]",
			`x.toml:7:1: rest.listen: "x" is not an address: want host:port`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(dir, "x.toml")
			if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			got := lines(t, cfg.Validate())
			for i := range got {
				got[i] = strings.ReplaceAll(got[i], dir+"/x.toml", "x.toml")
			}
			same := func(got, want string) bool { return strings.HasPrefix(strings.ReplaceAll(got, dir, "DIR"), want) }
			if !slices.EqualFunc(got, c.want, same) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// A door uses its own table, and [tls] for settings that its table lacks.
func TestTLSOfDoors(t *testing.T) {
	dir := certificates(t)
	c := Default()
	at := func(name string) string { return filepath.Join(dir, name) }
	c.TCP.Listen, c.REST.Listen = Addrs{"tls://:1"}, Addrs{"tls://:2"}
	c.TLS.Certificates = Certificates{Cert: at("cert.pem"), Key: at("key.pem"), ClientCA: at("ca.pem"),
		ClientAuth: AuthOptional, MinVersion: "1.3"}
	c.REST.TLS = Certificates{Cert: at("cert2.pem"), Key: at("key2.pem"), ClientAuth: AuthNone, MinVersion: "1.2"}
	read, err := c.Secure(nil, time.Now)
	if err != nil || len(read) != 2 {
		t.Fatal(read, err)
	}
	for door, want := range map[string]string{"tcp": "304 VerifyClientCertIfGiven []", "rest": "303 NoClientCert [http/1.1]"} {
		if got := fmt.Sprintf("%x %v %v", read[door].MinVersion, read[door].ClientAuth,
			read[door].NextProtos); got != want {
			t.Errorf("%s: %s, want %s", door, got, want)
		}
	}
	if string(read["tcp"].Certificates[0].Certificate[0]) == string(read["rest"].Certificates[0].Certificate[0]) {
		t.Error("both have the same certificate")
	}
	again, err := c.Secure(read, time.Now)
	if err != nil || again["tcp"] != read["tcp"] || again["rest"] != read["rest"] {
		t.Errorf("the same files are other certificates: %v", err)
	}
}
