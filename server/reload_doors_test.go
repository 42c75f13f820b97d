package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/frigate"
	"github.com/shivad/shivad/server/internal/grpc"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/server/internal/rest"
	"github.com/shivad/shivad/server/internal/tcp"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// inEffect holds the settings as the parts of the server use them, as opposed to those that the
// server reports.
type inEffect struct {
	TCP        tcp.Settings
	REST       rest.Settings
	GRPC       grpc.Settings
	Frigate    frigate.Settings // if it is open
	Containers containers.Settings
	Regions    regions.Settings
	TLS        map[string]any // by door: the comparable parts
	Quota      access.Limits  // of an address
	Policies   []scheduler.ModelConfig
	OneIn      int   // request that is traced
	Process    []any // settings reported to the program that embeds the server

	// Read from the settings whenever they are used.
	Server config.Server
	Admin  config.Admin
	Models []config.Model
	Pixels int // of a picture
	Early  time.Duration
	Latest int64 // bytes
}

func (s *Server) inEffectNow(told config.Config) inEffect {
	c := s.settings.Now()
	e := inEffect{TCP: s.doors[0].listener.(*tcp.Door).Settings(), REST: s.doors[1].listener.(*rest.Door).Settings(),
		GRPC: s.doors[2].listener.(*grpc.Door).Settings(), Containers: s.containers.Listener().Settings(),
		Regions: s.regions.Settings(),
		Pixels:  c.Limits.ImagePixels, Early: c.Containers.ExpectedWithin, Latest: s.gate.Newest().Usage().Limit,
		OneIn: s.tracer.OneIn(), Process: []any{told.Server.Drain, told.Log.Level}, Server: c.Server, Admin: c.Admin}
	if len(s.doors) > 3 {
		e.Frigate = s.doors[3].listener.(*frigate.Door).Settings()
	}
	e.Server.LimitLoopback, e.Server.Drain = false, 0 // compared with the doors and the program
	e.Quota, _ = s.addresses.Settings()
	e.TLS = map[string]any{}
	for door, c := range map[string]*listen.TLS{"tcp": e.TCP.TLS, "rest": e.REST.TLS, "grpc": e.GRPC.TLS,
		"frigate": e.Frigate.TLS, "containers": s.certificates.config("containers"), "admin": s.certificates.config("admin")} {
		if c != nil {
			e.TLS[door] = c.Sum
		}
	}
	e.TCP.TLS, e.REST.TLS, e.GRPC.TLS, e.Frigate.TLS, e.Admin.TLS = nil, nil, nil, nil, config.Certificates{}
	for _, name := range []string{"m", "any"} {
		m := c.Model(name)
		e.Policies = append(e.Policies, s.sched.ModelConfig(name))
		e.Models = append(e.Models,
			config.Model{Policy: config.Policy{Deadline: m.Deadline, Cast: m.Cast, Latest: m.Latest},
				DefaultVersion: m.DefaultVersion,
				RetireAfter:    m.RetireAfter, Cache: m.Cache, CacheTTL: m.CacheTTL})
	}
	return e
}

// another returns a setting a valid value that it does not have.
func another(key string, v reflect.Value) {
	words := map[string]any{
		"server.ready_when": config.ReadyRequired, "server.repository": "none", "log.level": "debug",
		"log.format": "json", "rest.cors_origins": []string{"https://example.org"},
		"rest.forward_headers": []string{"x-id"}, "grpc.forward_headers": []string{"x-id"},
		"shared_memory.directory": "/dev/shm", "shared_memory.owners": []string{"0", "1"},
		"shared_memory.clients": config.ClientsAll,
		"traces.endpoint":       "http://127.0.0.1:2", "defaults.strategy": "aimd", "model.m.strategy": "aimd",
		"tcp.stream": config.StreamNone,
	}
	if to, ok := words[key]; ok {
		v.Set(reflect.ValueOf(to))
		return
	}
	if file := v.String(); strings.Contains(key, "tls.") && v.Kind() == reflect.String {
		switch _, name, _ := strings.Cut(key, "tls."); {
		case name == "client_auth":
			v.SetString(config.AuthOptional)
		case name == "min_version":
			v.SetString("1.2")
		case file != "":
			v.SetString(strings.TrimSuffix(file, ".pem") + "2.pem")
		}
		return
	}
	switch at := v.Addr().Interface().(type) {
	case *bool:
		*at = !*at
	case *int:
		if *at--; *at < 1 {
			*at = 1
		}
	case *config.Bytes:
		if *at /= 2; *at == 0 {
			*at = 1 << 20
		}
	case *time.Duration:
		if *at /= 2; *at == 0 {
			*at = time.Millisecond
		}
	case *string:
		switch {
		case strings.HasSuffix(key, ".listen"), key == "admin.health":
			*at = "127.0.0.1:1"
		case strings.HasSuffix(key, ".socket_mode"):
			*at = "0600"
		default:
			*at += "x"
		}
	case *[]string:
		*at = append(*at, "x")
	case *map[string]string:
		*at = map[string]string{"x": "m"}
	case *config.Addrs:
		*at = append(*at, "127.0.0.1:0")
	case *setting.Keep:
		*at = 3
	case *setting.Cast:
		*at = setting.CastNearest
	case *setting.Latest:
		*at = setting.LatestShared
	default:
		panic("no other value for " + key + ", which has the type " + v.Type().String())
	}
}

// settingsOf calls do for each setting of a configuration, with model.m for the settings of models.
// [[container]] has no settings.
func settingsOf(c *config.Config, do func(key string, v reflect.Value)) {
	var walk func(table string, v reflect.Value)
	walk = func(table string, v reflect.Value) {
		for _, f := range reflect.VisibleFields(v.Type()) {
			switch key := f.Tag.Get("toml"); {
			case key == "":
			case f.Type.Kind() == reflect.Struct:
				walk(table+"."+key, v.FieldByIndex(f.Index))
			default:
				do(table+"."+key, v.FieldByIndex(f.Index))
			}
		}
	}
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Type.Kind() == reflect.Struct && f.IsExported() {
			walk(f.Tag.Get("toml"), v.Field(i))
		}
	}
	m := c.Models["m"]
	walk("model.m", reflect.ValueOf(&m).Elem())
	c.Models["m"] = m
}

// Every setting that is changed in the file either takes effect, or the answer lists it among those
// that wait and nothing changes. A reload reads and checks the files of each door with TLS three
// times: only the TLS settings are tested on a server with such doors.
func TestEverySettingReloads(t *testing.T) {
	t.Parallel()
	pki := newPKI(t)
	pki.twice()
	plain := func(c *config.Config) {
		// Few connections fit into any limit of descriptors.
		c.TCP.Connections, c.REST.Connections, c.GRPC.Connections, c.Frigate.Connections, c.Containers.Sessions = 64,
			64, 64, 64, 64
		c.Frigate.Listen = config.Addrs{"127.0.0.1:0"}
		// A static strategy fits all other settings.
		c.Defaults.Strategy, c.Defaults.MaxBatch = "static", 32
		// So does a stream for each connection.
		c.TCP.Stream = config.StreamConnection
		c.Models = map[string]config.Model{"m": {Policy: c.Defaults, Cache: 4 << 20, CacheTTL: time.Minute}}
		c.Traces = config.Traces{Endpoint: "http://127.0.0.1:1", OneIn: 100}
	}
	ofTLS := func(key string) bool { return strings.Contains(key, "tls.") }
	all := eachReloads(t, pki, plain, func(key string) bool { return !ofTLS(key) })
	all += eachReloads(t, pki, func(c *config.Config) {
		plain(c)
		encrypted(pki, config.AuthRequired)(c)
		c.Frigate.Listen = config.Addrs{"tls://127.0.0.1:0"}
		c.TLS.ClientCRL = pki.file("crl.pem")
		// The other doors use the common TLS settings.
		c.REST.TLS, c.GRPC.TLS, c.Frigate.TLS = c.TLS.Certificates, c.TLS.Certificates, c.TLS.Certificates
	}, ofTLS)
	if all < 100 {
		t.Errorf("only %d settings", all)
	}
}

// eachReloads changes each of some settings in the file of a server, and returns their number. Each
// reload also reverts the change before it, which is checked at the next setting that waits, and at
// the end.
func eachReloads(t *testing.T, pki *pki, begin func(*config.Config), some func(key string) bool) int {
	t.Helper()
	s, file := loaded(t, new(logged), begin)
	told := file.Clone()
	s.ReloadFrom(func() (config.Config, error) { return file.Clone(), nil }, func(c config.Config) { told = c })
	base, first := file.Clone(), s.inEffectNow(told)
	var all []string
	settingsOf(file, func(key string, _ reflect.Value) {
		if some(key) {
			all = append(all, key)
		}
	})
	waiting, before := 0, base
	for _, key := range all {
		*file = base.Clone()
		settingsOf(file, func(k string, v reflect.Value) {
			if k == key {
				another(key, v)
			}
		})
		pki.complete(&file.TCP.TLS, strings.TrimPrefix(key, "tcp.tls."))
		pki.complete(&file.Containers.TLS, strings.TrimPrefix(key, "containers.tls."))
		pki.complete(&file.Admin.TLS, strings.TrimPrefix(key, "admin.tls."))
		if reflect.DeepEqual(*file, before) { // a certificate and its key change together
			changed := *file
			*file = base.Clone()
			if _, err := s.Reload(); err != nil {
				t.Fatal(err)
			}
			*file = changed
		}
		before = file.Clone()
		done, err := s.Reload()
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		now := s.inEffectNow(told)
		changed, later := slices.Contains(keys(done.Changed), key), slices.Contains(keys(done.Waiting), key)
		switch {
		case changed == later:
			t.Errorf("%s is to be named once: changed %q, waiting %q", key, keys(done.Changed), keys(done.Waiting))
		case changed && reflect.DeepEqual(now, first):
			t.Errorf("%s is said to have changed, and nobody goes by it", key)
		case later && !reflect.DeepEqual(now, first):
			t.Errorf("%s is said to wait, and has changed something, or a setting before it was not changed back", key)
		case later:
			waiting++
		}
	}
	*file = base.Clone()
	if _, err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if now := s.inEffectNow(told); !reflect.DeepEqual(now, first) {
		t.Errorf("after all were changed back: %+v, before %+v", now, first)
	}
	t.Logf("%d settings, of which %d wait for a restart", len(all), waiting)
	return len(all)
}

// reloads changes the file, and reloads it.
func reloads(t *testing.T, s *Server, file *config.Config, change func(*config.Config)) {
	t.Helper()
	change(file)
	done, err := s.Reload()
	if err != nil || len(done.Waiting) > 0 || len(done.Changed) == 0 {
		t.Fatalf("changed %q, waiting %q: %v", keys(done.Changed), keys(done.Waiting), err)
	}
}

// ends returns the bytes that arrive until the server closes the connection, which must be soon.
func ends(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	b, err := io.ReadAll(c)
	if errors.Is(err, context.DeadlineExceeded) || err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection goes on: %q, %v", b, err)
	}
	return string(b)
}

func mustDial(t *testing.T, a net.Addr) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", a.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Timeouts apply to open connections, even to messages that have begun on them.
func TestReloadOfTimeouts(t *testing.T) {
	t.Parallel() // it waits
	s, file := loaded(t, new(logged), nil)
	half, idle := mustDial(t, s.Addrs().TCP[0]), mustDial(t, s.Addrs().TCP[0])
	message, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "!ready", Metadata: []byte(`{"id":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	for _, write := range []error{second(half.Write(message[:20])), second(idle.Write(message))} {
		if write != nil {
			t.Fatal(write)
		}
	}
	head, quiet := mustDial(t, s.Addrs().REST[0]), mustDial(t, s.Addrs().REST[0])
	live := func(c net.Conn) string {
		if _, err := io.WriteString(c, "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err.Error()
		}
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		return string(b[:n])
	}
	for _, c := range []net.Conn{head, quiet} {
		if answer := live(c); !strings.HasPrefix(answer, "HTTP/1.1 200") {
			t.Fatal(answer)
		}
	}

	reloads(t, s, file, func(c *config.Config) {
		c.TCP.MessageTimeout, c.TCP.IdleTimeout = 50*time.Millisecond, 50*time.Millisecond
		// The server may start to wait for the next request on these connections only now.
		c.REST.HeaderTimeout, c.REST.IdleTimeout = 50*time.Millisecond, 2*time.Second
	})
	if _, err := io.WriteString(head, "GET / HT"); err != nil {
		t.Fatal(err)
	}
	if answer := live(quiet); !strings.HasPrefix(answer, "HTTP/1.1 200") {
		t.Errorf("an idle connection that was given 15 minutes: %q", answer)
	}
	if got := ends(t, half); !strings.Contains(got, "tcp.message_timeout") {
		t.Errorf("half a message: %q", got)
	}
	for _, c := range []net.Conn{idle, head, quiet} {
		ends(t, c)
	}
	for _, want := range []string{`{door="tcp",reason="message_timeout"} 1`, `{door="tcp",reason="idle"} 1`,
		`{door="rest",reason="message_timeout"} 1`, `{door="rest",reason="idle"} 1`} {
		budgettest.Until(t, want+" on /metrics", func() bool { return strings.Contains(metricsPage(t, s), want) })
	}
}

func second(_ int, err error) error { return err }

// Limits of messages, the origins of pages and connections of an address apply from the next one
// on, on open connections.
func TestReloadOfLimits(t *testing.T) {
	t.Parallel() // it waits
	s, file := loaded(t, new(logged), nil)
	join(t, s, "m", tensor.Uint8, tensor.Shape{-1, -1}, func(b *containertest.Batch) containertest.Reply {
		return containertest.Reply{Outputs: b.Inputs}
	})
	x := tensor.Tensor{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, 32 << 10}, Data: make([]byte, 32<<10)}
	all := slices.DeleteFunc(ways(t, s), func(w way) bool { return w.name == "library" })
	ask := func(w way) error {
		_, err := w.ask(t.Context(), "m", x, 0)
		return err
	}
	for _, w := range all {
		if err := ask(w); err != nil {
			t.Fatal(w.name, err)
		}
	}
	origin := func() string {
		q, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.Addrs().REST[0].String()+"/v2/health/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Origin", "https://example.org")
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.Header.Get("Access-Control-Allow-Origin")
	}
	if got := origin(); got != "" {
		t.Fatalf("a page may read already: %q", got)
	}
	reloads(t, s, file, func(c *config.Config) {
		c.REST.CORSOrigins = []string{"https://example.org"}
		c.Limits.MessageBytes, c.Limits.MetadataBytes = 4<<10, 4<<10
	})
	if got := origin(); got != "https://example.org" {
		t.Errorf("a page may not read: %q", got)
	}
	for _, w := range all {
		if err := ask(w); err == nil || !strings.Contains(fmt.Sprint(err), "4096") && !strings.Contains(err.Error(), "broken pipe") {
			t.Errorf("%s: 32 KiB of 4: %v", w.name, err)
		}
	}
	reloads(t, s, file, func(c *config.Config) { c.Limits.MessageBytes = 1 << 20 })
	for _, w := range all[1:] { // the message that was too large ended the Shiva connection
		if err := ask(w); err != nil {
			t.Errorf("%s: 32 KiB of 1 MiB: %v", w.name, err)
		}
	}

	open := newTCP(t, s.Addrs().TCP[0])
	if _, err := open.ask(t.Context(), "m", x, 0); err != nil {
		t.Error(err)
	}
	reloads(t, s, file, func(c *config.Config) { c.TCP.ConnectionsPerAddress, c.Server.LimitLoopback = 1, true })
	if err := open.garbage(); err == nil || !strings.Contains(err.Error(), "tcp.connections_per_address = 1") {
		t.Errorf("another connection of an address that has one: %v", err)
	}
	if _, err := open.ask(t.Context(), "m", x, 0); err != nil {
		t.Errorf("the one that it has: %v", err)
	}
}

// The new limit bounds unread answers on an existing connection.
func TestReloadOfOutboundBytes(t *testing.T) {
	const answer, asked = 1 << 20, 24
	s, file := loaded(t, new(logged), func(c *config.Config) { c.TCP.OutboundBytes, c.TCP.Loops = 64<<20, 1 })
	spec := scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, answer}}},
	}
	if _, err := s.sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"}, spec, inflates{s.pool, answer},
		scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	one, err := shiva.AppendMessage(nil,
		&shiva.Message{Namespace: "m",
			Tensors: []tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{1, 1}, Data: []byte{1}}}})
	if err != nil {
		t.Fatal(err)
	}
	greedy := func() net.Conn {
		c := mustDial(t, s.Addrs().TCP[0])
		_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
		return c
	}
	before, after := greedy(), greedy()
	if err := second(before.Write(bytes.Repeat(one, asked))); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "16 MiB to wait for a client that may have 64", func() bool { return s.pool.InUse() > 16<<20 })
	before.Close()
	budgettest.Until(t, "the memory to come back", func() bool { return s.pool.InUse() < answer })

	reloads(t, s, file, func(c *config.Config) { c.TCP.OutboundBytes = 2 << 20 })
	if err := second(after.Write(bytes.Repeat(one, asked))); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "an answer to wait", func() bool { return s.pool.InUse() > answer })
	most := int64(0)
	for range 50 {
		most = max(most, s.pool.InUse())
		// A turn of the loop, in which it could have submitted more of them.
		if err := newTCP(t, s.Addrs().TCP[0]).garbage(); err == nil {
			t.Fatal("no answer to garbage")
		}
	}
	if most > 5<<20 { // a batch whose outputs have partly left is held as a whole
		t.Errorf("%d MiB wait for a client that may have 2", most>>20)
	}
}

// inflates is a model inside the process that answers each row with that many bytes.
type inflates struct {
	pool *tensor.Pool
	size int
}

func (m inflates) Send(b *scheduler.Batch) error {
	buf, err := m.pool.Get(b.Rows * m.size)
	if err != nil {
		return err
	}
	b.Complete([]tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{b.Rows, m.size}, Data: buf.Bytes(), Buf: buf}},
		nil)
	return nil
}

// A container keeps the heartbeat interval that it was told; the next container is told the new
// one, and must follow it.
func TestReloadOfHeartbeat(t *testing.T) {
	t.Parallel() // it waits
	s, file := loaded(t, new(logged), nil)
	echo := func(b *containertest.Batch) containertest.Reply { return containertest.Reply{Outputs: b.Inputs} }
	old := join(t, s, "old", tensor.Int32, tensor.Shape{-1, 1}, echo)
	reloads(t, s, file, func(c *config.Config) { c.Containers.Heartbeat = 50 * time.Millisecond })
	silent, err := containertest.NewPeer(mustDial(t, s.Addrs().Containers[0]))
	if err != nil {
		t.Fatal(err)
	}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 1}}}
	if err := silent.Send([]byte("hello"),
		containertest.Hello(containertest.Model{Name: "silent", Version: "1", Inputs: x, Outputs: x})); err != nil {
		t.Fatal(err)
	}
	welcome, err := silent.Receive()
	if err != nil || !strings.Contains(string(bytes.Join(welcome, nil)), `"heartbeat_ms":50`) {
		t.Fatalf("welcome %q: %v", welcome, err)
	}
	began := time.Now()
	for err == nil {
		_, err = silent.Receive() // heartbeats
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("one that says nothing is dead after %v", took)
	}
	select {
	case <-old.Gone():
		t.Fatal("a container that beats once a second, as it was told, was held to the new heartbeat")
	default:
	}
	if _, err := newTCP(t, s.Addrs().TCP[0]).
		ask(t.Context(), "old",
			tensor.Tensor{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{1, 1}, Data: make([]byte, 4)},
			0); err != nil {
		t.Error(err)
	}
}

// An invalid reload changes nothing, in the doors as well.
func TestWrongReloadLeavesTheDoors(t *testing.T) {
	s, file := loaded(t, new(logged), nil)
	before := s.inEffectNow(*file)
	good := file.Clone()
	for what, change := range map[string]func(*config.Config){
		"a value out of bounds": func(c *config.Config) {
			c.TCP.IdleTimeout, c.REST.StallTimeout = time.Hour, time.Nanosecond
		},
		"values that do not agree": func(c *config.Config) {
			c.Limits.MessageBytes, c.Containers.MessageBytes = 64<<20, 1<<20
		},
		"what only a restart could": func(c *config.Config) {
			c.Limits.PayloadBytes, c.Limits.MessageBytes = 16<<30, 8<<30
			c.Containers.MessageBytes, c.Defaults.QueueBytes = 16<<30, 16<<30
		},
	} {
		*file = good.Clone()
		change(file)
		if _, err := s.Reload(); err == nil {
			t.Errorf("%s is taken", what)
		}
		if now := s.inEffectNow(good); !reflect.DeepEqual(now, before) {
			t.Errorf("%s: %+v, before %+v", what, now, before)
		}
	}
}
