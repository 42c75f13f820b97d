package subset

import (
	"slices"
	"testing"
	"time"
)

// TestOneGoesDuringATry: a server is removed from the list while another is tried, and still has
// the most sessions: it is in the previous choice, and must not be left a second time.
func TestOneGoesDuringATry(t *testing.T) {
	now := time.Unix(0, 0)
	here := func(string) bool { return false }
	c := New("container", 1)
	c.List([]string{"a", "b", "c"}, now)
	chosen := c.Chosen(here)
	gone := chosen[0]
	now = now.Add(lastTry)
	c.Try(chosen, now)
	chosen, tried := c.Chosen(here), c.Trying()
	if !slices.Equal(chosen, []string{gone, tried}) {
		t.Fatalf("chosen are %q, expected %q and the one that is tried, %q", chosen, gone, tried)
	}

	stay := slices.DeleteFunc([]string{"a", "b", "c"}, func(a string) bool { return a == gone })
	c.List(stay, now)
	c.Judge(chosen, func(a string) int {
		if a == gone {
			return 5
		}
		return 1
	}, now)
	if last := c.order[len(c.order)-1]; last != tried || !slices.Equal(slices.Sorted(slices.Values(c.order)), stay) {
		t.Errorf("the order is %q, expected %q with the one that was tried, %q, at the end", c.order, stay, tried)
	}
}
