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

	name       *Name
	source     *source // the stream that it waits for; nil: none is known yet
	waits      bool
	prev, next *Poll // of its topic
	timer      *time.Timer
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
	p.source, p.Err = n.find(&p.Question)
	if p.Err != nil {
		return false
	}
	if p.source != nil {
		a = p.source.newest(p.Version)
	}
	fromNow := p.Wait && p.After < 0 && p.MaxAge == 0
	if a != nil && !fromNow && p.wants(p.source, a, false) {
		p.take(a)
		return false
	}
	if !p.Wait {
		p.Err = p.fault(a)
		return false
	}
	if s.may != nil {
		if p.Err = s.may(n.name, &p.Question); p.Err != nil {
			return false
		}
	}
	n.join(p)
	return true
}

// join makes p wait.
func (n *Name) join(p *Poll) {
	t := n.topic(p.Stream)
	if p.prev = t.last; p.prev != nil {
		p.prev.next = p
	} else {
		t.first = p
	}
	t.last, p.waits = p, true
	n.waiting++
	n.setWanted(p.Asked)
	p.timer = time.AfterFunc(time.Until(p.Deadline), p.expire)
}

// leave ends the waiting of p.
func (p *Poll) leave() {
	n := p.name
	t := n.topics[p.Stream]
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		t.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		t.last = p.prev
	}
	p.prev, p.next, p.waits = nil, nil, false
	p.timer.Stop()
	n.tidy(p.Stream)
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
	p.refresh()
	p.Err = why()
	s.count(p)
	p.leave()
	s.mu.Unlock()
	p.Owner.Complete(p)
}

// refresh forgets the stream that p waits for if that is gone.
func (p *Poll) refresh() {
	if p.source != nil && p.source.gone {
		p.source = nil
	}
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
	source *source
	answer *Answer
	turn   turn
}

// tellAll serves the answers that were put, in their order, and tells polls that they have their
// answers, until there are no more.
func (s *Store) tellAll() {
	for {
		s.mu.Lock()
		var done released
		for _, p := range s.put {
			p.source.name.serve(p.source, p.answer, p.turn)
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

// awaited reports whether polls may wait for an answer of src.
func (n *Name) awaited(src *source) bool {
	return n.waiting > 0 && (n.topics[src.Stream].first != nil || n.topics[""] != nil)
}

// serve answers the polls that a, the newest answer of src, satisfies.
func (n *Name) serve(src *source, a *Answer, where turn) {
	for _, stream := range [...]string{src.Stream, ""} {
		t := n.topics[stream]
		if t == nil {
			continue
		}
		for p, after := t.first, (*Poll)(nil); p != nil; p = after {
			after = p.next
			if !n.matches(src, &p.Question) || p.Version == "" && where == behind ||
				p.Version != "" && p.Version != a.Version {
				continue
			}
			if err := p.settle(src); err != nil {
				n.store.tell(p, nil, err)
			} else if p.source == src && p.wants(src, a, where == again) {
				n.store.tell(p, a, nil)
			}
		}
	}
}

// settle decides which stream p waits for, now that src has an answer.
func (p *Poll) settle(src *source) error {
	p.refresh()
	switch old := p.source; {
	case old == nil || old != src && src.Client == p.Client && old.Client != p.Client:
		p.source = src
	case old != src && (old.Client != p.Client || src.Client == p.Client):
		return p.ambiguous([]*source{old, src})
	}
	return nil
}

// wants reports whether the newest answer of src satisfies p. again: its client has just begun
// again to number frames.
func (p *Poll) wants(src *source, a *Answer, again bool) bool {
	switch {
	case p.MaxAge > 0 && time.Since(a.Captured) > p.MaxAge:
		return false
	case p.After >= 0:
		// Numbers that began again a minute ago or less are newer than those before, which an asker
		// may have from then. Later, numbers that it has not seen are from the future.
		return a.Seq > p.After || again || p.After <= src.before && a.Seq < p.After &&
			time.Since(src.restarted) < silent
	case p.Wait && p.MaxAge == 0:
		return !a.Arrived.Before(p.Asked)
	}
	return true
}

// matches reports whether a question may mean a stream.
func (n *Name) matches(src *source, q *Question) bool {
	return (q.Any || n.settings.Shared || src.Identity == q.Identity) &&
		(q.User == "" || src.User == q.User) && (q.Stream == "" || src.Stream == q.Stream)
}

// find returns the stream that a question means; nil: there is none yet, and the question may wait
// for it.
func (n *Name) find(q *Question) (*source, error) {
	const most = 2
	var found, own []*source
	consider := func(src *source) (enough bool) {
		if !n.matches(src, q) || q.Version != "" && src.newest(q.Version) == nil && src.unkept == nil {
			return false
		}
		found = append(found, src)
		if src.Client == q.Client {
			own = append(own, src)
		}
		return len(own) == most
	}
	if q.Stream != "" {
		if t := n.topics[q.Stream]; t != nil {
			for _, src := range t.sources {
				if consider(src) {
					break
				}
			}
		}
	} else {
		for _, src := range n.sources {
			if consider(src) || len(found) == most {
				break
			}
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(own) == 1 && q.Stream != "":
		return own[0], nil
	case len(found) > 1:
		return nil, q.ambiguous(n.listed(q))
	case q.Wait:
		return nil, nil
	}
	return nil, n.unknown(q)
}

// mostListed is how many streams an error lists.
const mostListed = 8

// listed returns some of the streams that a question may mean.
func (n *Name) listed(q *Question) (list []*source) {
	for _, src := range n.sources {
		if n.matches(src, q) {
			if list = append(list, src); len(list) > mostListed {
				break
			}
		}
	}
	return list
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
		text += "; limits.latest_bytes has made the server forget the oldest streams"
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
func (p *Poll) fault(a *Answer) error {
	switch {
	case a == nil:
		return unavailable("the newest answer of stream %q is not kept: %v", p.source.Stream, p.source.unkept)
	case p.MaxAge > 0 && time.Since(a.Captured) > p.MaxAge:
		return unavailable("the newest answer of stream %q is %s old, and %s is the most that was asked for",
			p.source.Stream, age(a), p.MaxAge)
	}
	return unavailable("stream %q has no answer after frame %d yet; the newest is %d, %s old", p.source.Stream, p.After,
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
