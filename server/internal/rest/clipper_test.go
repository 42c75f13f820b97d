package rest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/shiva/tensor"
)

// sum is a model that adds up the numbers of a row.
func sum(b *scheduler.Batch) error {
	sums := make([]float64, 0, b.Rows)
	for _, p := range b.Parts {
		values, err := tensor.Values[float64](p.Inputs[0])
		if err != nil {
			return err
		}
		each := len(values) / p.Rows
		for r := range p.Rows {
			s := 0.0
			for _, v := range values[r*each:][:each] {
				s += v
			}
			sums = append(sums, s)
		}
	}
	out, err := tensor.FromSlice(tensor.Shape{b.Rows}, sums)
	if err != nil {
		return err
	}
	b.Complete([]tensor.Tensor{out}, nil)
	return nil
}

func TestClipper(t *testing.T) {
	r := newRig(t, nil)
	io := func(name string, d tensor.DType, shape ...int) []tensor.Spec {
		return []tensor.Spec{{Name: name, DType: d, Shape: shape}}
	}
	r.Model("sum", scheduler.Spec{Inputs: io("x", tensor.Float64, -1, 3), Outputs: io("y", tensor.Float64, -1)},
		scheduler.WorkerFunc(sum))
	for name, d := range map[string]tensor.DType{"bytes": tensor.Uint8, "texts": tensor.Bytes} {
		r.Model(name, scheduler.Spec{Inputs: io("x", d, -1, -1), Outputs: io("x", d, -1, -1)},
			scheduler.WorkerFunc(r.Echo))
	}
	r.Applications(apps.Definition{Name: "app", Models: []string{"sum"}, Policy: "epsilon-greedy",
		Params: map[string]any{"loss": "absolute"}})

	number := 0 // of the last answer
	for _, tc := range []struct{ path, body, want string }{
		{"/sum/predict", `{"input":[1,2,3.5]}`, `{"query_id":1,"output":6.5,"default":false}`},
		{"/app/predict", `{"uid":7,"input":[1,2,3]}`, `{"query_id":1,"output":6,"default":false}`},
		{"/sum/predict", `{"input_batch":[[1,2,3],[4,5,6]]}`, `{"batch_predictions":[{"query_id":1,"output":6,"default":false},{"query_id":1,"output":15,"default":false}]}`},
		{"/sum/predict", `{"input_batch":[[1,2,3],[4]]}`, `{"query_id":1,"default":false,"error":"invalid input: input \"x\": expected float64 [-1, 3]`},
		{"/bytes/predict", `{"input":"AQID"}`, `"output":[1,2,3]`},
		{"/bytes/predict", `{"input":[1,255]}`, `"output":[1,255]`},
		{"/texts/predict", `{"input":["a","b"]}`, `"output":["a","b"]`},
		// As in Clipper, a text that is JSON comes back as its value.
		{"/texts/predict", `{"input":["[1, 2]"]}`, `"output":[1,2]`},

		{"/sum/predict", `{"uid":null,"input":null,"input_batch":[[1,2,3]]}`, `"output":6`},
		{"/app/update", `{"uid":"7","input":[1,2,3],"label":6}`, `{"application":"app","learned":true,"rounds":1}`},
		{"/app/update", `{"uid":null,"user":"7","id":null,"input":[1,2,3],"label":7}`, `"rounds":2`},

		{"/sum/predict", `{}`, `400 {"error":"invalid input: expected exactly one of \"input\" and \"input_batch\""}`},
		{"/sum/predict", `{"input":1,"input_batch":[]}`, `400`},
		{"/sum/predict", `[1]`, `400 {"error":"malformed message: expected a JSON object`},
		{"/sum/predict", `{"input":`, `400`},
		{"/sum/predict", `{"input":"abc"}`, `400 {"error":"invalid input: input \"x\": expected a number of at most 1.7976931e+308 (FP64), got \"abc\""}`},
		{"/bytes/predict", `{"input":"!"}`, `expected bytes as base64`},
		{"/sum/predict", `{"uid":[],"input":[1,2,3]}`, `400 {"error":"invalid input: uid: expected a string or a number, got []"}`},
		{"/none/predict", `{"input":[1]}`, `404`},
		{"/sum/predict", `{"input":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, `400`},
		{"/app/update", `{"uid":"7","input":[1,2,3]}`, `400 {"error":"invalid input: feedback: expected one of`},
		{"/app/update", `{"id":"lost","label":1}`, `404 {"error":"not found: feedback for application \"app\": this server knows no request`},
		{"/app/update", `{"id":17,"label":1}`, `404 {"error":"not found: feedback for application \"app\": this server knows no request with id 17 of`},
		{"/app/update", `{"id":[17],"label":1}`, `400 {"error":"invalid input: id: expected a string or a number, got [17]`},
		{"/sum/update", `{"input":[1,2,3],"label":6}`, `404 {"error":"not found: \"sum\" is a model and not an application`},
	} {
		a := r.ask("POST", tc.path, tc.body)
		got := fmt.Sprint(a.status, " ", string(a.body))
		// The numbers of queries only rise.
		var reply struct {
			QueryID     int `json:"query_id"`
			Predictions []struct {
				QueryID int `json:"query_id"`
			} `json:"batch_predictions"`
		}
		_ = json.Unmarshal(a.body, &reply)
		for _, p := range append(reply.Predictions, struct {
			QueryID int `json:"query_id"`
		}{reply.QueryID}) {
			if p.QueryID > 0 {
				got = strings.Replace(got, fmt.Sprintf(`"query_id":%d`, p.QueryID), `"query_id":1`, 1)
				number = max(number, p.QueryID)
			}
		}
		if !strings.Contains(strings.ReplaceAll(got, "\n", ""), tc.want) {
			t.Errorf("%s %.60s: got %s\nexpected %s", tc.path, tc.body, got, tc.want)
		}
	}
	if number < 9 {
		t.Errorf("the last query had number %d", number)
	}
}

// TestFeedbackByID: feedback can name a request of the protocol by its id.
func TestFeedbackByID(t *testing.T) {
	r := newRig(t, nil)
	r.Model("sum", scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 3}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float64, Shape: tensor.Shape{-1}}},
	}, scheduler.WorkerFunc(sum))
	r.Applications(apps.Definition{Name: "app", Models: []string{"sum"}, Policy: "exp3"})
	a := r.ask("POST", "/v2/models/app/infer", `{"id":"q1","parameters":{"user":"u"},"inputs":[{"name":"x","datatype":"FP64","shape":[1,3],"data":[1,2,3]}]}`)
	want := `{"model_name":"app","model_version":"sum/1","id":"q1","parameters":{"confidence":1},"outputs":[{"name":"y","datatype":"FP64","shape":[1],"data":[6]}]}`
	if strings.TrimSpace(string(a.body)) != want {
		t.Errorf("got %s, expected %s", a.body, want)
	}
	for i, want := range []string{`{"application":"app","learned":true,"rounds":1}`, `{"application":"app","learned":false,"rounds":1}`} {
		if a := r.ask("POST", "/app/update", `{"id":"q1","user":"u","label":6}`); strings.TrimSpace(string(a.body)) !=
			want {
			t.Errorf("feedback %d: %s, expected %s", i, a.body, want)
		}
	}
}

// TestSeveralFeedbacks: each item of feedback has its own answer, and is learned for the user that
// it names, or else the user that the body names.
func TestSeveralFeedbacks(t *testing.T) {
	r := newRig(t, nil)
	r.Model("sum", scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 3}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float64, Shape: tensor.Shape{-1}}},
	}, scheduler.WorkerFunc(sum))
	r.Applications(apps.Definition{Name: "app", Models: []string{"sum"}, Policy: "exp4"})
	r.ask("POST", "/v2/models/app/infer", `{"id":"q1","parameters":{"user":"u"},"inputs":[{"name":"x","datatype":"FP64","shape":[1,3],"data":[1,2,3]}]}`)
	for _, c := range []struct{ body, want string }{
		{`{"uid":"a","updates":[{"input":[1,2,3],"label":6}]}`, `{"updates":[{"application":"app","learned":true,"rounds":1}]}`},
		{`{"uid":"b","updates":[{"id":"q1","user":"u","label":6},{"input":[1,2,3],"label":"x"},{"input":[1,2,3]},3,{"updates":[]}]}`,
			`{"updates":[{"application":"app","learned":true,"rounds":1},{"error":"`},
		{`{"uid":"b","updates":[{"input":[1,2,3],"label":6},{"input":[1,2],"label":6}]}`, `{"updates":[{"application":"app","learned":true,"rounds":1},{"error":"`},
		{`{"uid":"c","input_batch":[[1,2,3]],"labels":[6]}`, `{"updates":[{"application":"app","learned":true,"rounds":1}]}`},
		{`{"uid":"c","input_batch":[],"labels":[]}`, `{"updates":[]}`},
		{`{"uid":"c","input_batch":[[1,2,3]],"label":6}`, `expected one for each of the 1 input of \"input_batch\", got 0`},
		{`{"uid":"c","updates":[],"input":[1,2,3]}`, `got more than one of these`},
	} {
		if a := r.ask("POST", "/app/update", c.body); !strings.Contains(string(a.body), c.want) {
			t.Errorf("%s: %s, expected %s", c.body, a.body, c.want)
		}
	}
}

// TestModelsWithOtherOutputs: the models of an application need not have the same outputs. Each
// answer has the outputs of the model that gave it; a requested output that is not among them is an
// error of this request.
func TestModelsWithOtherOutputs(t *testing.T) {
	r := newRig(t, nil)
	ios := func(names ...string) (specs []tensor.Spec) {
		for _, n := range names {
			specs = append(specs, tensor.Spec{Name: n, DType: tensor.Float64, Shape: tensor.Shape{-1}})
		}
		return specs
	}
	in := []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 3}}}
	r.Model("two", scheduler.Spec{Inputs: in, Outputs: ios("y", "z")},
		scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			y, err := tensor.FromSlice(tensor.Shape{b.Rows}, make([]float64, b.Rows))
			b.Complete([]tensor.Tensor{y, y}, nil)
			return err
		}))
	r.Model("one", scheduler.Spec{Inputs: in, Outputs: ios("sum")}, scheduler.WorkerFunc(sum))
	r.Applications(apps.Definition{Name: "app", Models: []string{"two", "one"}, Policy: "split",
		Params: map[string]any{"weights": map[string]any{"one": 1, "two": 1}}})
	seen := map[string]bool{}
	for user := 0; len(seen) < 2 && user < 1000; user++ {
		body := fmt.Sprintf(`{"parameters":{"user":"%d"},"inputs":[{"name":"x","datatype":"FP64","shape":[1,3],"data":[1,2,3]}]}`, user)
		a := r.ask("POST", "/v2/models/app/infer", body)
		got := strings.TrimSpace(string(a.body))
		seen[got] = true
		named := r.ask("POST", "/v2/models/app/infer", strings.Replace(body, `"inputs"`, `"outputs":[{"name":"z"}],"inputs"`, 1))
		if strings.Contains(got, `"one/1"`) && (named.status != 400 || !strings.Contains(string(named.body), `no output \"z\"; model \"one\" has \"sum\"`)) {
			t.Errorf("output z of the model without: %d %s", named.status, named.body)
		}
	}
	for _, want := range []string{
		`{"model_name":"app","model_version":"one/1","parameters":{"confidence":1},"outputs":[{"name":"sum","datatype":"FP64","shape":[1],"data":[6]}]}`,
		`{"model_name":"app","model_version":"two/1","parameters":{"confidence":1},"outputs":[{"name":"y","datatype":"FP64","shape":[1],"data":[0]},{"name":"z","datatype":"FP64","shape":[1],"data":[0]}]}`,
	} {
		if !seen[want] {
			t.Errorf("never answered %s, but %v", want, seen)
		}
	}
}

// TestApplicationsOverHTTP: the protocol describes applications as it describes models.
func TestApplicationsOverHTTP(t *testing.T) {
	r := newRig(t, nil)
	r.Model("sum", scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 3}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float64, Shape: tensor.Shape{-1}}},
	}, scheduler.WorkerFunc(sum))
	r.Applications(apps.Definition{Name: "app", Models: []string{"sum"}, Policy: "exp3", SLO: "1500ms"})
	for range 3 {
		if a := r.ask("POST", "/v2/models/app/infer",
			`{"inputs":[{"name":"x","datatype":"FP64","shape":[1,3],"data":[1,2,3]}]}`); a.status != 200 {
			t.Fatal(a.status, string(a.body))
		}
	}
	for _, tc := range []struct{ method, path, want string }{
		{"GET", "/v2/models/app", `{"name":"app","versions":[],"platform":"application","inputs":[{"name":"x","datatype":"FP64","shape":[-1,3]}]`},
		{"GET", "/v2/models/app/ready", `200`},
		{"GET", "/v2/models/app/config", `"parameters":{"deadline":{"string_value":"1.5s"},"models":{"string_value":"sum"},"policy":{"string_value":"exp3"}}`},
		{"GET", "/v2/models/app/stats", `200 {"model_stats":[{"name":"app","version":"","last_inference":`},
		{"GET", "/v2/models/app/stats", `"success":{"count":3,`},
		{"GET", "/v2/models/sum/stats", `"success":{"count":0,`},
		{"GET", "/v2/models/stats", `{"name":"app","version":""`},
		{"POST", "/v2/repository/index", `{"name":"app","state":"READY","reason":""}`},
		{"GET", "/v2/models/app/versions/1", `404 {"error":"not found: \"app\" is an application, which has no versions, but the request names version \"1\""}`},
	} {
		a := r.ask(tc.method, tc.path, "")
		if got := fmt.Sprint(a.status, " ", string(a.body)); !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %s, expected %s", tc.path, got, tc.want)
		}
	}
}

func TestNested(t *testing.T) {
	for _, c := range []struct {
		shape tensor.Shape
		want  string
	}{
		{tensor.Shape{}, `1`}, {tensor.Shape{1, 1}, `1`}, {tensor.Shape{3}, `[1,2,3]`}, {tensor.Shape{1, 3}, `[[1,2,3]]`},
		{tensor.Shape{2, 1}, `[1,2]`}, {tensor.Shape{2, 2, 1}, `[[1,2],[3,4]]`}, {tensor.Shape{2, 1, 2}, `[[[1,2]],[[3,4]]]`},
		{tensor.Shape{0}, `[]`}, {tensor.Shape{2, 0}, `[[],[]]`},
	} {
		n, _ := c.shape.Elements()
		values, texts := []float64{1, 2, 3, 4}[:n], []string{"1", "2", "3", "4"}[:n]
		numbers, err := tensor.FromSlice(c.shape, values)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(clipperLists(numbers)); got != c.want {
			t.Errorf("%s: %s, want %s", c.shape, got, c.want)
		}
		words, err := tensor.FromStrings(c.shape, texts)
		if err != nil {
			t.Fatal(err)
		}
		want := c.want
		for _, text := range texts {
			if n > 1 {
				want = strings.ReplaceAll(want, text, `"`+text+`"`)
			}
		}
		if got := string(clipperLists(words)); got != want {
			t.Errorf("texts of %s: %s, want %s", c.shape, got, want)
		}
	}
}
