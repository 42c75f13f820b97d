package config

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/certtest"
)

const (
	someHash  = "5d0b1d3c1c2f0c9c2f5a1fbd0b2a54c11c4a3f3f6f0e5fd6be6ac0b1b6a9d2e7"
	otherHash = "aa0b1d3c1c2f0c9c2f5a1fbd0b2a54c11c4a3f3f6f0e5fd6be6ac0b1b6a9d2e7"
)

// Faults of identities say what is wrong and where, and never show an invalid hash, which may be a
// token.
func TestIdentityFaults(t *testing.T) {
	for _, c := range []struct {
		file string
		want []string // nil: no faults
	}{
		{`name = "a"
token_sha256 = "` + someHash + `"
may = ["infer", "infer:cat*", "feedback:*", "load:c?t", "serve:cat/2*", "serve:[ab]*", "admin:read", "admin:write"]`,
			nil},
		{`name = "a"
token_sha256 = ["` + someHash + `", "` + otherHash + `"]
may = ["infer"]`, nil},
		{`name = "anonymous"
may = ["infer:cat"]`, nil},
		{``, []string{`1:3: identity[0].name: missing`, `1:3: identity[0].may: missing`}},
		{`name = "a"
token_sha256 = "hunter2"
may = ["infer"]`, []string{`3:1: identity[0].token_sha256: expected the SHA-256 of a token, 64 hexadecimal digits as "shivactl tokens new" prints them, got 7 characters`}},
		{`name = "a"
token_sha256 = ["` + someHash + `", "hunter2` + someHash[7:] + `"]
may = ["infer"]`, []string{`identity[0].token_sha256[1]: expected the SHA-256 of a token, 64 hexadecimal digits, got 64 characters, not all of them hexadecimal`}},
		{`name = "anonymous"
token_sha256 = "` + someHash + `"
may = ["infer"]`, []string{`identity[0].token_sha256: "anonymous" is the identity of clients without a token, and cannot have one`}},
		{`name = "a\n"
token_sha256 = "` + someHash + `"
may = ["infer"]`, []string{`2:1: identity[0].name: "a\n" has characters that are not printable`}},
		{`name = "a"
token_sha256 = 7
may = "infer"
token = "hunter2"`,
			[]string{`identity[0].token_sha256: expected the SHA-256 of a token or a list of them, got the integer 7`,
				`identity[0].may: expected a list of strings, got the string "infer"`, `identity[0].token: unknown key`}},
		{`name = "a"
token_sha256 = "` + someHash + `"
may = ["look", "infer:", "infer:cat/1", "infer:[a", "admin", "admin:read:x", "serve:cat/", "serve:/1", "infer:!x", "serve:cat/update", "Infer"]`, []string{
			`4:1: identity[0].may[0]: "look" is not a right: expected infer,`, `4:1: identity[0].may[1]: infer: "": a pattern of 0 bytes matches nothing`,
			`identity[0].may[2]: infer applies to names, but "cat/1" has a version`, `identity[0].may[3]: infer: pattern "[a": a bracket`,
			`identity[0].may[4]: "admin" is not a right`, `identity[0].may[5]: admin:read takes no pattern`,
			`identity[0].may[6]: serve: "cat/": a pattern of 0 bytes`, `identity[0].may[7]: serve: "/1": a pattern of 0 bytes`,
			`identity[0].may[8]: infer: no model or version can have this name`,
			`identity[0].may[9]: serve: no model or version can have this name`, `identity[0].may[10]: "Infer" is not a right`,
		}},
		{`name = "a"
token_sha256 = "` + someHash + `"
may = ["infer"]
[[identity]]
name = "a"
token_sha256 = "` + strings.ToUpper(someHash) + `"
may = ["feedback"]`, []string{`6:1: identity[1].name: "a" is already the name of identity[0]`, `7:1: identity[1].token_sha256: it has a token of identity[0], "a": a client that shows it could be either`}},
		{`name = "a"
certificate = "cn:camera"
may = ["infer"]`, []string{`3:1: identity[0].certificate: has no meaning: no listener verifies certificates of clients`}},
		{`name = "anonymous"
certificate = ["cn:camera", 7]
may = ["infer"]`, []string{`3:1: identity[0].certificate[1]: expected a string, got the integer 7`}},
	} {
		parsed, err := parse("x.toml", []byte("[[identity]]\n"+c.file))
		if err == nil {
			err = parsed.Validate()
		}
		if err == nil {
			if c.want != nil {
				t.Errorf("%s\nis taken", c.file)
			}
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error has what was in the place of a hash: %v", err)
		}
		got := lines(t, err)
		if len(got) != len(c.want) {
			t.Errorf("%s\ngot %q\nwant %q", c.file, got, c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("got  %s\nwant %s", got[i], c.want[i])
			}
		}
	}
}

// Identities are adopted, each listed as a whole, and shown with only the beginning of their
// hashes.
func TestIdentitiesReload(t *testing.T) {
	one := func(name, hash string) Identity {
		return Identity{Name: name, TokenSHA256: Hashes{hash}, May: []string{"infer"}}
	}
	c, next := Default(), Default()
	c.Identities = []Identity{one("stays", someHash), one("goes", otherHash)}
	next.Identities = []Identity{one("stays", otherHash), one("comes", someHash)}
	adopted, list := c.Adopt(next)
	if len(adopted.Declarations()) != 2 || adopted.Identities[1].Name != "comes" {
		t.Errorf("adopted %+v", adopted.Identities)
	}
	var keys []string
	for _, change := range list {
		keys = append(keys, change.Key)
		if change.Restart {
			t.Errorf("%s waits for a restart", change.Key)
		}
	}
	if got := strings.Join(keys, " "); got != "identity.stays identity.goes identity.comes" {
		t.Errorf("changes %s", got)
	}
	shown, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	redacted, err := json.Marshal(next.Redacted())
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(shown), string(redacted)} {
		if strings.Contains(text, someHash) || strings.Contains(text, otherHash) ||
			!strings.Contains(text, someHash[:8]) {
			t.Errorf("shown: %s", text)
		}
	}
	if next.Identities[1].TokenSHA256[0] != someHash {
		t.Error("Redacted changed what it was of")
	}
}

// Faults of certificates say what is wrong and where, also for two identities that overlap.
func TestCertificateFaults(t *testing.T) {
	dir := t.TempDir()
	authority := certtest.New(t, "authority")
	server := authority.Server(nil)
	certtest.Write(t, dir, "cert.pem", server.Cert, "key.pem", server.Key, "ca.pem", authority.PEM())
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		first, second Patterns
		want          []string
	}{
		{Patterns{"cn:camera-*", "subject:CN=*,O=Cameras", "dns:*.Example.org", "email:*@example.org",
			"uri:spiffe://example.org/cameras/*", "ip:10.0.0.?"}, nil, nil},
		{Patterns{"cn:camera-*"}, Patterns{"dns:camera-*", "cn:lamp-*"}, nil},
		{Patterns{"cn:cam*"}, Patterns{"cn:*era"}, nil}, // whether both match shows only with a certificate
		{Patterns{"camera"}, nil, []string{`identity[0].certificate: "camera" is not a certificate pattern: expected cn:, subject:, dns:,`}},
		{Patterns{"CN:camera", "cn:", "cn:[a", "cn:a\nb", "ou:x"}, nil,
			[]string{`identity[0].certificate[0]: "CN:camera" is not a certificate pattern`, `identity[0].certificate[1]: "cn:": a pattern of 0 bytes`,
				`identity[0].certificate[2]: "cn:[a": a bracket`,
				`identity[0].certificate[3]: "cn:a\nb" has characters that are not printable`, `identity[0].certificate[4]: "ou:x" is not a certificate pattern`}},
		{Patterns{"cn:" + strings.Repeat("a", 1025)}, nil, []string{`identity[0].certificate: a pattern of 1025 bytes matches nothing`}},
		{Patterns{"cn:camera"}, Patterns{"cn:camera"}, []string{`identity[1].certificate: "cn:camera" matches certificates of identity[0], "first", whose pattern is "cn:camera": a client that shows one could be either`}},
		{Patterns{"cn:camera-*"}, Patterns{"dns:x", "cn:camera-7"}, []string{`identity[1].certificate: "cn:camera-7" matches certificates of identity[0], "first", whose pattern is "cn:camera-*"`}},
		{Patterns{"dns:CAMERA"}, Patterns{"dns:cam*"}, []string{`identity[1].certificate: "dns:cam*" matches certificates of identity[0]`}},
	} {
		all := Default()
		all.REST.Listen = Addrs{"tls://127.0.0.1:0"}
		all.TLS.Certificates = Certificates{Cert: at("cert.pem"), Key: at("key.pem"), ClientCA: at("ca.pem"),
			ClientAuth: AuthOptional, MinVersion: "1.3"}
		all.Identities = []Identity{{Name: "first", Certificate: c.first, May: []string{"infer"}}}
		if c.second != nil {
			all.Identities = append(all.Identities, Identity{Name: "second", Certificate: c.second, May: []string{"infer"}})
		}
		var got []string
		if err := all.Validate(); err != nil {
			got = lines(t, err)
		}
		if len(got) != len(c.want) {
			t.Errorf("%q, %q\ngot %q\nwant %q", c.first, c.second, got, c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("got  %s\nwant %s", got[i], c.want[i])
			}
		}
		all.TLS.ClientAuth, all.TLS.ClientCA = AuthNone, ""
		if err := all.Validate(); err == nil || !strings.Contains(err.Error(), "identity[0].certificate: has no meaning: no listener verifies certificates") {
			t.Errorf("where nobody verifies certificates: %v", err)
		}
	}
}
