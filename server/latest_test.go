package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A poller asks for newest answers through one door.
type poller struct {
	name string
	ask  func(route string, keys map[string]any) shown
}

// pollers returns one for each way to ask.
func pollers(t *testing.T, s *Server) []poller {
	t.Helper()
	web, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0])
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	overShiva := func(route string, keys map[string]any) shown {
		m, err := client.Do(t.Context(), &shiva.Message{Namespace: route, Metadata: []byte(frame{keys: keys}.json(t))})
		if err != nil {
			return shown{err: shivaFault(err).(*refusal)}
		}
		defer m.Release()
		return shownBy(t, m)
	}
	overHTTP := func(method, path, body string) shown {
		q, err := http.NewRequestWithContext(t.Context(), method, web.base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return shownOverHTTP(web, q)
	}
	return []poller{
		{"tcp", func(name string, keys map[string]any) shown { return overShiva(name+"/latest", keys) }},
		{"tcp, by its path", func(name string, keys map[string]any) shown {
			return overShiva("v2/models/"+name+"/latest", keys)
		}},
		{"GET", func(name string, keys map[string]any) shown {
			query := url.Values{}
			for key, value := range keys {
				query.Set(key, fmt.Sprint(value))
			}
			return overHTTP(http.MethodGet, "/v2/models/"+name+"/latest?"+query.Encode(), "")
		}},
		{"POST", func(name string, keys map[string]any) shown {
			return overHTTP(http.MethodPost, "/v2/models/"+name+"/latest", `{"parameters":`+frame{keys: keys}.json(t)+`}`)
		}},
		{"grpc", func(name string, keys map[string]any) shown {
			q := &pb.ModelInferRequest{ModelName: name,
				Parameters: map[string]*pb.InferParameter{"latest": inferParameter(true)}}
			for key, value := range keys {
				q.Parameters[key] = inferParameter(value)
			}
			a, err := rpc.client.ModelInfer(t.Context(), q)
			if err != nil {
				return shown{err: grpcFault(err).(*refusal)}
			}
			return shownIn(a)
		}},
		{"library", func(name string, keys map[string]any) shown {
			q := &LatestRequest{Name: name}
			q.Stream, _ = keys["stream"].(string)
			q.Wait, _ = keys["wait"].(bool)
			if seq, ok := keys["after"].(int64); ok {
				q.After = &Frame{Seq: seq}
			}
			if ms, ok := keys["max_age_ms"].(int64); ok {
				q.MaxAge = time.Duration(ms) * time.Millisecond
			}
			if ms, ok := keys["timeout_ms"].(int64); ok {
				q.Timeout = time.Duration(ms) * time.Millisecond
			}
			a, err := s.Latest(t.Context(), q)
			if err != nil {
				return shown{err: &refusal{text: err.Error()}}
			}
			defer a.Release()
			y, _ := tensor.Values[int32](a.Outputs[0])
			return shown{value: y[0], seq: a.Frame.Seq, skipped: int64(a.Frame.Skipped),
				age: float64(a.Frame.Age) / float64(time.Millisecond)}
		}},
	}
}

// TestLatestThroughEveryDoor: whoever sends no frames gets what a stream saw last, through every
// door, at once or when it comes.
func TestLatestThroughEveryDoor(t *testing.T) {
	s := start(t, nil)
	g := newStage(t, s, "m", 1)
	if err := s.SetApplication(t.Context(), Application{Name: "app", Models: []string{"m"}, Policy: "single"}); err !=
		nil {
		t.Fatal(err)
	}
	camera := cameraDoors(t, s)[0]
	seq := 0
	show := func(route string) {
		t.Helper()
		answer := camera.ask(route, frameOf("7", seq, "captured_at", time.Now().Add(-time.Second).UnixMilli())) // a name that looks like a number
		g.answer(0, int32(seq))
		g.expect(answer, "the camera", fmt.Sprintf("frame %d is %d, skipped 0", seq, seq))
		seq++
	}
	all := pollers(t, s)
	for _, route := range []string{"m", "app"} {
		if got := all[0].ask(route, nil); got.err == nil || got.err.kind != shiva.Unavailable || !got.err.retryable {
			t.Errorf("before any frame: %v (%v)", got, got.err)
		}
		show(route)
		for _, p := range all {
			at := fmt.Sprintf("frame %d is %d, skipped 0", seq-1, seq-1)
			if got := p.ask(route, map[string]any{"stream": "7"}); got.String() != at || got.age <= 0 {
				t.Errorf("%s, %s: %v (%v)", p.name, route, got, got.err)
			}
			if got := p.ask(route, nil); got.String() != at {
				t.Errorf("%s, %s, the only stream: %v (%v)", p.name, route, got, got.err)
			}
			answer, last := make(chan shown, 1), int64(seq-1)
			go func() {
				answer <- p.ask(route,
					map[string]any{"stream": "7", "wait": true, "after": last, "timeout_ms": int64(20_000)})
			}()
			show(route)
			g.expect(answer, p.name, fmt.Sprintf("frame %d is %d, skipped 0", seq-1, seq-1))
			if got := p.ask(route, map[string]any{"max_age_ms": int64(1)}); got.err == nil ||
				!strings.Contains(got.err.text, "old") {
				t.Errorf("%s, %s, too old: %v (%v)", p.name, route, got, got.err)
			}
			if got := p.ask(route, map[string]any{"stream": "x"}); got.err == nil || !strings.Contains(got.err.text, `no stream "x"`) {
				t.Errorf("%s, %s, no such stream: %v (%v)", p.name, route, got, got.err)
			}
			if got := p.ask(route, map[string]any{"wait": true, "timeout_ms": int64(1)}); got.err == nil ||
				!strings.Contains(got.err.text, "in time") {
				t.Errorf("%s, %s, none in time: %v (%v)", p.name, route, got, got.err)
			}
		}
	}
	for _, p := range all {
		if got := p.ask("n", nil); got.err == nil ||
			!strings.Contains(got.err.text, "nearest") && !strings.Contains(got.err.text, `"n"`) {
			t.Errorf("%s, no such model: %v (%v)", p.name, got, got.err)
		}
	}
	for _, p := range all { // Shiva returns what it does not know, and in Go there is no such parameter
		if strings.HasPrefix(p.name, "tcp") || p.name == "library" {
			continue
		}
		if got := p.ask("m", map[string]any{"stream": "7", "max_age": int64(1)}); got.err == nil ||
			!strings.Contains(got.err.text, "max_age") || !strings.Contains(got.err.text, "max_age_ms, ") {
			t.Errorf("%s, an unknown parameter: %v (%v)", p.name, got, got.err)
		}
	}
	if a, err := s.Latest(t.Context(), &LatestRequest{Name: "m", MaxAge: -time.Second}); !errors.Is(err,
		scheduler.ErrUnavailable) {
		t.Errorf("an answer of a negative age: %v (%v)", a, err)
	}
	for _, query := range []string{"max_age=100", "after=-1", "wait=yes", "stream="} {
		resp, err := http.Get("http://" + s.Addrs().REST[0].String() + "/v2/models/m/latest?" + query)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		if key, _, _ := strings.Cut(query, "="); resp.StatusCode != http.StatusBadRequest ||
			!strings.Contains(string(text), key) {
			t.Errorf("%s: %s %s", query, resp.Status, text)
		}
		resp.Body.Close()
	}
}

// TestLatestWhoMay: the right to ask the model is the right to ask for the answers to one's own
// streams, and to all if the model shares them.
func TestLatestWhoMay(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Identities = []config.Identity{declared("line", "infer"), declared("robot", "infer:m", "infer:shared"),
			declared("other", "infer:other")}
		m := config.Model{Policy: c.Defaults}
		m.Latest = setting.LatestAlways
		c.Models["m"] = m
		m.Latest = setting.LatestShared
		c.Models["shared"] = m
	})
	for _, model := range []string{"m", "shared"} {
		g := newStage(t, s, model, 1)
		answer := make(chan error, 1)
		go func() {
			_, err := askAs(t, s, "line", frameOf("cam", 1).message(t, model))
			answer <- err
		}()
		g.answer(0, 1)
		if err := <-answer; err != nil {
			t.Fatal(err)
		}
		for who, want := range map[string]error{"line": nil,
			"robot": map[string]error{"m": scheduler.ErrUnavailable}[model], "other": errDenied} {
			m, err := askAs(t, s, who, &shiva.Message{Namespace: model + "/latest", Metadata: []byte(`{"stream":"cam"}`)})
			remote, _ := errors.AsType[*shiva.RemoteError](err)
			switch {
			case want == nil && (err != nil || len(m.Tensors) != 1):
				t.Errorf("%s asks %s: %v", who, model, err)
			case want == errDenied && (remote == nil || remote.Type != shiva.PermissionDenied):
				t.Errorf("%s asks %s: %v", who, model, err)
			case want == scheduler.ErrUnavailable &&
				(remote == nil || remote.Type != shiva.Unavailable || strings.Contains(remote.Message, "127.0.0.1")):
				t.Errorf("%s asks %s: %v", who, model, err)
			}
		}
	}
}

// TestLatestRightsEnd: a question does not wait for longer than its asker has the right to ask.
func TestLatestRightsEnd(t *testing.T) {
	s, file := loaded(t, new(logged), func(c *config.Config) {
		c.Identities = []config.Identity{declared("line", "infer"), declared("robot", "infer"), declared("gone", "infer")}
		c.Models["m"] = config.Model{Policy: c.Defaults}
	})
	g := newStage(t, s, "m", 1)
	replies := make(map[string]chan error)
	for _, who := range []string{"line", "robot", "gone"} {
		reply := make(chan error, 1)
		replies[who] = reply
		go func() {
			_, err := askAs(t, s, who, &shiva.Message{Namespace: "m/latest", Metadata: []byte(`{"wait":true,"timeout_ms":60000}`)})
			reply <- err
		}()
	}
	budgettest.Until(t, "all wait", func() bool { return s.gate.Newest().Usage().Waiting == 3 })
	reloads(t, s, file, func(c *config.Config) {
		c.Identities = []config.Identity{declared("line", "infer"), declared("robot", "infer:other")}
		m := c.Models["m"]
		m.Latest = setting.LatestShared // so that the robot's question would be answered
		c.Models["m"] = m
	})
	answer := make(chan error, 1)
	go func() {
		_, err := askAs(t, s, "line", frameOf("cam", 1).message(t, "m"))
		answer <- err
	}()
	g.answer(0, 1)
	if err := <-answer; err != nil {
		t.Fatal(err)
	}
	for who, want := range map[string]string{"line": "", "robot": shiva.PermissionDenied,
		"gone": shiva.Unauthenticated} {
		got := ""
		err := <-replies[who]
		if remote, ok := errors.AsType[*shiva.RemoteError](err); ok {
			got = remote.Type
		}
		if got != want || want == "" && err != nil {
			t.Errorf("%s, who waited: %v, expected %q", who, err, want)
		}
	}
}

// TestReloadWhilePollersWait: through every door, a question that waits keeps what it has asked
// while routes and the model's "latest" change, and the next one asks by the new settings.
func TestReloadWhilePollersWait(t *testing.T) {
	left := map[string]any{"stream": "left"}
	s, file := loaded(t, new(logged), func(c *config.Config) {
		c.Models["m"] = config.Model{Policy: c.Defaults}
		c.Routes = config.Routes{"robot": routeTo("m/latest", left), "way": routeTo("m", nil)}
	})
	g := newStage(t, s, "m", 1)
	camera := cameraDoors(t, s)[0]
	show := func(stream string, seq int) {
		t.Helper()
		answer := camera.ask("m", frameOf(stream, seq))
		g.answer(0, int32(seq))
		g.expect(answer, "the camera", fmt.Sprintf("frame %d is %d, skipped 0", seq, seq))
	}
	show("left", 1)
	show("right", 2)
	names := []string{"robot", "way", "m"}
	answers := make(map[string]chan shown)
	for _, name := range names {
		for _, p := range pollers(t, s) { // each question on a connection of its own, where there are any
			answer := make(chan shown, 1)
			answers[p.name+", "+name] = answer
			go func() {
				answer <- p.ask(name,
					map[string]any{"stream": "left", "wait": true, "after": int64(1), "timeout_ms": int64(60_000)})
			}()
			budgettest.Until(t, "it waits", func() bool { return s.gate.Newest().Usage().Waiting == len(answers) })
		}
	}
	latest := func(to setting.Latest) func(c *config.Config) {
		return func(c *config.Config) {
			m := c.Models["m"]
			m.Latest = to
			c.Models["m"] = m
		}
	}
	for _, step := range []struct {
		change func(c *config.Config)
		robot  string // what it gets that asks the route now; "": that there is none
	}{
		{func(c *config.Config) {
			c.Routes["robot"] = routeTo("m/latest", map[string]any{"stream": "right"})
		}, "frame 2 is 2, skipped 0"},
		{latest(setting.LatestShared), "frame 2 is 2, skipped 0"},
		{latest(setting.LatestAlways), "frame 2 is 2, skipped 0"},
		{func(c *config.Config) { c.Routes = nil }, ""},
		{latest(setting.LatestAsked), ""},
	} {
		reloads(t, s, file, step.change)
		for _, p := range pollers(t, s) {
			switch got := p.ask("robot", nil); {
			case step.robot == "" && got.err == nil, step.robot != "" && got.String() != step.robot:
				t.Errorf("%s, asked the route: %v (%v), expected %q", p.name, got, got.err, step.robot)
			}
		}
		if n := s.gate.Newest().Usage().Waiting; n != len(answers) {
			t.Errorf("%d of %d questions wait", n, len(answers))
		}
	}
	show("right", 3)
	show("left", 4)
	for who, answer := range answers {
		g.expect(answer, who, "frame 4 is 4, skipped 0")
	}
}

// TestOperatorsSeeStreams: status tells which camera, how old its newest answer is and who waits
// for it; the answers themselves are shown to whoever may have them.
func TestOperatorsSeeStreams(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Identities = []config.Identity{
			declared("line", "infer", "admin:read"), declared("robot", "infer"), declared("reader", "infer", "admin:read"),
			declared("operator", "infer", "admin:write"), declared("blind", "admin:write"),
		}
	})
	shown := func(who, path string) (code int, text string) {
		code, text = (&guardedServer{Server: s}).http(t, s.Addrs().Admin.String(), tokenOf(who), http.MethodGet, path, "")
		var b bytes.Buffer
		if json.Compact(&b, []byte(text)) == nil {
			text = b.String()
		}
		return code, text
	}
	g := newStage(t, s, "m", 1)
	frame := func(seq int) {
		t.Helper()
		answer := make(chan error, 1)
		go func() {
			_, err := askAs(t, s, "line", frameOf("cam", seq).message(t, "m"))
			answer <- err
		}()
		g.answer(0, int32(seq))
		if err := <-answer; err != nil {
			t.Fatal(err)
		}
	}
	frame(1)
	until := func(want ...string) {
		t.Helper()
		budgettest.Until(t, strings.Join(want, " "), func() bool {
			_, text := shown("reader", "/v1/status")
			return !slices.ContainsFunc(want, func(s string) bool { return !strings.Contains(text, s) })
		})
	}
	// Nobody has asked: only the model's queue knows the camera.
	until(`"model":"m","name":"cam","connection":false,"client":"127.0.0.1","identity":"","known":true,"age_seconds":`, `"waiting":0,"askers":[]`)
	polls := make(chan error, 2)
	for who, metadata := range map[string]string{"line": `{"stream":"cam","wait":true,"timeout_ms":60000}`, "robot": `{"stream":"far","wait":true,"timeout_ms":1000}`} {
		go func() {
			_, err := askAs(t, s, who, &shiva.Message{Namespace: "m/latest", Metadata: []byte(metadata)})
			polls <- err
		}()
	}
	until(`"name":"far","connection":false,"client":"","identity":"","known":false,"age_seconds":null,"waiting":1,"askers":["robot"]`,
		`"waiting":1,"askers":["line"]`)
	if err := <-polls; err == nil || !strings.Contains(err.Error(), "far") {
		t.Errorf("a stream that does not come: %v", err)
	}
	frame(2)
	if err := <-polls; err != nil {
		t.Error(err)
	}
	until(`"name":"cam","connection":false,"client":"127.0.0.1","identity":"line","known":true,"age_seconds":`, `"waiting":0,"answered":1,"failed":1,"evicted":0}`)
	for who, want := range map[string]string{"line": `"data":[2,0]`, "operator": `"data":[2,0]`,
		"reader": `{"known":0,"answers":[]}`, "blind": "infer", "robot": "admin:read"} {
		if _, text := shown(who, "/v1/models/m/latest"); !strings.Contains(text, want) {
			t.Errorf("%s sees %s, expected %s", who, text, want)
		}
	}
	if code, text := shown("operator", "/v1/models/n/latest"); code != http.StatusNotFound {
		t.Errorf("no such model: %d %s", code, text)
	}
	_, text := shown("operator", "/metrics")
	for _, want := range []string{"shivad_newest_streams 1", "shivad_newest_waiting 0",
		`shivad_newest_questions_total{result="answer"} 1`, `shivad_newest_questions_total{result="error"} 1`,
		"shivad_newest_evicted_total 0", "shivad_newest_limit_bytes 6.7"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q among the metrics", want)
		}
	}
}

// askAs sends a message over a connection of an identity.
func askAs(t *testing.T, s *Server, who string, m *shiva.Message) (*shiva.Message, error) {
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String(), shiva.WithToken(tokenOf(who)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	return client.Do(t.Context(), m)
}

var errDenied = errors.New("denied")
