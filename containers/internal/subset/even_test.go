package subset

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A fleet simulates containers and servers second by second, without a network.
type fleet struct {
	now        time.Time
	rand       *rand.Rand
	size       int
	servers    []string
	named      int
	containers []*Choice
	sessions   map[string]int
	held       map[*Choice][]string
	tries      int
	moves      int // sessions that began where a container already had some
}

func newFleet(containers, servers, size int) *fleet {
	f := &fleet{now: time.Unix(0, 0), rand: rand.New(rand.NewPCG(1, 2)), size: size, sessions: map[string]int{},
		held: map[*Choice][]string{}}
	f.grow(servers)
	for range containers {
		f.join()
	}
	return f
}

func (f *fleet) grow(n int) {
	for range n {
		f.named++
		f.servers = append(f.servers, fmt.Sprintf("10.%d.%d.%d:7000", f.named>>16, f.named>>8&255, f.named&255))
	}
	f.relist()
}

func (f *fleet) relist() {
	for _, s := range f.containers {
		s.List(f.servers, f.now)
		f.hold(s)
	}
}

func (f *fleet) join() {
	s := &Choice{key: fmt.Sprint(f.rand.Uint64()), size: f.size}
	s.List(f.servers, f.now)
	s.next = s.next.Add(time.Duration(f.rand.Int64N(int64(firstTry))))
	f.containers = append(f.containers, s)
	f.hold(s)
	f.moves -= len(f.held[s])
}

func (f *fleet) leave(i int) {
	for _, a := range f.held[f.containers[i]] {
		f.sessions[a]--
	}
	delete(f.held, f.containers[i])
	f.containers = slices.Delete(f.containers, i, i+1)
}

func (f *fleet) hold(s *Choice) {
	want := s.Chosen(func(string) bool { return false })
	for _, a := range f.held[s] {
		if !slices.Contains(want, a) {
			f.sessions[a]--
		}
	}
	for _, a := range want {
		if !slices.Contains(f.held[s], a) {
			f.sessions[a]++
			f.moves++
		}
	}
	f.held[s] = want
}

// run lets that much time pass. A trial takes a second.
func (f *fleet) run(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); f.now = f.now.Add(time.Second) {
		for _, s := range f.containers {
			if f.now.Unix()%20 == 0 { // the name is looked up again
				s.List(f.servers, f.now)
			}
			switch {
			case s.trying != "":
				tried := s.trying
				s.Judge(f.held[s], func(a string) int { return f.sessions[a] }, f.now)
				s.next = s.next.Add(-time.Duration(f.rand.Int64N(int64(s.wait) / 2)))
				f.hold(s)
				if !slices.Contains(f.held[s], tried) {
					f.moves--
					f.tries++
				}
			case f.now.Before(s.next):
			default:
				s.Try(f.held[s], f.now)
				f.hold(s)
			}
		}
	}
}

func (f *fleet) spread() (least, most int, deviation float64) {
	least = math.MaxInt
	mean := float64(len(f.containers)*f.size) / float64(len(f.servers))
	for _, a := range f.servers {
		n := f.sessions[a]
		least, most = min(least, n), max(most, n)
		deviation += (float64(n) - mean) * (float64(n) - mean) / float64(len(f.servers))
	}
	return least, most, math.Sqrt(deviation) / mean
}

// none returns the share of servers without a session.
func (f *fleet) none() float64 {
	n := 0
	for _, a := range f.servers {
		if f.sessions[a] == 0 {
			n++
		}
	}
	return float64(n) / float64(len(f.servers))
}

// settle lets five minutes pass, and checks the remaining unevenness, and the moves since the last
// call: those of the change, which needs at least the given number, and those of the trials.
func (f *fleet) settle(t *testing.T, what string, needed int) {
	t.Helper()
	changed := f.moves
	f.run(5 * time.Minute)
	least, most, deviation := f.spread()
	all := len(f.containers) * f.size
	mean := float64(all) / float64(len(f.servers))
	t.Logf("%s: %d to %d sessions where %.1f is the mean, deviation %.2f, %.1f %% without; %d moves (%d needed) and %d after it, of %d; %d tries in vain",
		what, least, most, mean, deviation, 100*f.none(), changed, needed, f.moves-changed, all, f.tries)
	// Plain rendezvous has a deviation of 1/sqrt(mean), 0.56, and leaves e^-mean, 4 %, without
	// sessions.
	if deviation > 0.5/math.Sqrt(mean)+0.05 {
		t.Errorf("%s: the deviation is %.2f", what, deviation)
	}
	if f.none() > math.Exp(-mean)/2 {
		t.Errorf("%s: %.1f %% of the servers have no container", what, 100*f.none())
	}
	if float64(most) > 2*mean+1 {
		t.Errorf("%s: a server has %d sessions, and the mean is %.1f", what, most, mean)
	}
	// The change itself moves as many as rendezvous must, within the spread of dice. The trials
	// move at most half of all: each uneven session at most twice, since a server that was left is
	// not known for good.
	if slack := 4 * math.Sqrt(float64(needed)+1); float64(changed) > float64(needed)+slack {
		t.Errorf("%s: %d sessions moved at once, %d needed to", what, changed, needed)
	}
	if f.moves-changed > all/2 {
		t.Errorf("%s: %d of %d sessions moved to be even", what, f.moves-changed, all)
	}
	f.moves, f.tries = 0, 0
}

var large = flag.Bool("large", false, "simulate 100 containers and 500 servers, not 20 and 100")

// TestSubsetsAreEven: five minutes after either side has grown, shrunk or been replaced the
// sessions are spread over the servers much more evenly than by dice, and few have moved.
func TestSubsetsAreEven(t *testing.T) {
	size := [3]int{20, 100, 16}
	if *large {
		size = [3]int{100, 500, 16}
	}
	containers, servers := size[0], size[1]
	f := newFleet(containers, servers, size[2])
	all := containers * f.size
	f.settle(t, "at first", 0)
	f.grow(servers / 5)
	f.settle(t, "a fifth more servers", all/6)
	f.servers = slices.Clone(f.servers[servers/5:])
	f.relist()
	f.settle(t, "as many fewer", all/6)
	for range containers / 2 {
		f.leave(f.rand.IntN(len(f.containers)))
	}
	f.settle(t, "half of the containers", 0)
	for range containers / 2 {
		f.join()
	}
	f.settle(t, "all again", 0)
	for range containers {
		f.leave(0)
		f.join()
		f.run(3 * time.Second)
	}
	f.moves, f.tries = 0, 0
	f.settle(t, "containers replaced", 0)
	rolled := servers / 10
	for _, a := range slices.Clone(f.servers)[:rolled] {
		f.servers = slices.DeleteFunc(slices.Clone(f.servers), func(b string) bool { return a == b })
		f.relist()
		f.run(20 * time.Second)
		f.servers = append(f.servers, a)
		f.relist()
		f.run(10 * time.Second)
	}
	f.moves, f.tries = 0, 0
	f.settle(t, "a tenth of the servers replaced", 0)
}
