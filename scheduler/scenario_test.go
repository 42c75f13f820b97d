package scheduler_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/tensor"
)

var rewrite = flag.Bool("rewrite", false, "write what happened into the scenario files")

// TestScenarios plays the stories in testdata/*.txt. A story is a list of scenes: commands, a line
// of four dashes, and what happens, up to an empty line. Lines with # are for the reader. Time
// stands still except for "advance", "answer … after=D" and "teach".
//
//	config strategy=static max_batch=4 …  the model's configuration, at any time
//	replica A batch=4 slots=1 concurrency=2  A registers; returns=2s: a successor of it would come;
//	                                      unbatched=true: its tensors have no dimension for rows
//	teach A 5ms 0.5ms 32                  A answers batches of 1, 1, 2, 4, … 32 rows in a + b·rows
//	submit r1 r2 deadline=50ms …          in one call; rows= priority= source= width= stream= keep=,
//	                                      connection= for the stream of a connection
//	cancel r1
//	advance 10ms
//	answer A after=10ms bad-row=1 nth=2   A answers its oldest batch, or the second
//	fail A why / wrong A / refuse A why   … or fails, answers with a row too many, or InvalidInput
//	remove A why / drain A / break A why  A goes, goes when it is done, or turns out to be gone
//	end cam connection=1                  the connection that is a stream is closed
//	forget                                the model, which has no replica
//	state                                 the queue, what is in flight, and the known streams
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := newStory(t).play(string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s", difference(string(text), got))
			}
		})
	}
}

// difference shows the first line that differs, with the lines before it.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range g {
		if i >= len(w) || w[i] != g[i] {
			wanted := "(end)"
			if i < len(w) {
				wanted = w[i]
			}
			return fmt.Sprintf("line %d, after\n%s\nwant %q\ngot  %q", i+1, strings.Join(g[max(0, i-6):i], "\n"),
				wanted, g[i])
		}
	}
	return "the story goes on after what happened"
}

type story struct {
	t         *testing.T
	clock     *schedtest.Clock
	start     time.Time
	sched     *scheduler.Scheduler
	model     *scheduler.Model
	replicas  map[string]*storyReplica
	requests  map[string]*scheduler.Request
	names     map[*scheduler.Request]string
	out       strings.Builder
	quiet     bool
	unbatched bool                  // of the replicas that register
	frame     scheduler.Frame       // of the requests that are being submitted, if it names a stream
	reason    scheduler.CloseReason // of the batch that is being sent
}

type storyReplica struct {
	schedtest.Worker
	rep    *scheduler.Replica
	badRow int
	wrong  bool
}

var storyID = scheduler.ModelID{Name: "m", Version: "1"}

func newStory(t *testing.T) *story {
	s := &story{
		t: t, clock: schedtest.NewClock(), replicas: make(map[string]*storyReplica),
		requests: make(map[string]*scheduler.Request), names: make(map[*scheduler.Request]string),
	}
	s.start = s.clock.Now()
	sched, err := scheduler.New(scheduler.Config{Clock: s.clock, Hooks: scheduler.Hooks{
		BatchClosed: func(_ scheduler.ModelID, _ int, reason scheduler.CloseReason, _ time.Duration) {
			s.reason = reason
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.sched = sched
	return s
}

func (s *story) say(format string, args ...any) {
	if !s.quiet {
		at := s.clock.Now().Sub(s.start).Round(time.Microsecond)
		fmt.Fprintf(&s.out, "%-8v %s\n", at, fmt.Sprintf(format, args...))
	}
}

func (s *story) play(text string) string {
	var told strings.Builder
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		told.WriteString(line + "\n")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == "----":
			told.WriteString(s.out.String())
			s.out.Reset()
			for i+1 < len(lines) && lines[i+1] != "" {
				i++
			}
		default:
			if err := s.do(line); err != nil {
				s.t.Fatalf("line %d: %s: %v", i+1, line, err)
			}
			if s.model != nil {
				if err := s.model.Check(); err != nil {
					s.t.Fatalf("line %d: %s: %v", i+1, line, err)
				}
			}
		}
	}
	return told.String()
}

// state prints the waiting rows, the state of each replica, and how many streams are known.
func (s *story) state() {
	st := s.model.Stats()
	s.say("%d rows wait, %d live", st.QueueRows, st.Live)
	for _, r := range st.Replicas {
		text := fmt.Sprintf("%s is %s, %d in flight", r.Label, r.State, r.InFlight)
		if r.GivenUp > 0 {
			text += fmt.Sprintf(", %d given up", r.GivenUp)
		}
		s.say("%s", text)
	}
	if st.Frames > 0 {
		s.say("streams: %d", st.Streams)
	}
}

// arguments returns the words of a command: names, and values by their keys.
func arguments(words []string) (names []string, args map[string]string) {
	args = make(map[string]string)
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			args[k] = v
		} else {
			names = append(names, w)
		}
	}
	return names, args
}

// do executes one command.
func (s *story) do(line string) error {
	words := strings.Fields(line)
	names, args := arguments(words[1:])
	number := func(key string, otherwise int) int {
		if v, ok := args[key]; ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				s.t.Fatalf("%s: %v", line, err)
			}
			return n
		}
		return otherwise
	}
	duration := func(key string) time.Duration {
		d, err := time.ParseDuration(cmp.Or(args[key], "0s"))
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		return d
	}
	if words[0] == "config" {
		no := false
		cfg := scheduler.ModelConfig{
			Strategy: args["strategy"], MaxBatch: number("max_batch", 0), Objective: duration("objective"),
			Delay:     duration("delay"),
			QueueRows: number("queue_rows", 0), QueueBytes: int64(number("queue_bytes", 0)),
			ExecTimeout: duration("execution_timeout"), Slots: number("slots", 0), BatchBytes: int64(number("batch_bytes", 0)),
			Pad: args["pad"] == "true",
		}
		if args["retry"] == "false" {
			cfg.Retry = &no
		}
		return s.sched.Configure("m", cfg)
	}
	if words[0] == "state" {
		s.state()
		return nil
	}
	if words[0] == "forget" {
		if !s.sched.Forget(storyID) {
			return errors.New("it has a replica")
		}
		return nil
	}
	if len(names) == 0 {
		return errors.New("names nobody")
	}
	rep := s.replicas[names[0]]
	why := errors.New(strings.Join(names[1:], " "))
	switch words[0] {
	case "replica":
		s.unbatched = args["unbatched"] == "true"
		return s.register(names[0], number("batch", 0), scheduler.ReplicaOptions{
			Label: names[0], Slots: number("slots", 0), Concurrency: number("concurrency", 0),
			Serial: args["serial"] == "true", Returns: duration("returns"),
		})
	case "teach":
		return s.teach(names[0], rep, names[1:])
	case "submit":
		s.frame = scheduler.Frame{Stream: args["stream"], Keep: setting.Keep(number("keep", 0)),
			Connection: uint64(number("connection", 0))}
		s.submit(names, number("rows", 1), number("width", 1), number("priority", 0), number("source", 0), duration("deadline"))
		s.frame = scheduler.Frame{}
	case "end":
		s.model.EndStream(names[0], uint64(number("connection", 0)))
	case "cancel":
		s.sched.Cancel(s.requests[names[0]])
	case "advance":
		d, err := time.ParseDuration(names[0])
		if err != nil {
			return err
		}
		s.clock.Advance(d)
	case "answer":
		s.clock.Advance(duration("after"))
		rep.badRow = number("bad-row", -1)
		return rep.AnswerAt(number("nth", 1) - 1)
	case "wrong":
		rep.wrong = true
		return rep.Answer()
	case "fail":
		return rep.Fail(why)
	case "refuse":
		return rep.Fail(fmt.Errorf("%w: %w", scheduler.ErrInvalidInput, why))
	case "remove":
		rep.Drop()
		rep.rep.Remove(why)
	case "drain":
		rep.rep.Drain(func() { s.say("%s is drained", names[0]) })
	case "break":
		rep.Break(why)
	default:
		return errors.New("no such command")
	}
	return nil
}

func (s *story) register(name string, batch int, options scheduler.ReplicaOptions) error {
	w := &storyReplica{badRow: -1}
	w.Worker.Model = w.answer
	w.Worker.Seen = func(b *scheduler.Batch) {
		var parts []string
		for _, p := range b.Parts {
			parts = append(parts, s.part(p))
		}
		s.say("%s gets %s (%s)", name, strings.Join(parts, " "), s.reason)
	}
	spec := scheduler.Spec{
		Inputs:   []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, -1}}},
		Outputs:  []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, -1}}},
		MaxBatch: batch,
	}
	if s.unbatched {
		shape := tensor.Shape{-1}
		spec.Batching, spec.Inputs[0].Shape, spec.Outputs[0].Shape = scheduler.BatchingNone, shape, shape
	}
	s.replicas[name] = w
	options.Silent = func(err error) { s.say("%s is silent: %v", name, err) }
	rep, err := s.sched.AddReplica(storyID, spec, w, options)
	if err != nil {
		return err
	}
	w.rep, s.model = rep, rep.Model()
	return nil
}

// part names a part by its request, whose number is in its input, with the rows if it has more
// than one.
func (s *story) part(p scheduler.Part) string {
	x, err := tensor.Values[int32](p.Inputs[0])
	if err != nil {
		s.t.Fatal(err)
	}
	width := p.Inputs[0].Shape[1]
	name := fmt.Sprint("r", x[0]/1000)
	if p.Rows > 1 || x[0]%1000 > 0 {
		name += fmt.Sprintf("[%d:%d]", x[0]%1000, x[(p.Rows-1)*width]%1000+1)
	}
	return name
}

func (w *storyReplica) answer(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
	outputs, _, err := schedtest.Echo(b)
	if w.wrong {
		w.wrong = false
		outputs[0].Retain()
		return append(outputs, outputs[0]), nil, err
	}
	if w.badRow >= 0 {
		return outputs, []scheduler.RowError{{Row: w.badRow, Message: "not a digit"}}, err
	}
	return outputs, nil, err
}

func (s *story) submit(names []string, rows, width, priority, source int, deadline time.Duration) {
	var rs []*scheduler.Request
	for _, name := range names {
		number, err := strconv.Atoi(strings.TrimPrefix(name, "r"))
		if err != nil {
			s.t.Fatalf("request %s: its name is r and a number", name)
		}
		values := make([]int32, rows*width)
		for i := range values {
			values[i] = int32(number*1000 + i/width)
		}
		in, err := tensor.FromSlice(tensor.Shape{rows, width}, values)
		if err != nil {
			s.t.Fatal(err)
		}
		r := &scheduler.Request{Model: s.model, Inputs: []tensor.Tensor{in}, Rows: rows, Priority: priority,
			Source: uint64(source), Owner: s}
		if s.frame.Stream != "" {
			f := s.frame
			f.Seq = int64(number)
			r.Frame = &f
		}
		if deadline != 0 {
			r.Deadline = s.clock.Now().Add(deadline)
		}
		s.requests[name], s.names[r] = r, name
		rs = append(rs, r)
	}
	s.sched.Submit(rs...)
}

// Complete reports how a request ended.
func (s *story) Complete(r *scheduler.Request) {
	name := s.names[r]
	if r.Err != nil {
		s.say("%s: %s", name, strings.TrimPrefix(r.Err.Error(), "scheduler: "))
		return
	}
	got, err := tensor.Values[int32](r.Outputs[0])
	if err != nil || !r.Outputs[0].Shape.Equal(r.Inputs[0].Shape) {
		s.t.Errorf("%s has an answer of shape %s", name, r.Outputs[0].Shape)
		return
	}
	if want, _ := tensor.Values[int32](r.Inputs[0]); fmt.Sprint(want) != fmt.Sprint(got) {
		s.t.Errorf("%s has another's answer: %v", name, got)
	}
	if f := r.Frame; f != nil && f.Skipped > 0 {
		name += fmt.Sprintf(" (skipped %d)", f.Skipped)
	}
	s.say("%s: ok", name)
}

// teach lets a replica answer batches of growing size, so that it has a profile.
func (s *story) teach(name string, rep *storyReplica, args []string) error {
	if len(args) != 3 {
		return errors.New("want: teach replica a b rows")
	}
	a, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	b, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	most, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	s.quiet = true
	defer func() { s.quiet = false }()
	for range 3 {
		for n := 1; n <= most; n *= 2 {
			// Three of each size, so that no spread is left.
			for range 3 {
				s.submit([]string{"r0"}, n, 1, 0, 0, 0)
				for len(rep.Pending()) > 0 {
					s.clock.Advance(a + b*time.Duration(rep.Pending()[0]))
					if err := rep.Answer(); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}
