package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/token"
)

// profilesAre makes a test use a file of profiles.
func profilesAre(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "profiles.toml")
	write(t, file, text)
	t.Setenv(profilesEnv, file)
	return file
}

// asked is an admin door that answers with its name and the token that it was shown.
func asked(t *testing.T, name string) (addr string) {
	t.Helper()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusConflict)
		w.Write([]byte(`{"error":"` + name + ` was shown ` +
			strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + `."}`))
	}))
	t.Cleanup(h.Close)
	return h.Listener.Addr().String()
}

// A flag overrides a profile that a flag names, that overrides variables, and these override the
// profile that a variable names. A token goes only to the server for which it is meant.
func TestWhereTheServerIs(t *testing.T) {
	one, two, three := asked(t, "one"), asked(t, "two"), asked(t, "three")
	file := profilesAre(t, "[two]\nadmin = \""+two+"\"\ntoken_file = \"two.token\"\n[bare]\nadmin = \""+two+"\"\n[empty]\n")
	write(t, filepath.Join(filepath.Dir(file), "two.token"), "of-two\n")
	for _, c := range []struct{ args, env, want string }{
		{"--admin ONE", "", "one was shown ."},
		{"", "SHIVACTL_ADMIN=THREE", "three was shown ."},
		{"", "SHIVACTL_ADMIN=THREE SHIVACTL_TOKEN=of-three", "three was shown of-three."},
		{"", "SHIVACTL_ADMIN=THREE SHIVACTL_TOKEN=of-three SHIVA_TOKEN=of-all", "three was shown of-three."},
		{"", "SHIVACTL_ADMIN=THREE SHIVA_TOKEN=of-all", "three was shown of-all."},
		{"--admin ONE", "SHIVACTL_ADMIN=THREE", "one was shown ."},
		{"--profile two", "", "two was shown of-two."},
		{"--profile two", "SHIVACTL_ADMIN=THREE SHIVACTL_TOKEN=of-three SHIVA_TOKEN=of-all", "two was shown of-two."},
		{"--profile bare", "SHIVACTL_TOKEN=of-three", "two was shown ."},
		{"--profile bare", "SHIVA_TOKEN=of-all", "two was shown of-all."},
		{"--profile bare", "SHIVACTL_PROFILE=two", "two was shown ."},
		{"--profile two --admin ONE", "", "one was shown of-two."},
		{"", "SHIVACTL_PROFILE=two", "two was shown of-two."},
		{"", "SHIVACTL_PROFILE=two SHIVACTL_ADMIN=THREE", "three was shown of-two."},
		{"", "SHIVACTL_PROFILE=two SHIVACTL_TOKEN=of-three", "two was shown of-three."},
		{"", "SHIVACTL_PROFILE=empty SHIVACTL_ADMIN=THREE", "three was shown ."},

		{"--profile tow", "", "there is no profile \"tow\" in @FILE\n  -> did you mean two?"},
		{"", "SHIVACTL_PROFILE=production", "there is no profile \"production\" in @FILE\n  -> shivactl profiles lists"},
		{"", "SHIVACTL_ADMIN=unix:", "$SHIVACTL_ADMIN: expected unix:PATH"},
		{"", "SHIVACTL_ADDR=unix:", "$SHIVACTL_ADDR: expected unix:PATH"},
		{"--admin ONE", "SHIVACTL_TOKEN=two words", "$SHIVACTL_TOKEN: expected a token"},
	} {
		t.Run(c.args+" "+c.env, func(t *testing.T) {
			for _, name := range []string{addrEnv, adminEnv, tokenEnv, profileEnv, token.Env, token.FileEnv} {
				t.Setenv(name, "")
			}
			spelled := strings.NewReplacer("ONE", one, "THREE", three, "@FILE", file)
			for pair := range strings.SplitSeq(spelled.Replace(c.env), " SHIVA") {
				if name, value, ok := strings.Cut("SHIVA"+strings.TrimPrefix(pair, "SHIVA"), "="); ok {
					t.Setenv(name, value)
				}
			}
			var out bytes.Buffer
			run(t.Context(), append([]string{"status"}, strings.Fields(spelled.Replace(c.args))...), nil, &out, &out)
			if want := spelled.Replace(c.want); !strings.Contains(out.String(), want) {
				t.Errorf("got %s, expected %s", &out, want)
			}
		})
	}
}

// The other values of a profile stand for flags, with files relative to the directory of the
// profiles.
func TestProfile(t *testing.T) {
	file := profilesAre(t, "[far]\naddr = \"tls://far:6174\"\ntls_ca = \"ca.pem\"\ntls_cert = \"/etc/me.pem\"\ntls_key = \"me.key\"\ntls_name = \"shiva\"\n")
	dir := filepath.Dir(file)
	for _, c := range []struct {
		given map[string]bool
		want  tlsFlags
	}{
		{map[string]bool{"profile": true},
			tlsFlags{ca: dir + "/ca.pem", cert: "/etc/me.pem", key: dir + "/me.key", name: "shiva"}},
		{map[string]bool{"profile": true, "tls-ca": true, "tls-name": true}, tlsFlags{cert: "/etc/me.pem", key: dir + "/me.key"}},
	} {
		k := &cli{addr: defaultAddr, admin: "127.0.0.1:8002", profile: "far", given: c.given}
		if err := k.applyProfile(); err != nil || k.tls != c.want || k.addr != "tls://far:6174" || k.admin != "127.0.0.1:8002" {
			t.Errorf("%v: %+v, addr %s, admin %s: %v", c.given, k.tls, k.addr, k.admin, err)
		}
	}
}

func TestProfiles(t *testing.T) {
	for _, c := range []struct{ text, args, want string }{
		{"", "", "no profiles: FILE has none; shivactl help profiles"},
		{"[b]\nadmin=\"h:1\"\n[a]\naddr=\"h:2\"\ntoken_file=\"t\"", "", "PROFILE  ADMIN  ADDR  TOKEN FILE\na        -      h:2   DIR/t\nb        h:1    -     -\n"},
		{"[a]\naddr=\"h:2\"", "--json", `{"file":"FILE","profiles":{"a":{"addr":"h:2"}}}`},
		{"", "--json", `{"file":"FILE","profiles":{}}`},
		{"[a]\nadres=\"h:2\"", "", "FILE: line 2: there is no setting \"a.adres\"\n  -> shivactl help profiles"},
		{"[a]\ntoken=\"secret\"", "", "line 2: there is no setting \"a.token\""},
		{"[a]\naddr=2", "", "FILE: line 2: a.addr: expected a string, got a value of type integer\n"},
		{"a=2", "", "FILE: line 1: a: expected a table, which is a profile, got a value of type integer\n"},
		{"[a\n", "", "FILE: line 1: "},
		{"", "all", "unexpected argument"},
	} {
		file := profilesAre(t, c.text)
		var out bytes.Buffer
		run(t.Context(), append([]string{"profiles"}, strings.Fields(c.args)...), nil, &out, &out)
		got := strings.NewReplacer(file, "FILE", filepath.Dir(file), "DIR").Replace(out.String())
		if !strings.Contains(got, c.want) || strings.Contains(got, "secret") {
			t.Errorf("%q: got\n%s\nexpected\n%s", c.text, got, c.want)
		}
	}
	t.Setenv(profilesEnv, filepath.Join(t.TempDir(), "absent"))
	var out bytes.Buffer
	if code := run(t.Context(), []string{"profiles"}, nil, &out, &out); code != exitOK {
		t.Errorf("a file that there is not: exit %d, %s", code, &out)
	}
	if os.Getuid() != 0 {
		t.Setenv(profilesEnv, "/root")
	} else {
		t.Setenv(profilesEnv, t.TempDir())
	}
	if code := run(t.Context(), []string{"profiles"}, nil, &out, &out); code != exitUsage {
		t.Errorf("a file that cannot be read: exit %d, %s", code, &out)
	}
}
