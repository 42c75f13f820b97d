package operate

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/state"
)

// What was served before this server started. After a restart, containers take seconds to come
// back. A request for their models is Unavailable meanwhile, and not NotFound: clients try again
// after the former and give up after the latter.

// lastMoments is how much earlier than the last version the others may have stopped being served
// when a server ended.
const lastMoments = 10 * time.Second

// readEarlier reads from the history which names and versions ("name/version") a server served when
// it ended, or was killed. Versions that were replaced before are not among them.
func (h *History) readEarlier() {
	entries, err := h.store.State().List(historyPrefix)
	if err != nil {
		return // all that is lost is this distinction
	}
	events, ends := map[string][]admin.Event{}, map[string]time.Time{}
	for _, e := range entries {
		segments, err := state.Segments(e.Key)
		var list []admin.Event
		if err != nil || len(segments) != 2 || json.Unmarshal(e.Value, &list) != nil {
			continue
		}
		events[segments[1]] = list
		for _, one := range list {
			if one.What == "served" && one.Until != nil && one.Until.After(ends[one.Server]) {
				ends[one.Server] = *one.Until
			}
		}
	}
	earlier := map[string]bool{}
	for name, list := range events {
		for _, one := range list {
			if one.What == "served" && (one.Until == nil || ends[one.Server].Sub(*one.Until) < lastMoments) {
				earlier[name], earlier[name+"/"+one.Version] = true, true
			}
		}
	}
	h.earlier.Store(&earlier)
}

// Awaited says why a model, "name" or "name/version", that is not known may come back; "": it was
// not served before.
func (h *History) Awaited(id string) (why string) {
	if earlier := h.earlier.Load(); earlier != nil && (*earlier)[id] {
		return fmt.Sprintf("no container has registered %s since this server started; it was served before", id)
	}
	return ""
}
