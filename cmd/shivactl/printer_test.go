package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/shivatest"
)

// hostile is what a terminal would interpret: titles, colours, bells, overwriting, C1 controls as
// characters and as bytes, and the order of letters.
const hostile = "\x1b]0;owned\x07\x1b[2J\rok\u009b31m\u202egnirts\u2066\x7f\U000e0041"

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"a\tb\nünï — █ 日本 🙂":         "a\tb\nünï — █ 日本 🙂",
		hostile:                      `\u001b]0;owned\u0007\u001b[2J\u000dok\u009b31m\u202egnirts\u2066\u007f\udb40\udc41`,
		"a\x9b31m\xff":               "a\ufffd31m\ufffd",
		"\x1b":                       `\u001b`,
		strings.Repeat("\x1bx\n", 2): "\\u001bx\n\\u001bx\n",
	} {
		var out bytes.Buffer
		if n, err := (printer{&out}).Write([]byte(text)); n != len(text) || err != nil || out.String() != want {
			t.Errorf("%q is shown as %q, %d, %v", text, &out, n, err)
		}
	}
	document, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal(plain(document), &got); err != nil || got != hostile {
		t.Errorf("a document has %q, %v", got, err)
	}
}

// Whatever a server, a model or a client has chosen, commands show it without anything that a
// terminal would interpret, in their results and errors, as JSON, and again and again.
func TestNothingHostileIsPrinted(t *testing.T) {
	text, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/explain"):
			fmt.Fprintf(w, `{"versions":[{"name":%s,"version":"1","sentences":[%s]}]}`, text, text)
		case r.URL.Path == "/v1/logs":
			fmt.Fprintf(w, `{"entries":[{"id":1,"level":"INFO","message":%s,"attributes":[{"key":"line","value":%s}]}]}`,
				text, text)
		case r.URL.Path == "/v1/containers":
			fmt.Fprintf(w, `{"containers":[{"name":%s,"model":"m","state":"READY","reason":%s,"processes":[{"name":%s,"state":"running","last_lines":[%s]}]}],"sessions":[{"label":%s,"last_failure":%s}]}`,
				text, text, text, text, text, text)
		default:
			w.WriteHeader(http.StatusConflict)
			fmt.Fprintf(w, `{"error":%s}`, text)
		}
	}))
	defer h.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := shivatest.Serve(l, func(c *shivatest.Conn, q *shiva.Message) {
		_ = c.Send(refusal(shiva.ContainerFailed, hostile))
	})
	defer s.Close()
	for _, args := range []string{"explain m", "logs", "containers", "status", "infer m --text x", "explain m --json",
		"logs --json", "infer m --text x --json", "audit --json", "containers --watch=100ms"} {
		out, errs, interrupt := running(t,
			append(strings.Fields(args), "--admin", h.Listener.Addr().String(), "--addr", s.Addr())...)
		budgettest.Until(t, "what "+args+" prints", func() bool { return strings.Contains(out.String()+errs.String(), "gnirts") })
		interrupt()
		if got := out.String() + errs.String(); strings.ContainsFunc(got, func(r rune) bool {
			return !unicode.IsPrint(r) && r != '\n' && r != '\t'
		}) {
			t.Errorf("%s prints %q", args, got)
		}
	}
}
