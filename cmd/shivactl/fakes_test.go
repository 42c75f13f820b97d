package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"image/png"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fakeModels are the models of the fake server: metadata, and an answer to a question.
var fakeModels = map[string]struct {
	metadata string
	answer   func(q *shiva.Message) *shiva.Message
}{
	"digits": {
		`{"name":"digits","versions":["1"],"platform":"go","inputs":[{"name":"image","datatype":"UINT8","shape":[-1,8,8]}],
		  "outputs":[{"name":"scores","datatype":"FP32","shape":[-1,10]},{"name":"label","datatype":"INT64","shape":[-1]}]}`,
		func(q *shiva.Message) *shiva.Message { // the label is the first pixel
			rows := q.Tensors[0].Shape[0]
			if q.Tensors[0].DType != tensor.Uint8 || !q.Tensors[0].Shape.Equal(tensor.Shape{rows, 8, 8}) {
				return refusal(shiva.InvalidInput, "expected uint8 [-1, 8, 8]")
			}
			scores, labels := make([]float32, 10*rows), make([]int64, rows)
			for i := range rows {
				label := q.Tensors[0].Data[64*i]
				if label > 9 {
					return refusal(shiva.ContainerFailed, "the container failed: no such digit")
				}
				labels[i] = int64(label)
				for k := range 10 {
					scores[10*i+k] = 0.001 * float32(k)
				}
				scores[10*i+int(label)] = 0.75
			}
			return answer(`{"__tensors__":["scores","label"],"model_name":"digits","model_version":"1"}`,
				of(tensor.Shape{rows, 10}, scores), of(tensor.Shape{rows}, labels))
		},
	},
	"flowers": { // its classes have names
		`{"name":"flowers","inputs":[{"name":"x","datatype":"FP32","shape":[-1]}],"outputs":[{"name":"kinds","datatype":"FP32","shape":[-1,5]}]}`,
		func(*shiva.Message) *shiva.Message {
			return answer(`{"__tensors__":["kinds"]}`, of(tensor.Shape{1, 5}, []float32{0.03, 0.2, 0.7, 0, 0.07}))
		},
	},
	"mood": {
		`{"name":"mood","inputs":[{"name":"text","datatype":"BYTES","shape":[-1]}],"outputs":[{"name":"mood","datatype":"BYTES","shape":[-1]}]}`,
		func(q *shiva.Message) *shiva.Message {
			texts, err := q.Texts()
			if err != nil || len(texts) != 1 || texts[0].Name != "text" {
				return refusal(shiva.InvalidInput, fmt.Sprintf("%s: %v", q.Metadata, err))
			}
			words, _ := tensor.Strings(texts[0])
			for i, s := range words {
				words[i] = "very " + s
			}
			mood, _ := tensor.FromStrings(texts[0].Shape, words)
			mood.Name = "mood"
			out, _ := shiva.AppendTexts(nil, mood)
			return answer(`{"__texts__":` + string(out) + `,"default":true,"default_explanation":"no model was in time"}`)
		},
	},
	"two": {
		`{"name":"two","inputs":[{"name":"a","datatype":"FP32","shape":[-1,2]},{"name":"b","datatype":"FP16","shape":[-1]}],"outputs":[{"name":"sum","datatype":"FP64","shape":[-1,3]}]}`,
		func(q *shiva.Message) *shiva.Message {
			var m struct {
				Names []string `json:"__tensors__"`
			}
			if json.Unmarshal(q.Metadata, &m) != nil || strings.Join(m.Names, " ") != "a b" {
				return refusal(shiva.InvalidInput, "no names")
			}
			a, _ := tensor.Cast(q.Tensors[0], tensor.Float64, nil)
			b, _ := tensor.Cast(q.Tensors[1], tensor.Float64, nil)
			x, _ := tensor.Values[float64](a)
			y, _ := tensor.Values[float64](b)
			return answer(`{"timing":{"queue_us":100,"execute_us":2000,"batch_rows":3,"total_us":2200}}`,
				of(tensor.Shape{1, 3}, []float64{x[0], x[1], y[0]}))
		},
	},
	"odd": {
		`{"name":"odd","inputs":[{"name":"x","datatype":"FP32","shape":[2,2]}],"outputs":[{"name":"big","datatype":"INT32","shape":[3,3]},{"name":"z","datatype":"COMPLEX64","shape":[]}]}`,
		func(q *shiva.Message) *shiva.Message {
			return answer(`{"__tensors__":["z","big"]}`, of(tensor.Shape{}, []complex64{1 - 2i}),
				of(tensor.Shape{3, 3}, []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}))
		},
	},
	"street": { // finds animals, reads the first of them, and fails at the second
		`{"name":"street","inputs":[{"name":"image","datatype":"UINT8","shape":[-1,-1,-1,3],"image":"rgb"}],"outputs":[{"name":"boxes","datatype":"FP32","shape":[-1,4],"ragged":"find.count"},
		  {"name":"find.scores","datatype":"FP32","shape":[-1],"ragged":"find.count"},{"name":"find.labels","datatype":"BYTES","shape":[-1],"ragged":"find.count"},{"name":"find.count","datatype":"INT32","shape":[-1]},
		  {"name":"text","datatype":"BYTES","shape":[-1],"ragged":"read.rows"},{"name":"read.rows","datatype":"INT32","shape":[-1]},{"name":"read.of","datatype":"INT32","shape":[-1],"ragged":"read.rows"},
		  {"name":"read.status","datatype":"INT32","shape":[-1],"ragged":"read.rows"},{"name":"scene.label","datatype":"BYTES","shape":[-1]}],
		  "pipeline":{"stages":[{"name":"find","model":"f"},{"name":"scene","model":"s"},{"name":"read","model":"r","each":"find.boxes"}],
		  "outputs":{"boxes":"find.boxes","find.scores":"find.scores","find.labels":"find.labels","find.count":"find.count","text":"read.text","scene.label":"scene.label"}}}`,
		func(q *shiva.Message) *shiva.Message {
			return answer(`{"__tensors__":["boxes","find.scores","find.count","read.rows","read.of","read.status"],"__texts__":{"find.labels":["cat","dog","cow"],"text":["Tom",""],"scene.label":["farm"]}}`,
				of(tensor.Shape{3, 4}, []float32{0, 1, 5.25, 7, 2, 2, 4, 4, 1, 1, 3, 3}),
				of(tensor.Shape{3}, []float32{0.91, 0.5, 0.4}), of(tensor.Shape{1}, []int32{3}),
				of(tensor.Shape{1}, []int32{2}), of(tensor.Shape{2}, []int32{0, 2}),
				of(tensor.Shape{2}, []int32{0, 504}))
		},
	},
	"yolo": {
		`{"name":"yolo","inputs":[{"name":"image","datatype":"UINT8","shape":[-1,-1,-1,3],"image":"rgb"}],"outputs":[{"name":"boxes","datatype":"FP32","shape":[-1,4],"ragged":"count"},
		  {"name":"scores","datatype":"FP32","shape":[-1],"ragged":"count"},{"name":"labels","datatype":"BYTES","shape":[-1],"ragged":"count"},{"name":"count","datatype":"INT32","shape":[-1]}]}`,
		func(q *shiva.Message) *shiva.Message {
			if q.Tensors[0].DType != tensor.Uint8 || len(q.Tensors[0].Shape) != 2 {
				return refusal(shiva.InvalidInput, "expected a file")
			}
			return answer(`{"__tensors__":["boxes","scores","count"],"__texts__":{"labels":["cat","dog"]}}`,
				of(tensor.Shape{2, 4}, []float32{0, 1, 5.25, 7, 2, 2, 4, 4}), of(tensor.Shape{2}, []float32{0.91, 0.5}),
				of(tensor.Shape{1}, []int32{2}))
		},
	},
	"bare": {`{"name":"bare","inputs":[],"outputs":[]}`, nil},
	"clock": {
		`{"name":"clock","inputs":[],"outputs":[{"name":"hands","datatype":"INT32","shape":[-1,3]},{"name":"zone","datatype":"BYTES","shape":[-1]}]}`,
		func(q *shiva.Message) *shiva.Message {
			if len(q.Tensors) > 0 || jsonscan.Field(q.Metadata, shiva.NamesKey) != nil {
				return refusal(shiva.InvalidInput, fmt.Sprintf("%d tensors and %s", len(q.Tensors), q.Metadata))
			}
			return answer(`{"__texts__":{"zone":"UTC"},"__tensors__":["hands"],"hands":"__tensor__0","zone":"UTC"}`,
				of(tensor.Shape{3}, []int32{9, 41, 7}))
		},
	},
	"nan": {
		`{"name":"nan","inputs":[{"name":"x","datatype":"FP32","shape":[-1]}],"outputs":[]}`,
		func(q *shiva.Message) *shiva.Message {
			nan, _ := appendFloat(nil, tensor.Float32, nanValue())
			inf, _ := appendFloat(nil, tensor.Float32, 0.1)
			t, _ := tensor.New(tensor.Float32, tensor.Shape{1, 2}, append(nan, inf...))
			return answer(`{}`, t)
		},
	},
}

func nanValue() float64 { zero := 0.0; return zero / zero }

func of[T tensor.Element](shape tensor.Shape, values []T) tensor.Tensor {
	t, err := tensor.FromSlice(shape, values)
	if err != nil {
		panic(err)
	}
	return t
}

func answer(metadata string, tensors ...tensor.Tensor) *shiva.Message {
	return &shiva.Message{Metadata: []byte(metadata), Tensors: tensors}
}

func refusal(kind, message string) *shiva.Message {
	return shiva.ErrorMessage(&shiva.RemoteError{Type: kind, Message: message, Code: 400})
}

// write writes a file.
func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// digit writes a PNG whose first pixel is n.
func digit(t *testing.T, name string, n uint8, width int) {
	t.Helper()
	p := image.NewGray(image.Rect(0, 0, width, 8))
	p.Pix[0] = n
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	write(t, name, b.String())
}

// A record holds the output of a command so far.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// running starts a command, and returns its output and a function to interrupt it.
func running(t *testing.T, args ...string) (out, errs *record, interrupt func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, errs = new(record), new(record)
	done := make(chan int, 1)
	go func() { done <- run(ctx, args, nil, out, errs) }()
	return out, errs, func() int {
		cancel()
		return <-done
	}
}
