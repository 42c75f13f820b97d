package operate

import (
	"fmt"
	"strings"

	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/plural"
)

// explainApplication says what an application answers, and why with its default or without some
// model; nil if there is no such application. All counts start when the server starts.
func (r *Report) explainApplication(name string) (out []string) {
	a := r.Store.Apps().Find(name)
	if a == nil {
		return nil
	}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	say("It is an application: the policy %s asks models of %s.", a.Policy, strings.Join(a.Models, ", "))
	h := r.Metrics.Model(name, "").Health()
	all, judged := h.Answered(), h.Judged()
	if all == 0 {
		say("No request was sent to it since the server started.")
	} else if judged > 0 {
		within := ""
		if h.SLO > 0 {
			within = fmt.Sprintf(" within %v", h.SLO)
		}
		say("Of %s since the server started %s had a result of its models%s; those that clients withdrew or got wrong do not count.",
			plural.Of(judged, "request"), percent(h.InTime, judged), within)
	}
	if n := h.Ended[metrics.Default]; n > 0 {
		say("%s (%s) got its default, as its models gave no answer in time: see below, and \"default_explanation\" in those answers.",
			plural.Of(n, "request"), percent(n, all))
	}
	if h.Unheard > 0 {
		say("%s the part of a model (%s).", plural.Words(h.Unheard, "answer lacks", "answers lack"),
			percent(h.Unheard, all))
	}
	known := r.Gate.Models()
	for _, l := range a.Models {
		model, version := apps.SplitLink(l)
		live, found := 0, false
		for _, m := range known {
			if m.Name != model || version != "" && version != "*" && m.Version != version ||
				version == "" && !m.Default {
				continue
			}
			found = true
			live += m.Replicas
			if t, err := r.Gate.Target(m.Name, m.Version); err == nil {
				out = append(out, explainMissing(t)...)
				if stats := t.Model.Stats(); stats.Failing > 0 {
					say("Live replicas of %s that fail on every batch: %d of %d. \"shivactl explain %s\" names them.", t.ID,
						stats.Failing, stats.Live, t.ID)
				}
			}
		}
		switch {
		case !found:
			say("No container of %s has registered.", l)
		case live == 0:
			say("No replica of %s is live.", l)
		}
	}
	return out
}

// explainMissing says how often a model did not contribute to the answers of applications.
func explainMissing(t *gate.Target) []string {
	if n := t.Metrics.Health().Unheard; n > 0 {
		return []string{fmt.Sprintf("%s of applications since the server started came without the answer of %s.",
			plural.Of(n, "answer"), t.ID)}
	}
	return nil
}
