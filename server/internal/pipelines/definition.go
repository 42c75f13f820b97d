package pipelines

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler/naming"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/nearest"
)

// A Definition is a pipeline as operators write it, and as the store keeps it.
type Definition = admin.Pipeline

// Bounds of a definition.
const (
	MaxStages = 32
	MaxInputs = 64
	maxName   = 64 // bytes of the name of a stage, an input or an output
)

// A Pipeline is a definition whose graph is sound. Whether it fits the models says [Pipeline.Fit].
// It is immutable.
type Pipeline struct {
	Definition
	slo    time.Duration
	stages []stage // in an order in which each stage comes after those that it reads
}

// A stage is an admin.Stage with its references resolved.
type stage struct {
	admin.Stage
	timeout time.Duration // 0: none
	reads   []source      // by input of the model, sorted by name
	each    source        // of Each; its stage is request if there is none
	scope   int           // the stage whose Each made the rows; request: rows of the request
	needed  bool          // Required, or its default
}

// request stands for the client's request where a stage is expected.
const request = -1

// A source is where a value comes from.
type source struct {
	input  string // of the model that gets it
	stage  int    // index of the stage that makes it; request: an input of the pipeline
	output string // of that stage's model, or the name of the pipeline's input
}

// New checks a definition by itself. The error wraps scheduler.ErrInvalidInput and lists all
// faults, each with the stage that it is in.
func New(d Definition) (*Pipeline, error) {
	c := check(d)
	if c.faults != nil {
		return nil, fault.Invalid("pipeline %q: %s", d.Name,
			gate.Join(c.faults, func(f setting.Fault) string { return f.Text }, "; "))
	}
	return c.p, nil
}

// Faults lists what is wrong with a definition by itself, by its keys in a configuration file.
func Faults(d Definition) setting.Faults { return check(d).faults }

// check makes a pipeline of a definition that has no faults.
func check(d Definition) *checker {
	c := &checker{d: d, p: &Pipeline{Definition: d}}
	c.head()
	for i := range d.Stages {
		c.stage(i)
	}
	if c.faults == nil {
		c.references()
	}
	if c.faults == nil {
		c.sort()
	}
	if c.faults == nil {
		c.scopes()
		c.unused()
	}
	return c
}

// A checker collects what is wrong with a definition.
type checker struct {
	d      Definition
	p      *Pipeline
	faults setting.Faults
}

func (c *checker) add(key, format string, args ...any) { c.faults.Add(key, format, args...) }

// key returns the key of a setting of a stage in a configuration file.
func (c *checker) key(stage, setting string) string {
	i := slices.IndexFunc(c.d.Stages, func(s admin.Stage) bool { return s.Name == stage })
	return fmt.Sprintf("stage[%d].%s", i, setting)
}

func (c *checker) head() {
	d := &c.d
	if err := naming.CheckModel(d.Name); err != nil {
		c.add("", "name: %v", err)
	}
	if n := len(d.Stages); n == 0 || n > MaxStages {
		c.add("stage", "stages: %d, expected 1 to %d", n, MaxStages)
	}
	if n := len(d.Inputs); n > MaxInputs {
		c.add("inputs", "inputs: %d, expected at most %d", n, MaxInputs)
	}
	for i, name := range d.Inputs {
		if why := badName(name); why != "" {
			c.add(fmt.Sprintf("inputs[%d]", i), "inputs[%d]: %s", i, why)
		}
		if slices.Contains(d.Inputs[:i], name) {
			c.add(fmt.Sprintf("inputs[%d]", i), "inputs[%d]: %q is given twice", i, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Outputs)) {
		if name == "" || len(name) > 2*maxName {
			c.add("outputs", "outputs: the name %.32q has %d bytes, expected 1 to %d", name, len(name), 2*maxName)
		}
	}
	c.p.slo = c.duration("slo", "slo", d.SLO)
	if d.Keep != 0 && !d.Keep.Valid() {
		c.add("keep", "keep: %d, expected %s, or 0 for the setting of the first stage's model", d.Keep,
			setting.KeepValues)
	}
}

// badName says what is wrong with the name of a stage or of an input of the pipeline; "" if
// nothing: a dot separates stages from their outputs.
func badName(name string) string {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Sprintf("the name %.32q has %d bytes, expected 1 to %d", name, len(name), maxName)
	case strings.ContainsAny(name, "./ \t\n\""):
		return fmt.Sprintf("the name %q has a dot, a slash, a space or a quote, and a dot separates a stage from its output", name)
	}
	return ""
}

func (c *checker) duration(key, where, text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		c.add(key, "%s: %q is not a duration such as \"50ms\"", where, text)
	case d < time.Millisecond || d > setting.MaxWait:
		c.add(key, "%s: %v, expected 1ms to %s", where, d, setting.FormatDuration(setting.MaxWait))
	}
	return d
}

// stage checks a stage by itself.
func (c *checker) stage(i int) {
	s := &c.d.Stages[i]
	in, key := fmt.Sprintf("stage %q", s.Name), fmt.Sprintf("stage[%d].", i)
	if why := badName(s.Name); why != "" {
		c.add(key+"name", "stages[%d]: %s", i, why)
	}
	if slices.ContainsFunc(c.d.Stages[:i], func(o admin.Stage) bool { return o.Name == s.Name }) {
		c.add(key+"name", "stages[%d]: the name %q is given twice", i, s.Name)
	}
	model, version, versioned := strings.Cut(s.Model, "/")
	if err := naming.CheckModel(model); err != nil {
		c.add(key+"model", "%s: model: %v", in, err)
	}
	if err := naming.CheckVersion(version); versioned && err != nil {
		c.add(key+"model", "%s: model: version %v", in, err)
	}
	if s.Boxes != "" && s.Boxes != admin.BoxPixels && s.Boxes != admin.BoxParts {
		c.add(key+"boxes", "%s: boxes: %q, expected %q or %q", in, s.Boxes, admin.BoxPixels, admin.BoxParts)
	}
	if !(0 <= s.Margin && s.Margin <= 10) {
		c.add(key+"margin", "%s: margin: %v, expected 0 to 10 times the side of a box", in, s.Margin)
	}
	if s.Each == "" && (s.Keep != nil || s.Margin != 0 || s.Boxes != "") {
		c.add(key+"each", "%s: keep, margin and boxes are for the elements of each, which is not given", in)
	}
	if k := s.Keep; k != nil {
		switch {
		case k.Most < 0:
			c.add(key+"keep.most", "%s: keep: most: %d, expected at least 0", in, k.Most)
		case !(0 <= k.Smallest && k.Smallest <= 1):
			c.add(key+"keep.smallest", "%s: keep: smallest: %v, expected 0 to 1, a part of the picture's side", in,
				k.Smallest)
		case math.IsNaN(k.Score) || math.IsInf(k.Score, 0): // which JSON cannot say
			c.add(key+"keep.score", "%s: keep: score: %v, expected a finite number", in, k.Score)
		}
	}
	c.duration(key+"timeout", in+": timeout", s.Timeout)
}

// references resolves the texts that name inputs and outputs.
func (c *checker) references() {
	for i, s := range c.d.Stages {
		n, key := stage{Stage: s, each: source{stage: request}}, fmt.Sprintf("stage[%d].", i)
		n.timeout, _ = time.ParseDuration(s.Timeout)
		in := fmt.Sprintf("stage %q: ", s.Name)
		for _, input := range slices.Sorted(maps.Keys(s.Inputs)) {
			from, _ := c.resolve(key+"inputs."+input, in+"input "+strconv.Quote(input), s.Inputs[input])
			from.input = input
			n.reads = append(n.reads, from)
		}
		if s.Each != "" {
			var ok bool
			if n.each, ok = c.resolve(key+"each", in+"each", s.Each); ok && n.each.stage == request {
				c.add(key+"each", "%seach: %q is not an output of a stage: expected STAGE.OUTPUT", in, s.Each)
			}
		}
		c.p.stages = append(c.p.stages, n)
	}
	for _, name := range slices.Sorted(maps.Keys(c.d.Outputs)) {
		from, ok := c.resolve("outputs."+name, "output "+strconv.Quote(name), c.d.Outputs[name])
		if ok && from.stage == request {
			c.add("outputs."+name, "output %q: %q is an input of the pipeline, expected STAGE.OUTPUT", name,
				c.d.Outputs[name])
		}
	}
}

// resolve finds what a reference names, with an index into the stages as they are defined. ok is
// false if it names nothing, which is a fault.
func (c *checker) resolve(key, where, text string) (from source, ok bool) {
	if slices.Contains(c.d.Inputs, text) {
		return source{stage: request, output: text}, true
	}
	name, output, dotted := strings.Cut(text, ".")
	i := slices.IndexFunc(c.d.Stages, func(s admin.Stage) bool { return s.Name == name })
	if dotted && i >= 0 && output != "" {
		return source{stage: i, output: output}, true
	}
	known := slices.Clone(c.d.Inputs)
	var stages []string
	for _, s := range c.d.Stages {
		known, stages = append(known, s.Name+".…"), append(stages, s.Name)
	}
	hint := "; there are " + strings.Join(known, ", ")
	if near := nearest.Names(text, c.d.Inputs); len(near) > 0 {
		hint = "; nearest: " + near[0]
	} else if dotted && i < 0 {
		if near := nearest.Names(name, stages); len(near) > 0 {
			hint = "; nearest: " + near[0] + "." + output
		}
		hint = fmt.Sprintf(": there is no stage %q%s", name, hint)
	}
	c.add(key, "%s: %q is neither an input of the pipeline nor STAGE.OUTPUT%s", where, text, hint)
	return source{stage: request}, false
}

// sources lists all that a stage reads.
func (s *stage) sources() []source {
	if s.Each == "" {
		return s.reads
	}
	return append([]source{s.each}, s.reads...)
}

// sort puts each stage after those that it reads, and otherwise leaves the stages in the order of
// the definition.
func (c *checker) sort() {
	stages := c.p.stages
	place := make([]int, len(stages)) // in the order, plus 1; 0: not placed yet
	waits := func(f source) bool { return f.stage != request && place[f.stage] == 0 }
	var sorted []int
	for len(sorted) < len(stages) {
		next := 0
		for next < len(stages) && (place[next] > 0 || slices.ContainsFunc(stages[next].sources(), waits)) {
			next++
		}
		if next == len(stages) {
			c.add("stage", "stages %s read one another in a circle", c.circle(place))
			return
		}
		sorted = append(sorted, next)
		place[next] = len(sorted)
	}
	now := make([]stage, len(stages))
	for to, from := range sorted {
		s := stages[from]
		for i := range s.reads {
			s.reads[i].stage = moved(place, s.reads[i].stage)
		}
		s.each.stage = moved(place, s.each.stage)
		now[to] = s
	}
	c.p.stages = now
}

func moved(place []int, stage int) int {
	if stage == request {
		return request
	}
	return place[stage] - 1
}

// circle names stages that read one another, with an arrow to the one that reads.
func (c *checker) circle(place []int) string {
	at := slices.Index(place, 0)
	var way []int
	for !slices.Contains(way, at) {
		way = append(way, at)
		for _, f := range c.p.stages[at].sources() { // one of them is not placed
			if f.stage != request && place[f.stage] == 0 {
				at = f.stage
				break
			}
		}
	}
	way = append(way[slices.Index(way, at):], at)
	slices.Reverse(way)
	names := make([]string, len(way))
	for i, w := range way {
		names[i] = strconv.Quote(c.p.stages[w].Name)
	}
	return strings.Join(names, " → ")
}

// scopes determines whose rows each stage has.
func (c *checker) scopes() {
	stages := c.p.stages
	for i := range stages {
		s := &stages[i]
		s.scope = request
		deepest, by := request, ""
		if s.Each != "" {
			deepest, by = stages[s.each.stage].scope, s.Each
		}
		for _, f := range s.reads {
			of := request
			if f.stage != request {
				of = stages[f.stage].scope
			}
			switch {
			case c.p.within(of, deepest) || s.Each != "" && f.stage == s.each.stage:
			case c.p.within(deepest, of) && s.Each == "":
				deepest, by = of, s.Inputs[f.input]
			default:
				c.add(c.key(s.Name, "inputs."+f.input), "stage %q: input %q reads %q, which has a value for each row of stage %q, and not for each row of %s",
					s.Name, f.input, s.Inputs[f.input], stages[of].Name, c.rowsOf(deepest, by))
			}
		}
		if s.scope = deepest; s.Each != "" {
			s.scope = i
		}
		s.needed = s.scope == request
		if s.Required != nil {
			s.needed = *s.Required
		}
	}
}

func (c *checker) rowsOf(scope int, by string) string {
	if scope == request {
		return fmt.Sprintf("the request, as %q has", by)
	}
	return fmt.Sprintf("stage %q, as %q has", c.p.stages[scope].Name, by)
}

// within reports whether rows of scope outer contain those of scope inner, or are the same.
func (p *Pipeline) within(outer, inner int) bool {
	for inner != outer && inner != request {
		inner = p.parent(inner)
	}
	return inner == outer
}

// parent is the scope of the rows whose elements are the rows of a scope.
func (p *Pipeline) parent(scope int) int { return p.stages[p.stages[scope].each.stage].scope }

// unused finds inputs and stages whose values nothing needs.
func (c *checker) unused() {
	used, read := make([]bool, len(c.p.stages)), map[string]bool{}
	for _, s := range c.p.stages {
		for _, f := range s.sources() {
			if f.stage == request {
				read[f.output] = true
			} else {
				used[f.stage] = true
			}
		}
	}
	for _, text := range c.d.Outputs {
		name, _, _ := strings.Cut(text, ".")
		used[c.p.index(name)] = true
	}
	for i, s := range c.p.stages {
		if !used[i] && len(c.d.Outputs) > 0 {
			c.add(c.key(s.Name, "name"), "stage %q: neither a stage nor an output of the pipeline reads what it makes", s.Name)
		}
	}
	for _, name := range c.d.Inputs {
		if !read[name] {
			c.add("inputs", "input %q: no stage reads it", name)
		}
	}
}

// index returns the place of a stage in the order of execution; -1: there is none of that name.
func (p *Pipeline) index(name string) int {
	return slices.IndexFunc(p.stages, func(s stage) bool { return s.Name == name })
}

// Models lists the models, applications and pipelines that the stages name, each once.
func (p *Pipeline) Models() []string {
	var list []string
	for _, s := range p.stages {
		list = append(list, s.Model)
	}
	slices.SortFunc(list, cmp.Compare)
	return slices.Compact(list)
}
