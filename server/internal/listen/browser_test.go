package listen

import (
	"net/http/httptest"
	"net/url"
	"testing"
)

func TestNamed(t *testing.T) {
	names := []string{"shivad.example.org", "Box."}
	for host, want := range map[string]bool{
		"":                        true,
		"127.0.0.1":               true,
		"127.0.0.1:8002":          true,
		"10.1.2.3:8002":           true,
		"[::1]:8002":              true,
		"[::1]":                   true,
		"[fe80::1%eth0]:8002":     true,
		"localhost:8002":          true,
		"LOCALHOST":               true,
		"a.localhost:8002":        true,
		"localhost.:8002":         true,
		"shivad.example.org:8002": true,
		"SHIVAD.example.org.":     true,
		"box:1":                   true,
		"evil.example":            false,
		"evil.example:8002":       false,
		"127.0.0.1.evil.example":  false,
		"127.0.0.1.nip.io:8002":   false,
		"localhost.evil.example":  false,
		"evillocalhost":           false,
		"127.1":                   false,
		"0x7f000001":              false,
		"a:b:c":                   false,
	} {
		if got := NamedHost(host, names); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}

func TestForeign(t *testing.T) {
	trusted := func(o *url.URL) bool { return o.Hostname() == "ops.example" }
	for _, c := range []struct {
		origins []string
		site    string
		foreign bool
	}{
		{nil, "", false},
		{nil, "none", false},
		{nil, "same-origin", false},
		{nil, "same-site", true},
		{nil, "cross-site", true},
		{nil, "what", true},
		{[]string{"http://127.0.0.1:8002"}, "same-origin", false},
		{[]string{"http://127.0.0.1:3000"}, "same-site", true},
		{[]string{"http://127.0.0.1"}, "", true},
		{[]string{"https://evil.example"}, "cross-site", true},
		{[]string{"null"}, "cross-site", true},
		{[]string{"null"}, "", true},
		{[]string{"%"}, "", true},
		{[]string{"https://ops.example"}, "cross-site", false},
		{[]string{"http://127.0.0.1:8002", "https://evil.example"}, "", true},
	} {
		r := httptest.NewRequest("POST", "http://127.0.0.1:8002/", nil)
		r.Header["Origin"] = c.origins
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		if err := ForeignPage(r, trusted); (err != nil) != c.foreign {
			t.Errorf("%q, %q: %v", c.origins, c.site, err)
		}
	}
}
