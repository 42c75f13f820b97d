package latest

import (
	"container/heap"
	"container/list"
)

// A payer is whom the memory of streams is charged to: their identity or, if they have none, the
// machine that sent their first frame. The limit is one for all, so that whoever has the most gives
// when there is too much: many streams of one payer never make the server forget the few of
// another.
type payer struct {
	name    string
	bytes   int64
	streams *list.List // of *source, the one whose frame was answered longest ago first
	nth     int        // in payers
}

// payerOf returns who pays for a stream, a new one if it has no other.
func (s *Store) payerOf(key Source, machine string) *payer {
	name := "identity " + key.Identity
	if key.Identity == "" {
		name = "machine " + machine
	}
	p := s.paying[name]
	if p == nil {
		p = &payer{name: name, streams: list.New()}
		s.paying[name] = p
		heap.Push(&s.payers, p)
	}
	return p
}

// charge counts memory that a stream has taken, or given back.
func (s *Store) charge(src *source, bytes int64) {
	s.bytes += bytes
	p := src.payer
	p.bytes += bytes
	heap.Fix(&s.payers, p.nth)
}

// renew records that a frame of a stream was answered.
func (s *Store) renew(src *source) {
	s.sources.MoveToBack(src.place)
	src.payer.streams.MoveToBack(src.recency)
}

// forgetIdle forgets a payer that has no streams.
func (s *Store) forgetIdle(p *payer) {
	if p.streams.Len() == 0 {
		heap.Remove(&s.payers, p.nth)
		delete(s.paying, p.name)
	}
}

// payers is a heap, with the one who has the most first.
type payers []*payer

func (p payers) Len() int           { return len(p) }
func (p payers) Less(i, j int) bool { return p[i].bytes > p[j].bytes }
func (p payers) Swap(i, j int) {
	p[i], p[j] = p[j], p[i]
	p[i].nth, p[j].nth = i, j
}

func (p *payers) Push(x any) {
	x.(*payer).nth = len(*p)
	*p = append(*p, x.(*payer))
}

func (p *payers) Pop() any {
	last := len(*p) - 1
	x := (*p)[last]
	(*p)[last] = nil
	*p = (*p)[:last]
	return x
}
