package operate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/plural"
)

// health reports how well every version of a model, and every application, serves its requests:
// only the first ones if there are more than most.
func (r *Report) health(most int) []admin.Health {
	all := []admin.Health{}
	for _, target := range r.Gate.Targets() {
		if len(all) == most {
			break
		}
		h := requestHealth(target.ID.Name, target.ID.Version, target.Metrics)
		stats := target.Model.Stats()
		h.Replicas, h.Failing, h.QueueRows = stats.Live, stats.Failing, stats.QueueRows
		if h.Replicas == 0 {
			h.Absence = r.absence(target)
		}
		h.Needed, h.Load, h.ReplicaRows = stats.Need.Replicas, stats.Need.Load, stats.Need.Worth
		h.OldestRow, h.OldestBatch = stats.OldestWait.Seconds(), stats.OldestBatch.Seconds()
		if h.Streams = stats.Streams; h.Streams > 0 {
			h.FrameAge = target.Model.OldestFrame().Seconds()
		}
		all = append(all, h)
	}
	for _, a := range r.Gate.Composites() {
		if len(all) == most {
			break
		}
		h := requestHealth(a.Name, "", r.Metrics.Model(a.Name, ""))
		h.Kind = string(a.Kind)
		if t, err := r.Gate.Target(a.Name, ""); err == nil {
			h.Replicas = t.Live
		}
		all = append(all, h)
	}
	return all
}

func requestHealth(name, version string, m *metrics.Model) admin.Health {
	h := m.Health()
	classes := make([]admin.DurationClass, len(h.Took))
	for i, k := range h.Took {
		classes[i] = admin.DurationClass{Above: k.Above.Seconds(), UpTo: k.UpTo.Seconds(), Requests: k.Requests}
	}
	return admin.Health{
		Name: name, Version: version, Requests: h.Answered(), SLO: h.SLO.Seconds(), InTime: h.InTime,
		Judged: h.Judged(), Failed: h.Failed(), Durations: classes,
		Superseded: h.Ended[metrics.Superseded], Defaults: h.Ended[metrics.Default], MissingVoices: h.Unheard,
		NoMemory: h.Memory,
	}
}

// failingModels names the models whose live replicas all fail on every batch. They count as ready
// nonetheless: without requests nothing would ever show that they have recovered.
func (r *Report) failingModels() string {
	var names []string
	for _, m := range r.Scheduler.Models() {
		if stats := m.Stats(); stats.Live > 0 && stats.Failing == stats.Live {
			names = append(names, m.ID().String())
		}
	}
	if names == nil {
		return ""
	}
	return "every replica fails on every batch of " + strings.Join(names, ", ")
}

// Thresholds of the warnings.
const (
	worrying  = 0.1              // share of answers that are the default, or lack a model
	fewAnswer = 10               // answers before a share means anything
	longBatch = 10 * time.Second // without an answer, or with replaced memory
)

// warnings returns what an operator should look at.
func warnings(s admin.Status) []string {
	out := []string{}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if s.State.Error != "" {
		say("changes of applications, pipelines and settings, and feedback, are refused, as %s cannot be written: %s",
			cmp.Or(s.State.At, "the state"), s.State.Error)
	}
	for _, c := range s.Sessions {
		switch c.State {
		case "failing":
			say("%s fails on every batch: %s", title(c), c.LastFailure)
		case "hung":
			say("%s hangs, and gets only probes: %s", title(c), cmp.Or(c.Reason, c.LastFailure))
		case containers.StateUnserved, "calling":
			if c.Reason != "" {
				say("%s: %s", title(c), c.Reason)
			}
		case "serving":
			if c.Reason != "" { // an earlier observation, with no answer since
				say("%s: %s", title(c), c.Reason)
			}
			if c.Oldest >= longBatch.Seconds() {
				say("%s has not answered a batch for %.0fs", title(c), c.Oldest)
			} else if c.ReplacedFor >= longBatch.Seconds() {
				say("%s keeps %d bytes of shared memory that was replaced %.0fs ago: it should have unmapped its segment",
					title(c), c.Replaced, c.ReplacedFor)
			}
		}
	}
	for _, r := range s.Routes {
		if r.Hides != "" {
			say("route %q hides %s: requests for it go to %s", r.Name, r.Hides, r.To)
		}
	}
	for _, p := range s.Processes {
		if p.State == "crash loop" {
			say("the process %s[%d] keeps ending, last with %s; its log says why", p.Name, p.Replica, p.LastExit)
		}
	}
	for _, h := range s.Models {
		if h.Kind != string(gate.Application) || h.Requests < fewAnswer {
			continue
		}
		if share := float64(h.Defaults) / float64(h.Requests); share >= worrying {
			say("application %s has answered %.0f %% of its requests with its default; \"shivactl explain %s\" says more",
				h.Name, 100*share, h.Name)
		}
		if share := float64(h.MissingVoices) / float64(h.Requests); share >= worrying {
			say("application %s has answered %.0f %% of its requests without the answer of a model; \"shivactl explain %s\" says which",
				h.Name, 100*share, h.Name)
		}
	}
	if s.Payload.Refused > 0 && s.Payload.Used > s.Payload.Limit/2 {
		say("memory for payloads was refused %s; limits.payload_bytes is %d",
			plural.Of(s.Payload.Refused, "time"), s.Payload.Limit)
	}
	return out
}

// expiring returns the warnings about certificates, by door.
func expiring(doors map[string]time.Time) (out []string) {
	for _, door := range slices.Sorted(maps.Keys(doors)) {
		verb := "expires"
		if time.Until(doors[door]) <= 0 {
			verb = "expired"
		}
		out = append(out,
			fmt.Sprintf("the certificate of %s %s on %s: replace its files, and \"shivactl reload\"", door, verb,
				doors[door].Format(time.RFC3339)))
	}
	return out
}

// title names a container within a sentence.
func title(c admin.Session) string {
	name := "a container"
	if c.Model != "" {
		name = "container of " + c.Model + "/" + c.Version
	}
	if c.Instance != "" {
		name += " (" + c.Instance + ")"
	}
	return name + " at " + c.Remote
}
