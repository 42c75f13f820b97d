package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// The work of Redis for a fleet. Every server polls it four times a second for missed changes,
// writes its load at times, and learns from feedback through a script. Every write is published to
// all servers.
const (
	looks = 4 // polls of a server per second: see server/state/follow.go
	// Seconds of processor time that Redis takes, as measured by go test -count=1 -v -run
	// RedisOfManyServers ./server/state -crowd 400.
	lookTime, scriptTime, messageTime = 20e-6, 60e-6, 3.4e-6
	// One of feedbackOf frames has feedback, for one of the applications, of which the n-th gets an
	// n-th of the feedback of the first.
	feedbackOf, applications = 1000, 200
)

// A redis counts the operations and messages of one Redis in a second.
type redis struct{ looks, loads, feedback, messages float64 }

// redisOf is the Redis that stores the servers' loads and a share of the feedback.
func (f Fleet) redisOf(loads, share float64) redis {
	n := float64(f.Servers)
	of := redis{looks: looks * n, loads: loads, feedback: share * f.Capacity() * f.Load / feedbackOf}
	of.messages = n * (of.loads + of.feedback)
	return of
}

// busy is the share of a processor that the Redis needs.
func (r redis) busy() float64 {
	return r.looks*lookTime + (r.loads+r.feedback)*scriptTime + r.messages*messageTime
}

// shards is the largest number of Redis among which the applications are divided.
const shards = 16

// shardOf is the Redis of an application, by a hash of its name.
func shardOf(application int) uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "application-%d", application)
	return h.Sum32() % shards
}

// weight is the feedback of an application relative to that of the first.
func weight(application int) float64 { return 1 / float64(application+1) }

// hottest is the largest share of the feedback that a shard gets.
func hottest(of int) float64 {
	each, all := make([]float64, of), 0.0
	for i := range applications {
		each[shardOf(i)%uint32(of)] += weight(i)
		all += weight(i)
	}
	return slices.Max(each) / all
}

// A traffic counts what servers write to Redis while a fleet is simulated.
type traffic struct {
	rng     *rand.Rand
	upTo    []float64 // for each application: the share of the feedback up to and including it
	now     second
	seconds []second // in the counted time
}

// A second counts the writes of one second, and the servers that are up.
type second struct {
	Servers, Loads int
	Feedback       [shards]int
}

func newTraffic(seed uint64) *traffic {
	t := &traffic{rng: rand.New(rand.NewPCG(seed, 3))}
	all := 0.0
	for i := range applications {
		all += weight(i)
		t.upTo = append(t.upTo, all)
	}
	for i := range t.upTo {
		t.upTo[i] /= all
	}
	return t
}

// frame adds the feedback of a frame, if it has any, to one of the applications.
func (t *traffic) frame() {
	if t.rng.IntN(feedbackOf) == 0 {
		application, _ := slices.BinarySearch(t.upTo, t.rng.Float64())
		t.now.Feedback[shardOf(min(application, applications-1))]++
	}
}

// listen starts counting the writes, second by second.
func (w *world) listen() {
	w.traffic.now = second{}
	var end func()
	end = func() {
		for _, s := range w.servers {
			if s.lives() {
				w.traffic.now.Servers++
			}
		}
		w.traffic.seconds = append(w.traffic.seconds, w.traffic.now)
		w.traffic.now = second{}
		if w.clock.since()+time.Second <= w.end() {
			w.clock.AfterFunc(time.Second, end)
		}
	}
	w.clock.AfterFunc(time.Second, end)
}

// busiest is the load of the busiest Redis when there are several. One stores the loads of all
// servers; it is assumed to be the one with the most feedback.
func (s second) busiest(of int) redis {
	each := make([]int, of)
	for i, n := range s.Feedback {
		each[i%of] += n
	}
	r := redis{looks: looks * float64(s.Servers), loads: float64(s.Loads), feedback: float64(slices.Max(each))}
	r.messages = float64(s.Servers) * (r.loads + r.feedback)
	return r
}

// busiest is the load of the busiest Redis in its busiest second.
func (r *Result) busiest(of int) (most redis) {
	for _, s := range r.Redis {
		if one := s.busiest(of); one.busy() > most.busy() {
			most = one
		}
	}
	return most
}

// operations is the number of commands and scripts in a second.
func (r redis) operations() float64 { return r.looks + r.loads + r.feedback }

func whole(n float64) string { return number(int(n + 0.5)) }

func busy(r redis) string { return fmt.Sprintf("%.2f", r.busy()) }

// redisTable shows the load of Redis by size of the fleet, while the loads of all servers change,
// and while none does.
func redisTable(sizes []int) string {
	t := newTable("servers", "looks", "feedback", "loads that change", "messages to servers", "busy", "loads that do not", "messages to servers", "busy", "the busiest of 4", "of 16")
	for _, n := range sizes {
		f := fleetOf(n, 1)
		changing, steady := float64(n)/demandEvery.Seconds(), float64(n)/demandAgain.Seconds()
		most, all := f.redisOf(changing, 1), f.redisOf(steady, 1)
		t.row(number(n), whole(all.looks), whole(all.feedback), whole(changing), whole(most.messages), busy(most), whole(steady), whole(all.messages), busy(all),
			busy(f.redisOf(steady, hottest(4))), busy(f.redisOf(steady, hottest(shards))))
	}
	return t.String()
}
