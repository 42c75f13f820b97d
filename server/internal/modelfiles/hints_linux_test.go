package modelfiles

import (
	"testing"
	"time"
)

// A directory tells of a change without the clock.
func TestHints(t *testing.T) {
	r := newRig(t)
	poke := make(chan struct{}, 1)
	h := newHints(poke)
	defer h.close()
	h.follow([]string{r.dir})
	r.write("a.onnx", "one")
	select {
	case <-poke:
	case <-time.After(10 * time.Second):
		t.Error("nothing tells of a new file")
	}
}
