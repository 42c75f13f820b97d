package server

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A history has the requests and answers of a scene, as clients and containers saw them.
type history struct {
	mu        sync.Mutex
	began     time.Time
	questions []*question
	wrong     []string               // faults found so far
	holdings  []*holding             // in order of time
	freezes   []freeze               // likewise
	orders    []*order               // likewise
	served    []*serving             // times in which processes of the server served
	models    map[string]time.Time   // when a container of each model and version first registered
	parted    map[string][]time.Time // when containers of each model ended
}

// A question is one request of a client. Its number is in every row of its inputs, so that rows can
// be attributed to it.
type question struct {
	number  int32
	client  *client
	model   string
	version string // the version that it names; "": none
	rows    int
	frame   *place          // in a stream; nil: it is not a frame
	shared  map[string]bool // by side: whether its tensor is in shared memory; nil: neither is
	slot    int             // in shared memory
	about   *question       // the request that this is feedback about; nil: not feedback
	timeout time.Duration   // until the deadline
	bad     bool            // its inputs do not fit the model
	asked   time.Time       // when its last byte was sent
	begun   time.Time       // when its first byte was sent
	opened  time.Time       // when its ModelStreamInfer was opened; zero: none
	before  *question       // the one before it on its connection; nil: no order
	given   bool            // the client has canceled it
	answers []answer
	runs    []*run
}

// A place is the position of a frame in a stream of its client.
type place struct {
	stream string
	seq    int64
	keep   int // how many may wait; 0: all
}

// An answer is a success, or a kind of error.
type answer struct {
	at     time.Time
	kind   kind
	text   string  // of an error
	end    bool    // it is the end of its stream, on which other requests were answered before
	values []int32 // of a success: the values of all rows
	rounds int     // of learned feedback: the number of rounds so far; 0: not learned
}

// A run is one execution of rows of a question by a container.
type run struct {
	at        time.Time
	container string
	rows      []int32
	fate      fate
	done      time.Time // when the answer leaves, if it has one
	late      bool      // the batch may have been delayed on its way
}

// A fate is how a container handled a batch.
type fate uint8

const (
	fateLost     fate = iota // not answered, so far
	fateAnswered             // answered with outputs
	fateFailed               // with an error
	fateStray                // answered with something else
)

// A kind is the type of an error as on the Shiva wire, for all doors.
type kind string

const (
	okay       kind = "OK"
	unanswered kind = "no answer" // the connection has ended
)

// kinds maps the words that begin the text of an error, on every door, to kinds.
var kinds = []struct {
	begins string
	kind   kind
}{
	{"overloaded", "Overloaded"}, {"deadline exceeded", "DeadlineExceeded"}, {"no live replica", "Unavailable"},
	{"state: unavailable", "Unavailable"}, {"container failed", "ContainerFailed"},
	{"container lost", "ContainerLost"}, {"draining", "Draining"}, {"canceled", "Canceled"},
	{"invalid input", "InvalidInput"}, {"not found", "NotFound"}, {"Request for unknown model", "NotFound"},
	{"unauthenticated", "Unauthenticated"}, {"permission denied", "PermissionDenied"}, {"superseded", "Superseded"},
	{"malformed message", "Protocol"}, {"too large", "TooLarge"},
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

// ask records a request and gives it its number.
func (h *history) ask(q *question) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q.number = int32(len(h.questions) + 1)
	q.begun = time.Now()
	h.questions = append(h.questions, q)
}

// registered records that a container serves a version of a model.
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

// A serving is a time in which a process served. A zero to: it still does.
type serving struct{ from, to time.Time }

// serve records that a process of the server serves, and returns the function that records its end.
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

// sent records that all of a request has been sent.
func (h *history) sent(q *question) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q.asked.IsZero() {
		q.asked = time.Now()
	}
}

// give records that the client no longer waits for a request.
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

// ran records the rows that a container has been sent.
func (h *history) ran(container, model string, values []int32, late bool) (runs []*run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	streams := make(map[string]int32) // of this batch, with the request of each
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
			h.faultLocked("%s, of model %s, was sent a row of question %d, which was for %s", container, model, n,
				q.model)
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

// part records that a container of a model has ended.
func (h *history) part(model string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parted == nil {
		h.parted = make(map[string][]time.Time)
	}
	h.parted[model] = append(h.parted[model], time.Now())
}

// lost reports whether containers may have been sent rows of a request that they never read: some
// have ended since it was sent, until its answer or soon after.
func (h *history) lost(q *question) bool {
	const soon = time.Second // the server may notice before the history
	return slices.ContainsFunc(q.by(), func(model string) bool {
		return slices.ContainsFunc(h.parted[model], func(at time.Time) bool {
			return at.After(q.begun) && (len(q.answers) == 0 || at.Before(q.answers[0].at.Add(soon)))
		})
	})
}

// fate records how a container handles runs, after some time.
func (h *history) fate(runs []*run, f fate, after time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range runs {
		r.fate, r.done = f, time.Now().Add(after)
	}
}

// good returns the successful answer of a request; nil: none.
func (q *question) good() *answer {
	if len(q.answers) == 1 && q.answers[0].kind == okay {
		return &q.answers[0]
	}
	return nil
}

// first returns when a container was first sent rows of a request; zero: never.
func (q *question) first() time.Time {
	if len(q.runs) == 0 {
		return time.Time{}
	}
	return q.runs[0].at
}

// hash returns a hash of everything that clients saw. Containers are left out: the seed does not
// decide which of two idle ones gets a batch.
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

// dealt returns the requests of each client, in order, which the seed alone decides.
func (h *history) dealt() map[string][]string {
	list := make(map[string][]string)
	for _, q := range h.questions {
		list[q.client.name] = append(list[q.client.name], fmt.Sprint(q.client.door, q.path(), q.rows, q.timeout, q.bad))
	}
	return list
}

// inOrder returns the requests by client: numbers are given in the order in which they are sent.
func (h *history) inOrder() []*question {
	list := slices.Clone(h.questions)
	slices.SortStableFunc(list, func(a, b *question) int { return strings.Compare(a.client.name, b.client.name) })
	return list
}
