package tcp

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
)

// Requests that a client sends before it can know of the shutdown are answered: its session ends
// when it has been quiet for a moment, or when its time is over. A request that is incomplete by
// then is answered, too.
func TestGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		for name, tt := range map[string]struct {
			ask      []byte
			all      bool
			shut     bool
			refusals int
		}{
			"still asking":    {ask: ask},
			"in the middle":   {ask: ask[:20]},
			"for too long":    {ask: ask, all: true, shut: true},
			"too large, slow": {ask: ask[:20], all: true, shut: true, refusals: 1},
		} {
			s, m := newSession(t, func(b *scheduler.Batch) error { b.Fail(errNot); return nil }, nil)
			s.loop.door.gate.Drain()
			refused := func() (n int) {
				d := shiva.NewDecoder(shiva.DecoderConfig{})
				for len(m.out) > 0 {
					k, answer, err := d.Push(m.out)
					m.out = m.out[k:]
					if err != nil || answer == nil || shiva.ParseError(answer).Type != shiva.Draining {
						t.Fatalf("%s: %s, %v", name, describeMessage(answer), err)
					}
					n++
				}
				return n
			}
			s.take(tt.ask)
			want := tt.refusals
			if len(tt.ask) == len(ask) {
				want++
			}
			if s.loop.leave(tt.all); m.shut != tt.shut || refused() != want {
				t.Errorf("%s: our direction is ended: %v, expected %v and %d refusals", name, m.shut, tt.shut, want)
			}
			if tt.shut {
				continue
			}
			s.take(ask[len(tt.ask)%len(ask):]) // the rest of it, or another
			if s.loop.leave(false); m.shut || refused() != 1 {
				t.Errorf("%s: what came then was not refused; our direction is ended: %v", name, m.shut)
			}
			time.Sleep(200 * time.Millisecond)
			if s.loop.leave(false); !m.shut {
				t.Errorf("%s: still open to a client that is quiet", name)
			}
		}
	})
}

// Without time for a shutdown all connections are cut.
func TestShutdownWithoutTime(t *testing.T) {
	onAll(t, func(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
		r := newRig(t, nil)
		r.model("m", floats("x"), r.Echo)
		c := r.dial()
		c.send(message("m", "", 1, 2, 3, 4))
		values(t, c.next())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.close(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}
