package server

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// adder is a model that adds up the two elements of each row.
func adder(name string) containertest.Model {
	return containertest.Model{
		Name: name, Batched: new(true),
		Inputs:  []tensor.Spec{{Name: "pair", DType: tensor.Int64, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "sum", DType: tensor.Int64, Shape: tensor.Shape{-1}}},
		Answer: func(b *containertest.Batch) containertest.Reply {
			rows, _ := tensor.Values[int64](b.Inputs[0])
			var sums []int64
			for ; len(rows) > 0; rows = rows[2:] {
				sums = append(sums, rows[0]+rows[1])
			}
			return containertest.Reply{Outputs: []tensor.Tensor{ints(tensor.Shape{len(sums)}, sums...)}}
		},
	}
}

// added is a pipeline of a detector and an adder, as the configuration has it.
func added() admin.Pipeline {
	return admin.Pipeline{Inputs: []string{"image"}, Stages: []admin.Stage{
		{Name: "find", Model: "detector", Inputs: map[string]string{"image": "image"}},
		{Name: "add", Model: "adder", Inputs: map[string]string{"pair": "find.boxes"}, Each: "find.boxes"},
	}}
}

// addedJSON is the pipeline of added as the admin API takes it, without a name.
const addedJSON = `"inputs":["image"],"stages":[{"name":"find","model":"detector","inputs":{"image":"image"}},{"name":"add","model":"adder","inputs":{"pair":"find.boxes"},"each":"find.boxes"}]}`

// inferREST sends a request over HTTP, and returns the status and the answer.
func inferREST(t *testing.T, s *Server, model, body string) (int, string) {
	t.Helper()
	url := "http://" + s.Addrs().REST[0].String() + "/v2/models/" + model + "/infer"
	answer, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, strings.TrimSpace(string(text))
}

// TestNearPipelines: pipelines are among the names that are suggested for one that nothing has, to
// clients of every endpoint and to operators.
func TestNearPipelines(t *testing.T) {
	s := start(t, func(c *config.Config) { c.Pipelines["signs"] = added() })
	for _, w := range ways(t, s) {
		_, err := w.ask(t.Context(), "sings", rows(tensor.Float32, 1, false), 0)
		showsAs(t, err, w.shows(condition{"NotFound", 404, 5, false}),
			`no model, application or pipeline "sings"; nearest: "signs"`)
	}
	o := operator{t, s}
	o.expect("GET", "/v1/models/sings/explain", "", 404,
		`no model, application or pipeline \"sings\"; nearest: \"signs\"`)
	o.expect("GET", "/v1/models/zzz/explain", "", 404, `no model, application or pipeline \"zzz\"; /v1/status lists them`)
	o.expect("GET", "/v1/pipelines/sings", "", 404, `no pipeline \"sings\"; nearest: \"signs\"`)
}

// TestStagesWithoutModels: a pipeline says why the model of a stage is not served, as that is said
// of the model itself, and which name may have been meant, to those who may see the names.
func TestStagesWithoutModels(t *testing.T) {
	s := start(t, func(c *config.Config) {
		process := config.NewContainer("cell", "sleep", "600")
		process.Model = "slow"
		c.Supervised = []config.Container{process}
		for name, model := range map[string]string{"misspelled": "ader", "second": "adder/2", "slowly": "slow",
			"nested": "misspelled", "versioned": "misspelled/1", "other": "quite-another"} {
			p := added()
			p.Stages[1].Model = model
			c.Pipelines[name] = p
		}
		c.Identities = []config.Identity{declared("few", "infer:misspelled"),
			{Name: "anonymous", May: []string{"infer", "serve", "admin:write"}}}
	})
	connect(t, s, ragged("detector"))
	connect(t, s, adder("adder"))
	budgettest.Until(t, "the models", func() bool { return serves(s, "detector", "1") && serves(s, "adder", "1") })
	o := operator{t, s}
	for name, want := range map[string]string{
		"misspelled": `no model, application or pipeline "ader"; nearest: "adder"`,
		"second":     `model "adder" has no version "2"; it has "1"`,
		"slowly":     `no container has registered slow yet (slow: its process`,
		"nested":     `pipeline "nested": stage "add": pipeline "misspelled": stage "add": `,
		"versioned":  `"misspelled" is a pipeline, which has no versions`,
		"other":      `pipeline "quite-another"; registered: adder, detector, echo, misspelled, nested, second, s`,
	} {
		want = strings.ReplaceAll(want, `"`, `\"`)
		for _, w := range ways(t, s) {
			_, err := w.ask(t.Context(), name, rows(tensor.Float32, 1, false), 0)
			showsAs(t, err, w.shows(condition{"Unavailable", 503, 14, true}), strings.ReplaceAll(want, `\"`, `"`))
		}
		o.expect("GET", "/v1/pipelines/"+name, "", 200, want)
		o.expect("GET", "/v1/models/"+name+"/explain", "", 200, "Requests are refused: ", want)
	}
	o.expect("GET", "/v1/models/slowly/explain", "", 200, "Of stage add: No container of slow has registered")
	_, err := askAs(t, s, "few", &shiva.Message{Namespace: "misspelled"})
	if err == nil || !strings.Contains(err.Error(), "no container of ader has registered") {
		t.Errorf("without the right to see names: %v", err)
	}
}

// TestStagesWithoutReplicas: a pipeline still fits its models when the container of one has left,
// and says of that stage that it has no replica.
func TestStagesWithoutReplicas(t *testing.T) {
	s := start(t, func(c *config.Config) { c.Pipelines["p"] = added() })
	connect(t, s, ragged("detector"))
	connect(t, s, adder("adder")).Close()
	budgettest.Until(t, "the container to have left", func() bool { return replicas(s, "adder") == 0 })
	o := operator{t, s}
	o.expect("GET", "/v1/pipelines/p", "", 200, `"summary":"no requests"`, `"summary":"no live replica, no requests"`)
	o.expect("GET", "/v1/models/p/explain", "", 200, "Of stage add: No replica of adder/1 is live: its rows fail")
	r, err := s.predict.ModelReady("p", "")
	if err != nil || r.Error != "no live replica: no container of a model that it asks is connected" {
		t.Errorf("ready: %+v, %v", r, err)
	}
}

// TestPipelinesOfOperators: a pipeline of the file and one of the admin API answer alike, are shown
// with how their stages did, and are changed only where they are from.
func TestPipelinesOfOperators(t *testing.T) {
	file := config.Config{}
	s := unstarted(t, nil, func(c *config.Config) {
		c.Pipelines["fixed"] = added()
		file = c.Clone()
	})
	s.ReloadFrom(func() (config.Config, error) { return file.Clone(), nil }, nil)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	o := operator{t, s}
	o.expect("GET", "/v1/pipelines/fixed", "", 200, `"origin":"file"`, `"faults":["pipeline`, `application or pipeline \"detector\"`)
	connect(t, s, ragged("detector"))
	connect(t, s, adder("adder"))
	budgettest.Until(t, "the models", func() bool { return serves(s, "detector", "1") && serves(s, "adder", "1") })
	o.expect("GET", "/v1/pipelines/fixed", "", 200, `"faults":[]`)

	o.expect("POST", "/v1/pipelines?dry_run=true", `{"name":"made",`+addedJSON, 200, `"faults":[]`)
	unfit := `{"name":"made",` + strings.Replace(addedJSON, `"adder"`, `"detector"`, 1)
	o.expect("POST", "/v1/pipelines?dry_run=true", unfit, 200, `"faults":["`, `has no input`)
	o.expect("GET", "/v1/pipelines/made", "", 404)
	o.expect("POST", "/v1/pipelines", `{"name":"made",`+addedJSON, 201)
	o.expect("POST", "/v1/pipelines", `{"name":"made",`+addedJSON, 409, "exists already")
	misspelled := strings.Replace(addedJSON, "find.boxes", "find.bxes", 2)
	o.expect("POST", "/v1/pipelines", `{"name":"bad",`+misspelled, 400, `makes no`, `bxes`)
	o.expect("PATCH", "/v1/pipelines/made", `{"slo":"2s"}`, 200, `"slo":"2s"`)
	for _, change := range []string{"PUT", "PATCH", "DELETE"} {
		body := map[string]string{"PUT": "{" + addedJSON, "PATCH": `{"slo":"2s"}`}[change]
		o.expect(change, "/v1/pipelines/fixed", body, 409, "changes there only")
	}
	o.expect("POST", "/v1/pipelines", `{"name":"fixed",`+addedJSON, 409, "changes there only")

	const flat = `"inputs":[{"name":"image","datatype":"INT64","shape":[2,2],"data":[2,7,1,9]}]}`
	for _, name := range []string{"fixed", "made"} {
		status, answer := inferREST(t, s, name, `{"parameters":{"nested":true},`+flat)
		want := `"rows":[{"find":{"objects":[{"boxes":[2,7],"add":{"sum":9}},{"boxes":[2,7],"add":{"sum":9}}]}},{"find":{"objects":[{"boxes":[1,9],"add":{"sum":10}}]}}]}`
		if status != 200 || !strings.HasSuffix(answer, want) {
			t.Errorf("%s: %d %s\nexpected %s", name, status, answer, want)
		}
	}
	for body, want := range map[string]string{
		`{"parameters":{"nested":true,"binary_data_output":true},` + flat:                                        "has no binary data",
		`{"parameters":{"nested":true},"outputs":[{"name":"add.sum","parameters":{"classification":1}}],` + flat: "neither classifications",
	} {
		if status, answer := inferREST(t, s, "made", body); status != 400 || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	status, answer := inferREST(t, s, "detector", `{"parameters":{"nested":true},`+flat)
	if status != 400 || !strings.Contains(answer, "nested is for pipelines") {
		t.Errorf("a model: %d %s", status, answer)
	}

	o.expect("GET", "/v1/pipelines/made", "", 200, `"origin":"store"`, `"stage":"add","requests":1,"rows":3`, `"lost":{}`)
	o.expect("GET", "/v1/pipelines/made/drawing", "", 200, `each boxes`, `3 rows a request`)
	o.expect("GET", "/v1/models/made/explain", "", 200, "stage add asks adder about each of find.boxes", "Stage add had 1 request in the last minute, with 3 rows each")
	o.expect("GET", "/v1/status", "", 200, `"name":"made","version":"","kind":"pipeline"`, `"pipelines":[{"name":"fixed"`)
	o.expect("GET", "/v1/audit", "", 200, `"action":"create","what":"pipeline","name":"made"`, `"action":"change","what":"pipeline","name":"made"`)
	if _, text := requestAdmin(t, s, "GET", "/metrics", "", ""); !strings.Contains(text, `shivad_stage_rows_total{outcome="ok",pipeline="made",stage="add"} 3`) {
		t.Error("no rows of stages in the metrics")
	}
	document := o.expect("GET", "/v1/export", "", 200, `"pipelines":[{"name":"made"`)
	o.expect("DELETE", "/v1/pipelines/made", "", 200)
	o.expect("POST", "/v1/import", document, 200, `"what":"pipeline","name":"made"`)
	o.expect("POST", "/v1/import", strings.Replace(document, `"name":"made"`, `"name":"fixed"`, 1), 400, "changes there only")
	o.expect("GET", "/v1/pipelines/made", "", 200)
	o.expect("POST", "/v1/apps", `{"name":"made","models":["adder"]}`, 400, "pipeline")

	// A reload takes a pipeline away, and puts one into the place of one that is stored.
	delete(file.Pipelines, "fixed")
	file.Pipelines["made"] = added()
	o.expect("POST", "/v1/config/reload", "", 200, `"pipeline.fixed"`, `"pipeline.made"`)
	o.expect("GET", "/v1/pipelines/fixed", "", 404)
	o.expect("GET", "/v1/pipelines/made", "", 200, `"origin":"file"`)
	if status, answer := inferREST(t, s, "fixed", "{"+flat); status != 404 {
		t.Errorf("after it was removed: %d %s", status, answer)
	}
	delete(file.Pipelines, "made")
	o.expect("POST", "/v1/config/reload", "", 200)
	o.expect("GET", "/v1/pipelines/made", "", 200, `"origin":"store"`, `"slo":"2s"`)
}

// TestRightsOfPipelines: who may ask a pipeline needs no right to its models.
func TestRightsOfPipelines(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Pipelines["line"] = added()
		c.Identities = []config.Identity{{Name: "anonymous", May: []string{"infer:line", "serve"}}}
	})
	connect(t, s, ragged("detector"))
	connect(t, s, adder("adder"))
	budgettest.Until(t, "the models", func() bool { return serves(s, "detector", "1") && serves(s, "adder", "1") })
	const body = `{"inputs":[{"name":"image","datatype":"INT64","shape":[1,2],"data":[2,7]}]}`
	if status, answer := inferREST(t, s, "line", body); status != 200 || !strings.Contains(answer, `"data":[9,9]`) {
		t.Errorf("the pipeline: %d %s", status, answer)
	}
	if status, answer := inferREST(t, s, "detector", body); status == 200 {
		t.Errorf("a model of it: %d %s", status, answer)
	}
}

// TestPipelinesAreChargedOnce: on every door, a request to a pipeline of two stages takes of the
// quotas what one to a model takes: its stages charge nobody.
func TestPipelinesAreChargedOnce(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Server.LimitLoopback = true
		c.Pipelines["line"] = admin.Pipeline{Inputs: []string{"x"}, Outputs: map[string]string{"x": "then.x"},
			Stages: []admin.Stage{
				{Name: "first", Model: "echo", Inputs: map[string]string{"x": "x"}},
				{Name: "then", Model: "echo", Inputs: map[string]string{"x": "first.x"}},
			}}
		anonymous := config.Identity{Name: "anonymous", May: []string{"infer"}}
		anonymous.Quota.Quota = config.Quota{RequestsPerSecond: 1e6, BytesPerSecond: 1 << 40, RequestsInFlight: 1}
		c.Identities = []config.Identity{anonymous}
	})
	for _, d := range payingDoors {
		var took [2]access.Usage
		for i, asked := range []string{"echo", "line"} {
			budgettest.Until(t, "nothing is taken", func() bool { return takenOf(s) == "" })
			before := s.identities.Usage()["anonymous"]
			c := d.dial(t, s, "", "127.0.0.1")
			for range 3 {
				budgettest.Until(t, "nothing is taken", func() bool { return inFlight(s) == 0 })
				if err := c.ask(t.Context(), asked, manyRows); err != nil {
					t.Errorf("%s: %s: %v", d.name, asked, err)
				}
			}
			c.close()
			after := s.identities.Usage()["anonymous"]
			took[i] = access.Usage{Requests: after.Requests - before.Requests, Bytes: after.Bytes - before.Bytes}
		}
		if took[0] != took[1] || took[0].Requests != 3 {
			t.Errorf("%s: a model takes %d requests and %d bytes, a pipeline %d and %d", d.name,
				took[0].Requests, took[0].Bytes, took[1].Requests, took[1].Bytes)
		}
	}
}

// inFlight counts the requests of clients that are not answered.
func inFlight(s *Server) int64 { return s.identities.Usage()["anonymous"].Has[access.RequestsInFlight] }
