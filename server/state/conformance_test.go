package state_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/budgettest"
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
	budgettest.Goroutines(t)
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
	budgettest.Goroutines(t)
	statetest.Conformance(t, false, func(t *testing.T) statetest.Stores {
		return func(t *testing.T, opts state.Options) state.Store {
			return open(t, filepath.Join(t.TempDir(), "state.db"), opts)
		}
	})
}

func TestRedis(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	statetest.Conformance(t, true, func(t *testing.T) statetest.Stores {
		return func(t *testing.T, opts state.Options) state.Store {
			opts.Namespace = strings.ReplaceAll(t.Name(), "/", "-")
			opts.Settle = 10 * time.Millisecond
			return open(t, r.Target(), opts)
		}
	})
}

// Applied ids are remembered for their lifetime, even if the clock is set back.
func TestClockSetBack(t *testing.T) {
	for name, make := range map[string]func(state.Options) (state.Store, error){
		"memory": state.NewMemory,
		"file": func(opts state.Options) (state.Store, error) {
			return state.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), opts)
		},
	} {
		now := time.Now()
		s, err := make(state.Options{IDLifetime: time.Hour, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			after time.Duration
			want  error
		}{{0, nil}, {-10 * time.Hour, state.ErrApplied}, {10*time.Hour + time.Minute, state.ErrApplied},
			{time.Hour, nil}} {
			now = now.Add(c.after)
			if _, err := s.Update(t.Context(), "key", "id", func([]byte) ([]byte, error) {
				return []byte("x"), nil
			}); !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%s, %v later: %v, expected %v", name, c.after, err, c.want)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
