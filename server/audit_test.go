package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// audited are the actions of the table that change something, with the trail's entry for each.
var audited = map[string]string{
	"HTTP unload": "rest unload model catprocess", "gRPC unload": "grpc unload model catprocess",
	"admin writes": "admin change model cat", "admin reloads": "admin reload configuration ",
	"a container registers":  "containers register container catfish/2",
	"tcp registers a region": "tcp register region tcp", "tcp unregisters a region": "tcp unregister region tcp",
	"rest registers a region": "rest register region rest", "rest unregisters a region": "rest unregister region rest",
	"grpc registers a region": "grpc register region grpc", "grpc unregisters a region": "grpc unregister region grpc",
	"admin creates": "admin create application catsanddogs", "admin puts": "admin change application catsanddogs",
	"admin patches": "admin change application catsanddogs", "admin links": "admin change application catsanddogs",
	"admin unlinks": "admin change application catsanddogs", "admin forgets": "admin forget policy catsanddogs",
	"admin deletes": "admin delete application catsanddogs", "admin gives a cache": "admin change model cat",
	"admin clears": "admin clear cache cat", "admin sets a version": "admin change model cat",
	"admin stops": "admin stop container catprocess", "admin imports": "admin import state ",
}

// Every action that changes something leaves one entry, with who did it and from where, even if it
// is refused for lack of a right. Other actions leave none.
func TestAudit(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	const all = 1000
	seen := len(g.trail.List(all))
	fresh := func() []access.Entry {
		list := g.trail.List(all)[seen:]
		seen += len(list)
		return list
	}
	known := 0
	for _, a := range g.actions(t) {
		what, changes := audited[a.what]
		if changes {
			known++
		}
		for _, who := range append([]string{"", "unknown"}, rightsOfCats...) {
			token, name := tokenOf(who), who
			if who == "" || who == "unknown" {
				token, name = who, ""
			}
			got := verdict(t, a.do(token))
			if a.what == "a container registers" && got == allowed {
				budgettest.Until(t, "the container to leave", func() bool { return len(g.trail.List(all)) >= seen+2 })
			}
			list := fresh()
			if a.what == "a container registers" && got == allowed {
				if last := list[len(list)-1]; last.Action != "leave" || last.Identity != name || last.Name != "catfish/2" {
					t.Errorf("a container that leaves: %+v", last)
				}
				list = list[:len(list)-1]
			}
			if !changes {
				if len(list) > 0 {
					t.Errorf("%s as %q leaves %+v", a.what, who, list)
				}
				continue
			}
			if len(list) != 1 {
				t.Errorf("%s as %q (%s) leaves %+v, expected one entry", a.what, who, got, list)
				continue
			}
			e := list[0]
			said := strings.Join([]string{e.Door, e.Action, e.What, e.Name}, " ")
			if e.Identity != name || !strings.HasPrefix(e.Address, "127.0.0.1:") || e.At.IsZero() ||
				e.Refused != (got != allowed) {
				t.Errorf("%s as %q (%s) leaves %+v", a.what, who, got, e)
			}
			switch {
			case got == allowed && (said != what || e.Error != ""):
				t.Errorf("%s as %q is %q, %s, expected %q", a.what, who, said, e.Error, what)
			case got != allowed &&
				(e.Error == "" || !strings.HasPrefix(said, e.Door+" ") || strings.Fields(what)[0] != e.Door):
				t.Errorf("%s as %q is refused as %q: %s", a.what, who, said, e.Error)
			}
		}
	}
	if known != len(audited) {
		t.Errorf("%d of %d actions were tried", known, len(audited))
	}

	// A dry run, an invalid request and one for a missing name change nothing.
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/import?dry_run=true", `{"format":1,"applications":[],"policies":[],"settings":{}}`},
		{"PATCH", "/v1/models/cat", `{"objective":"x"}`},
		{"DELETE", "/v1/apps/absent", ""}, {"POST", "/v1/apps/cats/feedback", `{"input":[1,2],"loss":0.5}`},
	} {
		code, body := g.http(t, g.Addrs().Admin.String(), tokenOf("admin:write"), c.method, c.path, c.body)
		if list := fresh(); len(list) > 0 {
			t.Errorf("%s %s: %d %s leaves %+v", c.method, c.path, code, body, list)
		}
	}
	if _, err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if list := fresh(); len(list) != 1 || list[0].Door != "program" || list[0].Action != "reload" {
		t.Errorf("a reload by the program leaves %+v", list)
	}
	if text := g.log.String(); strings.Count(text, "audit: ") < len(audited) {
		t.Error("the log lacks entries")
	}
}

// A container whose version is served with other shapes leaves an entry, with the reason.
func TestAuditOfOtherShapes(t *testing.T) {
	s := start(t, nil)
	join(t, s, "m", tensor.Float32, tensor.Shape{-1, 3}, nil)
	other := []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 3}}}
	c, err := containertest.Dial(t.Context(), s.Addrs().Containers[0].String(),
		containertest.Model{Name: "m", Version: "1", Inputs: other, Outputs: other})
	if err == nil {
		c.Close()
		t.Fatal("it was registered")
	}
	list := s.trail.List(100)
	if e := list[len(list)-1]; e.Action != "register" || !e.Refused || e.Name != "m/1" || !strings.Contains(e.Error, "stop the 1 that serve this one") {
		t.Errorf("the last entry is %+v", e)
	}
}

// Loading and unloading through any door leaves one entry each, even on failure: who did it, and to
// which model.
func TestAuditOfLoads(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, func(c *config.Config) {
		guarded(c)
		c.Supervised = []config.Container{sdk(t, "catprocess", "cat/1", 1)}
		c.Supervised[0].Model = "cat"
	})
	g := &guardedServer{Server: s}
	budgettest.Until(t, "it to serve", func() bool { return serves(s, "cat", "1") })
	client := pb.NewGRPCInferenceServiceClient(dialGRPC(t, s))
	over := func(addr, token, path string) any {
		code, _ := g.http(t, addr, token, "POST", path, "{}")
		return code
	}
	rest, door := s.Addrs().REST[0].String(), s.Addrs().Admin.String()
	seen := map[access.Entry]bool{}
	for _, c := range []struct {
		said, right string
		do          func(token string) any
	}{
		{"rest unload model cat", "load", func(token string) any { return over(rest, token, "/v2/repository/models/cat/unload") }},
		{"grpc load model cat", "load", func(token string) any {
			_, err := client.RepositoryModelLoad(as(t, token), &pb.RepositoryModelLoadRequest{ModelName: "cat"})
			return orNil(err)
		}},
		{"grpc unload model cat", "load", func(token string) any {
			_, err := client.RepositoryModelUnload(as(t, token), &pb.RepositoryModelUnloadRequest{ModelName: "cat"})
			return orNil(err)
		}},
		{"rest load model cat", "load", func(token string) any { return over(rest, token, "/v2/repository/models/cat/load") }},
		{"admin unload model cat", "load", func(token string) any { return over(door, token, "/v1/models/cat/unload") }},
		{"admin load model cat", "load", func(token string) any { return over(door, token, "/v1/models/cat/load") }},
		{"admin stop container catprocess", "admin:write", func(token string) any { return over(door, token, "/v1/containers/catprocess/stop") }},
		{"admin start container catprocess", "admin:write", func(token string) any { return over(door, token, "/v1/containers/catprocess/start") }},
		{"admin restart container catprocess", "admin:write", func(token string) any { return over(door, token, "/v1/containers/catprocess/restart") }},
	} {
		for _, who := range []string{"infer", c.right} {
			got := verdict(t, c.do(tokenOf(who)))
			var said []string
			for _, e := range g.trail.List(1000) {
				if e.Door == "containers" || e.Door == "server" || seen[e] { // consequences of the action
					continue
				}
				seen[e] = true
				if e.Identity != who || e.Refused != (who != c.right) || !strings.HasPrefix(e.Address, "127.0.0.1:") ||
					!e.Refused && e.Error != "" {
					t.Errorf("%s as %s: %+v", c.said, who, e)
				}
				said = append(said, strings.Join([]string{e.Door, e.Action, e.What, e.Name}, " "))
			}
			if want := map[bool]string{true: allowed, false: denied}[who == c.right]; got != want || len(said) != 1 ||
				who == c.right && said[0] != c.said {
				t.Errorf("%s as %s: %s, expected %s, and leaves %q", c.said, who, got, want, said)
			}
		}
	}
}

// An operator whose reload removes the operator's own identity is in the audit under that identity.
func TestAuditOfWhoIsGone(t *testing.T) {
	g := startGuarded(t)
	g.file.Identities = slices.DeleteFunc(slices.Clone(g.file.Identities), func(i config.Identity) bool {
		return i.Name == "admin:write"
	})
	if code, body := g.http(t, g.Addrs().Admin.String(), tokenOf("admin:write"), "POST", "/v1/config/reload",
		"{}"); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	if e := g.trail.List(1)[0]; e.Action != "reload" || e.Identity != "admin:write" {
		t.Errorf("%+v", e)
	}
}

// The admin door shows the trail to identities that may read it. Names with deceptive characters
// are shown escaped.
func TestAuditIsShown(t *testing.T) {
	g := startGuarded(t)
	client := pb.NewGRPCInferenceServiceClient(g.grpc)
	liar := "cat\n\x1b[2Jidentity=admin" + strings.Repeat("ä", 100<<10)
	if _, err := client.RepositoryModelUnload(as(t, tokenOf("infer")),
		&pb.RepositoryModelUnloadRequest{ModelName: liar}); err == nil {
		t.Fatal("unloaded")
	}
	code, body := g.http(t, g.Addrs().Admin.String(), tokenOf("admin:read"), "GET", "/v1/audit?limit=1", "")
	var shown admin.Audit
	if err := json.Unmarshal([]byte(body), &shown); err != nil || code != 200 || len(shown.Entries) != 1 {
		t.Fatal(code, body, err)
	}
	e := shown.Entries[0]
	if e.Identity != "infer" || !e.Refused || !strings.HasPrefix(e.Name, `cat\n\x1b[2Jidentity=adminä`) ||
		len(body) > 4<<10 || strings.Contains(g.log.String(), "\x1b") {
		t.Errorf("%s", body)
	}
	for i := range 1100 {
		g.trail.Add(access.Entry{Source: access.Source{Identity: fmt.Sprint("many ", i%3), Door: "rest"},
			Action: "load", Name: fmt.Sprint(i)})
	}
	_, body = g.http(t, g.Addrs().Admin.String(), tokenOf("admin:read"), "GET", "/v1/audit", "")
	shown = admin.Audit{}
	if err := json.Unmarshal([]byte(body), &shown); err != nil || len(shown.Entries) != 1000 ||
		shown.Entries[999].Name != "1099" {
		t.Errorf("%d entries, %v", len(shown.Entries), err)
	}
	if !slices.IsSortedFunc(shown.Entries, func(a, b access.Entry) int { return a.At.Compare(b.At) }) ||
		shown.Entries[0].Door != "admin" {
		t.Errorf("the oldest is not the first: %+v", shown.Entries[0])
	}
	for _, right := range []string{"infer", "feedback", "load", "serve"} {
		if code, body := g.http(t, g.Addrs().Admin.String(), tokenOf(right), "GET", "/v1/audit", ""); code != 403 {
			t.Errorf("as %s: %d %s", right, code, body)
		}
	}
}

// The admin door shows log lines of the server, and of its program on the same log, to identities
// that may read them, whatever level the log itself writes.
func TestLogsAreShown(t *testing.T) {
	g := startGuarded(t)
	g.Log().Warn("the program says", "name", "cat\n\x1b[2J")
	if _, err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	path := func(format string, args ...any) (logs admin.Logs) {
		t.Helper()
		code, body := g.http(t, g.Addrs().Admin.String(), tokenOf("admin:read"), "GET",
			"/v1/logs"+fmt.Sprintf(format, args...), "")
		if err := json.Unmarshal([]byte(body), &logs); err != nil || code != 200 {
			t.Fatal(code, body, err)
		}
		return logs
	}
	all := path("").Entries
	said := slices.IndexFunc(all, func(e admin.LogEntry) bool { return e.Message == "the program says" })
	if said < 0 || all[said].Level != "WARN" || all[said].Attributes[0].Value != `cat\n\x1b[2J` {
		t.Fatalf("%+v", all)
	}
	after := path("?after=%d&limit=1000", all[said].ID).Entries
	if !slices.ContainsFunc(after, func(e admin.LogEntry) bool { return e.Message == "configuration reloaded" }) ||
		len(after) < len(all)-said-1 {
		t.Errorf("after %d: %+v", all[said].ID, after)
	}
	for _, e := range path("?level=warn").Entries {
		if e.Level == "INFO" {
			t.Errorf("of warn: %+v", e)
		}
	}
	for _, right := range []string{"infer", "load"} {
		if code, body := g.http(t, g.Addrs().Admin.String(), tokenOf(right), "GET", "/v1/logs", ""); code != 403 {
			t.Errorf("as %s: %d %s", right, code, body)
		}
	}
}
