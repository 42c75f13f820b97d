package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/token"
)

// A token is printed once, with the table of its hash, or written to a new file that only the owner
// can read.
func TestNewToken(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), strings.Fields("tokens new camera --may infer:cat*,feedback"), nil, &out,
		&errs); code != exitOK {
		t.Fatalf("exit %d: %s", code, &errs)
	}
	secret, table, _ := strings.Cut(out.String(), "\n\n")
	if want := fmt.Sprintf("[[identity]]\nname = \"camera\"\ntoken_sha256 = %q\nmay = [\"infer:cat*\", \"feedback\"]\n",
		token.Hash(secret)); table != want {
		t.Errorf("got %s\nwant %s", table, want)
	}

	out.Reset()
	file := filepath.Join(t.TempDir(), "camera.token")
	if code := run(t.Context(), []string{"tokens", "new", "camera", "--json", "--file", file}, nil, &out,
		&errs); code != exitOK {
		t.Fatalf("exit %d: %s", code, &errs)
	}
	source, err := token.FromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	written := source.Token()
	var shown map[string]any
	if err := json.Unmarshal(out.Bytes(), &shown); err != nil || shown["token_sha256"] != token.Hash(written) || shown["token"] != nil {
		t.Errorf("%v: %s", err, &out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if code := run(t.Context(), []string{"tokens", "new", "camera", "--file", file}, nil, &out,
		&errs); code != exitUsage || !strings.Contains(errs.String(), "name another file, or remove this one") {
		t.Errorf("a file that is there: exit %d: %s", code, &errs)
	}
	if source.Token() != written {
		t.Error("it was changed")
	}
}

// A right that no server knows is refused before a token is made.
func TestRightsAreChecked(t *testing.T) {
	for may, says := range map[string]string{
		"infre": `there is no right "infre"`, "infer,admin": `there is no right "admin"`,
		"admin:read:x": "there is no right", "infer:cat*,serve:cat/2*,admin:write": "",
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"tokens", "new", "camera", "--may", may}, nil, &out, &errs)
		if says == "" && code != exitOK || says != "" &&
			(code != exitUsage || !strings.Contains(errs.String(), says) || out.Len() > 0) {
			t.Errorf("%s: exit %d: %s%s", may, code, &out, &errs)
		}
	}
}

// Every command shows the token of the environment at its door, none takes a token as an argument,
// and a server's refusal of it is explained.
func TestTokenIsShown(t *testing.T) {
	t.Setenv(token.Env, "s3cret")
	whoami := `{"identity":"camera","may":["infer:cat*"]}`
	var mu sync.Mutex
	var first []string
	s := shivatest.Serve(listen(t, "tcp"), func(c *shivatest.Conn, q *shiva.Message) {
		if q.Namespace != shiva.WhoAmINamespace {
			_ = c.Send(refusal(shiva.PermissionDenied, `identity "camera" lacks the right infer:digits`))
			return
		}
		mu.Lock()
		first = append(first, string(q.Metadata))
		mu.Unlock()
		_ = c.Send(&shiva.Message{Namespace: q.Namespace, Metadata: []byte(whoami)})
	})
	defer s.Close()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusForbidden
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			status = http.StatusUnauthorized
		} else if r.URL.Path == "/v1/whoami" {
			fmt.Fprint(w, `{"identity":"operator","may":["admin:read"]}`)
			return
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":"refused with %d"}`, status)
	}))
	defer h.Close()
	for _, c := range []struct {
		args, token string
		code        int
		want        string
	}{
		{"whoami", "s3cret", exitOK, "camera, who may infer:cat*\n"},
		{"whoami --json", "s3cret", exitOK, whoami + "\n"},
		{"infer digits x", "s3cret", exitRefused, "lacks the right infer:digits\n  -> shivactl whoami"},
		{"models", "s3cret", exitRefused, "refused with 403\n  -> shivactl whoami"},
		{"models", "other", exitRefused, "refused with 401\n  -> show a token"},
		{"bench digits --door rest --addr " + h.Listener.Addr().String(), "other", exitRefused, "refused with 401\n  -> show a token"},
		{"bench digits --door rest --addr " + h.Listener.Addr().String(), "s3cret", exitRefused, "refused with 403\n  -> shivactl whoami"},
		{"models", "two words", exitUsage, "expected a token"},
		{"models --token s3cret", "", exitUsage, "there is no flag --token"},
	} {
		t.Setenv(token.Env, c.token)
		var out bytes.Buffer
		args := append([]string{"--addr", s.Addr(), "--admin", h.Listener.Addr().String()}, strings.Fields(c.args)...)
		if code := run(t.Context(), args, nil, &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: exit %d, %q; expected %d, %q", c.args, code, &out, c.code, c.want)
		}
	}
	t.Setenv(token.Env, "s3cret")
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--admin", h.Listener.Addr().String(), "whoami"}, nil, &out,
		&out); code != exitOK || out.String() != "operator, who may admin:read\n" {
		t.Errorf("at the admin door: exit %d, %q", code, &out)
	}
	t.Setenv(adminEnv, h.Listener.Addr().String())
	out.Reset()
	if code := run(t.Context(), []string{"whoami"}, nil, &out, &out); code != exitOK || out.String() != "operator, who may admin:read\n" {
		t.Errorf("at the admin door of a variable: exit %d, %q", code, &out)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(first) < 3 || first[0] != `{"token":"s3cret"}` {
		t.Errorf("first messages: %q", first)
	}
}

// After a refusal of a token that has been replaced meanwhile, the new token is shown, once.
func TestReplacedTokenIsShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	write("first")
	source, err := token.FromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	known, asked := "second", 0
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("Authorization") != "Bearer "+known {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"unknown"}`)
			write("second")
			return
		}
		fmt.Fprint(w, `{}`)
	}))
	defer h.Close()
	c := &cli{ctx: t.Context(), admin: h.Listener.Addr().String(), token: source}
	var answer struct{}
	if err := c.call("GET", "/v1/status", nil, &answer); err != nil || asked != 2 {
		t.Errorf("%d questions: %v", asked, err)
	}
	known = "third"
	if err := c.call("GET", "/v1/status", nil, &answer); err == nil || asked != 3 {
		t.Errorf("%d questions: %v", asked, err)
	}
}
