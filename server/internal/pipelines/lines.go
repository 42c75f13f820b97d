package pipelines

import (
	"slices"
	"strings"
	"sync"

	"github.com/shivad/shivad/server/internal/gate"
)

// lines are where frames of streams wait for a stage, if only so many may wait: one line for each
// stream and stage. The zero lines are ready.
//
// The stages that read the request need none: their calls are frames themselves, and the models'
// queues know what to do. A later stage has a row for every object, which are calls of their own,
// and frames that found nothing would overtake.
//
//   - Frames enter a stage in the order in which they came, so a frame waits for an older one that
//     has not entered yet, or can no longer.
//   - As many frames are in the stage as there are replicas, so that each has work; those that are
//     in it are not superseded, so a stage that is slower than its stream is never starved.
//   - Of those that wait, so many stay as keep says: the newest.
type lines struct {
	mu   sync.Mutex
	open map[lineKey]*line
}

type lineKey struct {
	pipeline, stage string
	stream          gate.Stream
}

// A line is the frames of one stream that have not left a stage, the oldest first.
type line struct {
	key     lineKey
	entries []*entry
}

// An entry is the place of a run in the line of one of its stages.
type entry struct {
	run   *run
	stage int
	line  *line // nil: it is in none
	state entryState
	keep  int
	room  int // how many frames may be in the stage
}

type entryState uint8

const (
	coming  entryState = iota // its inputs are not there yet
	waiting                   // they are
	inside
	gone
)

// A move is what becomes of an entry. The run has a reference for it.
type move struct {
	run   *run
	stage int
	err   error // nil: it enters the stage; else it is superseded
}

// join puts a run, whose mutex is held, at the end of the lines of all its stages in one step: two
// frames are in the same order in all lines that they share, so they never wait for each other.
func (ls *lines) join(r *run) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for i := range r.stages {
		if w := &r.stages[i]; w.lined {
			key := lineKey{r.p.Name, r.p.stages[i].Name, r.call.Frame.Stream()}
			l := ls.line(key)
			w.entry.line, w.entry.state = l, coming
			l.entries = append(l.entries, &w.entry)
		}
	}
}

// line returns the line of a key, which may refer to reused memory.
func (ls *lines) line(key lineKey) *line {
	l := ls.open[key]
	if l == nil {
		key.stream.Client, key.stream.Name = strings.Clone(key.stream.Client), strings.Clone(key.stream.Name)
		if l = (&line{key: key}); ls.open == nil {
			ls.open = make(map[lineKey]*line)
		}
		ls.open[key] = l
	}
	return l
}

// arrive notes that the inputs of an entry's stage are there. Its run has a unit of work pending
// for it, which whoever gets its move takes over.
func (ls *lines) arrive(e *entry) []move {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	e.state = waiting
	return e.line.moves()
}

// leave removes an entry: its run is done with the stage, or does not go there. waited reports that
// it has not entered, so that the caller takes over its unit of work.
func (ls *lines) leave(e *entry) (waited bool, next []move) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if e.line == nil {
		return false, nil
	}
	l := e.line
	waited = e.state == waiting
	ls.remove(e)
	return waited, l.moves()
}

// withdraw is leave for a frame that waits, and does nothing for any other.
func (ls *lines) withdraw(e *entry) (waited bool, next []move) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if e.state != waiting {
		return false, nil
	}
	l := e.line
	ls.remove(e)
	return true, l.moves()
}

func (ls *lines) remove(e *entry) {
	l := e.line
	e.line, e.state = nil, gone
	l.entries = slices.DeleteFunc(l.entries, func(o *entry) bool { return o == e })
	if len(l.entries) == 0 {
		delete(ls.open, l.key)
	}
}

// moves lists the entries that enter the stage now, and those that are superseded, and takes a
// reference to the run of each.
func (l *line) moves() (list []move) {
	in := 0
	for _, e := range l.entries {
		if e.state == inside {
			in++
		}
	}
	for _, e := range l.entries {
		if e.state == inside || e.state == gone {
			continue
		}
		if e.state == coming || in >= e.room {
			break
		}
		e.state = inside
		in++
		e.run.Retain()
		list = append(list, move{e.run, e.stage, nil})
	}
	var wait []*entry
	for _, e := range l.entries {
		if e.state == waiting {
			wait = append(wait, e)
		}
	}
	if len(wait) == 0 {
		return list
	}
	newest := wait[len(wait)-1]
	for _, e := range wait[:max(0, len(wait)-newest.keep)] {
		e.state = gone
		e.run.Retain()
		list = append(list, move{e.run, e.stage, newest.run.call.Frame.Supersedes()})
	}
	return list
}
