package server

import (
	"testing"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/quota"
)

// Each door reads a client over its rate at intervals.
func TestReadInTurns(t *testing.T) {
	const turn = 10 * time.Millisecond
	s, _ := loaded(t, new(logged), func(c *config.Config) {
		payer := declared("payer", "infer")
		payer.Quota = quotaOf(quota.RequestsPerSecond, 1)
		payer.Quota.Burst = 4 * turn
		c.Identities = []config.Identity{payer}
	})
	withSlow(t, s)
	for _, d := range payingDoors {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			c := d.dial(t, s, tokenOf("payer"), "127.0.0.1")
			ask := func(n int) (refused int) {
				for range n {
					if refusedBy(t, c.ask(t.Context(), "echo", fewRows)) != "" {
						refused++
					}
				}
				return refused
			}
			ask(20)
			const turns = 12
			began := time.Now()
			refused := ask(turns)
			if took := time.Since(began); refused < turns-1 || took < (turns-2)*turn {
				t.Errorf("it was read %d times in %v, and refused %d times", turns, took, refused)
			}
		})
	}
}
