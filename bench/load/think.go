package load

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// A Think is the time from an answer to a client's next request in a closed loop. The zero Think is
// none.
type Think struct {
	Mean time.Duration
	// Random draws each time from an exponential distribution, as of people or of steps that
	// differ; otherwise all are equal, as of a program that does the same after each answer.
	Random bool
}

// ParseThink parses a time such as "5ms", or "exp:20ms" for random times with that mean.
func ParseThink(text string) (Think, error) {
	mean, random := strings.CutPrefix(text, "exp:")
	d, err := time.ParseDuration(mean)
	if err != nil || d < 0 {
		return Think{}, fmt.Errorf("expected a time with its unit, such as 5ms, or exp:5ms for random ones with that mean, got %q", text)
	}
	return Think{d, random}, nil
}

func (t Think) String() string {
	if t.Random {
		return "exp:" + t.Mean.String()
	}
	return t.Mean.String()
}

func (t Think) draw(r *rand.Rand) time.Duration {
	if t.Random {
		return time.Duration(r.ExpFloat64() * float64(t.Mean))
	}
	return t.Mean
}

// thinking are the clients of a loop that think: a heap by the time at which they ask again.
type thinking []thinker

type thinker struct {
	until time.Duration
	conn  *conn
}

func (h *thinking) push(t thinker) {
	*h = append(*h, t)
	a := *h
	for i := len(a) - 1; i > 0; {
		parent := (i - 1) / 2
		if a[parent].until <= a[i].until {
			return
		}
		a[parent], a[i] = a[i], a[parent]
		i = parent
	}
}

// pop removes the one that asks next.
func (h *thinking) pop() thinker {
	a := *h
	first, last := a[0], len(a)-1
	a[0] = a[last]
	a = a[:last]
	*h = a
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < last && a[child+1].until < a[child].until {
			child++
		}
		if child >= last || a[i].until <= a[child].until {
			return first
		}
		a[i], a[child] = a[child], a[i]
		i = child
	}
}

// checkThink refuses think times where requests do not follow answers.
func (c *Config) checkThink() error {
	if c.Think.Mean < 0 {
		return fmt.Errorf("load: a negative think time, %v", c.Think.Mean)
	}
	if c.Think.Mean > 0 && c.Rate > 0 {
		return errors.New("load: an open loop does not wait for answers: think times are for closed ones")
	}
	return nil
}

// ask makes a closed loop's clients ask for the first time. Those that think have been at it for a
// while: they are spread over one think time.
func (l *loop) ask() error {
	for _, c := range l.conns {
		for range l.cfg.InFlight {
			if l.cfg.Think.Mean > 0 {
				first := time.Duration(l.rng.Float64() * float64(l.cfg.Think.Mean))
				l.thinking.push(thinker{first, c})
				continue
			}
			// The first requests are due at the start, not once the connections before this one
			// have been written to: with large frames that may be after the measured time.
			c.due.push(0)
		}
		if err := l.send(c); err != nil {
			return err
		}
	}
	return nil
}

// again makes the client of an answered request ask again, now or once it has thought.
func (l *loop) again(c *conn, now time.Duration) {
	if l.cfg.Think.Mean == 0 {
		c.due.push(now)
		return
	}
	l.thinking.push(thinker{now + l.cfg.Think.draw(l.rng), c})
}

// wake sends the requests of the clients that have thought for long enough.
func (l *loop) wake(now time.Duration) error {
	for len(l.thinking) > 0 && l.thinking[0].until <= now && l.thinking[0].until < l.to {
		t := l.thinking.pop()
		t.conn.due.push(t.until)
		if t.until >= l.from {
			l.result.Lag.Add(now - t.until)
		}
		if err := l.send(t.conn); err != nil {
			return err
		}
	}
	return nil
}
