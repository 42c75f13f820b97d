package apps

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A past is the sequence of texts stored under a key, and how far each of two servers has shown it.
// It models a store's guarantees: changes happen one after another, whichever server makes them. A
// read may be behind them, but not behind what the same server has shown before, even to other
// clients.
type past struct {
	texts []string // the first is "": nothing is stored
	shown [2]int   // index of the newest that each server has shown
}

// A call is what a client asks about a key: to change its text, or to read it.
type call struct {
	what   string                                  // for messages
	server int                                     // the server that reads
	change func(now string) (next string, ok bool) // nil: it reads; not ok: it refuses
	mark   string                                  // in all later texts until a deletion; "": none
}

// The answers to a change other than the text that it made.
const (
	refused = "refused" // there was no reason to change anything
	unknown = "unknown" // it was made or refused, or got no answer
)

// step returns the past after a call that got this answer; not ok: the answer is impossible now.
func (p past) step(c call, told string) (next past, ok bool) {
	if c.change == nil {
		i := p.shown[c.server] // of two equal texts take the older one, which constrains less
		for ; i < len(p.texts) && p.texts[i] != told; i++ {
		}
		p.shown[c.server] = i
		return p, i < len(p.texts)
	}
	last := len(p.texts)
	text, changes := c.change(p.texts[last-1])
	if !changes {
		return p, told == refused || told == unknown
	}
	p.texts = append(p.texts[:last:last], text)
	return p, told == text || told == unknown
}

var pasts = porcupine.Model{
	Init: func() any { return past{texts: []string{""}} },
	Step: func(state, input, output any) (bool, any) {
		next, ok := state.(past).step(input.(call), output.(string))
		return ok, next
	},
	Equal: func(one, other any) bool {
		a, b := one.(past), other.(past)
		return a.shown == b.shown && slices.Equal(a.texts, b.texts)
	},
}

// never is the end of a call that got no answer: it may take effect at any later time.
const never = math.MaxInt64

// telling leaves out calls that got no answer and left no mark anywhere. If there is an order with
// such a call, there is one without it. The checker would try it at every place.
func telling(calls []porcupine.Operation) []porcupine.Operation {
	var told strings.Builder
	for _, o := range calls {
		told.WriteString(o.Output.(string))
	}
	return slices.DeleteFunc(slices.Clone(calls), func(o porcupine.Operation) bool {
		mark := o.Input.(call).mark
		return o.Return == never && mark != "" && !strings.Contains(told.String(), mark)
	})
}

// checkPast fails the test if there is no order of the calls about a key, each between its
// beginning and its end, in which all could have got their answers.
func checkPast(t *testing.T, key string, calls []porcupine.Operation) {
	t.Helper()
	calls = telling(calls)
	result, info := porcupine.CheckOperationsVerbose(pasts, calls, 3*time.Second)
	switch result {
	case porcupine.Ok:
		return
	case porcupine.Unknown: // too many orders of calls without an answer: undecided
		t.Logf("%s: not decided for %d calls", key, len(calls))
		return
	}
	var most []porcupine.Operation // the longest order found
	for _, some := range info.PartialLinearizationsOperations()[0] {
		if len(some) > len(most) {
			most = some
		}
	}
	var text strings.Builder
	tell := func(o porcupine.Operation) {
		fmt.Fprintf(&text, "%v to %v: %s: %s\n", time.Duration(o.Call), time.Duration(o.Return), o.Input.(call).what,
			o.Output)
	}
	for _, o := range most[max(0, len(most)-10):] {
		tell(o)
	}
	text.WriteString("and none of\n")
	in := func(o porcupine.Operation) bool {
		return slices.ContainsFunc(most, func(m porcupine.Operation) bool {
			return m.Call == o.Call && m.Return == o.Return && m.ClientId == o.ClientId
		})
	}
	end := int64(never) // earliest end of the remaining calls: none that began later is next
	for _, o := range calls {
		if !in(o) {
			end = min(end, o.Return)
		}
	}
	for _, o := range calls {
		if !in(o) && o.Call <= end {
			tell(o)
		}
	}
	t.Errorf("%s: %s after %d calls of %d:\n%s", key, result, len(most), len(calls), text.String())
}

func TestPast(t *testing.T) {
	change := func(from, to int64, word, told string) porcupine.Operation {
		return porcupine.Operation{Call: from, Output: told, Return: to,
			Input: call{mark: word, change: func(now string) (string, bool) {
				return now + " " + word, now != ""
			}}}
	}
	begin := func(from, to int64, told string) porcupine.Operation {
		return porcupine.Operation{Call: from, Output: told, Return: to,
			Input: call{change: func(now string) (string, bool) { return "begun", now == "" }}}
	}
	read := func(from, to int64, server int, told string) porcupine.Operation {
		return porcupine.Operation{Call: from, Output: told, Return: to, Input: call{server: server}}
	}
	begun := begin(0, 1, "begun")
	for _, c := range []struct {
		what  string
		ok    bool
		calls []porcupine.Operation
	}{
		{"one after another", true, []porcupine.Operation{begun, change(2, 3, "a", "begun a"), change(4, 5, "b", "begun a b")}},
		{"an update is lost", false, []porcupine.Operation{begun, change(2, 3, "a", "begun a"), change(4, 5, "b", "begun b")}},
		{"of two at once, either order", true,
			[]porcupine.Operation{begun, change(2, 5, "a", "begun b a"), change(3, 4, "b", "begun b")}},
		{"of two at once, one is lost", false,
			[]porcupine.Operation{begun, change(2, 5, "a", "begun a"), change(3, 4, "b", "begun b")}},
		{"it is made twice", false, []porcupine.Operation{begun, change(2, 3, "a", "begun a"), change(4, 5, "b", "begun a a b")}},
		{"it takes effect before it began", false,
			[]porcupine.Operation{begun, change(2, 3, "a", "begun b a"), change(4, 5, "b", "begun b")}},
		{"refused with a reason", true,
			[]porcupine.Operation{change(0, 1, "a", refused), begin(2, 3, "begun"), begin(4, 5, refused)}},
		{"refused for what is not so", false, []porcupine.Operation{begun, change(2, 3, "a", refused)}},
		{"unknown, and seen much later", true,
			[]porcupine.Operation{begun, change(2, never, "a", unknown), change(4, 5, "b", "begun b"),
				change(6, 7, "c", "begun b a c")}},
		{"unknown, and never made", true,
			[]porcupine.Operation{begun, change(2, never, "a", unknown), change(4, 5, "b", "begun b")}},
		{"unknown, and made twice", false,
			[]porcupine.Operation{begun, change(2, never, "a", unknown), change(4, 5, "b", "begun a b a")}},
		{"unknown, and seen too early", false,
			[]porcupine.Operation{begun, read(2, 3, 0, "begun a"), change(4, never, "a", unknown)}},
		{"read behind, at the other server", true,
			[]porcupine.Operation{begun, change(2, 3, "a", "begun a"), read(2, 3, 0, "begun a"), read(4, 5, 1, "begun")}},
		{"read behind what the server has shown", false,
			[]porcupine.Operation{begun, change(2, 3, "a", "begun a"), read(2, 3, 0, "begun a"), read(4, 5, 0, "begun")}},
		{"read before it was there", false, []porcupine.Operation{begun, read(2, 3, 1, "begun a"), change(4, 5, "a", "begun a")}},
		{"read what never was", false, []porcupine.Operation{begun, change(2, 3, "a", "begun a"), read(4, 5, 1, "begun b")}},
	} {
		if ok := porcupine.CheckOperations(pasts, telling(c.calls)); ok != c.ok {
			t.Errorf("%s: %t, expected %t", c.what, ok, c.ok)
		}
	}
}
