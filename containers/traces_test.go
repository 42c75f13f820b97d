package containers

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/scheduler"
)

// TestTracesOfBatches: however many requests of a batch are not traced, before and after traced
// ones, a container assigns each trace to its request.
func TestTracesOfBatches(t *testing.T) {
	for n := range 41 {
		for _, followed := range [][]int{{0}, {n}, {n / 2}, {0, n}, {n / 3, n / 3 * 2}} {
			parts, want := make([]scheduler.Part, n+1), make([]string, n+1)
			for _, i := range followed {
				p := &parts[i].Trace
				p.Trace[15], p.Span[7] = byte(i), 1
				want[i] = string(p.Append(nil))
			}
			text := append(appendTraces(fmt.Appendf(nil, `{"rows":%d,"traces":`, n+1), parts), '}')
			var h wire.BatchHeader
			if err := h.Parse(text); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if !slices.EqualFunc(h.Traces, want, func(got []byte, want string) bool { return string(got) == want }) {
				t.Errorf("%s is read as %q", text, h.Traces)
			}
		}
	}
}
