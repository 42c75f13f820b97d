package server

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/config"
)

// The oracle's checks of several requests together: of one payer, of one stream, and of the
// feedback that an application has learned.

// prompt reports whether a request was certainly read when it was sent.
func (s *scene) prompt(q *question) bool {
	return !q.client.shaky && !s.troubles.freezes && !q.asked.IsZero() && !s.paced(q)
}

// paced reports whether the connections of a request's client may be read at intervals, as those of
// clients that exceed their rate are.
func (s *scene) paced(q *question) bool {
	rated := func(p payer) bool {
		return slices.ContainsFunc(s.history.quotas(p, s.history.began, q.begun), func(q config.Quota) bool {
			return q.RequestsPerSecond > 0 || q.BytesPerSecond > 0
		})
	}
	return rated(payer{identity: q.client.identity}) || rated(payer{address: q.client.host()})
}

// A payer is the identity, or else the address, that requests are charged to.
type payer struct{ identity, address string }

// String returns the payer as errors name it.
func (p payer) String() string {
	if p.identity != "" {
		return fmt.Sprintf("identity %q", p.identity)
	}
	return "address " + p.address
}

// payer returns the payer of a request that was admitted.
func (s *scene) payer(q *question) payer {
	if s.troubles.identities {
		return payer{identity: q.client.identity}
	}
	return payer{address: q.client.host()}
}

// host returns the client's address without its port.
func (c *client) host() string {
	host, _, _ := strings.Cut(c.from, ":")
	return host
}

// quotas returns those that a payer may have had from one time to another, except when it was not
// declared.
func (h *history) quotas(p payer, from, to time.Time) (list []config.Quota) {
	if p.identity == "" {
		for _, c := range h.holding(from, to) {
			list = append(list, c.Limits.PerAddress)
		}
		return list
	}
	for _, i := range h.declared(p.identity, from, to) {
		if i != nil {
			list = append(list, i.Quota.Quota)
		}
	}
	return list
}

// follows reports whether a request certainly arrived after another of its client: on the same
// connection, or at a later time.
func follows(q, other *question) bool {
	if door := q.client.door; door == "tcp" || door == "stream" {
		return q.number > other.number
	}
	return other.asked.Before(q.begun)
}

// judgeQuotas checks that no payer ever exceeded its quotas.
func (s *scene) judgeQuotas() {
	if !s.troubles.quotas && !s.troubles.addresses {
		return
	}
	payers := make(map[payer][]*question) // admitted requests, in the order in which they were sent
	for _, q := range s.history.questions {
		if p := s.payer(q); len(q.runs) > 0 {
			payers[p] = append(payers[p], q)
		}
	}
	for p, list := range payers {
		for i, q := range list {
			s.judgeInFlight(p, list[:i], q)
		}
		slices.SortStableFunc(list, func(a, b *question) int { return a.first().Compare(b.first()) })
		for _, q := range list {
			s.judgeRates(p, q.begun, list)
		}
	}
}

// quota returns the largest value of a quota that a payer may have had at some moment; 0: none.
func (s *scene) quota(p payer, from, to time.Time, of func(config.Quota) int) (most int) {
	for _, q := range s.history.quotas(p, from, to) {
		n := of(q)
		if n == 0 {
			return 0
		}
		most = max(most, n)
	}
	return most
}

// judgeInFlight checks the requests in flight when a request was admitted, which was before its
// first row was sent. Another request was certainly in flight from when it had been sent until a
// container had answered it.
func (s *scene) judgeInFlight(p payer, before []*question, q *question) {
	most := s.quota(p, q.begun, q.first(), func(q config.Quota) int { return q.RequestsInFlight })
	if most == 0 {
		return
	}
	n := 0
	for _, other := range before {
		if s.prompt(other) && other.good() != nil && other.asked.Before(q.begun) && other.answered().After(q.first()) {
			n++
		}
	}
	if n >= most {
		s.history.fault("question %d of %s was let in while %d of %v were in flight, and it may have %d", q.number,
			q.client.name, n, p, most)
	}
}

// answered returns the earliest moment at which containers had answered all rows.
func (q *question) answered() (all time.Time) {
	for row := range int32(q.rows) {
		var first time.Time
		for _, r := range q.runs {
			if r.fate == fateAnswered && slices.Contains(r.rows, row) && (first.IsZero() || r.done.Before(first)) {
				first = r.done
			}
		}
		if first.IsZero() {
			return first
		}
		if first.After(all) {
			all = first
		}
	}
	return all
}

// judgeRates checks the requests since a time under one configuration: at most as many as its rate
// allows in that time and its burst, plus one, which may overdraw it. The list is in the order of
// first rows: a request that waited to be read is admitted after others that were sent later.
func (s *scene) judgeRates(p payer, from time.Time, list []*question) {
	requests, bytes, largest := 0, 0, 0
	for _, q := range list {
		if q.begun.Before(from) {
			continue
		}
		quotas := s.history.quotas(p, from, q.first())
		if len(quotas) != 1 || len(s.history.holding(from, q.first())) != 1 {
			return
		}
		size := 8 * q.rows // at least
		requests, bytes, largest = requests+1, bytes+size, max(largest, size)
		quota := quotas[0]
		burst := quota.Burst
		if burst == 0 {
			burst = time.Second
		}
		for _, of := range []struct {
			what           string
			rate, n, extra int
		}{{"requests", quota.RequestsPerSecond, requests, 1}, {"bytes", int(quota.BytesPerSecond), bytes, largest}} {
			long := q.first().Sub(from)
			if most := float64(of.rate)*(long+burst).Seconds() + float64(of.extra) + 1e-6; of.rate > 0 &&
				float64(of.n) > most {
				s.history.fault("%d %s of %v were let in within %v, until question %d: it may have %d a second", of.n,
					of.what, p, long, q.number, of.rate)
				return
			}
		}
	}
}

// judgeStreams checks the frames of each stream.
func (s *scene) judgeStreams() {
	streams := make(map[string][]*question)
	for _, q := range s.history.questions {
		if f := q.frame; f != nil {
			name := fmt.Sprint(q.client.name, " ", q.model, "/", q.version, " ", f.stream)
			streams[name] = append(streams[name], q)
		}
	}
	for name, list := range streams {
		for i, q := range list {
			s.judgeFrame(name, q, list[i+1:])
		}
	}
}

// judgeFrame checks a frame against the newer ones of its stream.
func (s *scene) judgeFrame(name string, q *question, newer []*question) {
	if !s.prompt(q) || q.model == "a" && q.version == "" && s.troubles.versions { // may be either version
		return
	}
	waiting := 0 // newer frames that waited when this one was sent to a container
	for _, other := range newer {
		if !s.prompt(other) || !follows(other, q) {
			continue
		}
		if one, two := q.good(), other.good(); one != nil && two != nil && two.at.Before(one.at) {
			s.history.fault("stream %s: frame %d was answered %v after frame %d, which is newer", name, q.frame.seq,
				one.at.Sub(two.at), other.frame.seq)
		}
		if len(q.runs) == 0 || q.runs[0].late || !other.asked.Before(q.first()) {
			continue
		}
		// A newer frame waited, too, if it was sent to a container later, or gave way to an even
		// newer one.
		if later := len(other.runs) > 0 && other.first().After(q.first()); later ||
			len(other.runs) == 0 && len(other.answers) == 1 && other.answers[0].kind == "Superseded" &&
				other.answers[0].at.After(q.first()) {
			waiting++
		}
	}
	// Each model has its own queue. And once a frame has begun, all its rows are computed, whatever
	// waits.
	if keep := q.frame.keep; keep > 0 && waiting >= keep && len(q.by()) == 1 && !s.history.lost(q) {
		s.history.fault("stream %s: frame %d was sent to a container while %d newer ones waited, of which it keeps %d",
			name, q.frame.seq, waiting, keep)
	}
}

// superseded returns why a frame cannot have been superseded.
func (s *scene) superseded(q *question, a answer) string {
	if q.frame == nil || q.frame.keep == 0 {
		return "it is no frame that may be"
	}
	var by int64
	if _, text, ok := strings.Cut(a.text, "superseded by frame "); ok {
		if _, err := fmt.Sscan(text, &by); err != nil {
			return "it does not say by which: " + err.Error()
		}
	}
	for _, other := range s.history.questions {
		if f := other.frame; f != nil && other != q && other.client == q.client && f.stream == q.frame.stream &&
			f.seq == by && other.model == q.model {
			switch {
			case other.begun.After(a.at):
				return fmt.Sprintf("frame %d had not come", by)
			case s.prompt(q) && follows(q, other):
				return fmt.Sprintf("frame %d is older", by)
			}
			return ""
		}
	}
	return fmt.Sprintf("there is no frame %d", by)
}

// judgeLearning checks the application's feedback: it learns from each answer once, and forgets
// nothing. Feedback about a version that is no longer the default teaches nothing, and no round is
// counted for it.
func (s *scene) judgeLearning() {
	rounds, about := make(map[int]*question), make(map[*question]*question)
	told := 0
	for _, q := range s.history.questions {
		if q.about == nil {
			continue
		}
		told++
		a := q.good()
		if a == nil || a.rounds == 0 {
			continue
		}
		if other := rounds[a.rounds]; other != nil && !s.troubles.versions {
			s.history.fault("feedback %d and %d were both learned as round %d", other.number, q.number, a.rounds)
		}
		if other := about[q.about]; other != nil {
			s.history.fault("feedback %d and %d, both about question %d, were learned", other.number, q.number,
				q.about.number)
		}
		rounds[a.rounds], about[q.about] = q, q
	}
	for n, q := range rounds {
		if n > told {
			s.history.fault("feedback %d is round %d, and %d were sent", q.number, n, told)
		}
	}
}
