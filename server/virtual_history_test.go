package server

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A history is what was asked and answered in a scene, as clients and containers saw it.
type history struct {
	mu        sync.Mutex
	began     time.Time
	questions []*question
	wrong     []string               // found on the way
	holdings  []*holding             // in the order in which they came
	freezes   []freeze               // likewise
	orders    []*order               // likewise
	served    []*serving             // by processes that the server has started
	models    map[string]time.Time   // when a container of each, and of each version, has registered first
	parted    map[string][]time.Time // when a container of each has ended, however
}

// A question is one of a client. Its number is in every row of its inputs, so that whoever sees
// them knows whose they are.
type question struct {
	number  int32
	client  *client
	model   string
	version string // that it names; "": none
	rows    int
	frame   *place          // of a stream; nil: it is of none
	shared  map[string]bool // by side: whether it is in shared memory; nil: neither is
	slot    int             // there
	about   *question       // it is feedback about that one; nil: it is a question
	timeout time.Duration   // until its deadline
	bad     bool            // its inputs do not fit the model
	asked   time.Time       // when its last byte was sent
	begun   time.Time       // and its first
	opened  time.Time       // when its ModelStreamInfer was; zero: it is of none
	before  *question       // on the same connection, whose answer leaves first; nil: any may
	given   bool            // the client has given it up
	answers []answer
	runs    []*run
}

// A place is that of a frame in a stream of its client.
type place struct {
	stream string
	seq    int64
	keep   int // how many may wait; 0: all
}

// An answer is good, or of a kind of error.
type answer struct {
	at     time.Time
	kind   kind
	text   string  // of an error
	end    bool    // it is the end of its stream, on which others were answered before
	values []int32 // of a good one, those of all rows
	rounds int     // of feedback that was learned: how many have been so far; 0: it was not
}

// A run is one execution of rows of a question by a container.
type run struct {
	at        time.Time
	container string
	rows      []int32
	fate      fate
	done      time.Time // when the answer leaves, if it has one
	late      bool      // the batch may have waited on its way
}

// A fate is what a container made of a batch.
type fate uint8

const (
	fateLost     fate = iota // it has answered nothing, so far
	fateAnswered             // with outputs
	fateFailed               // with an error
	fateStray                // with something else
)

// A kind is what an answer says: the type of the error on the Shiva wire, as all doors have it.
type kind string

const (
	okay       kind = "OK"
	unanswered kind = "no answer" // the connection has ended
)

// kinds are by the words that begin the text of an error, on every door.
var kinds = []struct {
	begins string
	kind   kind
}{
	{"overloaded", "Overloaded"}, {"deadline exceeded", "DeadlineExceeded"}, {"no live replica", "Unavailable"}, {"state: unavailable", "Unavailable"}, {"container failed", "ContainerFailed"},
	{"container lost", "ContainerLost"}, {"draining", "Draining"}, {"canceled", "Canceled"}, {"invalid input", "InvalidInput"}, {"not found", "NotFound"},
	{"unauthenticated", "Unauthenticated"}, {"permission denied", "PermissionDenied"}, {"superseded", "Superseded"}, {"malformed message", "Protocol"}, {"too large", "TooLarge"},
}

func kindOf(text string) kind {
	for _, k := range kinds {
		if strings.HasPrefix(text, k.begins) {
			return k.kind
		}
	}
	return unanswered
}

func (h *history) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faultLocked(format, args...)
}

func (h *history) faultLocked(format string, args ...any) {
	h.wrong = append(h.wrong, fmt.Sprintf("%10v: ", time.Since(h.began))+fmt.Sprintf(format, args...))
}

// ask notes a question and gives it its number.
func (h *history) ask(q *question) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q.number = int32(len(h.questions) + 1)
	q.begun = time.Now()
	h.questions = append(h.questions, q)
}

// registered notes that a container serves a version of a model.
func (h *history) registered(model, version string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.models == nil {
		h.models = make(map[string]time.Time)
	}
	for _, name := range []string{model, model + "/" + version} {
		if h.models[name].IsZero() {
			h.models[name] = time.Now()
		}
	}
}

// A serving is from when to when a process served; zero: it still does.
type serving struct{ from, to time.Time }

// serve notes that a process of the server's serves, and returns what notes its end.
func (h *history) serve() (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := &serving{from: time.Now()}
	h.served = append(h.served, one)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		one.to = time.Now()
	}
}

// sent notes that all of a question has been sent.
func (h *history) sent(q *question) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q.asked.IsZero() {
		q.asked = time.Now()
	}
}

// give notes that its client does not wait for it any more.
func (h *history) give(q *question) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q.given = true
}

func (h *history) answer(q *question, a answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.at = time.Now()
	q.answers = append(q.answers, a)
}

// ran notes what rows a container has been sent.
func (h *history) ran(container, model string, values []int32, late bool) (runs []*run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	streams := make(map[string]int32) // of this batch, and the question of each
	for i := 0; i+1 < len(values); i += 2 {
		n, row := values[i], values[i+1]
		if n < 1 || int(n) > len(h.questions) {
			h.faultLocked("%s was sent a row of question %d, which nobody has asked", container, n)
			continue
		}
		q := h.questions[n-1]
		if row < 0 || int(row) >= q.rows {
			h.faultLocked("%s was sent row %d of question %d, which has %d", container, row, n, q.rows)
			continue
		}
		if !slices.Contains(q.by(), model) || q.bad || q.about != nil {
			h.faultLocked("%s, of model %s, was sent a row of question %d, which was for %s", container, model, n, q.model)
		}
		if f := q.frame; f != nil && f.keep > 0 {
			name := q.client.name + " " + q.model + " " + f.stream
			if other, beside := streams[name]; beside && other != n {
				h.faultLocked("%s was sent questions %d and %d of one stream in one batch", container, other, n)
			}
			streams[name] = n
		}
		if len(runs) == 0 || !slices.Contains(runs, last(q.runs)) {
			r := &run{at: time.Now(), container: container, late: late}
			q.runs = append(q.runs, r)
			runs = append(runs, r)
		}
		r := last(q.runs)
		r.rows = append(r.rows, row)
	}
	return runs
}

func last(runs []*run) *run {
	if len(runs) == 0 {
		return nil
	}
	return runs[len(runs)-1]
}

// part notes that a container of a model has ended.
func (h *history) part(model string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parted == nil {
		h.parted = make(map[string][]time.Time)
	}
	h.parted[model] = append(h.parted[model], time.Now())
}

// lost tells whether containers may have been sent rows of a question that they never read: some
// have ended since it was asked, until its answer or soon after.
func (h *history) lost(q *question) bool {
	const soon = time.Second // the server notices first
	return slices.ContainsFunc(q.by(), func(model string) bool {
		return slices.ContainsFunc(h.parted[model], func(at time.Time) bool {
			return at.After(q.begun) && (len(q.answers) == 0 || at.Before(q.answers[0].at.Add(soon)))
		})
	})
}

// fate notes what a container makes of runs, after some time.
func (h *history) fate(runs []*run, f fate, after time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range runs {
		r.fate, r.done = f, time.Now().Add(after)
	}
}

// good is the answer of a question that has a good one; nil: it has none.
func (q *question) good() *answer {
	if len(q.answers) == 1 && q.answers[0].kind == okay {
		return &q.answers[0]
	}
	return nil
}

// first is when a container was first sent rows of a question; zero: none was.
func (q *question) first() time.Time {
	if len(q.runs) == 0 {
		return time.Time{}
	}
	return q.runs[0].at
}

// hash is of all that clients saw. Containers are left out: which of two idle ones gets a batch is
// not decided by the seed.
func (h *history) hash() string {
	sum := sha256.New()
	for _, q := range h.inOrder() {
		fmt.Fprintln(sum, q.client.name, q.model, q.rows, q.timeout, q.begun.Sub(h.began), q.asked.Sub(h.began))
		for _, a := range q.answers {
			fmt.Fprintln(sum, a.at.Sub(h.began), a.kind, len(a.values))
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8])
}

// dealt is what each client asked, in order: what the seed alone decides.
func (h *history) dealt() map[string][]string {
	list := make(map[string][]string)
	for _, q := range h.questions {
		list[q.client.name] = append(list[q.client.name], fmt.Sprint(q.client.door, q.path(), q.rows, q.timeout, q.bad))
	}
	return list
}

// inOrder are the questions by client: numbers are given in the order in which they are asked.
func (h *history) inOrder() []*question {
	list := slices.Clone(h.questions)
	slices.SortStableFunc(list, func(a, b *question) int { return strings.Compare(a.client.name, b.client.name) })
	return list
}
