package regions

import (
	"errors"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
)

// Usage counts the registered regions, and the registrations refused since the start.
type Usage struct {
	Regions int
	Limit   int               // of regions; 0: shared memory is off
	Bytes   int64             // sum over all regions, which may overlap
	Made    int64             // as [Registry.Made] returns it
	Refused map[string]uint64 // by reason; has all reasons
}

// A reason is why a registration was refused.
type reason int

const (
	off reason = iota
	denied
	noFile
	tooLarge
	full
	invalidArgs
	refusals
)

var reasons = [refusals]string{
	off: "off", denied: "denied", noFile: "missing", tooLarge: "too_large", full: "full", invalidArgs: "invalid",
}

func reasonOf(err error) reason {
	switch {
	case IsOff(err):
		return off
	case errors.Is(err, fault.ErrPermissionDenied): // the client, or the file's owner or mode
		return denied
	case errors.Is(err, scheduler.ErrNotFound): // the file
		return noFile
	case errors.Is(err, scheduler.ErrTooLarge):
		return tooLarge
	case errors.Is(err, scheduler.ErrOverloaded): // of regions
		return full
	}
	return invalidArgs
}

// Usage returns the current figures.
func (g *Registry) Usage() Usage {
	u := Usage{Made: g.Made(), Refused: make(map[string]uint64, refusals)}
	for why := range reasons {
		u.Refused[reasons[why]] = g.refused[why].Load()
	}
	if s := g.settings.Load(); s.Directory != "" {
		u.Limit = s.Regions
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	u.Regions = len(g.regions)
	for _, f := range g.regions {
		u.Bytes += f.Size
	}
	return u
}
