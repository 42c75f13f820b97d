package cache

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestKey(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	in := func(d tensor.DType, data string, shape ...int) tensor.Tensor {
		return tensor.Tensor{Name: "x", DType: d, Shape: shape, Data: []byte(data)}
	}
	request := func(inputs ...tensor.Tensor) scheduler.Request { return scheduler.Request{Inputs: inputs, Rows: 1} }
	with := func(parameters string) scheduler.Request {
		r := request(in(tensor.Int32, "abcdefgh", 1, 2))
		r.Parameters = []byte(parameters)
		return r
	}
	different := map[string]scheduler.Request{
		"plain":            request(in(tensor.Int32, "abcdefgh", 1, 2)),
		"bytes":            request(in(tensor.Int32, "abcdefgi", 1, 2)),
		"dtype":            request(in(tensor.Uint32, "abcdefgh", 1, 2)),
		"shape":            request(in(tensor.Int32, "abcdefgh", 2, 1)),
		"rank":             request(in(tensor.Int32, "abcdefgh", 1, 2, 1)),
		"two inputs":       request(in(tensor.Int32, "abcd", 1, 1), in(tensor.Int32, "efgh", 1, 1)),
		"the other order":  request(in(tensor.Int32, "efgh", 1, 1), in(tensor.Int32, "abcd", 1, 1)),
		"parameters":       with(`{"a":1}`),
		"other parameters": with(`{"a":2}`),
		"no elements":      request(in(tensor.Int32, "", 1, 0)),
	}
	seen := map[key]string{}
	for name, r := range different {
		k := g.version.key(&r, "")
		if other, ok := seen[k]; ok {
			t.Errorf("%s and %s have one key", name, other)
		}
		seen[k] = name
		if other := g.cache.Version(g.counts); other.key(&r, "") == k {
			t.Errorf("%s has one key in two versions", name)
		}
		r.Priority, r.Source, r.Deadline = 7, 9, time.Now()
		if g.version.key(&r, "") != k {
			t.Errorf("%s: priority, source or deadline changed the key", name)
		}
		again := r
		again.Inputs = nil
		for _, t := range r.Inputs {
			t.Data, t.Name = append([]byte{}, t.Data...), "y"
			again.Inputs = append(again.Inputs, t)
		}
		if g.version.key(&again, "") != k {
			t.Errorf("%s: a copy of it has another key", name)
		}
	}
	if other := New(Config{Bytes: 1 << 20}); other.seed == g.cache.seed {
		t.Error("two caches have one seed")
	}
}
