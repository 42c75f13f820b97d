package server

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/token"
)

// The steps of README's "Replacing a token", with a container and a client that keep working, and
// show the new token in the end. No request is refused for its token; while the only container
// registers again there is no replica.
func TestTokensAreReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(tokenOf("old"))
	t.Setenv(token.Env, "")
	t.Setenv(token.FileEnv, file)
	before, after := declared("old").TokenSHA256[0], declared("new").TokenSHA256[0]
	s, settings := loaded(t, new(logged), func(c *config.Config) {
		c.Identities = []config.Identity{{Name: "both", TokenSHA256: config.Hashes{before}, May: []string{"infer", "serve"}}}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	go func() { // ends with ctx
		served <- container.Serve(ctx,
			container.Model{Name: "cat", Version: "1", Inputs: x, Outputs: x, Log: slog.New(slog.DiscardHandler),
				Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil }},
			s.Addrs().Containers[0].String())
	}()
	budgettest.Until(t, "the container serves", func() bool { return serves(s, "cat", "1") })
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ask := func() error {
		a, err := client.Do(t.Context(),
			&shiva.Message{Namespace: "cat", Metadata: []byte(`{"timeout_ms":60000}`), Tensors: []tensor.Tensor{row()}})
		if err == nil {
			a.Release()
		}
		return err
	}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	asked := 0
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			err := ask()
			if e, ok := errors.AsType[*shiva.RemoteError](err); err != nil && !(ok && e.Type == shiva.Unavailable) {
				stopped <- err
				return
			}
			asked++
		}
	}()
	session := func() uint64 {
		for _, i := range s.containers.List() {
			return i.Number
		}
		return 0
	}
	first := session()
	reload := func(hashes ...string) {
		t.Helper()
		reloads(t, s, settings, func(c *config.Config) { c.Identities[0].TokenSHA256 = hashes })
	}
	reload(before, after)
	write(tokenOf("new"))
	reload(after)
	budgettest.Until(t, "the container registers again", func() bool { return session() != first && serves(s, "cat", "1") })
	if err := ask(); err != nil {
		t.Error(err)
	}
	close(stop)
	if err := <-stopped; err != nil || asked == 0 {
		t.Errorf("after %d requests: %v", asked, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
