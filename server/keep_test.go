package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A slowModel executes one frame at a time, each until the test has seen it.
type slowModel struct {
	t       *testing.T
	model   *scheduler.Model
	batches chan *scheduler.Batch
}

func oneByOne(c *config.Config) { c.Defaults.MaxBatch, c.Defaults.Slots = 1, 1 }

// addSlow adds the model "slow".
func addSlow(t *testing.T, s *Server) *slowModel {
	t.Helper()
	m := &slowModel{t: t, batches: make(chan *scheduler.Batch, 16)}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	id := scheduler.ModelID{Name: "slow", Version: "1"}
	worker := scheduler.WorkerFunc(func(b *scheduler.Batch) error { m.batches <- b; return nil })
	if _, err := s.Scheduler().AddReplica(id, scheduler.Spec{Inputs: x, Outputs: x}, worker,
		scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	m.model, _ = s.Scheduler().Model(id)
	return m
}

// next returns the number of the frame that executes, which continues until finish is called.
func (m *slowModel) next() (number int32, finish func()) {
	m.t.Helper()
	select {
	case b := <-m.batches:
		values, err := tensor.Values[int32](b.Parts[0].Inputs[0])
		if err != nil {
			m.t.Fatal(err)
		}
		return values[0], func() {
			if err := echo(b); err != nil {
				m.t.Error(err)
			}
		}
	case <-time.After(10 * time.Second):
		m.t.Fatal("nothing executes")
		return 0, nil
	}
}

// A camera is a connection that sends frames.
type camera struct {
	t       *testing.T
	conn    net.Conn
	decoder *shiva.Decoder
	unread  []byte
}

func newCamera(t *testing.T, s *Server) *camera {
	t.Helper()
	return &camera{t: t, conn: mustDial(t, s.Addrs().TCP[0]), decoder: shiva.NewDecoder(shiva.DecoderConfig{})}
}

func (c *camera) send(route, metadata string, number int32) {
	c.t.Helper()
	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{number, 0})
	if err != nil {
		c.t.Fatal(err)
	}
	message, err := shiva.AppendMessage(nil,
		&shiva.Message{Namespace: route, Metadata: []byte(metadata), Tensors: []tensor.Tensor{x}})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.conn.Write(message); err != nil {
		c.t.Fatal(err)
	}
}

// answer returns the number of the frame that is answered next, or the type of the error.
func (c *camera) answer() string {
	c.t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	for {
		n, m, err := c.decoder.Push(c.unread)
		c.unread = c.unread[n:]
		switch {
		case err != nil:
			c.t.Fatal(err)
		case m == nil:
			p := make([]byte, 4096)
			n, err := c.conn.Read(p)
			if err != nil {
				c.t.Fatal(err)
			}
			c.unread = append(c.unread, p[:n]...)
			continue
		case m.Namespace == shiva.ErrorNamespace:
			var e struct{ Type string }
			if err := json.Unmarshal(m.Metadata, &e); err != nil {
				c.t.Fatal(err)
			}
			return e.Type
		}
		values, err := tensor.Values[int32](m.Tensors[0])
		if err != nil {
			c.t.Fatal(err)
		}
		return fmt.Sprint(values[0])
	}
}

// film sends frames 1 to n while the first executes, and returns the answers.
func (m *slowModel) film(c *camera, route, metadata string, n int32) string {
	m.t.Helper()
	before := m.model.Stats().Submitted
	c.send(route, metadata, 1)
	_, finish := m.next()
	for i := range n - 1 {
		c.send(route, metadata, i+2)
	}
	budgettest.Until(m.t, "all frames", func() bool { return m.model.Stats().Submitted == before+uint64(n) })
	waiting := m.model.Stats().QueueRows
	for finish(); waiting > 0; waiting-- {
		_, finish = m.next()
		finish()
	}
	var answers []string
	for range n {
		answers = append(answers, c.answer())
	}
	return strings.ReplaceAll(strings.Join(answers, " "), shiva.Superseded, "-")
}

// The number of frames that may wait comes from the request, else the application, else the model,
// else the defaults.
func TestKeepIsOfRequestApplicationModel(t *testing.T) {
	t.Parallel() // it waits
	const all, latest, two = "1 2 3 4 5", "1 - - - 5", "1 - - 4 5"
	for _, c := range []struct {
		defaults, model, application setting.Keep // 0: not set
		request                      string       // likewise
		ofModel, ofApplication       string       // the answers
	}{
		{0, 0, 0, "", all, all},
		{setting.KeepLatest, 0, 0, "", latest, latest},
		{setting.KeepLatest, 2, 0, "", two, two},
		{0, setting.KeepLatest, 0, "", latest, latest},
		{0, setting.KeepLatest, 2, "", latest, two},
		{0, setting.KeepLatest, setting.KeepAll, "", latest, all},
		{setting.KeepLatest, setting.KeepLatest, setting.KeepLatest, `,"keep":"all"`, all, all},
		{setting.KeepAll, setting.KeepAll, setting.KeepAll, `,"keep":2`, two, two},
	} {
		t.Run(fmt.Sprintf("%v %v %v %s", c.defaults, c.model, c.application, c.request), func(t *testing.T) {
			s := start(t, func(file *config.Config) {
				oneByOne(file)
				if c.defaults != 0 {
					file.Defaults.Keep = c.defaults
				}
				if c.model != 0 {
					m := config.Model{Policy: file.Defaults}
					m.Keep = c.model
					file.Models["slow"] = m
				}
			})
			model := addSlow(t, s)
			if err := s.SetApplication(t.Context(),
				Application{Name: "app", Models: []string{"slow"}, Keep: c.application}); err != nil {
				t.Fatal(err)
			}
			budgettest.Until(t, "the application", func() bool {
				_, err := s.gate.Target("app", "")
				return err == nil
			})
			for route, want := range map[string]string{"slow": c.ofModel, "app": c.ofApplication} {
				if got := model.film(newCamera(t, s), route, fmt.Sprintf(`{"stream":"cam %s"%s}`, route, c.request),
					5); got != want {
					t.Errorf("%s: expected the answers %s, got %s", route, want, got)
				}
			}
		})
	}
}

// A request that names no stream is not a frame, whatever is configured.
func TestKeepIsOfFramesOnly(t *testing.T) {
	s := start(t, func(c *config.Config) { oneByOne(c); c.Defaults.Keep = setting.KeepLatest })
	model := addSlow(t, s)
	if err := s.SetApplication(t.Context(),
		Application{Name: "app", Models: []string{"slow"}, Keep: setting.KeepLatest}); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the application", func() bool { _, err := s.gate.Target("app", ""); return err == nil })
	for _, route := range []string{"slow", "app"} {
		if got := model.film(newCamera(t, s), route, "{}", 4); got != "1 2 3 4" {
			t.Errorf("%s: %s", route, got)
		}
	}
}

// keep changes while the server runs like other settings of models: at the admin door, in the store
// for every server that shares it, and with the file.
func TestKeepChanges(t *testing.T) {
	s, file := loaded(t, new(logged), oneByOne)
	model, o, cam := addSlow(t, s), operator{t, s}, newCamera(t, s)
	expect := func(want string) {
		t.Helper()
		if got := model.film(cam, "slow", `{"stream":"cam"}`, 4); got != want {
			t.Errorf("expected the answers %s, got %s", want, got)
		}
	}
	expect("1 2 3 4")

	o.expect("PATCH", "/v1/models/slow", `{"keep":"latest"}`, 200, `"keep":"latest"`)
	expect("1 - - 4")
	o.expect("PATCH", "/v1/models/slow", `{"keep":"2"}`, 200, `"keep":2`)
	expect("1 - 3 4")
	for _, wrong := range []string{"newest", "0", "-1", "1025", ""} {
		o.expect("PATCH", "/v1/models/slow", fmt.Sprintf(`{"keep":%q}`, wrong), 400, `keep: expected \"all\", \"latest\" or a whole number from 1 to 1024, got `)
	}
	expect("1 - 3 4")

	// Another server's change arrives through the store, and one that is invalid here changes
	// nothing.
	if _, err := s.store.State().Update(t.Context(), state.Key("settings", "slow"), "", func([]byte) ([]byte, error) {
		return []byte(`{"keep":"latest"}`), nil
	}); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the change", func() bool { return model.model.Stats().Config.Keep == setting.KeepLatest })
	expect("1 - - 4")

	o.expect("PATCH", "/v1/models/slow", `{"keep":null}`, 200, `"keep":"all"`)
	expect("1 2 3 4")
	file.Defaults.Keep = 3
	o.expect("POST", "/v1/config/reload", "", 200, `{"key":"defaults.keep","before":"all","after":3}`)
	expect("1 2 3 4")
	file.Models = map[string]config.Model{"slow": {Policy: file.Defaults}}
	m := file.Models["slow"]
	m.Keep = setting.KeepLatest
	file.Models["slow"] = m
	o.expect("POST", "/v1/config/reload", "", 200, `{"key":"model.slow.keep","before":3,"after":"latest"}`)
	expect("1 - - 4")
	o.expect("GET", "/v1/config", "", 200, `"keep":"latest"`)
}

// An application's keep is shown and changed with the application, and is in the store.
func TestKeepOfApplications(t *testing.T) {
	s := start(t, nil)
	o := operator{t, s}
	o.expect("POST", "/v1/apps", `{"name":"app","models":["echo"],"keep":"latest"}`, 201, `"keep":"latest"`)
	o.expect("PATCH", "/v1/apps/app", `{"keep":7}`, 200, `"keep":7`)
	o.expect("GET", "/v1/apps/app", "", 200, `"keep":7`)
	if entry, err := s.store.State().Get(state.Key("apps", "app")); err != nil ||
		!strings.Contains(string(entry.Value), `"keep":7`) {
		t.Errorf("stored: %s, %v", entry.Value, err)
	}
	for _, wrong := range []string{`"newest"`, "0", "1025", "true", "1.5"} {
		o.expect("PATCH", "/v1/apps/app", `{"keep":`+wrong+`}`, 400,
			`keep: expected \"all\", \"latest\" or a whole number from 1 to 1024, got `+strings.ReplaceAll(wrong, `"`, `\"`))
	}
	if answer := o.expect("PATCH", "/v1/apps/app", `{"keep":null}`, 200); strings.Contains(answer, "keep") {
		t.Errorf("it is still there: %s", answer)
	}
	err := s.SetApplication(t.Context(), Application{Name: "wrong", Models: []string{"echo"}, Keep: -7})
	if !errors.Is(err, scheduler.ErrInvalidInput) || !strings.Contains(err.Error(), `keep: -7, expected "all", "latest" or`) {
		t.Errorf("a program's: %v", err)
	}
	if _, err := apps.New(apps.Definition{Name: "a", Models: []string{"m"}, Keep: setting.MaxKeep}); err != nil {
		t.Error(err)
	}
}

// Devices of fixed bytes name no stream: with tcp.stream = "connection" each connection is one,
// with a keep of its own, and a request that names a stream is a frame of that.
func TestConnectionIsAStream(t *testing.T) {
	s := start(t, func(c *config.Config) {
		oneByOne(c)
		c.TCP.Stream, c.TCP.Keep = config.StreamConnection, setting.KeepLatest
	})
	model := addSlow(t, s)
	device := newCamera(t, s)
	if got := model.film(device, "slow", "", 5); got != "1 - - - 5" {
		t.Errorf("frames of one device: %s", got)
	}
	if got := model.film(device, "slow", `{"keep":"all","seq":7}`, 3); got != "1 2 3" {
		t.Errorf("what a request says comes first: %s", got)
	}
	if got := model.film(device, "slow", `{"stream":"shared"}`, 3); got != "1 2 3" {
		t.Errorf("frames of a stream with a name, of which tcp.keep says nothing: %s", got)
	}

	// Frames of two devices, and of a client that uses the name of one, do not replace each other.
	other, thief := newCamera(t, s), newCamera(t, s)
	device.send("slow", "", 1)
	_, finish := model.next()
	device.send("slow", "", 2)
	other.send("slow", "", 3)
	thief.send("slow", fmt.Sprintf(`{"stream":%q,"keep":1}`, device.conn.LocalAddr()), 4)
	budgettest.Until(t, "three frames", func() bool { return model.model.Stats().QueueRows == 3 })
	device.send("slow", "", 5)
	budgettest.Until(t, "the newer frame", func() bool {
		return model.model.Stats().Outcomes[scheduler.OutcomeSuperseded] == 4
	})
	for range 3 {
		finish()
		_, finish = model.next()
	}
	finish()
	for c, want := range map[*camera][]string{device: {"1", shiva.Superseded, "5"}, other: {"3"}, thief: {"4"}} {
		for _, w := range want {
			if got := c.answer(); got != w {
				t.Errorf("expected the answer %s, got %s", w, got)
			}
		}
	}
}

// The stream of a connection ends with it at once, even while its frames execute and wait.
func TestConnectionStreamEndsWithIt(t *testing.T) {
	s := start(t, func(c *config.Config) { oneByOne(c); c.TCP.Stream = config.StreamConnection })
	model := addSlow(t, s)
	streams := func(n int) {
		t.Helper()
		budgettest.Until(t, fmt.Sprintf("%d streams", n), func() bool { return model.model.Stats().Streams == n })
	}
	silent, busy := newCamera(t, s), newCamera(t, s)
	silent.send("slow", "", 1)
	_, finish := model.next()
	finish()
	silent.answer()
	busy.send("slow", "", 1)
	_, finish = model.next()
	busy.send("slow", "", 2)
	budgettest.Until(t, "the second frame", func() bool { return model.model.Stats().QueueRows == 1 })
	streams(2)
	silent.conn.Close()
	streams(1)
	busy.conn.Close()
	streams(0)
	finish()

	named := newCamera(t, s)
	named.send("slow", `{"stream":"cam"}`, 1)
	_, finish = model.next()
	finish()
	named.answer()
	named.conn.Close()
	budgettest.Until(t, "the end of the connection", func() bool { return s.metrics.Door("tcp").Connections() == 0 })
	streams(1) // another connection may continue it
}

// The settings apply to the next message on open connections.
func TestReloadOfConnectionStreams(t *testing.T) {
	s, file := loaded(t, new(logged), oneByOne)
	model, device := addSlow(t, s), newCamera(t, s)
	expect := func(want string) {
		t.Helper()
		if got := model.film(device, "slow", "", 4); got != want {
			t.Errorf("expected the answers %s, got %s", want, got)
		}
	}
	expect("1 2 3 4")
	file.TCP.Stream, file.TCP.Keep = config.StreamConnection, 2
	operator{t, s}.expect("POST", "/v1/config/reload", "", 200, `{"key":"tcp.keep","before":"","after":2}`, `{"key":"tcp.stream","before":"none","after":"connection"}`)
	expect("1 - 3 4")
	file.TCP.Keep = 0
	reloads(t, s, file, func(*config.Config) {})
	expect("1 2 3 4")
	file.TCP.Stream = config.StreamNone
	reloads(t, s, file, func(*config.Config) {})
	expect("1 2 3 4")
	if n := model.model.Stats().Streams; n != 1 {
		t.Errorf("%d streams are known before the connection is closed", n)
	}
	device.conn.Close()
	budgettest.Until(t, "the end of the stream", func() bool { return model.model.Stats().Streams == 0 })
}

// Operators see streams in metrics, status, the admin door's list and explain.
func TestStreamsAreShown(t *testing.T) {
	s := start(t, oneByOne)
	model, o := addSlow(t, s), operator{t, s}
	cam := newCamera(t, s)
	if got := model.film(cam, "slow", `{"stream":"cam-3","seq":7,"keep":"latest"}`, 5); got != "1 - - - 5" {
		t.Fatal(got)
	}
	if got := model.film(cam, "slow", `{"stream":"cam-4"}`, 2); got != "1 2" {
		t.Fatal(got)
	}
	metrics := ""
	budgettest.Until(t, "the counts", func() bool {
		_, metrics = requestAdmin(t, s, "GET", "/metrics", "", "")
		return strings.Contains(metrics, `shivad_requests_total{door="tcp",model="slow",outcome="ok",version="1"} 4`)
	})
	for _, want := range []string{
		`shivad_frames_total{model="slow",version="1"} 7`,
		`shivad_frames_reordered_total{model="slow",version="1"} 4`,
		`shivad_drops_total{model="slow",reason="superseded",version="1"} 3`,
		`shivad_requests_total{door="tcp",model="slow",outcome="superseded",version="1"} 3`,
		`shivad_frame_age_seconds_count{model="slow",version="1"} 4`,
		`shivad_streams{model="slow",version="1"} 2`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if strings.Contains(metrics, `shivad_frames_total{model="echo"`) {
		t.Error("a model without streams has metrics of them")
	}
	o.expect("GET", "/v1/status", "", 200, `"streams":2,"superseded":3,"frame_age_seconds":0.`)
	o.expect("GET", "/v1/models/slow/streams", "", 200, `"version":"1","known":2,"streams":[{`, `{"name":"cam-3","connection":false,"keep":"latest","waiting":0,`,
		`"frames":5,"answered":2,"superseded":3,"age_seconds":0.`, `{"name":"cam-4","connection":false,"keep":"all","waiting":0,`)
	if answer := o.expect("GET", "/v1/models/slow/streams?limit=1", "", 200, `"known":2`); strings.Count(answer, `"keep"`) != 1 {
		t.Errorf("more than one: %s", answer)
	}
	o.expect("GET", "/v1/models/slow/explain", "", 200, `Stream \"cam-3\" gets answers for frames `,
		`: the model answers `, `4 frames had a seq that was not above`)

	// A stream whose frames are old when they arrive, and wait.
	taken := time.Now().Add(-100 * time.Second).UnixMilli()
	if got := model.film(cam, "slow", fmt.Sprintf(`{"stream":"cam-5","captured_at":%d}`, taken), 2); got != "1 2" {
		t.Fatal(got)
	}
	for range 2 {
		cam.send("slow", `{"stream":"cam-6","keep":2}`, 1)
	}
	budgettest.Until(t, "a frame to wait", func() bool { return model.model.Stats().QueueRows == 1 })
	var list struct{ Versions []admin.VersionStreams }
	if err := json.Unmarshal([]byte(o.expect("GET", "/v1/models/slow/streams", "", 200)), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Versions) != 1 || len(list.Versions[0].Streams) != 4 {
		t.Fatalf("got %+v, expected one version with four streams", list)
	}
	for _, s := range list.Versions[0].Streams {
		old := s.Name == "cam-5"
		if s.Name != "cam-6" && (s.Silent <= 0 || s.Waiting != 0) || s.Span < s.Silent || s.Span < s.Age && !old ||
			s.Late < 0 || s.Late >= s.Age && s.Waiting == 0 ||
			old && (s.Late < 99 || s.Age > 200) || !old && s.Late > 50 ||
			s.Name == "cam-6" && (s.Waiting != 2 || s.Frames != 2 || s.Answered != 0) {
			t.Errorf("stream %+v", s)
		}
	}
	for range 2 {
		_, finish := model.next()
		finish()
	}
}
