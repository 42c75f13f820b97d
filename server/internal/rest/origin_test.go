package rest

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Without origins no answer is readable by other pages; with them, every answer names the pages
// that may read it, including errors.
func TestOrigins(t *testing.T) {
	const here, other = "https://here.example", "https://other.example"
	for _, c := range []struct {
		name    string
		origins []string
		origin  string
		allowed string
		vary    bool
	}{
		{"off", nil, here, "", false},
		{"named", []string{here, "http://localhost:3000"}, here, here, true},
		{"another", []string{here}, other, "", true},
		{"a longer name", []string{here}, here + ".evil.example", "", true},
		{"no page", []string{here}, "", "", true},
		{"a file", []string{here}, "null", "", true},
		{"in capitals", []string{here}, "HTTPS://Here.Example", "HTTPS://Here.Example", true},
		{"all", []string{"*"}, other, "*", false},
		{"all, and no page", []string{"*"}, "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) { cfg.Origins = c.origins })
			r.floats("m")
			headers := []string{"Content-Type: text/plain"}
			if c.origin != "" {
				headers = append(headers, "Origin: "+c.origin)
			}
			for name, a := range map[string]answer{
				"answer": r.ask("POST", inferM, fp32(1, ""), headers...),
				"bytes":  r.ask("POST", inferM, fp32(1, `,"parameters":{"binary_data_output":true}`), headers...),
				"error":  r.ask("POST", "/v2/models/none/infer", fp32(1, ""), headers...),
				"router": r.ask("GET", "/nowhere", "", headers...),
			} {
				if got := a.header.Get("Access-Control-Allow-Origin"); got != c.allowed {
					t.Errorf("%s: allowed %q, want %q", name, got, c.allowed)
				}
				if got := a.header.Get("Access-Control-Expose-Headers"); strings.Contains(got,
					headLength) != (c.allowed != "") {
					t.Errorf("%s: exposed %q", name, got)
				}
				if got := slices.Contains(a.header.Values("Vary"), "Origin"); got != c.vary {
					t.Errorf("%s: Vary %q", name, a.header.Values("Vary"))
				}
				if a.header.Get("Access-Control-Allow-Credentials") != "" {
					t.Errorf("%s: %v", name, a.header)
				}
			}
			if c.origin == "" {
				return
			}
			a := r.ask("OPTIONS", inferM, "", "Origin: "+c.origin, "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type,inference-header-content-length")
			switch {
			case c.origins == nil:
				r.refused(a, http.StatusMethodNotAllowed, "takes POST")
			case c.allowed == "":
				r.refused(a, http.StatusForbidden, c.origin, "rest.cors_origins")
			default:
				if a.status != http.StatusNoContent || a.header.Get("Access-Control-Allow-Origin") != c.allowed ||
					a.header.Get("Access-Control-Allow-Methods") != "POST" ||
					a.header.Get("Access-Control-Allow-Headers") != "content-type,inference-header-content-length" ||
					a.header.Get("Access-Control-Max-Age") == "" {
					t.Errorf("a browser that asks: %v %v", a, a.header)
				}
			}
			a = r.ask("OPTIONS", "/nowhere", "", "Origin: "+c.origin, "Access-Control-Request-Method: GET")
			if c.allowed != "" {
				r.refused(a, http.StatusNotFound, "no such path")
			}
		})
	}
}

// No page may load or unload models, unless it is the server's own or listed.
func TestRepositoryByPages(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Origins = []string{"*", "https://ops.example"} })
	addr := r.door.Addrs()[0].String()
	for _, c := range []struct {
		name   string
		header []string
		status int
	}{
		{"a program", nil, 200},
		{"a program with JSON", []string{"Content-Type", "application/json; charset=utf-8"}, 200},
		{"a program with bytes", []string{"Content-Type", "application/octet-stream"}, 200},
		{"a script with bytes", []string{"Content-Type", "application/octet-stream", "Origin", "https://evil.example"}, 403},
		{"a program by name", []string{"Host", "shivad.example"}, 200},
		{"a form", []string{"Content-Type", "application/x-www-form-urlencoded", "Origin", "https://evil.example"}, 415},
		{"a form, by a program, as libcurl has it", []string{"Content-Type", "application/x-www-form-urlencoded"}, 200},
		{"a form by a page of the server",
			[]string{"Content-Type", "application/x-www-form-urlencoded", "Origin", "http://" + addr, "Sec-Fetch-Site", "same-origin"}, 415},
		{"a form without an origin", []string{"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "cross-site"}, 415},
		{"a form of text", []string{"Content-Type", "text/plain", "Origin", "null"}, 415},
		{"a form with parts", []string{"Content-Type", "multipart/form-data; boundary=x", "Origin", "https://evil.example"}, 415},
		{"a script without a type", []string{"Origin", "https://evil.example"}, 415},
		{"a script without a type or origin", []string{"Sec-Fetch-Site", "cross-site"}, 415},
		{"a script with JSON", []string{"Content-Type", "application/json", "Origin", "https://evil.example"}, 403},
		{"no origin, JSON", []string{"Content-Type", "application/json", "Sec-Fetch-Site", "cross-site"}, 403},
		{"a rebound name",
			[]string{"Content-Type", "application/json", "Origin", "http://evil.example:8000", "Host",
				"evil.example:8000", "Sec-Fetch-Site", "same-origin"}, 403},
		{"an own page", []string{"Content-Type", "application/json", "Origin", "http://" + addr, "Sec-Fetch-Site", "same-origin"}, 200},
		{"a listed page",
			[]string{"Content-Type", "application/json", "Origin", "https://ops.example", "Sec-Fetch-Site", "cross-site"}, 200},
		{"a listed page, by name",
			[]string{"Content-Type", "application/json", "Origin", "https://ops.example", "Host", "ops.example"}, 200},
	} {
		for _, verb := range []string{"load", "unload"} {
			q, err := http.NewRequest("POST", "http://"+addr+"/v2/repository/models/managed/"+verb, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(c.header); i += 2 {
				if c.header[i] == "Host" {
					q.Host = c.header[i+1]
				}
				q.Header.Set(c.header[i], c.header[i+1])
			}
			resp, err := r.client.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.status {
				t.Errorf("%s by %s: %d, expected %d", verb, c.name, resp.StatusCode, c.status)
			}
		}
	}
}
