package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// What Redis does for a fleet. Every server asks it four times a second whether it has missed
// something, writes its load at times, and learns from feedback by a script. Whatever is written is
// published, and every server hears of it.
const (
	looks = 4 // of a server in a second: see server/state/follow.go
	// What Redis needs of a processor, as measured by
	// go test -count=1 -v -run RedisOfManyServers ./server/state -crowd 400.
	lookTime, scriptTime, messageTime = 20e-6, 60e-6, 3.4e-6
	// One of so many frames has feedback, for one of so many applications, of which the n-th has an
	// n-th of the first one's.
	feedbackOf, applications = 1000, 200
)

// A redis is what one Redis gets in a second.
type redis struct{ looks, loads, feedback, messages float64 }

// redisOf is of the Redis that has servers' loads, and a share of the feedback.
func (f Fleet) redisOf(loads, share float64) redis {
	n := float64(f.Servers)
	of := redis{looks: looks * n, loads: loads, feedback: share * f.Capacity() * f.Load / feedbackOf}
	of.messages = n * (of.loads + of.feedback)
	return of
}

// busy is the share of its processor that it needs.
func (r redis) busy() float64 {
	return r.looks*lookTime + (r.loads+r.feedback)*scriptTime + r.messages*messageTime
}

// shards are into how many Redis the applications are divided at the most.
const shards = 16

// shardOf is the Redis that has an application, which a hash of its name says.
func shardOf(application int) uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "application-%d", application)
	return h.Sum32() % shards
}

// weight is how much feedback an application has, as a share of that of the first one.
func weight(application int) float64 { return 1 / float64(application+1) }

// hottest is the largest share of the feedback that one of so many shards has.
func hottest(of int) float64 {
	each, all := make([]float64, of), 0.0
	for i := range applications {
		each[shardOf(i)%uint32(of)] += weight(i)
		all += weight(i)
	}
	return slices.Max(each) / all
}

// A traffic is what Redis gets while a fleet is simulated.
type traffic struct {
	rng     *rand.Rand
	upTo    []float64 // of each application: the share of the feedback up to it
	now     second
	seconds []second // those that count
}

// A second is what is written in one, and by how many servers.
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

// frame may have feedback, for one of the applications.
func (t *traffic) frame() {
	if t.rng.IntN(feedbackOf) == 0 {
		application, _ := slices.BinarySearch(t.upTo, t.rng.Float64())
		t.now.Feedback[shardOf(min(application, applications-1))]++
	}
}

// listen has what is written counted by seconds.
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

// busiest is what the one of so many Redis gets that has most to do. One has the loads of all
// servers; it is taken for the one with most feedback.
func (s second) busiest(of int) redis {
	each := make([]int, of)
	for i, n := range s.Feedback {
		each[i%of] += n
	}
	r := redis{looks: looks * float64(s.Servers), loads: float64(s.Loads), feedback: float64(slices.Max(each))}
	r.messages = float64(s.Servers) * (r.loads + r.feedback)
	return r
}

// busiest is what the one of so many Redis gets in the second in which it has most to do.
func (r *Result) busiest(of int) (most redis) {
	for _, s := range r.Redis {
		if one := s.busiest(of); one.busy() > most.busy() {
			most = one
		}
	}
	return most
}

// operations are the commands and scripts of a second.
func (r redis) operations() float64 { return r.looks + r.loads + r.feedback }

func whole(n float64) string { return number(int(n + 0.5)) }

func busy(r redis) string { return fmt.Sprintf("%.2f", r.busy()) }

// redisTable is what Redis gets of fleets while the loads of all servers change, and while none of
// them does.
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
