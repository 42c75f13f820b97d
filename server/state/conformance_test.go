package state_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/leaktest"
)

func open(t *testing.T, target string, opts state.Options) state.Store {
	t.Helper()
	s, err := state.Open(context.Background(), target, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestMemory(t *testing.T) {
	leaktest.Goroutines(t)
	statetest.Conformance(t, false, func(t *testing.T) statetest.Stores {
		return func(t *testing.T, opts state.Options) state.Store {
			s, err := state.NewMemory(opts)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	})
}

func TestFile(t *testing.T) {
	t.Parallel() // it waits
	leaktest.Goroutines(t)
	statetest.Conformance(t, false, func(t *testing.T) statetest.Stores {
		return func(t *testing.T, opts state.Options) state.Store {
			return open(t, filepath.Join(t.TempDir(), "state.db"), opts)
		}
	})
}

func TestRedis(t *testing.T) {
	t.Parallel() // it waits
	leaktest.Goroutines(t)
	r := statetest.NewRedis(t)
	statetest.Conformance(t, true, func(t *testing.T) statetest.Stores {
		return func(t *testing.T, opts state.Options) state.Store {
			opts.Namespace = strings.ReplaceAll(t.Name(), "/", "-")
			opts.Settle = 10 * time.Millisecond
			return open(t, r.Target(), opts)
		}
	})
}
