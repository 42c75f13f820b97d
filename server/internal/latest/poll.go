package latest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// A Question asks for the newest answer of a stream.
type Question struct {
	Stream  string // "": the only one that the asker may have
	User    string // of the stream; "": any
	Version string // of the model that answered; "": any

	// Identity is who asks: it may have its own streams, and all if the name's are shared. Any: it
	// may have all.
	Identity string
	Any      bool
	// Client is the machine that asks. Of several streams of one name it means its own.
	Client string

	After    int64         // the answer has a higher number; negative: any number
	MaxAge   time.Duration // the answer is at most this old; 0: of any age
	Wait     bool          // for such an answer, until Deadline
	Asked    time.Time
	Deadline time.Time
}

// A Poll is a question and its answer. It belongs to its owner, except from Ask to Complete, when
// the owner may only Cancel it. A poll is asked once.
type Poll struct {
	Question
	Owner Owner

	// Set before Complete. Answer is nil if and only if Err is not. The owner has a reference to
	// each of the outputs: Release gives them back.
	Answer *Answer
	Err    error

	// Guarded by the store's mutex.

	name   *Name
	source *source // the stream that it waits for; nil: none is known yet
	waits  bool
	group  *group // in which it waits
	at     int    // in one of the lists of group
	nth    int    // in the waiters of source
	timer  *time.Timer
}

// An Owner is told when its poll is answered: exactly once, from any goroutine, with no lock held,
// perhaps before Ask returns.
type Owner interface{ Complete(*Poll) }

// Release gives back the references to the outputs.
func (p *Poll) Release() {
	if a := p.Answer; a != nil {
		p.Answer = nil
		released{a}.release()
	}
}

// Ask answers a poll, now or when an answer comes that it waits for.
//
// Without After and MaxAge, a poll that waits gets the first answer to a frame that arrived after
// the question; with MaxAge, a kept answer that is young enough will do.
func (n *Name) Ask(p *Poll) {
	s := n.store
	s.mu.Lock()
	p.name = n
	if !n.ask(p) {
		s.count(p)
		s.mu.Unlock()
		p.Owner.Complete(p)
		return
	}
	s.mu.Unlock()
}

// ask reports whether p waits; otherwise it has its answer.
func (n *Name) ask(p *Poll) (waits bool) {
	s := n.store
	if err := cmp.Or(s.closed, n.ended); err != nil {
		p.Err = err
		return false
	}
	n.touch(p.Asked)
	var a *Answer
	src, err := n.find(&p.Question)
	if p.Err = err; err != nil {
		return false
	}
	if src != nil {
		a = src.newest(p.Version)
	}
	fromNow := p.Wait && p.After < 0 && p.MaxAge == 0
	if a != nil && !fromNow && p.wants(src, a, false) {
		p.take(a)
		return false
	}
	if !p.Wait {
		p.Err = p.fault(src, a)
		return false
	}
	if s.may != nil {
		if p.Err = s.may(n.name, &p.Question); p.Err != nil {
			return false
		}
	}
	n.join(p, src)
	return true
}

// join makes p wait for src; nil: for a stream that is not known.
func (n *Name) join(p *Poll, src *source) {
	p.enter(n.asked(&p.Question), src)
	p.waits = true
	n.waiting++
	n.setWanted(p.Asked)
	p.timer = time.AfterFunc(time.Until(p.Deadline), p.expire)
}

// leave ends the waiting of p.
func (p *Poll) leave() {
	n := p.name
	p.remove()
	p.waits = false
	p.timer.Stop()
	n.tidy(n.which(&p.Question), p.group)
	if n.waiting--; n.waiting == 0 {
		n.touch(time.Now())
	}
}

// take makes a the answer.
func (p *Poll) take(a *Answer) {
	a.retain()
	p.Answer = a
}

// Cancel answers a poll that waits with err. One that was not asked yet, which its owner must then
// not ask, stays as it is.
func (p *Poll) Cancel(err error) {
	if p.name != nil {
		p.end(func() error { return err })
	}
}

// expire answers a poll whose deadline has passed.
func (p *Poll) expire() {
	p.end(func() error {
		if p.source == nil {
			return p.name.unknown(&p.Question)
		}
		var found string
		if a := p.source.newest(p.Version); a != nil {
			found = fmt.Sprintf("; the newest is frame %d, %s old", a.Seq, age(a))
		}
		return fmt.Errorf("%w: no answer to %s came in time%s", scheduler.ErrDeadlineExceeded, p.wanted(), found)
	})
}

func (p *Poll) end(why func() error) {
	s := p.name.store
	s.mu.Lock()
	if !p.waits {
		s.mu.Unlock()
		return
	}
	p.Err = why()
	s.count(p)
	p.leave()
	s.mu.Unlock()
	p.Owner.Complete(p)
}

// count counts p, which has its answer.
func (s *Store) count(p *Poll) {
	if p.Err != nil {
		s.done.Failed++
	} else {
		s.done.Answered++
	}
}

// tell ends the waiting of p with an answer or an error, which the telling goroutine passes on.
func (s *Store) tell(p *Poll, a *Answer, err error) {
	p.leave()
	if p.Err = err; err == nil {
		p.take(a)
	}
	s.count(p)
	s.told = append(s.told, p)
	s.wake()
}

// wake starts the goroutine that serves and tells, unless there is one.
func (s *Store) wake() {
	if !s.telling {
		s.telling = true
		go s.tellAll()
	}
}

// A served is an answer that was put while polls waited. It holds a reference to each output.
type served struct {
	source     *source
	answer     *Answer
	succession succession
	// first: of its version, as far as the source remembers. Nobody has decided to wait for it.
	first bool
}

// tellAll serves the answers that were put, in their order, and tells polls that they have their
// answers, until there are no more.
func (s *Store) tellAll() {
	for {
		s.mu.Lock()
		var done released
		for _, p := range s.put {
			p.serve()
			done = append(done, p.answer)
		}
		told := s.told
		s.put, s.told = nil, nil
		s.telling = len(told) > 0
		s.mu.Unlock()
		done.release()
		for _, p := range told {
			p.Owner.Complete(p)
		}
		if len(told) == 0 {
			return
		}
	}
}

// awaited reports whether polls may wait for the answer.
func (a *served) awaited() bool {
	src := a.source
	if src.name.waiting == 0 {
		return false
	}
	if len(src.waiters) > 0 && a.concerns(src.waiters[0]) {
		return true
	}
	for _, p := range src.places {
		if len(p.group.strays) > 0 || a.first && len(p.group.settled) > 0 {
			return true
		}
	}
	return false
}

// concerns reports whether the answer may satisfy a poll that waits for its stream, and so one that
// has seen an older frame.
func (a *served) concerns(p *Poll) bool {
	src := a.source
	return p.After < a.answer.Seq || a.succession == again ||
		p.After <= src.before && time.Since(src.restarted) < silent
}

// serve answers the polls that the answer satisfies. Polls for a later frame of its stream, and
// those that wait for another one, are not looked at: the latter have decided when the answer was
// the first of its stream and version.
func (a *served) serve() {
	n, src := a.source.name, a.source
	list := n.store.concerned[:0]
	var buf [mostWhich]which
	for _, w := range src.means(buf[:0]) {
		if g := n.groups[w]; g != nil {
			list = append(list, g.strays...)
			if a.first {
				list = append(list, g.settled...)
			}
		}
	}
	if !a.first {
		list = src.waiters.appendFrom(0, list, a.concerns)
	}
	for _, p := range list {
		if p.Version == "" && a.succession == behind || p.Version != "" && p.Version != a.answer.Version {
			continue
		}
		switch mine, err := p.decide(src); {
		case err != nil:
			n.store.tell(p, nil, err)
		case !mine:
		case p.wants(src, a.answer, a.succession == again):
			n.store.tell(p, a.answer, nil)
		case !src.gone:
			p.waitFor(src)
		}
	}
	clear(list)
	if cap(list) <= 1<<10 {
		n.store.concerned = list[:0]
	}
}

// decide decides whether p waits for src, now that this has an answer.
func (p *Poll) decide(src *source) (mine bool, err error) {
	switch old := p.source; {
	case old == nil, old == src, src.Client == p.Client && old.Client != p.Client:
		return true, nil
	case old.Client != p.Client || src.Client == p.Client:
		return false, p.ambiguous([]*source{old, src})
	}
	return false, nil
}

// wants reports whether the newest answer of src satisfies p. again: its client has just begun
// again to number frames.
func (p *Poll) wants(src *source, a *Answer, again bool) bool {
	switch {
	case p.MaxAge > 0 && time.Since(a.Captured) > p.MaxAge:
		return false
	case p.After >= 0:
		return src.newer(p.After, a, again)
	case p.Wait && p.MaxAge == 0:
		return !a.Arrived.Before(p.Asked)
	}
	return true
}

// newer reports whether an answer of src is newer than a number that an asker has. Numbers that
// began again a minute ago or less are newer than those before, which an asker may have from then.
// Later, numbers that it has not seen are from the future.
func (src *source) newer(after int64, a *Answer, again bool) bool {
	return a.Seq > after || again || after <= src.before && a.Seq < after && time.Since(src.restarted) < silent
}

// find returns the stream that a question means; nil: there is none yet, and the question may wait
// for it.
func (n *Name) find(q *Question) (*source, error) {
	const most = 2
	w := n.which(q)
	found := n.groups[w].some(q, most)
	if len(found) == most && q.Stream != "" {
		w.own, w.client, w.user = true, q.Client, ""
		if own := n.groups[w].some(q, most); len(own) == 1 {
			return own[0], nil
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, q.ambiguous(n.listed(q))
	case q.Wait:
		return nil, nil
	}
	return nil, n.unknown(q)
}

// some returns at most that many streams of g that have or had an answer of the question's version.
func (g *group) some(q *Question, most int) (list []*source) {
	if g == nil {
		return nil
	}
	for _, src := range g.sources {
		if q.Version != "" && src.newest(q.Version) == nil && src.unkept == nil || q.User != "" && src.User != q.User {
			continue
		}
		if list = append(list, src); len(list) == most {
			break
		}
	}
	return list
}

// mostListed is how many streams an error lists.
const mostListed = 8

// listed returns some of the streams that a question may mean.
func (n *Name) listed(q *Question) []*source {
	g := n.groups[n.which(q)]
	if g == nil {
		return nil
	}
	return g.sources[:min(len(g.sources), mostListed+1)]
}

// ambiguous is the error of a question that may mean several streams.
func (q *Question) ambiguous(list []*source) error {
	which := "name one of them with \"stream\""
	if q.Stream != "" {
		which = "tell them apart by \"user\", in frames and questions"
	}
	return fmt.Errorf("%w: more than one stream is meant; %s: %s", scheduler.ErrInvalidInput, which, names(list))
}

// names lists streams for an error.
func names(list []*source) string {
	texts := make([]string, len(list))
	for i, src := range list {
		texts[i] = strconv.Quote(src.Stream)
		if by := cmp.Or(src.User, src.Client); by != "" {
			texts[i] += " of " + by
		}
	}
	slices.Sort(texts)
	if len(texts) > mostListed {
		texts[mostListed] = "…"
	}
	return strings.Join(texts, ", ")
}

// unknown is the error of a question for a stream that has no answer here.
func (n *Name) unknown(q *Question) error {
	kept := time.Since(n.since)
	others := *q
	others.Stream, others.User = "", ""
	text := "no stream of " + strconv.Quote(n.name) + " has an answer"
	if q.Stream != "" {
		text = fmt.Sprintf("no stream %q of %q has an answer", q.Stream, n.name)
	}
	if q.Version != "" {
		text += fmt.Sprintf(" of version %q", q.Version)
	}
	switch list := n.listed(&others); {
	case !n.store.evicted.IsZero() && time.Since(n.store.evicted) < silent:
		text += "; limits.latest_bytes has made the server forget streams of those who have the most"
	case kept < silent && !q.Wait:
		return unavailable("%s yet: the server has kept the answers of its streams for %s, since somebody asks for them (to keep them always: latest = true in [model.NAME])",
			text, kept.Round(time.Millisecond))
	case len(list) > 0:
		text += "; there are " + names(list)
	default:
		text += "; a server knows only the streams whose frames are sent to it"
	}
	return fmt.Errorf("%w: %s", scheduler.ErrNotFound, text)
}

// wanted describes what p asks for.
func (p *Poll) wanted() string {
	text := "a frame"
	if p.After >= 0 {
		text += fmt.Sprintf(" after %d", p.After)
	}
	if p.source != nil {
		text += fmt.Sprintf(" of stream %q", p.source.Stream)
	}
	if p.MaxAge > 0 {
		text += fmt.Sprintf(", at most %s old,", p.MaxAge)
	}
	return text
}

// fault is the error of a poll that does not wait, where a, the newest answer, does not satisfy it.
func (p *Poll) fault(src *source, a *Answer) error {
	switch {
	case a == nil:
		return unavailable("the newest answer of stream %q is not kept: %v", src.Stream, src.unkept)
	case p.MaxAge > 0 && time.Since(a.Captured) > p.MaxAge:
		return unavailable("the newest answer of stream %q is %s old, and %s is the most that was asked for",
			src.Stream, age(a), p.MaxAge)
	}
	return unavailable("stream %q has no answer after frame %d yet; the newest is %d, %s old", src.Stream, p.After,
		a.Seq, age(a))
}

// notYet is a [scheduler.ErrUnavailable] that has nothing to do with replicas.
type notYet string

func (e notYet) Error() string { return string(e) }
func (notYet) Unwrap() error   { return scheduler.ErrUnavailable }

func unavailable(format string, args ...any) error { return notYet(fmt.Sprintf(format, args...)) }

// age is the age of an answer, for errors.
func age(a *Answer) time.Duration { return a.Age(time.Now()).Round(time.Millisecond) }

// Age is the age of the answer's frame. The clock of a camera may be ahead of the server's.
func (a *Answer) Age(now time.Time) time.Duration { return max(0, now.Sub(a.Captured)) }
