package main

import (
	"fmt"
	"hash/fnv"
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

// hottest is the largest share of the feedback that one of so many shards has, where a hash of the
// application's name says which.
func hottest(shards int) float64 {
	each, all, most := make([]float64, shards), 0.0, 0.0
	for i := range applications {
		h := fnv.New32a()
		fmt.Fprintf(h, "application-%d", i)
		weight := 1 / float64(i+1)
		each[h.Sum32()%uint32(shards)] += weight
		all += weight
	}
	for _, w := range each {
		most = max(most, w/all)
	}
	return most
}

// redisTable is what Redis gets of fleets while the loads of all servers change, and while none of
// them does.
func redisTable(sizes []int) string {
	t := newTable("servers", "looks", "feedback", "loads that change", "messages to servers", "busy", "loads that do not", "messages to servers", "busy", "the busiest of 4", "of 16")
	whole := func(n float64) string { return number(int(n + 0.5)) }
	busy := func(r redis) string { return fmt.Sprintf("%.2f", r.busy()) }
	for _, n := range sizes {
		f := fleetOf(n, 1)
		changing, steady := float64(n)/demandEvery.Seconds(), float64(n)/demandAgain.Seconds()
		most, all := f.redisOf(changing, 1), f.redisOf(steady, 1)
		t.row(number(n), whole(all.looks), whole(all.feedback), whole(changing), whole(most.messages), busy(most), whole(steady), whole(all.messages), busy(all),
			busy(f.redisOf(steady, hottest(4))), busy(f.redisOf(steady, hottest(16))))
	}
	return t.String()
}
