package operate

import (
	"fmt"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/plural"
)

// lastWait tells of the latest wait for clients that ask again on each answer, as the end of a
// sentence about a replica; "": there was none.
func lastWait(s scheduler.Stats) string {
	w := s.LastWait
	if w.Took == 0 {
		return ""
	}
	text := fmt.Sprintf("waited %v for %s whose clients ask again on each answer; %d came, ", round(w.Took),
		plural.Of(w.Hoped, "row"), w.Came)
	switch {
	case w.Gain == 0:
		return text + "to measure a batch of that size"
	case 2*w.Came < w.Hoped:
		return text + "so it was in vain"
	default:
		return text + fmt.Sprintf("which answers %.1f times as many a second", w.Gain)
	}
}

// explainWaits says what the waits for clients brought.
func explainWaits(s scheduler.Stats) []string {
	n, last := &s.Recent, lastWait(s)
	if n.Waits == 0 || last == "" {
		return nil
	}
	text := fmt.Sprintf("The latest batch that did not leave at once %s. In all, %s brought %s",
		last, plural.Of(n.Waits, "such wait"), plural.Of(n.WaitedRows, "row"))
	if n.WaitsInVain > 0 {
		text += fmt.Sprintf("; %s of them were in vain", percent(n.WaitsInVain, n.Waits))
	}
	return []string{text + "."}
}
