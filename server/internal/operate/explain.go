package operate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/plural"
)

// Names lists the names of models, applications and pipelines, sorted.
func (r *Report) Names() []string { return r.Gate.Names() }

// Explain describes for every version of a model, for an application or for a pipeline, what it
// does and why, and for a model of the configuration why it is not there.
func (r *Report) Explain(model string) []admin.Explanation {
	var all []admin.Explanation
	if about := r.explainApplication(model); about != nil {
		all = append(all, admin.Explanation{Name: model, Sentences: about})
	}
	if about := r.explainPipeline(model); about != nil {
		all = append(all, admin.Explanation{Name: model, Sentences: about})
	}
	for _, target := range r.Gate.TargetsOf(model) {
		stats := target.Model.Stats()
		about := append(shapes(stats), proof(target.Spec.Parameters)...)
		if fault := r.Files.Fault(target.ID.Name); fault != "" {
			about = append(about, "Of its file: "+strings.TrimSuffix(fault, ".")+".")
		}
		about = append(about, r.absent(target)...)
		about = append(about, sentences(stats, r.crowded(model))...)
		about = append(about, r.explainSubset(stats)...)
		about = append(about, explainStreams(stats, target.Model.Streams(math.MaxInt))...)
		about = append(about, explainMissing(target)...)
		all = append(all, admin.Explanation{Name: model, Version: target.ID.Version, Sentences: about})
	}
	if all == nil {
		if about := r.explainAbsent(model); about != nil {
			all = append(all, admin.Explanation{Name: model, Sentences: about})
		}
	}
	for i := range all {
		all[i].Sentences = append(all[i].Sentences, r.explainScaling(model)...)
		all[i].Sentences = append(all[i].Sentences, r.overQuota()...)
		for k, s := range all[i].Sentences {
			all[i].Sentences[k] = access.Printable(s, mostSentence)
		}
	}
	return all
}

// mostSentence bounds a sentence, in bytes: errors of models and names of streams are part of them.
const mostSentence = 4 << 10

// explainScaling says how many processes each container of a model has, and why.
func (r *Report) explainScaling(model string) (out []string) {
	for _, name := range r.Processes.Containers(model) {
		s, ok := r.Processes.Scaled(name)
		if !ok {
			continue
		}
		text := fmt.Sprintf("Container %q has %d of %d to %d processes.", name, s.Wanted, s.Min, s.Max)
		if s.Why != "" {
			text += fmt.Sprintf(" Their number changed %v ago: %s.", time.Since(s.Since).Round(time.Second), s.Why)
		}
		out = append(out, text)
	}
	return out
}

// crowded says why further processes on this machine would not serve more; "": they may. It counts
// for models that processes of this server serve.
func (r *Report) crowded(model string) string {
	if len(r.Processes.Containers(model)) == 0 {
		return ""
	}
	return r.Processes.Crowded()
}

// shapes says why a model's batches always have one row, if they do.
func shapes(s scheduler.Stats) []string {
	if !s.Unbatched {
		return nil
	}
	return []string{"The model is not batched: each request is one execution, in its own shapes. More replicas, or containers that execute several requests at once, make it faster."}
}

// proof says what the container of a model file found out about batches before it registered: the
// package shiva-container puts it into the parameters of the model.
func proof(parameters []byte) []string {
	var p struct{ Proof string }
	if json.Unmarshal(parameters, &p) != nil || p.Proof == "" {
		return nil
	}
	return []string{
		"Before the model registered, its container tested whether rows can share a batch. Result: " + p.Proof + "."}
}

// absent says that a version has no live replica, and whether that is an outage.
func (r *Report) absent(t *gate.Target) []string {
	if t.Live > 0 {
		return nil
	}
	switch meant := r.meant(t.ID.Name); {
	case t.Serves:
		return []string{"No replica is live. The next request starts a process, and waits for it."}
	case meant != "":
		return []string{
			fmt.Sprintf("No replica of this version is live. Requests to %s are answered by version %s; only those that name %s are refused.",
				t.ID.Name, meant, t.ID)}
	}
	return []string{fmt.Sprintf("No live replica: every request is refused. Start a container of %s, or see in \"shivactl status\" why it does not register.", t.ID)}
}

// absence says in a few words why the lack of replicas is no outage; "": it is one.
func (r *Report) absence(t *gate.Target) string {
	if t.Serves {
		return "starts with the next request"
	}
	if meant := r.meant(t.ID.Name); meant != "" {
		return "replaced by version " + meant
	}
	return ""
}

// meant returns the version that answers requests to a model; "": none can at the moment.
func (r *Report) meant(model string) string {
	if t, err := r.Gate.Target(model, ""); err == nil && t.Model != nil && t.Serves {
		return t.ID.Version
	}
	return ""
}

// sentences turns a model's figures into what an operator would conclude from them.
// crowded, if not empty, says why further processes on this machine would not help.
func sentences(s scheduler.Stats, crowded string) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }

	n := &s.Recent
	out = append(out, explainFailing(s)...)
	out = append(out, explainCulprits(s)...)
	out = append(out, explainNeed(s, crowded)...)
	if s.Ago > 0 {
		say("Nothing has happened for %v: what follows describes the time before.", s.Ago.Round(time.Second))
	}
	if n.Batches == 0 {
		say("No batch was sent in the last %v%s, so there is little to explain.", span(s), before(s))
		return append(out, refusals(s)...)
	}
	accepted := fmt.Sprintf("In the last %v%s, the time that these figures cover, %s accepted, %.1f a second.",
		span(s), before(s), plural.Words(n.Submitted, "request was", "requests were"),
		float64(n.Submitted)/max(s.Span.Seconds(), 0.001))
	if s.Unbatched {
		say("%s %s sent to replicas, one by one.", accepted, plural.Words(n.Batches, "was", "were"))
	} else {
		limit := ""
		if most := mostRows(s); most > 0 { // 0: there is no replica
			limit = fmt.Sprintf("; the current batch limit is %s (strategy %s)",
				plural.Of(most, "row"), s.Config.Strategy)
		}
		say("%s %s sent, of %.1f rows on average%s.", accepted, plural.Words(n.Batches, "batch was", "batches were"),
			float64(n.Rows)/float64(n.Batches), limit)
		if limit != "" {
			out = append(out, explainSizes(s)...)
		}
		out = append(out, explainWaits(s)...)
	}
	out = append(out, throughput(s, crowded)...)
	out = append(out, refusals(s)...)
	if n.BatchesFailed > 0 {
		say("%s of the batches failed.%s", percent(n.BatchesFailed, n.BatchesDone), lastFailures(s))
	}
	if n.Suspected > 0 {
		say("%s a replica did not answer within execution_timeout, %v. Raise it if the model is meant to take so long.",
			plural.Of(n.Suspected, "time"), s.Config.ExecTimeout)
	}
	return out
}

// explainNeed says how many replicas there should be, and why.
func explainNeed(s scheduler.Stats, crowded string) []string {
	n := s.Need
	switch {
	case n.Replicas == 0:
		return []string{"No replica is needed: nothing has arrived for a minute, and nothing waits."}
	case n.Worth == 0:
		return []string{"The number of replicas needed is not known: no replica has answered enough requests to show its rate. One is assumed."}
	}
	text := fmt.Sprintf("About %s arrive, including refused ones", perSecond(n.Arriving, "rows"))
	if n.Waiting > 0 {
		text += fmt.Sprintf(", and %s beyond the next batches", plural.Words(n.Waiting, "row waits", "rows wait"))
	}
	text += fmt.Sprintf(". A replica has a capacity of %s rows/s, of which it should carry at most 80 %%.",
		figure(n.Worth))
	if n.Callers > 0 {
		text += fmt.Sprintf(" Clients that send the next request on each answer have %s in flight; a replica answers %s of these within the objective.",
			plural.Of(n.Callers, "more row"), figure(n.Group))
	}
	text += fmt.Sprintf(" Replicas needed: %d (%.2f); live: %d.", n.Replicas, n.Load, s.Live)
	if crowded != "" {
		text += " More processes on this machine do not help: " + crowded + "."
	}
	return []string{text}
}

// explainSubset says that containers of a model have sessions with some servers only, and with how
// many containers hardly any server is without one.
func (r *Report) explainSubset(s scheduler.Stats) []string {
	l := r.Sessions.Listener()
	if l == nil {
		return nil
	}
	subset, chooses := l.Subset(s.ID)
	if !chooses {
		return nil
	}
	// With a mean of three sessions per server, hardly any server is without one for long; see
	// "Which servers" in containers/DESIGN.md.
	enough := (3*subset.Servers + subset.Size - 1) / subset.Size
	have := fmt.Sprintf("%d live replicas", s.Live)
	switch s.Live {
	case 0:
		have = "no live replica"
	case 1:
		have = "one live replica"
	}
	return []string{fmt.Sprintf("Each container of %s has sessions with %d of %s (SHIVA_SUBSET), and this server has %s. With %s or more, hardly any server is without one for long; with fewer, raise SHIVA_SUBSET. Clients that know several servers try another one.",
		s.ID, subset.Size, plural.Of(subset.Servers, "server"), have, plural.Of(enough, "container"))}
}

// before says when the recent past ended, unless that is now.
func before(s scheduler.Stats) string {
	if s.Ago == 0 {
		return ""
	}
	return " of it"
}

// span returns how long the recent past is, rounded for display.
func span(s scheduler.Stats) time.Duration {
	if s.Span < 10*time.Second {
		return round(s.Span)
	}
	return s.Span.Round(time.Second)
}

// mostRows returns the most rows that the strategy would send to one of the replicas now.
func mostRows(s scheduler.Stats) int {
	return greatest(s, func(r scheduler.ReplicaStats) int { return r.Limit })
}

// greatest returns the highest value of a figure among the replicas; 0 while there is no replica.
func greatest(s scheduler.Stats, of func(scheduler.ReplicaStats) int) (n int) {
	for _, r := range s.Replicas {
		n = max(n, of(r))
	}
	return n
}

// explainSizes says why batches are not larger, the most frequent reason first. Reasons with less
// than a tenth of the batches are left out.
func explainSizes(s scheduler.Stats) (out []string) {
	for _, r := range frequent(s.Recent.Closed) {
		if n := s.Recent.Closed[r]; 10*n >= s.Recent.Batches {
			out = append(out, percent(n, s.Recent.Batches)+" of the batches "+closeReason(s, r))
		}
	}
	return out
}

// frequent returns the keys of counts, the most frequent first.
func frequent[K cmp.Ordered](counts map[K]uint64) []K {
	return slices.SortedFunc(maps.Keys(counts), func(a, b K) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}

// closeReason returns the end of a sentence about batches that were closed for a reason.
func closeReason(s scheduler.Stats, r scheduler.CloseReason) string {
	c := s.Config
	switch r {
	case scheduler.CloseFull:
		return fmt.Sprintf("were full (%s): %s.", plural.Of(mostRows(s), "row"), largerBatches(s))
	case scheduler.CloseIdle:
		text := "took all waiting rows (idle): they are small because the load is light, not because of a setting."
		if s.Busy() > mostlyBusy {
			text = "took all waiting rows (idle), although the replicas are busy nearly all the time: the waiting requests arrived after the previous batch was sent."
		}
		if s.Recent.Peak <= 1 {
			return text + " There was never more than one request unanswered: the client waits for each reply. Let it send ahead, or ask from several connections."
		}
		return text + fmt.Sprintf(" At most %d requests were unanswered at a time.", s.Recent.Peak)
	case scheduler.CloseDeadline:
		return "are bounded by deadlines: with one row more, some of their rows would be late. Longer deadlines or more replicas make room."
	case scheduler.CloseDelay:
		return fmt.Sprintf("waited for delay, %v, and no more rows arrived.", c.Delay)
	case scheduler.CloseShape:
		return fmt.Sprintf("end where other shapes begin (%d wait now): rows share a batch only if their dtypes and trailing dimensions agree. Let clients send one shape.", s.Shapes)
	case scheduler.CloseLimit:
		if c.Strategy == "aimd" {
			return fmt.Sprintf("are as large as the strategy aimd has grown them: up to %s now.",
				plural.Of(mostRows(s), "row"))
		}
		return fmt.Sprintf("are as large as has been tried: sizes grow to double the largest one measured, which is %s.",
			plural.Of(greatest(s, func(r scheduler.ReplicaStats) int { return r.Largest }), "row"))
	case scheduler.CloseBytes:
		return fmt.Sprintf("are bounded by batch_bytes, %d. Raise it, if the container takes larger messages.",
			c.BatchBytes)
	case scheduler.CloseFailures:
		return "are small because larger ones fail; the other sentences name the errors."
	case scheduler.CloseRate:
		return "have the size that answers most rows per second: larger ones were measured, and answer no more. No setting bounds them."
	case scheduler.CloseTrial:
		return "try a size other than the best known one, to measure it. Such trials get little time unless they pay off."
	case scheduler.CloseTogether:
		return "waited for clients that send the next request on each answer, or left some of them to another replica, so that all replicas serve equally many."
	case scheduler.CloseRetry:
		return "repeat rows of failed batches, or probe a replica that did not answer."
	case scheduler.CloseStream:
		return "end where all waiting frames belong to streams that are in the batch already: it takes one frame of each, in order. More streams fill it; keep = \"all\" lets a stream's frames share one."
	case scheduler.CloseObjective:
		return fmt.Sprintf("are bounded by the objective: with more than %s they would take longer than %v. Raise objective, if latency allows it. Larger ones are tried now and then while rows wait, so that is measured, not guessed.",
			plural.Of(mostRows(s), "row"), c.Objective)
	}
	return "were closed because of " + r.String() + "."
}

// mostlyBusy is the share of its time that a replica executes from which on the load is not light.
const mostlyBusy = 0.8

// throughput says what the replicas can do.
func throughput(s scheduler.Stats, crowded string) (out []string) {
	total := 0.0
	for _, r := range s.Replicas {
		if r.GivenUp > 0 {
			out = append(out, fmt.Sprintf("Replica %s has not answered %d of the batches it was sent, the first %v ago; each takes one of its %d slots until it does.",
				name(r), r.GivenUp, round(r.OldestBatch), r.Slots))
		}
		if r.Ceiling > 0 && !s.Unbatched {
			out = append(out,
				fmt.Sprintf("Replica %s fails on batches of more than %s; more are tried again now and then. Set max_batch if that is its limit.",
					name(r), plural.Of(r.Ceiling, "row")))
		}
		if r.Serial && r.Slots > 1 {
			out = append(out,
				fmt.Sprintf("Replica %s should get one batch at a time, and slots gives it %d: its answers may be wrong. Set slots to 0.",
					name(r), r.Slots))
		}
		var best scheduler.ProfilePoint
		for _, p := range r.Profile {
			if p.Typical > 0 && float64(p.Rows)*float64(best.Typical) >= float64(best.Rows)*float64(p.Typical) {
				best = p
			}
		}
		if best.Rows == 0 {
			continue
		}
		rate := float64(best.Rows*max(1, r.Concurrency)) / best.Typical.Seconds()
		if r.State == scheduler.ReplicaLive {
			total += rate
		}
		together := ""
		if r.Concurrency > 1 {
			together = fmt.Sprintf(", and it executes %d at once", r.Concurrency)
		}
		out = append(out, fmt.Sprintf("Replica %s (%s): a batch of %s takes %v, planned with %v%s; that is %.0f rows/s, the best rate measured.",
			name(r), r.State, plural.Of(best.Rows, "row"), round(best.Typical), round(best.Planned), together, rate))
	}
	for _, r := range s.Replicas {
		if r.Stalls > 0 {
			out = append(out, fmt.Sprintf("Replica %s was held up in %.0f %% of its last batches, by about %v whatever their size: a busy machine, a garbage collection or a power state does that, not the model. Batches are not made smaller for it.",
				name(r), 100*r.Stalls, round(r.Stall)))
		}
	}
	if total > 0 {
		text := fmt.Sprintf("Together the live replicas can answer about %.0f rows/s. ", total)
		if crowded != "" {
			text = fmt.Sprintf("One by one the live replicas were measured at %.0f rows/s in all, and together they answer less, since they share processors: %s. Give them fewer threads each (cpus, which sets OMP_NUM_THREADS and its like), have fewer replicas, or run some on another machine.",
				total, crowded)
		} else if by := bounds(s); by != nil {
			text += "Before you add replicas, look at what bounds the present ones: " + strings.Join(by, "; ") + "."
		} else {
			text += "Beyond that only more replicas, or a faster model, help."
		}
		out = append(out, text)
	}
	if s.Live > 0 && !s.Predictable {
		out = append(out, "The replicas have not been measured well enough yet, so no request is refused by prediction.")
	}
	return out
}

// largerBatches says what would allow larger batches than the largest allowed now.
func largerBatches(s scheduler.Stats) string {
	declared := greatest(s, func(r scheduler.ReplicaStats) int { return r.Declared })
	switch most := mostRows(s); {
	case s.Config.MaxBatch == most && most > 0 && declared != most:
		return fmt.Sprintf("max_batch is %d. Raise it, if the container takes more", most)
	case declared == most && most > 0:
		return fmt.Sprintf("the container declares max_batch %d. If it takes more, raise it there", most)
	}
	return "neither the container nor max_batch declares the largest batch. Set max_batch, if the container takes more"
}

// bounds returns the settings that keep batches, or the replicas' work, smaller than they could be.
func bounds(s scheduler.Stats) (by []string) {
	matters := func(r scheduler.CloseReason) bool {
		return 10*s.Recent.Closed[r] >= s.Recent.Batches && s.Recent.Closed[r] > 0
	}
	if matters(scheduler.CloseFull) && !s.Unbatched {
		by = append(by, largerBatches(s))
	}
	if matters(scheduler.CloseObjective) {
		by = append(by, fmt.Sprintf("objective is %v", s.Config.Objective))
	}
	if matters(scheduler.CloseBytes) {
		by = append(by, fmt.Sprintf("batch_bytes is %d", s.Config.BatchBytes))
	}
	if matters(scheduler.CloseDeadline) {
		by = append(by, "the deadlines of the requests bound their batches")
	}
	for _, r := range s.Replicas {
		switch {
		case r.Concurrency < r.AtOnce:
			return append(by,
				fmt.Sprintf("slots is %d, and replica %s could execute %d at once", r.Slots, name(r), r.AtOnce))
		case r.Serial && r.Slots == 1:
			return append(by, fmt.Sprintf("replica %s gets one batch at a time, as it may answer from one buffer; slots = 2 is for containers that copy their answers", name(r)))
		case s.Config.Slots > 0 && r.Slots <= r.Concurrency && !r.Serial:
			return append(by,
				fmt.Sprintf("slots is %d, so that no batch waits at replica %s when it has answered one", r.Slots,
					name(r)))
		}
	}
	return by
}

// explainCulprits names the requests that ended containers.
func explainCulprits(s scheduler.Stats) (out []string) {
	for _, c := range s.Culprits {
		of := ""
		if c.Stream != "" {
			of = fmt.Sprintf(", a frame of stream %q", c.Stream)
		}
		out = append(out, fmt.Sprintf("A request is at fault for the loss of a container, %q, which executed it alone %v ago: %s%s (%v). It was not tried again, and its client was told not to send it again.",
			cmp.Or(c.Replica, "without a label"), round(c.Ago), c.Name, of, c.Err))
	}
	return out
}

// explainFailing names the replicas that do no work, each with its last error.
func explainFailing(s scheduler.Stats) (out []string) {
	for _, r := range s.Replicas {
		switch r.State {
		case scheduler.ReplicaFailing:
			out = append(out, fmt.Sprintf("Replica %s fails on every batch, %d so far; the last one %v ago: %v. It gets fewer batches while others do better.",
				name(r), r.Failed, round(r.LastFailed), r.LastError))
		case scheduler.ReplicaSuspect:
			out = append(out, fmt.Sprintf("Replica %s hangs: a batch was sent %v ago and is not answered. It gets only probes until it answers, and loses its session if it still does not answer; the last error: %v.",
				name(r), round(r.OldestBatch), r.LastError))
		}
	}
	if s.Live > 0 && s.Failing == s.Live {
		out = append(out, "All live replicas fail on every batch: nothing is answered, though the model counts as ready.")
	}
	return out
}

// lastFailures names the replicas that have failed recently, but not on every batch.
func lastFailures(s scheduler.Stats) (text string) {
	for _, r := range s.Replicas {
		if r.State == scheduler.ReplicaLive && r.LastError != nil && r.LastFailed <= s.Ago+s.Span {
			text += fmt.Sprintf(" Replica %s failed one %v ago: %v.", name(r), round(r.LastFailed), r.LastError)
		}
	}
	return text
}

func name(r scheduler.ReplicaStats) string { return cmp.Or(r.Label, "without a label") }

// remedies say what to do about requests that ended without a result.
var remedies = map[scheduler.Outcome]string{
	scheduler.OutcomeQueueRows:         "the queue had queue_rows rows. Raise it, or add replicas",
	scheduler.OutcomeQueueBytes:        "the queue had queue_bytes bytes. Raise it, or add replicas",
	scheduler.OutcomeStreams:           "frames of more streams of one client waited than streams_per_client. Look for clients that name a new stream in each request",
	scheduler.OutcomeQueueShapes:       "rows of too many different shapes waited. Let clients send fewer",
	scheduler.OutcomeMemory:            "there was no payload memory for their answers. Raise limits.payload_bytes, or let clients send fewer requests at a time",
	scheduler.OutcomePredicted:         "they could not be answered in time. The load is more than the replicas can serve",
	scheduler.OutcomeDisplaced:         "their client took more than its share of a full queue",
	scheduler.OutcomeDeadlineNeverSent: "their deadlines passed before a replica took them. The load is more than the replicas can serve",
	scheduler.OutcomeDeadlineSentLate:  "they were sent with little chance of an answer in time, and were late",
	scheduler.OutcomeDeadlineContainer: "the container took longer than planned. If that is frequent its times vary too much for the deadlines",
	scheduler.OutcomeUnavailable:       "there was no live replica",
	scheduler.OutcomeContainerFailed:   "the container failed on them",
	scheduler.OutcomeContainerLost:     "their replica was lost, and they could not be tried again",
	scheduler.OutcomeTooLarge:          "they were larger than queue_rows or queue_bytes",
}

// refusals says which requests had no result and why, the most frequent first.
func refusals(s scheduler.Stats) (out []string) {
	all := uint64(0)
	for _, n := range s.Recent.Outcomes {
		all += n
	}
	for _, o := range frequent(s.Recent.Outcomes) {
		if n := s.Recent.Outcomes[o]; remedies[o] != "" && n > 0 {
			out = append(out, fmt.Sprintf("%s (%s) had no result, %s: %s.",
				plural.Of(n, "request"), percent(n, all),
				strings.ReplaceAll(o.String(), "_", " "), remedies[o]))
		}
	}
	return out
}

// round keeps about three digits.
func round(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Microsecond, 10 * time.Microsecond, 100 * time.Microsecond} {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(time.Millisecond)
}
