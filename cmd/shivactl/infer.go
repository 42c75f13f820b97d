package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

func (c *cli) inferCommand() *cobra.Command {
	o := &inferOptions{}
	cmd := &cobra.Command{
		Use: "infer ROUTE [FILE...]", Short: "ask a model for predictions",
		Long: `ROUTE is NAME, NAME/VERSION or v2/models/NAME[/versions/VERSION]. The command asks the server which
inputs the model declares, and converts each FILE to them:

  PNG, JPEG   gray or colour, for inputs of [H, W], [H, W, C], [C, H, W] or [H*W*C]. Values are those of the
              file, from 0 to 255 (65535 with 16 bits); use --scale 1/255 if the model takes 0 to 1.
              Images are never resized. An input declared as Image in the Python SDK gets the
              unchanged file.
  .npy        numpy arrays of all types and both byte orders, with or without the row dimension
  JSON        nested arrays of numbers, booleans or strings; complex numbers are [real, imaginary]
  -           any of these from standard input

A conversion that would lose information is refused unless you give --lossy. For a model with several inputs, write
NAME=FILE,NAME=FILE, or give a JSON object with a key for each input.

Each FILE is a request of its own, and all are sent at once on one connection; --batch sends them as one request. A
model without inputs takes no FILE. --id gives a single request a name for shivactl feedback. --user is the user for
whom an application answers.

For a detector (outputs boxes, scores and labels) the command prints a line for each object; --draw writes the picture
with boxes, names, masks, corners and points. The answer of a pipeline is printed as a tree: its stages, what each has
found, and the answers of later stages. With --draw each box has the texts of later stages.

With --json: {"route", "results": [{"file", "rows", "ms", "outputs": [{"name", "datatype", "shape", "data":
[... row by row]}], "metadata": {...}} or {"file", "error": {"type", "message", "hint"}}]}. Numbers that
JSON lacks are the strings "NaN", "Infinity" and "-Infinity"; complex numbers are [real, imaginary].
`,
		Example: `  shivactl infer digits images/*.png
  shivactl infer --text sentiment "what a day"
  shivactl infer yolo11n street.jpg --draw found.png
  echo '[[5.1, 3.5, 1.4, 0.2]]' | shivactl infer iris -
`,
		ValidArgsFunction: c.completesMore(routeNames, anyFile),
		RunE:              c.asks(func(c *cli, args []string) error { return c.infer(o, args) }),
	}
	f := cmd.Flags()
	f.BoolVar(&o.batch, "batch", false, "send all files as one request")
	f.BoolVar(&o.text, "text", false, "the arguments are texts instead of files")
	f.BoolVar(&o.lossy, "lossy", false, "allow colour to become gray, transparency to be dropped, and numbers to be rounded")
	f.StringVar(&o.scale, "scale", "", "multiply the values of images by `FACTOR`, such as 1/255")
	f.StringVar(&o.id, "id", "", "name the request `ID`, for feedback about it")
	f.StringVar(&o.user, "user", "", "send the request for this `USER` of an application")
	topFlag(cmd, &o.top)
	f.StringVar(&o.draw, "draw", "", "draw what a detector found into the picture, and write it to `OUT.png`")
	f.BoolVar(&o.timing, "timing", false, "show where the time went, in the server and in total")
	return cmd
}

// topFlag adds the flag --top of a command that shows answers.
func topFlag(cmd *cobra.Command, top *int) {
	*top = 3
	cmd.Flags().Var(value[int]{top, highestCount, "3"}, "top", "show the `N` highest of many scores")
}

func highestCount(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, errors.New("expected a whole number above 0")
	}
	return n, nil
}

type inferOptions struct {
	subject                    string // of a line of the results; "" is FILE
	batch, text, lossy, timing bool
	scale, id, user, draw      string
	top                        int
}

// pipelined is the number of requests in flight on the connection. A server accepts 256.
const pipelined = 64

func (c *cli) infer(o *inferOptions, args []string) error {
	switch {
	case len(args) == 0:
		return usage("infer", "which model? shivactl models lists them")
	case o.draw != "" && len(args) != 2:
		return usage("infer", "--draw takes one FILE, got %d", len(args)-1)
	case o.draw != "" && !strings.EqualFold(filepath.Ext(o.draw), ".png"):
		return usage("infer", "--draw writes a PNG file, and %q does not end in .png", o.draw)
	case o.id != "" && len(args) > 2 && !o.batch:
		return usage("infer", "--id names one request, and each of the %d files is one; --batch sends them as one",
			len(args)-1)
	}
	scale, err := parseScale(o.scale)
	if err != nil {
		return err
	}
	options := []shiva.Option{shiva.WithInFlight(pipelined)}
	if c.timed { // otherwise the model's default deadline counts
		options = append(options, shiva.WithDeadlineMetadata())
	}
	client, err := c.dial(c.addr, options...)
	if err != nil {
		return explain(err, "--addr", c.addr)
	}
	defer client.Close()
	m, err := c.describe(client, args[0])
	if err != nil {
		return err
	}
	if err := canAsk(m, o, scale, args[1:]); err != nil {
		return err
	}

	l := &loader{stdin: c.stdin, model: m, text: o.text, lossy: o.lossy, scale: scale}
	items := make([]item, len(args)-1)
	if len(m.inputs) == 0 {
		items = []item{m.silent()}
	}
	for i, arg := range args[1:] {
		// Check all files before sending the first: half of the answers are useless.
		if items[i], err = l.load(arg); err != nil {
			return err
		}
	}
	var results []result
	if o.batch {
		results, err = c.askTogether(client, m, items, request{o.timing, o.id, o.user})
		if err != nil {
			return err
		}
	} else {
		results = c.askEach(client, m, items, request{o.timing, o.id, o.user})
	}
	if o.draw != "" && results[0].err == nil {
		draw := drawResult
		if m.pipeline != nil {
			draw = drawTree
		}
		if err := draw(o.draw, m, items[0], results[0]); err != nil {
			return err
		}
	}
	if c.json {
		return c.printResultsJSON(m, results)
	}
	c.nameClasses(client, &m)
	return c.printResults(m, results, o)
}

// canAsk refuses options that no file can satisfy, and files that no input takes.
func canAsk(m model, o *inferOptions, scale float64, files []string) error {
	switch none := len(m.inputs) == 0; {
	case none && len(files) > 0:
		return usage("infer", "%s takes no inputs, and so no %s", m.route, files[0])
	case none && (o.batch || o.text || scale != 0):
		return usage("infer", "%s takes no inputs: expected neither --batch nor --text nor --scale", m.route)
	case !none && len(files) == 0:
		return usage("infer", "name a file (- reads standard input)")
	}
	if o.draw != "" && !drawable(m) {
		return usage("infer", "--draw is for models that take a picture file and answer boxes, scores and labels, each ragged, and for pipelines of such models: %s is none", m.route)
	}
	for _, s := range m.inputs {
		if _, err := appendFloat(nil, wire(s), 0); scale != 0 && err != nil {
			return usage("infer", "--scale makes fractions, but %s", wants(s))
		}
		if o.batch && !batched(s) {
			return usage("infer", "--batch: %s takes one row at a time: %s", m.route, wants(s))
		}
	}
	return nil
}

// drawable reports whether the answer of a model can be drawn into its input.
func drawable(m model) bool {
	if m.pipeline != nil {
		return slices.ContainsFunc(m.inputs, func(s spec) bool { return s.files })
	}
	return detects(m) && m.sole() == 0 && m.inputs[0].files
}

// parseScale reads a factor: a number or a fraction; 0 if none is given.
func parseScale(s string) (float64, error) {
	if s == "" {
		return 0, nil
	}
	if len(s) < 30 && !strings.ContainsAny(s, "eEpP") {
		if r, ok := new(big.Rat).SetString(s); ok && r.Sign() != 0 {
			f, _ := r.Float64()
			return f, nil
		}
	}
	return 0, usage("infer", "--scale: expected a number such as 0.5 or 1/255, got %q", s)
}

// result is the outcome for one argument.
type result struct {
	name     string
	rows     int
	outputs  []tensor.Tensor // memory of its own
	metadata json.RawMessage
	took     time.Duration // from sending to the answer
	err      *failure
}

// askEach sends one request for each item, pipelined, and returns the results in their order.
func (c *cli) askEach(client *shiva.Client, m model, items []item, what request) []result {
	results := make([]result, len(items))
	var wg sync.WaitGroup
	turn := make(chan struct{}, pipelined)
	for i, it := range items {
		turn <- struct{}{}
		wg.Go(func() { // joined at the end of askEach
			results[i] = c.ask(client, m, it, what)
			<-turn
		})
	}
	wg.Wait()
	return results
}

// askTogether sends all items as the rows of one request, and gives each item its part of the
// answer.
func (c *cli) askTogether(client *shiva.Client, m model, items []item, what request) ([]result, error) {
	all := item{name: plural.Of(len(items), "file")}
	for i, s := range m.inputs {
		parts := make([]tensor.Tensor, len(items))
		for j, it := range items {
			parts[j] = it.inputs[i]
		}
		leftOut := func(t tensor.Tensor) bool { return t.Shape == nil }
		if given := slices.IndexFunc(parts, func(t tensor.Tensor) bool { return !leftOut(t) }); given < 0 {
			all.inputs = append(all.inputs, tensor.Tensor{})
			continue
		} else if s.regions != "" || slices.ContainsFunc(parts, leftOut) {
			return nil, unfit("without --batch each file is a request of its own",
				"input %q, of %s, cannot be that of several files", s.Name, items[given].name)
		}
		if slices.ContainsFunc(parts, func(t tensor.Tensor) bool { return holdsFile(t, s) }) {
			return nil, unfit("without --batch each file is a request of its own",
				"input %q of %s takes one picture file in a request", s.Name, m.route)
		}
		joined, err := tensor.Concat(parts, nil)
		if err != nil {
			return nil, unfit("without --batch each file is a request of its own",
				"the files are not alike: %v (input %q)", err, s.Name)
		}
		all.inputs = append(all.inputs, joined)
	}
	for _, it := range items {
		all.rows += it.rows
	}
	whole := c.ask(client, m, all, what)
	if whole.err != nil {
		return nil, whole.err
	}
	results := make([]result, len(items))
	from := 0
	for i, it := range items {
		r := result{name: it.name, rows: it.rows, metadata: whole.metadata, took: whole.took}
		for _, t := range whole.outputs {
			part, err := t.RowSlice(m.length(t.Name, whole.outputs, 0, from),
				m.length(t.Name, whole.outputs, 0, from+it.rows))
			if err != nil {
				return nil, &failure{"protocol", fmt.Sprintf("the answer has too few rows: %v", err), "", exitRefused}
			}
			r.outputs = append(r.outputs, part)
		}
		results[i], from = r, from+it.rows
	}
	return results, nil
}

// length returns the share of rows lo to hi in the first dimension of an output: hi - lo, or for a
// ragged output the sum of their counts in the output that counts it.
func (m model) length(output string, outputs []tensor.Tensor, lo, hi int) int {
	named := func(name string) int {
		return slices.IndexFunc(m.outputs, func(s spec) bool { return s.Name == name })
	}
	i := named(output)
	if i < 0 || m.outputs[i].Ragged == "" {
		return hi - lo
	}
	by := slices.IndexFunc(outputs, func(t tensor.Tensor) bool { return t.Name == m.outputs[i].Ragged })
	if by < 0 {
		return hi - lo
	}
	counts, err := tensor.Cast(outputs[by], tensor.Int64, nil)
	if err != nil {
		return hi - lo
	}
	n := 0
	each, _ := tensor.Values[int64](counts)
	for _, c := range each[min(lo, len(each)):min(hi, len(each))] {
		n += int(c)
	}
	return n
}

// ask sends one request and waits for its answer.
func (c *cli) ask(client *shiva.Client, m model, it item, what request) result {
	r := result{name: it.name, rows: it.rows}
	question, err := message(m, it, what)
	if err != nil {
		r.err = unfit("", "%s: %v", it.name, err).(*failure)
		return r
	}
	start := time.Now()
	answer, err := client.Do(c.ctx, question)
	r.took = time.Since(start)
	if err != nil {
		r.err = explain(err, "--addr", c.addr)
		return r
	}
	defer answer.Release()
	r.metadata = slices.Clone(answer.Metadata)
	if r.outputs, err = outputs(m, answer); err != nil {
		r.err = &failure{"protocol", "unusable answer: " + err.Error(), "the log of the model's container may say more",
			exitRefused}
	}
	return r
}

// request holds the parameters of a question besides its input.
type request struct {
	timing   bool
	id, user string // "" is none
}

// put adds the parameters to the metadata of a question.
func (r request) put(metadata map[string]any) {
	if r.timing {
		metadata["timing"] = true
	}
	if r.id != "" {
		metadata["id"] = asJSON(r.id)
	}
	if r.user != "" {
		metadata["user"] = r.user
	}
}

// message makes the question. Rows are always counted: models of the old container protocols need
// "batch" to know that, all others assume it.
func message(m model, it item, what request) (*shiva.Message, error) {
	metadata := map[string]any{}
	if !m.whole {
		metadata["batch"] = true
	}
	what.put(metadata)
	q := &shiva.Message{Namespace: m.route}
	names := []string{}
	var texts []tensor.Tensor
	for i, t := range it.inputs {
		if t.Data == nil && t.Shape == nil {
			continue // optional, and left out
		}
		if t.DType == tensor.Bytes {
			t.Name = m.inputs[i].Name
			texts = append(texts, t)
			continue
		}
		names = append(names, m.inputs[i].Name)
		q.Tensors = append(q.Tensors, t)
	}
	if len(m.inputs) > 1 {
		metadata[shiva.NamesKey] = names
	}
	if texts != nil {
		object, err := shiva.AppendTexts(nil, texts...)
		if err != nil {
			return nil, err
		}
		metadata[shiva.TextsKey] = json.RawMessage(object)
	}
	var err error
	q.Metadata, err = json.Marshal(metadata)
	return q, err
}

// outputs returns the named tensors of an answer, with its texts as tensors of Bytes, in memory of
// their own. The answer of a batched model without inputs is one row without its dimension, which
// is added.
func outputs(m model, answer *shiva.Message) ([]tensor.Tensor, error) {
	var metadata struct {
		Names []string `json:"__tensors__"`
	}
	if err := json.Unmarshal(answer.Metadata, &metadata); err != nil {
		return nil, err
	}
	byName := map[string]tensor.Tensor{}
	var order []string
	add := func(t tensor.Tensor) {
		if _, taken := byName[t.Name]; !taken {
			byName[t.Name] = t
			order = append(order, t.Name)
		}
	}
	names := metadata.Names
	// Without names outputs have the order of the declaration, without its texts.
	if names == nil {
		for _, s := range m.outputs {
			if s.DType != tensor.Bytes {
				names = append(names, s.Name)
			}
		}
	}
	for i, t := range answer.Tensors {
		t.Name = fmt.Sprintf("output%d", i)
		if i < len(names) {
			t.Name = names[i]
		}
		// In JSON a shape of [], not null.
		t.Shape, t.Data, t.Buf = append(tensor.Shape{}, t.Shape...), slices.Clone(t.Data), nil
		add(t)
	}
	texts, err := answer.Texts()
	if err != nil {
		return nil, err
	}
	for _, t := range texts {
		add(t)
	}
	// In the model's order; outputs that it does not declare come last.
	slices.SortStableFunc(order, func(a, b string) int { return outputIndex(m, a) - outputIndex(m, b) })
	out := make([]tensor.Tensor, len(order))
	for i, name := range order {
		out[i] = byName[name]
		if at := outputIndex(m, name); len(m.inputs) == 0 && at < len(m.outputs) && batched(m.outputs[at]) &&
			m.outputs[at].Ragged == "" {
			out[i].Shape = append(tensor.Shape{1}, out[i].Shape...)
		}
	}
	return out, nil
}

func outputIndex(m model, name string) int {
	if i := slices.IndexFunc(m.outputs, func(s spec) bool { return s.Name == name }); i >= 0 {
		return i
	}
	return len(m.outputs)
}
