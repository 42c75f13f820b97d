package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// slow connects a container of model "slow" that waits before it echoes.
func slow(t *testing.T, s *Server, wait func()) *containertest.Container {
	t.Helper()
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	c, err := containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0], containertest.Model{
		Name: "slow", Version: "1", Inputs: x, Outputs: x,
		Answer: func(b *containertest.Batch) containertest.Reply {
			wait()
			return containertest.Reply{Outputs: b.Inputs}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	budgettest.Until(t, "the container to serve", func() bool { return serves(s, "slow", "1") })
	return c
}

// executed returns how many rows a container got.
func executed(c *containertest.Container) (rows int) {
	for _, b := range c.Batches() {
		rows += b.Rows
	}
	return rows
}

func dial(t *testing.T, s *Server) *shiva.Client {
	t.Helper()
	c, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// askSlow asks for the row (v, -v), which must come back.
func askSlow(ctx context.Context, c *shiva.Client, v int32) error {
	x, err := tensor.FromSlice(tensor.Shape{2}, []int32{v, -v})
	if err != nil {
		return err
	}
	m, err := c.Do(ctx, &shiva.Message{Namespace: "slow", Tensors: []tensor.Tensor{x}})
	if err != nil {
		return err
	}
	defer m.Release()
	row, err := tensor.Values[int32](m.Tensors[0])
	if err != nil {
		return err
	}
	if len(row) != 2 || row[0] != v || row[1] != -v {
		return fmt.Errorf("asked %d, answered %v", v, row)
	}
	return nil
}

// askSlowAtOnce makes 16 equal requests from each client, which wait for one answer.
func askSlowAtOnce(t *testing.T, clients []*shiva.Client, v int32) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 16 * len(clients) {
		wg.Go(func() {
			if err := askSlow(t.Context(), clients[i%len(clients)], v); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func withCache(c *config.Config) {
	m := c.Model("slow")
	m.Cache = 1 << 20
	c.Models["slow"] = m
}

// Equal requests on many connections are executed once, and then not at all; the operator sees the
// cache, and clears it.
func TestCacheThroughTheDoors(t *testing.T) {
	s := start(t, withCache)
	// A slow model keeps requests in flight.
	container := slow(t, s, func() { time.Sleep(50 * time.Millisecond) })
	clients := make([]*shiva.Client, 8)
	for i := range clients {
		clients[i] = dial(t, s)
	}
	all := func(v int32) { t.Helper(); askSlowAtOnce(t, clients, v) }
	all(7)
	if n := executed(container); n != 1 {
		t.Errorf("%d executions of 128 equal requests that came together", n)
	}
	all(7)
	if n := executed(container); n != 1 {
		t.Errorf("%d executions after as many came again", n)
	}
	all(8)
	if n := executed(container); n != 2 {
		t.Errorf("%d executions of two different questions", n)
	}

	// Another door finds the same answers.
	x, _ := tensor.FromSlice(tensor.Shape{1, 2}, []int32{7, -7})
	x.Name = "x"
	a, err := s.predict.Door(s.metrics.Door("library")).
		Infer(t.Context(), &gate.Request{Model: "slow", Inputs: []tensor.Tensor{x}, Arrived: time.Now()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if row, err := tensor.Values[int32](a.Outputs[0]); err != nil || row[0] != 7 ||
		!a.Outputs[0].Shape.Equal(tensor.Shape{1, 2}) {
		t.Errorf("answered %v %v", row, err)
	}
	a.Release()
	if n := executed(container); n != 2 {
		t.Errorf("%d executions after asking another door", n)
	}

	var shown admin.ModelCache
	if code := get(t, s, "/v1/models/slow/cache", &shown); code != 200 || len(shown.Versions) != 1 {
		t.Fatalf("%d %+v", code, shown)
	}
	if v := shown.Versions[0]; v.Misses != 2 || v.Hits+v.Shared != 128+128+128+1-2 || v.Hits < 129 || v.Entries != 2 ||
		v.Bytes == 0 || shown.Limit != 1<<20 {
		t.Errorf("shown: %+v", shown)
	}
	for _, line := range []string{
		`shivad_cache_requests_total{model="slow",result="miss",version="1"} 2`,
		`shivad_cache_entries{model="slow",version="1"} 2`,
		`shivad_cache_removals_total{model="slow",reason="full",version="1"} 0`,
	} {
		if page := metricsPage(t, s); !strings.Contains(page, line) {
			t.Errorf("/metrics lacks %s", line)
		}
	}
	if strings.Contains(metricsPage(t, s), `shivad_cache_entries{model="echo"`) {
		t.Error("/metrics shows a cache of a model that has none")
	}
	r, _ := http.NewRequest(http.MethodDelete, "http://"+s.Addrs().Admin.String()+"/v1/models/slow/cache", nil)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if u, _ := s.gate.Cache("slow"); resp.StatusCode != 200 || u.Entries != 0 || u.Bytes != 0 {
		t.Errorf("%s; after clearing %+v", resp.Status, u)
	}
	all(7)
	if n := executed(container); n != 3 {
		t.Errorf("%d executions, want one more after clearing", n)
	}
	stopEmpty(t, s)
}

// The settings of a cache take effect while it is in use.
func TestCacheSettings(t *testing.T) {
	s := start(t, withCache)
	container := slow(t, s, func() {})
	client := dial(t, s)
	ask := func(times int) {
		t.Helper()
		for range times {
			if err := askSlow(t.Context(), client, 7); err != nil {
				t.Error(err)
			}
		}
	}
	ask(2)
	if _, _, err := s.settings.Set(t.Context(), "slow", texts("cache", "4GiB")); err == nil ||
		!strings.Contains(err.Error(), "4GiB is above limits.payload_bytes, 4GiB, less limits.message_bytes, 256MiB") {
		t.Errorf("a cache of all payload memory: %v", err)
	}
	if _, _, err := s.settings.Set(t.Context(), "slow", texts("cache", "2MiB", "cache_ttl", "10m")); err != nil {
		t.Error(err)
	}
	if m := s.settings.Now().Model("slow"); m.Cache != 2<<20 || m.CacheTTL != 10*time.Minute {
		t.Errorf("in effect: %v %v", m.Cache, m.CacheTTL)
	}
	ask(2)
	if u, _ := s.gate.Cache("slow"); u.Limit != 2<<20 || u.Entries != 1 {
		t.Errorf("usage %+v", u)
	}
	if _, _, err := s.settings.Set(t.Context(), "slow", texts("cache", "0", "cache_ttl", "0s")); err != nil {
		t.Error(err)
	}
	if code := get(t, s, "/v1/models/slow/cache", nil); code != 404 {
		t.Errorf("the cache that was turned off is shown: %d", code)
	}
	before := executed(container)
	ask(3)
	if n := executed(container) - before; n != 3 {
		t.Errorf("%d executions of three requests without a cache", n)
	}
	stopEmpty(t, s)
}

func metricsPage(t *testing.T, s *Server) string {
	t.Helper()
	resp, err := http.Get("http://" + s.Addrs().Admin.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// The client that asked first hangs up while its request is executing; clients with equal requests
// are still answered.
func TestCacheOutlivesTheFirstClient(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, func(c *config.Config) {
		withCache(c)
		c.TCP.CancelOnClose = true
	})
	answer := make(chan struct{})
	container := slow(t, s, func() { <-answer })
	first, second := dial(t, s), dial(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() {
		if askSlow(ctx, first, 1) == nil {
			t.Error("answered a client that had gone")
		}
	})
	budgettest.Until(t, "the first request to be executing", func() bool { return executed(container) == 1 })
	asking.Go(func() {
		if err := askSlow(t.Context(), second, 1); err != nil {
			t.Error(err)
		}
	})
	budgettest.Until(t, "the second request to wait for the first", func() bool { return shared(s) == 1 })
	cancel()
	first.Close()
	budgettest.Until(t, "the first request to be given up", func() bool {
		m, _ := s.sched.Model(scheduler.ModelID{Name: "slow", Version: "1"})
		return m.Stats().Outcomes[scheduler.OutcomeCanceledExecuting] == 1
	})
	close(answer)
	asking.Wait()
	if n := executed(container); n != 2 {
		t.Errorf("%d executions, want that of the first client and that of the second", n)
	}
	if u, _ := s.gate.Cache("slow"); u.Entries != 1 {
		t.Errorf("usage %+v", u)
	}
	stopEmpty(t, s)
}

// A drain answers requests that wait for another's answer, and the cache gives its memory back.
func TestCacheIsDrained(t *testing.T) {
	s := start(t, withCache)
	answer := make(chan struct{})
	slow(t, s, func() { <-answer })
	c := dial(t, s)
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			if err := askSlow(t.Context(), c, 1); err != nil {
				t.Error(err)
			}
		})
	}
	budgettest.Until(t, "seven requests to wait", func() bool { return shared(s) == 7 })
	var stopping sync.WaitGroup
	stopping.Go(func() { stopEmpty(t, s) })
	budgettest.Until(t, "the drain to begin", func() bool { return *s.phase.Load() == admin.Draining })
	close(answer)
	asking.Wait()
	stopping.Wait()
}

// shared returns how many requests for "slow" have waited for another's answer.
func shared(s *Server) uint64 {
	target, err := s.gate.Target("slow", "")
	if err != nil {
		return 0
	}
	return target.Metrics.Cache().Counts().Shared
}

// stopEmpty stops the server, which must have given back all payload memory.
func stopEmpty(t *testing.T, s *Server) {
	t.Helper()
	stop(t, s)
	if n := s.pool.InUse(); n != 0 {
		t.Errorf("%d bytes of payload memory are out after the shutdown: %v", n, tensor.Outstanding(s.pool))
	}
}

// texts are settings by name.
func texts(pairs ...string) map[string]*string {
	settings := map[string]*string{}
	for i := 0; i < len(pairs); i += 2 {
		settings[pairs[i]] = &pairs[i+1]
	}
	return settings
}
