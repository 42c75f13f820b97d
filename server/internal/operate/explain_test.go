package operate

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
)

// aMinute returns what a scheduler tells of a model that was asked for a minute, but for a change.
func aMinute(change func(*scheduler.Stats)) scheduler.Stats {
	s := scheduler.Stats{
		ID: scheduler.ModelID{Name: "m", Version: "1"}, Live: 1, Predictable: true, Span: time.Minute,
		Config: scheduler.ModelConfig{Strategy: "deadline", Objective: 20 * time.Millisecond, BatchBytes: 1 << 20,
			ExecTimeout: time.Second},
		// Nothing from before the last minute may be mentioned.
		Counts: scheduler.Counts{Submitted: 1 << 40, Peak: 999, Batches: 1 << 30, Rows: 1 << 40,
			BatchesDone: 1 << 30, BatchesFailed: 1 << 20, Suspected: 77,
			Outcomes: map[scheduler.Outcome]uint64{scheduler.OutcomeMemory: 1 << 40},
			Closed:   map[scheduler.CloseReason]uint64{scheduler.CloseShape: 1 << 30}},
		Recent: scheduler.Counts{Submitted: 120, Batches: 50, Rows: 100, BatchesDone: 50,
			Outcomes: map[scheduler.Outcome]uint64{scheduler.OutcomeOK: 100},
			Closed:   map[scheduler.CloseReason]uint64{}},
		Replicas: []scheduler.ReplicaStats{{Label: "A", State: "live", Limit: 30, Largest: 15, MaxBatch: 128,
			Profile: []scheduler.ProfilePoint{{Rows: 1, Typical: 5500 * time.Microsecond},
				{Rows: 10, Typical: 10 * time.Millisecond, Planned: 11 * time.Millisecond}}}},
	}
	change(&s)
	return s
}

// TestSentences: each situation has the sentence that an operator needs.
func TestSentences(t *testing.T) {
	closed := func(r scheduler.CloseReason) func(*scheduler.Stats) {
		return func(s *scheduler.Stats) { s.Recent.Closed[r] = 45; s.Recent.Peak = 7 }
	}
	ended := func(o scheduler.Outcome) func(*scheduler.Stats) {
		return func(s *scheduler.Stats) { s.Recent.Outcomes[o] = 25 }
	}
	both := func(a, b func(*scheduler.Stats)) func(*scheduler.Stats) {
		return func(s *scheduler.Stats) { a(s); b(s) }
	}
	for _, c := range []struct {
		change func(*scheduler.Stats)
		want   string
	}{
		{func(s *scheduler.Stats) { s.Recent.Batches = 0 }, "No batch was sent in the last 1m0s"},
		{func(s *scheduler.Stats) { s.Recent.Batches = 1; s.Recent.Submitted = 1; s.Replicas[0].Limit = 1 }, "1 request was accepted, 0.0 a second. 1 batch was sent, of 100.0 rows on average; the current batch limit is 1 row ("},
		{func(s *scheduler.Stats) { s.Recent.Outcomes[scheduler.OutcomeMemory] = 1 }, "1 request (0.99 %) had no result, memory"},
		{func(s *scheduler.Stats) { s.Ago = 23 * time.Minute }, "Nothing has happened for 23m0s: what follows describes the time before.\nIn the last 1m0s of it, the time that these figures cover, 120 requests were accepted, 2.0 a second."},
		{func(s *scheduler.Stats) {}, "In the last 1m0s, the time that these figures cover, 120 requests were accepted, 2.0 a second. 50 batches were sent, of 2.0 rows on average; the current batch limit is 30 rows (strategy deadline)."},
		{func(s *scheduler.Stats) { s.Recent.Closed[scheduler.CloseIdle] = 50; s.Recent.Peak = 1 }, "the client waits for each reply"},
		{closed(scheduler.CloseIdle), "At most 7 requests were unanswered"},
		{closed(scheduler.CloseFull), "90 % of the batches were full (30 rows): neither the container nor max_batch declares the largest batch"},
		{both(closed(scheduler.CloseFull), func(s *scheduler.Stats) { s.Config.MaxBatch = 30 }), "max_batch is 30. Raise it, if the container takes more."},
		{both(closed(scheduler.CloseFull), func(s *scheduler.Stats) { s.Replicas[0].Declared = 30 }), "the container declares max_batch 30"},
		{closed(scheduler.CloseDeadline), "Longer deadlines or more replicas"},
		{closed(scheduler.CloseDelay), "waited for delay"},
		{closed(scheduler.CloseShape), "Let clients send one shape"},
		{closed(scheduler.CloseLimit), "the largest one measured, which is 15 rows"},
		{closed(scheduler.CloseObjective), "more than 30 rows they would take longer than 20ms. Raise objective"},
		{func(s *scheduler.Stats) {}, "a batch of 10 rows takes 10ms, planned with 11ms; that is 1000 rows/s"},
		{closed(scheduler.CloseObjective), "Larger ones are tried now and then while rows wait"},
		{closed(scheduler.CloseObjective), "Before you add replicas, look at what bounds the present ones: objective is 20ms."},
		{closed(scheduler.CloseRate), "Beyond that only more replicas, or a faster model, help."},
		{closed(scheduler.CloseRate), "larger ones were measured, and answer no more"},
		{closed(scheduler.CloseBytes), "bounds the present ones: batch_bytes is 1048576."},
		{closed(scheduler.CloseBytes), "90 % of the batches are bounded by batch_bytes, 1048576"},
		{closed(scheduler.CloseFailures), "larger ones fail"},
		{closed(scheduler.CloseTrial), "to measure it"},
		{closed(scheduler.CloseRetry), "repeat rows of failed batches"},
		{func(s *scheduler.Stats) {
			s.Replicas[0].Concurrency, s.Replicas[0].AtOnce, s.Replicas[0].Slots = 1, 4, 1
		},
			"bounds the present ones: slots is 1, and replica A could execute 4 at once."},
		{func(s *scheduler.Stats) { s.Replicas[0].Serial, s.Replicas[0].Slots = true, 1 }, "replica A gets one batch at a time"},
		{func(s *scheduler.Stats) {
			r := &s.Replicas[0]
			s.Failing, r.State, r.Failed, r.LastError, r.LastFailed = 1, scheduler.ReplicaFailing, 31,
				errors.New("no kernel image"), 2*time.Second
		}, "Replica A fails on every batch, 31 so far; the last one 2s ago: no kernel image."},
		{func(s *scheduler.Stats) { s.Failing = 1 }, "nothing is answered, though the model counts as ready"},
		{func(s *scheduler.Stats) {
			r := &s.Replicas[0]
			s.Live, r.State, r.OldestBatch, r.LastError = 0, scheduler.ReplicaSuspect, 12*time.Second, errors.New("no answer within execution_timeout, 1s")
		}, "Replica A hangs: a batch was sent 12s ago and is not answered. It gets only probes until it answers, and loses its session if it still does not answer; the last error: no answer within execution_timeout, 1s."},
		{func(s *scheduler.Stats) {
			r := &s.Replicas[0]
			s.Recent.BatchesFailed, r.LastError, r.LastFailed = 5, errors.New("too dark"), time.Second
		}, "10 % of the batches failed. Replica A failed one 1s ago: too dark."},
		{ended(scheduler.OutcomeMemory), "25 requests (20 %) had no result, memory: there was no payload memory for their answers. Raise limits"},
		{func(s *scheduler.Stats) { s.Replicas[0].Stalls, s.Replicas[0].Stall = 0.03, 33*time.Millisecond },
			"Replica A was held up in 3 % of its last batches, by about 33ms whatever their size"},
		{func(s *scheduler.Stats) { s.Predictable = false }, "not been measured well enough yet"},
		{func(s *scheduler.Stats) { s.Recent.BatchesFailed = 5 }, "10 % of the batches failed."},
		{func(s *scheduler.Stats) { s.Recent.Suspected = 3 }, "execution_timeout, 1s"},
		{ended(scheduler.OutcomeQueueRows), "25 requests (20 %) had no result, queue rows: the queue had queue_rows rows"},
		{ended(scheduler.OutcomeDeadlineNeverSent), "deadlines passed before a replica took them"},
	} {
		got := strings.Join(sentences(aMinute(c.change), ""), "\n")
		if !strings.Contains(got, c.want) {
			t.Errorf("want %q in\n%s", c.want, got)
		}
		for _, old := range []string{"1099511627776", "999", "77 times"} {
			if strings.Contains(got, old) {
				t.Errorf("%q is from before the last minute, in\n%s", old, got)
			}
		}
	}
	for _, r := range []scheduler.CloseReason{scheduler.CloseFull, scheduler.CloseObjective, scheduler.CloseBytes,
		scheduler.CloseDeadline} {
		if got := strings.Join(sentences(aMinute(closed(r)), ""), "\n"); strings.Contains(got, "only more replicas") {
			t.Errorf("batches closed for %s, and only more replicas are to help:\n%s", r, got)
		}
	}
	for _, r := range scheduler.CloseReasons() {
		if text := closeReason(aMinute(func(*scheduler.Stats) {}), r); strings.HasPrefix(text, "were closed because of") {
			t.Errorf("nothing is said about batches closed for %s", r)
		}
	}
}

// TestSentencesUnbatched: a model that is not batched is not spoken of as if it were.
func TestSentencesUnbatched(t *testing.T) {
	s := scheduler.Stats{
		ID: scheduler.ModelID{Name: "m", Version: "1"}, Live: 1, Unbatched: true, Span: time.Minute,
		Config: scheduler.ModelConfig{Strategy: "deadline", MaxBatch: 1},
		Recent: scheduler.Counts{Submitted: 120, Batches: 50, Rows: 50, Peak: 7},
		Replicas: []scheduler.ReplicaStats{{Label: "A", State: "live", Limit: 1, Largest: 1, MaxBatch: 1, Ceiling: 1,
			Profile: []scheduler.ProfilePoint{{Rows: 1, Typical: 5500 * time.Microsecond}}}},
	}
	for _, r := range scheduler.CloseReasons() {
		s.Recent.Closed = map[scheduler.CloseReason]uint64{r: 50}
		got := strings.Join(sentences(s, ""), "\n")
		want := "120 requests were accepted, 2.0 a second. 50 were sent to replicas, one by one."
		if !strings.Contains(got, want) ||
			strings.Contains(got, "max_batch") || strings.Contains(got, "of the batches") {
			t.Errorf("closed for %s: got\n%s\nexpected\n%s", r, got, want)
		}
	}
}

// TestExplainWaits: the latest wait for clients that ask again on each answer is told with what
// came of it, however few batches waited, and a busy replica is not said to be lightly loaded.
func TestExplainWaits(t *testing.T) {
	measured := []scheduler.Measurement{{Rows: 2, Took: 1100 * time.Millisecond}}
	busy := scheduler.Stats{Span: time.Minute, Recent: scheduler.Counts{Batches: 50},
		Replicas: []scheduler.ReplicaStats{{State: "live", Concurrency: 1, Measured: measured}}}
	got, want := closeReason(busy, scheduler.CloseIdle), "the replicas are busy nearly all the time"
	if !strings.Contains(got, want) {
		t.Errorf("want %q in %q", want, got)
	}
	for _, c := range []struct {
		inVain uint64
		wait   scheduler.Wait
		want   string
	}{
		{0, scheduler.Wait{Took: 600 * time.Microsecond, Hoped: 16, Came: 15, Gain: 1.9},
			"waited 600µs for 16 rows whose clients ask again on each answer; 15 came, which answers 1.9 times as many a second. In all, 40 such waits brought 600 rows."},
		{10, scheduler.Wait{Took: time.Millisecond, Hoped: 3, Came: 1, Gain: 1.5}, "1 came, so it was in vain. In all, 40 such waits brought 600 rows; 25 % of them were in vain."},
		{0, scheduler.Wait{Took: time.Millisecond, Hoped: 1}, "0 came, to measure a batch of that size."},
	} {
		s := scheduler.Stats{Live: 1, Recent: scheduler.Counts{Batches: 1000, Waits: 40, WaitedRows: 600,
			WaitsInVain: c.inVain}, LastWait: c.wait}
		if got := strings.Join(sentences(s, ""), "\n"); !strings.Contains(got, c.want) {
			t.Errorf("want %q in %q", c.want, got)
		}
	}
	if got := explainWaits(scheduler.Stats{}); got != nil {
		t.Errorf("without waits: %q", got)
	}
}

// TestExplainCulprits: a request that ended a container is named as its client would name it.
func TestExplainCulprits(t *testing.T) {
	s := scheduler.Stats{Culprits: []scheduler.Culprit{
		{Name: `"7", from bob (connection 12)`, Stream: "cam", Replica: "A", Err: errors.New("it hung up"),
			Ago: time.Second},
	}}
	want := `loss of a container, "A", which executed it alone 1s ago: "7", from bob (connection 12), a frame of stream "cam" (it hung up).`
	if got := strings.Join(sentences(s, ""), "\n"); !strings.Contains(got, want) {
		t.Errorf("want %q in\n%s", want, got)
	}
}

// processDocuments that share processors answer no more if there are more of them, and nothing
// advises more.
func TestSentencesOfCrowds(t *testing.T) {
	measured := []scheduler.ReplicaStats{{Label: "A", State: scheduler.ReplicaLive,
		Profile: []scheduler.ProfilePoint{{Rows: 1, Typical: time.Second}}}}
	s := scheduler.Stats{Live: 1, Replicas: measured, Need: scheduler.Need{Replicas: 9, Worth: 1}}
	s.Recent.Batches = 1
	for crowded, want := range map[string]int{"": 0, "4 processes want 4 processors, and it may use 2": 2} {
		got := strings.Join(sentences(s, crowded), "\n")
		if strings.Contains(got, "only more replicas") != (want == 0) || strings.Count(got, "it may use 2") != want {
			t.Errorf("%q: %s", crowded, got)
		}
	}
}

// How many replicas there should be, and why.
func TestSentencesOfNeed(t *testing.T) {
	for _, c := range []struct {
		need scheduler.Need
		want string
	}{
		{scheduler.Need{}, "No replica is needed: nothing has arrived for a minute, and nothing waits."},
		{scheduler.Need{Replicas: 1, Arriving: 3}, "The number of replicas needed is not known: no replica has answered enough requests to show its rate. One is assumed."},
		{scheduler.Need{Replicas: 2, Load: 1.5, Worth: 100, Arriving: 120, Waiting: 7},
			"About 120 rows/s arrive, including refused ones, and 7 rows wait beyond the next batches. A replica has a capacity of 100 rows/s, of which it should carry at most 80 %. Replicas needed: 2 (1.50); live: 1."},
	} {
		if got := explainNeed(scheduler.Stats{Live: 1, Need: c.need}, ""); len(got) != 1 || got[0] != c.want {
			t.Errorf("%+v: %q, want %q", c.need, got, c.want)
		}
	}
}

// What the proof of a model file found is told, whatever else the parameters are.
func TestProof(t *testing.T) {
	for parameters, want := range map[string]string{
		`{"proof": "rows: 2 and 3 random rows had the same answers", "device": "cpu"}`: "Before the model registered, its container tested whether rows can share a batch. " +
			"Result: rows: 2 and 3 random rows had the same answers.",
		`{"proof": 5}`: "", `{}`: "", ``: "",
	} {
		if got := strings.Join(proof([]byte(parameters)), "\n"); got != want {
			t.Errorf("%s: %q", parameters, got)
		}
	}
}

// A version that no replica serves any more gets no advice about the size of batches.
func TestSentencesWithoutReplicas(t *testing.T) {
	s := aMinute(func(s *scheduler.Stats) { s.Replicas, s.Recent.Closed[scheduler.CloseFull] = nil, 45 })
	got := strings.Join(sentences(s, ""), "\n")
	if !strings.Contains(got, "50 batches were sent, of 2.0 rows on average.") || strings.Contains(got, "were full") {
		t.Error(got)
	}
}

func TestStageRows(t *testing.T) {
	for rows, want := range map[uint64]string{4: "1 row", 8: "2 rows", 6: "1.5 rows"} {
		got := explainStage(admin.Stage{Name: "read", Model: "m"},
			admin.StageLoad{Requests: 4, Rows: rows, Batch: float64(rows) / 4})
		if !strings.Contains(got, "with "+want+" each; batches of m have "+want+" on average") {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}
