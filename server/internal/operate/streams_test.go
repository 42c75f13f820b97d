package operate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
)

// fourStreams returns what a scheduler tells of a model that cannot answer all of its streams.
func fourStreams() (scheduler.Stats, []scheduler.StreamStats) {
	s := scheduler.Stats{
		ID: scheduler.ModelID{Name: "m", Version: "1"}, Streams: 4,
		// The model has been idle before: its span is not that of the streams.
		Span: 23 * time.Minute, Recent: scheduler.Counts{Frames: 7200, FramesAnswered: 600,
			Outcomes: map[scheduler.Outcome]uint64{scheduler.OutcomeOK: 6000}},
	}
	stream := scheduler.StreamStats{Name: "cam-3", Keep: setting.KeepLatest, Span: time.Minute, Frames: 1800,
		Answered: 150, Age: 430 * time.Millisecond}
	second := stream
	second.Name, second.Age, second.Connection = "10.0.0.7:5001", 420*time.Millisecond, 7
	return s, []scheduler.StreamStats{stream, second, stream, stream}
}

// TestSentencesOfStreams: how old the frames are that a model answers, why, and what helps.
func TestSentencesOfStreams(t *testing.T) {
	answered := func(n int) func(*scheduler.Stats, []scheduler.StreamStats) {
		return func(_ *scheduler.Stats, l []scheduler.StreamStats) {
			for i := range l {
				l[i].Answered = n
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*scheduler.Stats, []scheduler.StreamStats)
		want   []string
		not    string
	}{
		"too slow": {nil, []string{
			`Stream "cam-3" gets answers for frames 430ms old: the model answers 10 frames a second, its streams send 120.`,
			"The connection from 10.0.0.7:5001 gets answers for frames 420ms old",
			"The 4 streams take turns, so each gets an answer about every 400ms. More replicas, a faster model or fewer streams give answers for newer frames.",
			"counts these streams only if stream_interval says how often they shall have an answer.",
		}, "keep="},
		"promised": {func(s *scheduler.Stats, _ []scheduler.StreamStats) { s.Config.StreamInterval = time.Second },
			[]string{"an answer for each of them every 1s"}, "only if"},
		"keep is all": {func(_ *scheduler.Stats, l []scheduler.StreamStats) {
			l[0].Keep, l[0].Age = setting.KeepAll, 29*time.Second
		}, []string{
			`Stream "cam-3" gets answers for frames 29s old`, `"shivactl models set m keep=latest" makes the server execute the newest frames`,
		}, "take turns"},
		"keep is a number": {func(_ *scheduler.Stats, l []scheduler.StreamStats) { l[0].Keep = 8 }, []string{
			`With keep = 8 a frame waits behind up to 7 older ones; keep = "latest" answers newer ones.`,
		}, "take turns"},
		"no batches": {func(s *scheduler.Stats, _ []scheduler.StreamStats) { s.Config.MaxBatch = 1 },
			[]string{"so do batches, which have a frame of each stream: max_batch is 1."}, ""},
		"not batched": {func(s *scheduler.Stats, _ []scheduler.StreamStats) {
			s.Config.MaxBatch, s.Unbatched = 1, true
		}, []string{"More replicas, a faster model"}, "max_batch"},
		"a young stream": {func(_ *scheduler.Stats, l []scheduler.StreamStats) {
			l[0].Span, l[0].Frames, l[0].Answered = time.Second, 30, 1
		}, []string{"the model answers 8.5 frames a second, its streams send 120."}, ""},
		"nothing is answered": {answered(0), []string{
			`Stream "cam-3" got no answers for its 1800 frames in the last 1m0s: the model answers 0 frames a second`, "More replicas, a faster model",
		}, "take turns"},
		"fast enough": {answered(1800), []string{
			`Stream "cam-3" gets answers for frames 430ms old; the model answers all that its streams send, 120 a second.`,
		}, "replicas"},
		"not fast enough": {answered(1600), []string{
			"the model answers 107 frames a second, its streams send 120.", "replicas",
		}, "answers all"},
		"as good as fast enough": {answered(1625), []string{
			"the model answers all that its streams send, 120 a second.",
		}, "replicas"},
		"late on arrival": {func(_ *scheduler.Stats, l []scheduler.StreamStats) { l[0].Late = 300 * time.Millisecond },
			[]string{
				"Its frames were up to 300ms old when they arrived: the network is slow, or the clock that sets captured_at is behind",
			}, ""},
		"a little late": {func(_ *scheduler.Stats, l []scheduler.StreamStats) { l[0].Late = 200 * time.Millisecond },
			nil, "arrived"},
		"young, and late": {func(_ *scheduler.Stats, l []scheduler.StreamStats) {
			l[0].Age, l[0].Late = 100*time.Millisecond, 99*time.Millisecond
		}, nil, "arrived"},
		"a clock that is not set": {func(_ *scheduler.Stats, l []scheduler.StreamStats) { l[0].Undated = 1 }, []string{
			`Stream "cam-3" has frames whose captured_at is before 1973: the clock of its client is not set, or counts seconds`,
		}, "arrived"},
		"out of order": {func(s *scheduler.Stats, _ []scheduler.StreamStats) { s.Recent.Reordered = 9 },
			[]string{"9 frames had a seq that was not above"}, ""},
		"an odd name": {func(_ *scheduler.Stats, l []scheduler.StreamStats) {
			l[0].Name = "\x1b[2J" + strings.Repeat("x", 300)
		}, []string{
			`Stream "\x1b[2Jxxx`,
		}, strings.Repeat("x", 120)},
		"no frames": {func(s *scheduler.Stats, _ []scheduler.StreamStats) { s.Recent.Frames = 0 }, nil, "Stream"},
	} {
		t.Run(name, func(t *testing.T) {
			s, list := fourStreams()
			if c.change != nil {
				c.change(&s, list)
			}
			text := strings.Join(explainStreams(s, list), "\n")
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("expected %q in\n%s", want, text)
				}
			}
			if c.not != "" && strings.Contains(text, c.not) {
				t.Errorf("%q is in\n%s", c.not, text)
			}
		})
	}
	s, list := fourStreams()
	for i := range 3 {
		list = append(list[:2+i], list[0])
		list[2+i].Name = fmt.Sprint("more ", i)
	}
	if text := strings.Join(explainStreams(s, list), "\n"); !strings.Contains(text, "more 0") || strings.Contains(text, "more 1") {
		t.Errorf("expected the worst three of five streams in\n%s", text)
	}
	if s, _ := fourStreams(); explainStreams(s, nil) != nil {
		t.Error("a model without streams is spoken of")
	}
}
