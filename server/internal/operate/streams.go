package operate

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva/plural"
)

// Streams lists the streams of every version of a model, at most that many per version; nil: there
// is no such model.
func (r *Report) Streams(model string, most int) (all []admin.VersionStreams) {
	for _, target := range r.Gate.TargetsOf(model) {
		v := admin.VersionStreams{Name: model, Version: target.ID.Version, Known: target.Model.Stats().Streams,
			Streams: []admin.Stream{}}
		for _, s := range target.Model.Streams(most) {
			v.Streams = append(v.Streams, admin.Stream{
				Name: s.Name, Connection: s.Connection != 0, Keep: s.Keep, Waiting: s.Waiting, Span: s.Span.Seconds(),
				Frames: s.Frames, Answered: s.Answered, Superseded: s.Superseded,
				Age: s.Age.Seconds(), Late: s.Late.Seconds(), Silent: s.Silent.Seconds(),
			})
		}
		all = append(all, v)
	}
	return all
}

// Limits of what an explanation says about streams.
const (
	namedStreams = 3                      // this many of the worst streams
	worthALook   = 100 * time.Millisecond // between the capture of a frame and its arrival
)

// explainStreams says how old the frames of a model's answers are, and why. list holds all of the
// model's streams, worst first.
func explainStreams(s scheduler.Stats, list []scheduler.StreamStats) (out []string) {
	n := &s.Recent
	if len(list) == 0 || n.Frames == 0 {
		return nil
	}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	does, brings := 0.0, 0.0 // frames per second; each stream has a span of its own
	for _, stream := range list {
		span := max(stream.Span.Seconds(), 0.001)
		does, brings = does+float64(stream.Answered)/span, brings+float64(stream.Frames)/span
	}
	slow := does < 0.9*brings
	for _, stream := range list[:min(namedStreams, len(list))] {
		text := fmt.Sprintf("%s gets answers for frames %v old", source(stream), round(stream.Age))
		if stream.Answered == 0 {
			text = fmt.Sprintf("%s got no answers for its %s in the last %v", source(stream),
				plural.Of(stream.Frames, "frame"), round(stream.Span))
		}
		if slow {
			say("%s: the model answers %s frames a second, its streams send %s.", text, figure(does), figure(brings))
		} else {
			say("%s; the model answers all that its streams send, %s a second.", text, figure(brings))
		}
		if stream.Late >= worthALook && stream.Late > stream.Age/2 {
			say("Its frames were up to %v old when they arrived: the network is slow, or the clock that sets captured_at is behind.",
				round(stream.Late))
		}
	}
	if slow {
		say("%s", newerFrames(s, list[0], does))
	}
	if i := slices.IndexFunc(list, func(s scheduler.StreamStats) bool { return s.Undated > 0 }); i >= 0 {
		say("%s has frames whose captured_at is before 1973: the clock of its client is not set, or counts seconds in place of milliseconds. The age of these frames counts from their arrival.",
			source(list[i]))
	}
	if n.Reordered > 0 {
		say("%s a seq that was not above that of the frame before. Frames are answered in the order in which they arrive; check whether two clients use one stream name.",
			plural.Words(n.Reordered, "frame had", "frames had"))
	}
	return out
}

// source names a stream at the beginning of a sentence.
func source(s scheduler.StreamStats) string {
	if s.Connection != 0 {
		return "The connection from " + s.Name
	}
	return "Stream " + fault.Cut(strconv.Quote(s.Name), 100)
}

// newerFrames says what to change so that a model that is too slow for its streams answers newer
// frames.
func newerFrames(s scheduler.Stats, worst scheduler.StreamStats, does float64) string {
	switch worst.Keep {
	case setting.KeepAll:
		return fmt.Sprintf("With keep = \"all\" frames wait behind all older ones, and end at their deadlines. \"shivactl models set %s keep=latest\" makes the server execute the newest frames, for streams whose requests and application do not set keep.", s.ID.Name)
	case setting.KeepLatest:
		text := "More replicas, a faster model or fewer streams give answers for newer frames"
		if does > 0 {
			each := time.Duration(float64(s.Streams) / does * float64(time.Second))
			text = fmt.Sprintf("The %d streams take turns, so each gets an answer about every %v. ", s.Streams,
				round(each)) + text
		}
		if s.Config.MaxBatch == 1 && !s.Unbatched {
			text += "; so do batches, which have a frame of each stream: max_batch is 1"
		}
		if s.Config.StreamInterval == 0 {
			return text + ". The number of replicas needed counts these streams only if stream_interval says how often they shall have an answer."
		}
		return text +
			fmt.Sprintf(". The number of replicas needed counts an answer for each of them every %v (stream_interval).",
				s.Config.StreamInterval)
	}
	return fmt.Sprintf("With keep = %v a frame waits behind up to %d older ones; keep = \"latest\" answers newer ones.",
		worst.Keep, worst.Keep-1)
}
