package operate

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/config"
)

// A load tells how many replicas are needed at a time since its beginning.
type load func(at time.Duration) int

// play lets a scaling follow a load, and returns how many processes there were at each second, and
// how often that changed.
func play(s *scaling, b config.Replicas, room int, span time.Duration, needs load) (list []int, changes int) {
	start := time.Unix(0, 0)
	for at := time.Duration(0); at < span; at += 100 * time.Millisecond {
		before := s.wanted
		n, why := s.decide(start.Add(at), reading{bounds: b, needed: needs(at), room: room, why: "as it is"})
		if n != s.wanted || (n != before) != (why != "") {
			panic("it is not what it says")
		}
		if n != before {
			changes++
		}
		if at%time.Second == 0 {
			list = append(list, n)
		}
	}
	return list, changes
}

// TestScaling: up at once, down when fewer have sufficed for as long as down_after, never outside
// the bounds, and without following a load that comes and goes.
func TestScaling(t *testing.T) {
	bounds := config.Replicas{Min: 1, Max: 4, DownAfter: time.Minute}
	for name, c := range map[string]struct {
		bounds  config.Replicas
		room    int
		needs   load
		changes int
		at      map[int]int // second: processes
	}{
		"step": {bounds, 10, func(at time.Duration) int {
			if at < 10*time.Second || at >= 100*time.Second {
				return 0
			}
			return 3
		}, 2, map[int]int{9: 1, 10: 3, 99: 3, 159: 3, 161: 1}},
		"more than max": {bounds, 10, func(at time.Duration) int { return 9 }, 1,
			map[int]int{0: 4, 299: 4}},
		"more than there is room for": {bounds, 2, func(time.Duration) int { return 9 }, 1, map[int]int{0: 2, 299: 2}},
		"less room than min": {config.Replicas{Min: 2, Max: 4, DownAfter: time.Minute}, 1,
			func(time.Duration) int { return 9 }, 1, map[int]int{0: 2}},
		"noise": {bounds, 10, func(at time.Duration) int { return 2 + int(at/(100*time.Millisecond))%2 }, 2,
			map[int]int{1: 3, 299: 3}},
		// Up with each tooth, and never down: none is long enough.
		"sawtooth": {bounds, 10, func(at time.Duration) int { return 1 + int(at/(10*time.Second))%4 }, 3,
			map[int]int{0: 1, 39: 4, 299: 4}},
		// The number falls to the highest need since then, not to the latest.
		"down by steps": {bounds, 10, func(at time.Duration) int { return max(1, 4-int(at/(30*time.Second))) }, 3,
			map[int]int{0: 4, 89: 4, 91: 3, 149: 3, 151: 1, 299: 1}},
		"to zero": {config.Replicas{Min: 0, Max: 2, DownAfter: time.Minute}, 10, func(at time.Duration) int {
			if at < time.Second || at > 200*time.Second {
				return 1
			}
			return 0
		}, 2, map[int]int{0: 1, 60: 1, 62: 0, 199: 0, 201: 1}},
	} {
		s := &scaling{wanted: 1}
		list, changes := play(s, c.bounds, c.room, 5*time.Minute, c.needs)
		if changes != c.changes {
			t.Errorf("%s: %d changes, expected %d", name, changes, c.changes)
		}
		for at, want := range c.at {
			if list[at] != want {
				t.Errorf("%s: %d processes after %d s, expected %d", name, list[at], at, want)
			}
		}
	}
	s := &scaling{wanted: 4}
	if n, why := s.decide(time.Now(),
		reading{bounds: config.Replicas{Min: 1, Max: 2, DownAfter: time.Minute}, needed: 4, room: math.MaxInt}); n !=
		2 || why != "max is 2" {
		t.Errorf("after max was lowered: %d, %s", n, why)
	}
	if n, why := s.decide(time.Now(),
		reading{bounds: config.Replicas{Min: 3, Max: 4, DownAfter: time.Minute}, needed: 1, room: math.MaxInt}); n !=
		3 || why != "min is 3" {
		t.Errorf("after min was raised: %d, %s", n, why)
	}
	if n, why := s.decide(time.Now(), reading{bounds: bounds, needed: 9, room: math.MaxInt, why: "m needs 9"}); n !=
		4 || !strings.Contains(why, "m needs 9; max is 4") {
		t.Errorf("above max: %d, %s", n, why)
	}
}

// A standIn is a supervisor of no process.
type standIn struct{ Supervisor }

// TestRoom: as many processes as the machine's memory and cores have room for, besides the declared
// needs of the other containers. A container that declares nothing has all the room, and takes
// none.
func TestRoom(t *testing.T) {
	ps := &Processes{machine: resources{memory: 10 << 30, cores: 8}}
	declared := func(memory config.Bytes, cpus, running int) *process {
		p := &process{fleet: ps, settings: config.Container{Process: config.Process{Memory: memory, CPUs: cpus}}}
		if running > 0 {
			p.lifecycle.supervisor, p.lifecycle.scaling.wanted = standIn{}, running
		}
		return p
	}
	for _, c := range []struct {
		memory config.Bytes
		cpus   int
		others []*process
		want   int
	}{
		{0, 0, nil, math.MaxInt32},
		{4 << 30, 0, nil, 2},
		{0, 3, nil, 2},
		{2 << 30, 3, nil, 2},
		{2 << 30, 1, []*process{declared(3<<30, 1, 2)}, 2}, // 4 GiB and 6 cores are left
		{1 << 30, 2, []*process{declared(1<<30, 2, 2)}, 2}, // 8 GiB and 4 cores
		{1 << 30, 2, []*process{declared(0, 0, 4)}, 4},     // declares nothing
		{1 << 30, 2, []*process{declared(5<<30, 4, 0)}, 4}, // unloaded
		{1 << 30, 2, []*process{declared(4<<30, 4, 3)}, 0}, // they have more than the machine
		{16 << 30, 0, nil, 0},
	} {
		p := declared(c.memory, c.cpus, 3) // its own processes do not count
		if got := ps.room(p, append(c.others, p)); got != c.want {
			t.Errorf("%d bytes and %d cores each: room for %d, want %d", c.memory, c.cpus, got, c.want)
		}
	}
}

// TestShare: cpus is the share of a process, else an equal part for each; libraries are told unless
// the container says otherwise, or has all that they see.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		cpus, replicas, available, visible int
		env                                map[string]string
		want                               share
		omp, fallback                      string // OMP_NUM_THREADS
	}{
		{0, 1, 8, 8, nil, share{count: 8, all: true}, "", ""},
		{0, 1, 2, 64, nil, share{count: 2}, "", "2"}, // a quota, of which libraries know nothing
		{0, 4, 8, 8, nil, share{count: 2}, "", "2"},
		{0, 4, 2, 2, nil, share{count: 1}, "", "1"},
		{0, 4, 2, 2, map[string]string{"OMP_NUM_THREADS": "7"}, share{count: 1}, "7", "1"},
		{3, 4, 8, 8, nil, share{count: 3, declared: true}, "3", ""},
		{3, 4, 8, 8, map[string]string{"OMP_NUM_THREADS": "7"}, share{count: 3, declared: true}, "7", ""},
	} {
		conf := config.Container{Process: config.Process{CPUs: c.cpus, Replicas: config.Fixed(c.replicas), Env: c.env}}
		got := shareOf(conf, c.available, c.visible)
		env, fallback := got.environment(conf)
		if got != c.want || env["OMP_NUM_THREADS"] != c.omp || fallback["OMP_NUM_THREADS"] != c.fallback {
			t.Errorf("%+v: %+v, %v, %v", c, got, env, fallback)
		}
		spin := "OPENCV_FOR_THREADS_NUM" // its threads spin, whether or not they get a processor
		if _, told := env[spin]; told != c.want.declared || (fallback[spin] == "") != (c.want.declared || c.want.all) {
			t.Errorf("%+v: %s is %q and %q", c, spin, env[spin], fallback[spin])
		}
		if n := env["SHIVA_CPUS"] + fallback["SHIVA_CPUS"]; n != strconv.Itoa(c.want.count) {
			t.Errorf("%+v: SHIVA_CPUS is %q", c, n)
		}
	}
}

// TestCrowded: processes want as many processors as cpus says, or one each.
func TestCrowded(t *testing.T) {
	ps := &Processes{machine: resources{cores: 4}}
	for _, c := range []struct {
		cpus, running int
		crowded       bool
	}{{0, 4, false}, {0, 5, true}, {2, 2, false}, {2, 3, true}, {9, 0, false}} {
		p := &process{fleet: ps, settings: config.Container{Process: config.Process{CPUs: c.cpus}}}
		if c.running > 0 {
			p.lifecycle.supervisor, p.lifecycle.scaling.wanted = standIn{}, c.running
		}
		ps.list = []*process{p}
		if got := ps.Crowded(); (got != "") != c.crowded {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
