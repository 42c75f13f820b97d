package server

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/config"
)

// check is the oracle: it checks what must be true of every history.
func (s *scene) check() {
	h := s.history
	if n := s.server.pool.InUse(); n != 0 {
		h.fault("%d bytes of the pool are in use after the end", n)
	}
	if left := takenOf(s.server); left != "" {
		h.fault("quotas are not given back: %s", left)
	}
	if n := s.server.regions.Usage().Regions; n != 0 {
		h.fault("%d regions of shared memory are left", n)
	}
	if n := s.running.Load(); n != 0 {
		h.fault("%d processes are left", n)
	}
	if s.troubles.loads { // the server loaded it at its start
		h.note("s", true, h.began, h.models["s"])
	}
	for _, q := range h.inOrder() {
		s.judge(q)
	}
	s.judgeOrders()
	s.judgeQuotas()
	s.judgeStreams()
	s.judgeLearning()
}

// judge judges one request.
func (s *scene) judge(q *question) {
	h := s.history
	wrong := func(format string, args ...any) {
		h.fault("question %d of %s (%s, %d rows for %s, %v, at %v, bad %t): %s", q.number, q.client.name, q.client.door,
			q.rows, q.path(), q.timeout, q.begun.Sub(h.began), q.bad, fmt.Sprintf(format, args...))
	}
	c := q.client
	lossy := c.cut || q.given || s.troubles.stop
	switch {
	case len(q.answers) > 1:
		wrong("it was answered %d times: %v", len(q.answers), q.answers)
		return
	case len(q.answers) == 0:
		if !lossy {
			wrong("it was never answered")
		}
		return
	}
	a := q.answers[0]
	s.judgeRuns(q, a, wrong)
	if a.kind == unanswered {
		if !lossy {
			wrong("its connection has ended: %s", a.text)
		}
		return
	}
	if why := s.unexpected(q, a); why != "" {
		wrong("it was answered %s %s: %s", a.kind, a.text, why)
	}
	due := s.due(q)
	if late := a.at.Sub(due); late > lateness && !c.shaky && !s.paced(q) && !s.troubles.stop && !a.end {
		wrong("it was answered %v late, with %s", late, a.kind)
	}
	if a.kind == okay && q.about == nil && !s.right(q, a) {
		wrong("the answer's values are %v", a.values)
	}
	if why := s.unshared(q, a); a.kind == okay && why != "" {
		wrong("it has a good answer, and %s", why)
	}
}

// lateness is how much later than its deadline an answer may arrive: virtual time does not pass
// while the server works, so this is only the clients' time.
const lateness = time.Millisecond

// learning is how long the store may take for feedback, which has no deadline.
const learning = 5 * time.Second

// due returns when a request must be answered.
func (s *scene) due(q *question) time.Time {
	timeout := q.timeout
	if q.about != nil {
		timeout = learning
	}
	due := s.history.thawed(s.history.thawed(q.asked).Add(timeout))
	if b := q.before; b != nil && len(b.answers) > 0 && b.answers[0].at.After(due) {
		due = b.answers[0].at
	}
	return due
}

// right reports whether an answer's values are those of a version that may have given it.
func (s *scene) right(q *question, a answer) bool {
	if q.shared["out"] && s.history.toggle("file "+q.client.shares.region("out")).mayBeOff(q.begun, a.at) {
		return true // written outputs may have been truncated
	}
	for _, model := range q.by() {
		for _, version := range s.versions(q, model, a.at) {
			if slices.Equal(a.values, made(model, version, q.inputs())) {
				return true
			}
		}
	}
	return false
}

// versions returns the versions of a model that a request may select.
func (s *scene) versions(q *question, model string, until time.Time) []string {
	switch {
	case q.version != "":
		return []string{q.version}
	case model != "a" || !s.troubles.versions:
		return []string{"1"}
	}
	var list []string
	for _, c := range s.history.holding(q.begun, until) {
		version := c.Models["a"].DefaultVersion
		if since := s.history.models["a/"+version]; since.IsZero() || !since.Before(q.begun) {
			return []string{"1", "2"} // until it has registered, either may serve
		}
		list = append(list, version)
	}
	return list
}

// judgeRuns judges the executions of a request.
func (s *scene) judgeRuns(q *question, a answer, wrong func(string, ...any)) {
	times, losses := make([]int, q.rows), make([]int, q.rows)
	for _, r := range q.runs {
		if r.at.After(a.at) && !r.late && a.kind != unanswered {
			wrong("%s was sent its rows %v after the answer, %s", r.container, r.at.Sub(a.at), a.kind)
		}
		for _, row := range r.rows {
			if times[row]++; r.fate == fateLost {
				losses[row]++
			}
		}
	}
	if may, _ := s.rights(q, a.at); !may && len(q.runs) > 0 {
		wrong("%s was sent its rows, which %q has no right to ask for", q.runs[0].container, q.client.identity)
	}
	for row, n := range times {
		if losses[row] > mostLosses {
			wrong("row %d was sent to %d containers that were lost with it, not to %d at most", row, losses[row],
				mostLosses)
		}
		if n > 1 && !s.troubles.containers && !s.missing(q, a.at) {
			wrong("row %d was executed %d times, and no container has failed", row, n)
		}
		if n == 0 && a.kind == okay && q.about == nil {
			wrong("row %d was answered, and no container has seen it", row)
		}
	}
}

// mostLosses is how many containers may be lost with a request; see scheduler/culprit.go.
const mostLosses = 4

// rights reports whether a client may have had the right to make a request at some moment until
// then, and whether it may have lacked it.
func (s *scene) rights(q *question, until time.Time) (may, lacks bool) {
	right := "infer"
	if q.about != nil {
		right = "feedback"
	}
	return s.entitled(q.client.identity, q.begun, until, q.model, right)
}

// entitled reports whether an identity may have had one of some rights for a name at some moment,
// and whether it may have lacked them all. An empty name means any.
func (s *scene) entitled(identity string, from, to time.Time, name string, rights ...string) (may, lacks bool) {
	if !s.troubles.identities {
		return true, false
	}
	for _, i := range s.history.declared(identity, from, to) {
		has := i != nil && slices.ContainsFunc(i.May, func(text string) bool {
			return slices.ContainsFunc(rights, func(right string) bool { return grants(text, right, name) })
		})
		may, lacks = may || has, lacks || !has
	}
	return may, lacks
}

// grants reports whether a right, as the configuration spells it, applies to a name.
func grants(text, right, name string) bool {
	if text == right {
		return true
	}
	pattern, some := strings.CutPrefix(text, right+":")
	if !some || name == "" {
		return some
	}
	if !strings.Contains(pattern, "/") {
		name, _, _ = strings.Cut(name, "/")
	}
	ok, _ := path.Match(pattern, name)
	return ok
}

// known reports whether a client's identity may have been declared at some moment until then, and
// whether it may not have been.
func (s *scene) known(q *question, until time.Time) (may, lacks bool) {
	from := q.begun
	if !q.opened.IsZero() && q.answers[0].end {
		from = q.opened // its stream may have ended with an earlier request, or when it was opened
	}
	for _, i := range s.history.declared(q.client.identity, from, until) {
		may, lacks = may || i != nil, lacks || i == nil
	}
	return may, lacks
}

// unexpected returns why an answer of that kind is impossible; "": it is possible.
func (s *scene) unexpected(q *question, a answer) string {
	c := q.client
	if c.last && a.kind != okay && !q.expectsError() {
		return "all was well again"
	}
	may, lacks := s.rights(q, a.at)
	switch a.kind {
	case okay:
		if q.bad || q.model == "none" || !may {
			return "it should have been refused"
		}
	case "InvalidInput":
		if !q.bad && q.shared != nil {
			return s.forgotten(q, a)
		}
		if !q.bad {
			return "it fits the model"
		}
	case "NotFound":
		if why := s.notFound(q); why == "" || q.shared == nil {
			return why
		}
		return s.forgotten(q, a)
	case "Unauthenticated":
		if _, unknown := s.known(q, a.at); !unknown && s.troubles.identities || !s.troubles.identities {
			return "it showed a token that is known"
		}
	case "PermissionDenied":
		if !lacks {
			return "it has the right"
		}
	case "DeadlineExceeded":
		// A request that cannot be answered in time is refused early.
		if early := q.asked.Add(q.timeout).Sub(a.at); early > 0 && !q.given && !strings.Contains(a.text, "no replica could have answered") {
			return fmt.Sprintf("its deadline was %v later", early)
		}
	case "Overloaded":
		return s.overloaded(q, a)
	case "Unavailable":
		if !s.troubles.containers && !s.troubles.stop && !(q.about != nil && s.troubles.store) && !s.missing(q, a.at) &&
			s.notFound(q) != "" {
			return "its containers are there"
		}
	case "ContainerFailed":
		if !hasFate(q, fateFailed, fateStray) {
			return "no container has failed with it"
		}
	case "ContainerLost":
		if !s.troubles.containers && !s.troubles.stop && !s.missing(q, a.at) {
			return "no container was lost"
		}
	case "Superseded":
		return s.superseded(q, a)
	case "Draining":
		if !s.troubles.stop {
			return "the server does not stop"
		}
	case "Canceled":
		if !q.given && !c.cut {
			return "nobody has given it up"
		}
	default:
		return "there is no such answer"
	}
	return ""
}

func (s *scene) notFound(q *question) string {
	if b := q.about; b != nil {
		if a := b.good(); a != nil && a.at.Before(q.begun) {
			return "that question was answered before"
		}
		return ""
	}
	for _, model := range q.by() {
		since := s.history.models[model]
		if q.version != "" {
			since = s.history.models[model+"/"+q.version]
		}
		if since.IsZero() || !since.Before(q.begun) {
			return ""
		}
	}
	return "there is such a model"
}

func (s *scene) overloaded(q *question, a answer) string {
	switch {
	case s.troubles.reloads && strings.Contains(a.text, "tcp.in_flight_per_connection"):
		return ""
	case s.bounded(payer{identity: q.client.identity}, q, a), s.bounded(payer{address: q.client.host()}, q, a):
		return ""
	}
	return "nothing is scarce"
}

// bounded reports whether an answer is a refusal by a quota that the payer may have had.
func (s *scene) bounded(p payer, q *question, a answer) bool {
	return strings.Contains(a.text, p.String()+" is over its quota") &&
		slices.ContainsFunc(s.history.quotas(p, q.begun, a.at), func(q config.Quota) bool {
			return q != config.Quota{}
		})
}

func hasFate(q *question, fates ...fate) bool {
	for _, r := range q.runs {
		for _, f := range fates {
			if r.fate == f {
				return true
			}
		}
	}
	return false
}

// expectsError reports whether a request is invalid in itself.
func (q *question) expectsError() bool {
	_, lacks := q.client.scene.rights(q, q.begun)
	return q.bad || q.model == "none" || lacks || q.timeout < time.Second && q.client.door != "frigate"
}
