package tcp

import (
	"time"

	"github.com/shivad/shivad/shiva"
)

// A description is what was said about models, and until when it is said again.
type description struct {
	answer []byte
	until  time.Time
}

// Lists of all models take the loop time, and memory for as long as they wait to be read; and a client may ask for them as fast as it can
// write. So an answer is given again, the same bytes, for a multiple of the time that making it took: no more than a tenth of the
// loop's time goes into them, and one that costs microseconds is as good as new.
const (
	describeRarity   = 9
	mostDescriptions = 64 // kept at one time
)

// describe answers m if it is a question about models that the protocol has a path for; ok is false if it is none.
func (l *loop) describe(m *shiva.Message) (answer []byte, ok bool, err error) {
	if l.door.describe == nil || len(m.Namespace) < len("v2/") || m.Namespace[:len("v2/")] != "v2/" {
		return nil, false, nil
	}
	key, onlyReady := m.Namespace, false
	if key == "v2/repository/index" {
		_ = shiva.EachField(m.Metadata, func(name, value []byte) bool {
			if string(name) == "ready" {
				onlyReady, err = parseBool(name, value)
			}
			return true
		})
		if err != nil {
			return nil, true, err
		}
		if onlyReady {
			key += " ready"
		}
	}
	began := time.Now()
	if d, kept := l.described[key]; kept && began.Before(d.until) {
		return d.answer, true, nil
	}
	answer, ok, err = l.door.describe(m.Namespace, onlyReady)
	if !ok || err != nil {
		return nil, ok, err
	}
	if l.described == nil || len(l.described) == mostDescriptions {
		l.described = make(map[string]description)
	}
	now := time.Now()
	l.described[key] = description{answer, now.Add(describeRarity * now.Sub(began))}
	return answer, true, nil
}
