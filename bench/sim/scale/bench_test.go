package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/subset"
	"github.com/shivad/shivad/scheduler/rounds"
)

// The steps that keep a fleet in order, at 1,000 servers and 5,000 containers.

// BenchmarkList is the work of a container after it has looked the name up and one server has
// changed.
func BenchmarkList(b *testing.B) {
	var before, after []string
	for i := range 1001 {
		a := fmt.Sprintf("10.0.%d.%d:7000", i>>8, i&255)
		if i < 1000 {
			before = append(before, a)
		}
		if i > 0 {
			after = append(after, a)
		}
	}
	for _, same := range []bool{true, false} {
		b.Run(fmt.Sprintf("same=%v", same), func(b *testing.B) {
			c := subset.New("container", sessions)
			c.List(before, epoch)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 && !same {
					c.List(after, epoch)
				} else {
					c.List(before, epoch)
				}
			}
		})
	}
}

// BenchmarkRound is the work of a container for an execution: offers, grants, batches, and its end.
func BenchmarkRound(b *testing.B) {
	for _, n := range []int{4, 16} {
		b.Run(fmt.Sprintf("servers=%d", n), func(b *testing.B) {
			table := rounds.New(1, maxBatch, func(a, b int) bool { return true })
			var seats []*rounds.Seat[int]
			for range n {
				seats = append(seats, table.Join(true))
			}
			b.ReportAllocs()
			for now := time.Duration(0); b.Loop(); now += time.Second {
				for _, s := range seats {
					table.Offer(s, 2, time.Second, now)
				}
				for {
					granted, e, _ := table.Next(now)
					for _, g := range granted {
						table.Arrive(g.Seat, rounds.Batch[int]{Rows: 2, Grant: g.ID, Best: 20}, now)
					}
					if e != nil {
						table.Done(e, now+time.Millisecond)
					}
					if len(granted) == 0 && e == nil {
						break
					}
				}
			}
		})
	}
}

// aServer is a server that has sessions with five containers for each of a number of servers.
func aServer(b *testing.B, servers int) *server {
	f := fleetOf(servers, 1)
	f.Subset, f.Settle = servers, time.Second
	w, err := play(f)
	if err != nil {
		b.Fatal(err)
	}
	return w.servers[0]
}

// BenchmarkNeed is the work of a server to compute the number of replicas needed.
func BenchmarkNeed(b *testing.B) {
	for _, n := range []int{4, 16} {
		b.Run(fmt.Sprintf("sessions=%d", perServer*n), func(b *testing.B) {
			s := aServer(b, n)
			b.ReportAllocs()
			for b.Loop() {
				s.model.Need()
			}
		})
	}
}
