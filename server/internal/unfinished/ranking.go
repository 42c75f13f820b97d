package unfinished

import "container/heap"

// A ranking keeps elements by weight, the heaviest first. Its methods take logarithmic time.
type ranking[T ranked] []T

type ranked interface {
	weight() int64
	at() *int // its index in the ranking
}

func (r *ranking[T]) add(x T)    { heap.Push(r, x) }
func (r *ranking[T]) moved(x T)  { heap.Fix(r, *x.at()) }
func (r *ranking[T]) remove(x T) { heap.Remove(r, *x.at()) }

// The methods of heap.Interface.

func (r ranking[T]) Len() int           { return len(r) }
func (r ranking[T]) Less(i, j int) bool { return r[i].weight() > r[j].weight() }

func (r ranking[T]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	*r[i].at(), *r[j].at() = i, j
}

func (r *ranking[T]) Push(x any) {
	one := x.(T)
	*one.at() = len(*r)
	*r = append(*r, one)
}

func (r *ranking[T]) Pop() any {
	last := len(*r) - 1
	x := (*r)[last]
	var none T
	(*r)[last] = none
	*r = (*r)[:last]
	return x
}
