package tcp

import (
	"strings"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// A description is an answer about models that may be repeated for a while.
type description struct {
	answer []byte
	until  time.Time
}

// A descriptionKey identifies a request for a description. It has the identity, since identities
// see different models.
type descriptionKey struct {
	path      string
	onlyReady bool
	who       *access.Identity
}

// Lists of all models cost the loop time, and memory while they wait to be read, and a client may
// request them as fast as it can write. So the same bytes are sent again for a multiple of the time
// that it took to make them: at most a tenth of the loop's time goes into them, and an answer that
// costs microseconds is practically current.
const (
	describeRarity   = 9
	mostDescriptions = 64 // per loop
)

// asksModel reports whether a path of the Predict Protocol is for inference, as those of most
// requests are, or for the newest answer of a stream. A model or a version may be called "infer" or
// "latest", too: names follow an even number of slashes, verbs an odd one.
func asksModel(path string) bool {
	return (strings.HasSuffix(path, "/infer") || strings.HasSuffix(path, "/latest")) && strings.Count(path, "/")%2 == 1
}

// describe answers m if it asks about the server or models by a path of the Predict Protocol;
// otherwise ok is false.
func (l *loop) describe(who *access.Identity, m *shiva.Message) (answer []byte, ok bool, err error) {
	route := m.Namespace
	ours := route == "v2" || strings.HasPrefix(route, "v2/") || route == shiva.ServerNamespace
	if l.door.describe == nil || !ours || asksModel(route) {
		return nil, false, nil
	}
	onlyReady := false
	if route == "v2/repository/index" {
		for name, value := range jsonscan.Members(m.Metadata) {
			if string(name) == "ready" {
				if onlyReady = string(value) == "true"; !onlyReady && string(value) != "false" {
					err = unexpected("ready", "true or false", value)
				}
			}
		}
		if err != nil {
			return nil, true, err
		}
	}
	key := descriptionKey{route, onlyReady, who}
	began := time.Now()
	if d, ok := l.descriptions[key]; ok && began.Before(d.until) {
		return d.answer, true, nil
	}
	answer, ok, err = l.door.describe(who, route, onlyReady)
	if !ok || err != nil || strings.HasSuffix(route, "/ready") { // cheap, and must be current
		return answer, ok, err
	}
	if l.descriptions == nil || len(l.descriptions) == mostDescriptions {
		l.descriptions = make(map[descriptionKey]description)
	}
	l.descriptions[key] = description{answer, time.Now().Add(describeRarity * time.Since(began))}
	return answer, true, nil
}
