package container_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/container"
)

// A town has the servers behind one name, and containers that connect to it.
type town struct {
	*testing.T
	net     *network
	servers map[string]*server

	mu    sync.Mutex
	names []netip.Addr
	err   error
}

func (w *town) resolve(context.Context, string, string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names, w.err
}

// is sets what the name resolves to.
func (w *town) is(err error, from, to int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names, w.err = nil, err
	for i := from; i <= to; i++ {
		w.names = append(w.names, netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i)))
	}
}

func addr(i int) string { return fmt.Sprintf("10.0.0.%d:7000", i) }

// open starts a server.
func (w *town) open(i int) {
	w.servers[addr(i)] = newServer(w.T)
	w.net.set(addr(i), w.servers[addr(i)])
}

// shut ends a server: it refuses connections.
func (w *town) shut(i int) {
	w.net.set(addr(i), nil)
	w.servers[addr(i)].stop(w.T)
	delete(w.servers, addr(i))
}

// live returns how many sessions each server has, and their sum.
func (w *town) live() (all int, each []int) {
	for i := 1; i <= 20; i++ {
		if s := w.servers[addr(i)]; s != nil {
			each = append(each, s.live())
			all += s.live()
		}
	}
	return all, each
}

// expect waits for that many sessions in all, with each server within bounds.
func (w *town) expect(what string, all, least, most int) {
	w.Helper()
	for range 3600 {
		got, each := w.live()
		if got == all && slices.Min(each) >= least && slices.Max(each) <= most {
			return
		}
		time.Sleep(time.Second)
	}
	got, each := w.live()
	w.Errorf("%s: %d sessions, %v, want %d, and %d to %d each", what, got, each, all, least, most)
}

// TestSubset: containers have sessions with the right number of servers, evenly, as servers and
// containers start, end, fall silent and return, and whether the name can be resolved or not.
func TestSubset(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, first *server) {
		w := &town{T: t, net: n, servers: map[string]*server{addr(1): first}}
		for i := 2; i <= 8; i++ {
			w.open(i)
		}
		w.is(nil, 1, 8)
		var stops []func() error
		join := func() {
			m := model(n, nil)
			m.Subset = 3
			stops = append(stops, serving(m, w.resolve, "tcp://shivad.example:7000"))
		}
		for range 8 {
			join()
		}
		w.expect("8 containers", 24, 2, 4)
		for range 8 {
			join()
		}
		w.expect("16 containers", 48, 5, 7)

		w.shut(8) // but stays listed: another server takes its place
		w.expect("a server that is away", 48, 5, 9)
		w.open(8)
		w.expect("a server that is back", 48, 5, 7)

		for i := 9; i <= 12; i++ {
			w.open(i)
		}
		w.is(nil, 1, 12)
		w.expect("12 servers", 48, 3, 5)
		w.is(nil, 2, 12)
		for first.live() > 0 {
			time.Sleep(time.Second)
		}
		w.expect("a server less", 48, 0, 6)
		w.is(errors.New("the resolver is away"), 2, 1)
		time.Sleep(2 * time.Minute)
		w.expect("a name that cannot be resolved", 48, 0, 6)
		w.is(nil, 2, 3) // fewer than the subset
		w.expect("two servers", 32, 0, 16)
		for _, stop := range stops {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		for i := 2; i <= 12; i++ {
			w.shut(i)
		}
	})
}

// TestSubsetSize: of sixteen servers a container has sessions with all, unless the model or the
// environment sets another number.
func TestSubsetSize(t *testing.T) {
	for _, tt := range []struct {
		environment string
		subset      int
		want        int
	}{{"", 0, 16}, {"5", 0, 5}, {"5", 7, 7}, {"", 100, 18}} {
		t.Setenv(container.SubsetEnv, tt.environment)
		bubble(t, func(t *testing.T, n *network, first *server) {
			w := &town{T: t, net: n, servers: map[string]*server{addr(1): first}}
			for i := 2; i <= 18; i++ {
				w.open(i)
			}
			w.is(nil, 1, 18)
			m := model(n, nil)
			m.Subset = tt.subset
			stop := serving(m, w.resolve, "tcp://shivad.example:7000")
			w.expect(fmt.Sprintf("%+v", tt), tt.want, 0, 1)
			if err := stop(); err != nil {
				t.Error(err)
			}
			for i := 2; i <= 18; i++ {
				w.shut(i)
			}
		})
	}
	m := model(&network{}, nil)
	t.Setenv(container.SubsetEnv, "many")
	if err := container.Serve(t.Context(), m, addr(1)); err == nil || !strings.Contains(err.Error(), `$SHIVA_SUBSET is "many", expected a number of servers from 1`) {
		t.Errorf("error %v", err)
	}
	m.Subset = -1
	if err := container.Serve(t.Context(), m, addr(1)); err == nil || !strings.Contains(err.Error(), "Subset is -1, expected a number of servers from 1") {
		t.Errorf("error %v", err)
	}
}
