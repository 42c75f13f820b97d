package metrics

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestStages: what requests were at a stage is counted since the stage is known and, without what
// was not begun, for the last minute; a stage that is gone has no counts when it returns.
func TestStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New("1.2.3")
		p := m.Model("plates", "")
		read := p.Stages("detect", "read")[1]
		run := StageRun{Rows: Ended{OK: 3, ContainerFailed: 1}, LeftOut: 2, Took: 20 * time.Millisecond,
			Waited: 5 * time.Millisecond, Whole: 100 * time.Millisecond}
		read.Ran(&run)
		time.Sleep(40 * time.Second)
		read.Ran(&run)
		read.Ran(&StageRun{}) // nothing was found
		read.Ran(&StageRun{Rows: Ended{DeadlineExceeded: 4}, NotBegun: 4})
		all, recent := read.Counts()
		if all != recent || all.Requests != 4 || all.Begun != 2 || all.Rows.Answered() != 12 || all.LeftOut != 4 ||
			all.NotBegun != 4 ||
			all.Took != 40*time.Millisecond || all.Waited != 10*time.Millisecond || all.Share < 0.399 ||
			all.Share > 0.401 {
			t.Errorf("%+v, recently %+v", all, recent)
		}
		if got := all.Within(0.99); got < 20*time.Millisecond || got > 40*time.Millisecond {
			t.Errorf("99 %% within %v", got)
		}
		time.Sleep(40 * time.Second)
		if _, recent = read.Counts(); recent.Requests != 3 || recent.Begun != 1 {
			t.Errorf("after the minute of the first: %+v", recent)
		}
		expect(t, m, map[string]string{
			`shivad_stage_rows_total{outcome="ok",pipeline="plates",stage="read"}`:                "6",
			`shivad_stage_rows_total{outcome="container_failed",pipeline="plates",stage="read"}`:  "2",
			`shivad_stage_rows_total{outcome="deadline_exceeded",pipeline="plates",stage="read"}`: "4",
			`shivad_stage_rows_total{outcome="ok",pipeline="plates",stage="detect"}`:              "",
			`shivad_stage_left_out_total{pipeline="plates",stage="read"}`:                         "4",
			`shivad_stage_not_begun_total{pipeline="plates",stage="read"}`:                        "4",
			`shivad_stage_wait_seconds_total{pipeline="plates",stage="read"}`:                     "0.01",
			`shivad_stage_duration_seconds_count{pipeline="plates",stage="read"}`:                 "2",
			`shivad_stage_duration_seconds_sum{pipeline="plates",stage="read"}`:                   "0.04",
		})
		if again := p.Stages("read", "more"); again[0] != read || p.Stage("detect") != nil ||
			p.Stage("more") != again[1] {
			t.Error("a stage of the same name has begun again, or one that is gone has counts")
		}
	})
}
