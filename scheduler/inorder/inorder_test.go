package inorder

import (
	"fmt"
	"strings"
	"testing"
)

// A story is a stream, driven by words: +a joins, a! becomes complete with outputs, a? with an
// error, and . says that the answers that are leaving have left. It records who leaves, and -a for
// each request that is superseded.
type story struct {
	line  Line[string]
	nodes map[string]*Node[string]
	told  []string
}

func (s *story) do(word string) {
	switch name, last := word[:1], word[len(word)-1:]; {
	case name == "+":
		n := &Node[string]{Of: last}
		s.nodes[last] = n
		s.line.Join(n)
		return
	case word == ".":
		for s.line.Leaving > 0 {
			s.line.Left()
		}
	case last == "?":
		s.line.Remove(s.nodes[name])
		s.told = append(s.told, word)
	case s.line.MayLeave(s.nodes[name]):
		s.leave(s.nodes[name])
		return
	default:
		s.line.Hold(s.nodes[name])
		for n := s.line.Overdue(); n != nil; n = s.line.Overdue() {
			s.line.Remove(n)
			s.told = append(s.told, "-"+n.Of+"/"+s.line.NewestHeld().Of)
		}
	}
	if n := s.line.Next(); n != nil {
		s.leave(n)
	}
}

func (s *story) leave(n *Node[string]) {
	s.line.Leave(n)
	s.told = append(s.told, n.Of)
}

// TestLine: who leaves, and when.
func TestLine(t *testing.T) {
	for _, tt := range []struct {
		keep       int
		what, want string
	}{
		{0, "+a +b a! . b! .", "a b"},
		{0, "+a +b b! a! . .", "a b"},
		{0, "+a +b +c c! b! a! . . .", "a b c"},
		{0, "+a +b b! a?", "a? b"},            // an error makes room
		{0, "+a +b b? a!", "b? a"},            // and does not wait
		{0, "+a +b a! b!", "a"},               // one at a time
		{0, "+a +b a! b! b?", "a b?"},         // a held one ends at its deadline
		{0, "+a +b +c b! c! a! . .", "a b c"}, // any number may be held
		{1, "+a +b +c c! b!", "-a/c b"},       // one may
		{1, "+a +b +c +d d! c!", "-a/d -b/d c"},
		{1, "+a +b +c a! b! c! .", "a b"}, // those that wait for a delivery hold up nobody
		{2, "+a +b +c +d c! d! b! .", "-a/d b c"},
	} {
		s := &story{line: Line[string]{Keep: tt.keep}, nodes: make(map[string]*Node[string])}
		for word := range strings.FieldsSeq(tt.what) {
			s.do(word)
			checkLine(t, fmt.Sprintf("%s: %s", tt.what, word), &s.line)
		}
		if got := strings.Join(s.told, " "); got != tt.want {
			t.Errorf("%s, keeping %d: %s left, expected %s", tt.what, tt.keep, got, tt.want)
		}
	}
}

// checkLine compares the links and the count of a line.
func checkLine(t *testing.T, when string, l *Line[string]) {
	t.Helper()
	held, last := 0, (*Node[string])(nil)
	for n := l.Oldest; n != nil; last, n = n, n.Newer {
		if n.Older != last {
			t.Errorf("%s: %q does not link to the one before", when, n.Of)
		}
		if n.Held {
			held++
		}
	}
	if l.Newest != last || l.Held != held {
		t.Errorf("%s: %q is the newest of %d held, expected %q of %d", when, l.Newest.Request(), l.Held, last.Request(),
			held)
	}
}
