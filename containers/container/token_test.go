package container_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/shiva/token"
)

// TestTokenIsReplaced: the file of a token is read for each session, and once more when the token
// is refused. Until the server knows the token, the container retries, but rarely.
func TestTokenIsReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	write("first")
	t.Setenv(token.Env, "")
	t.Setenv(token.FileEnv, file)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var shown []string
		known, refused := "first", func() {}
		s := newServer(t, func(c *containers.Config) {
			c.Allow = func(a containers.Applicant) (containers.Party, error) {
				mu.Lock()
				defer mu.Unlock()
				if !a.Registered {
					shown = append(shown, a.Token)
				}
				if a.Token == known {
					return containers.Party{Identity: "camera"}, nil
				}
				if !a.Registered {
					refused()
				}
				return containers.Party{}, errors.New("unauthenticated")
			}
		})
		n := &network{servers: map[string]*server{"10.0.0.1:7000": s}}
		stop := serving(model(n, nil), nil, "10.0.0.1:7000")
		expect := func(live int, tokens ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if got := s.live(); got != live || !slices.Equal(shown, tokens) {
				t.Errorf("%d replicas, shown were %q; want %d, %q", got, shown, live, tokens)
			}
			shown = nil
		}
		know := func(text string, whenRefused func()) {
			mu.Lock()
			known, refused = text, whenRefused
			mu.Unlock()
			s.Review()
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		expect(1, "first")

		write("second")
		know("second", func() {})
		expect(1, "second")

		know("third", func() { write("third") }) // just too late for the first attempt
		expect(1, "second", "third")

		know("fourth", func() {})
		expect(0, "third")
		write("fourth")
		time.Sleep(time.Minute)
		expect(1, "fourth")

		if err := stop(); err != nil {
			t.Error(err)
		}
		s.stop(t)
		synctest.Wait()
	})
}
