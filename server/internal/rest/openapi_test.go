package rest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva/tensor"
)

// document is the part of OpenAPI that the document uses.
type document struct {
	Paths      map[string]map[string]operation
	Components struct {
		Schemas   map[string]*schema
		Responses map[string]response
	}
}

type operation struct {
	RequestBody *struct {
		Content map[string]struct{ Schema *schema }
	}
	Responses map[string]response
}

type response struct {
	Ref     string `json:"$ref"`
	Content map[string]struct{ Schema *schema }
}

// schema is the part of JSON Schema that the document uses. Other keywords are refused, so that
// nothing goes unchecked by mistake.
type schema struct {
	Ref         string `json:"$ref"`
	Description string
	Type        string
	Required    []string
	Properties  map[string]*schema
	Additional  json.RawMessage `json:"additionalProperties"`
	Items       *schema
	Enum        []string
	AnyOf       []*schema
	Minimum     *float64
	Maximum     *float64

	ExclusiveMinimum *float64
}

func (s *schema) UnmarshalJSON(b []byte) error {
	type plain schema
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	return d.Decode((*plain)(s))
}

// check validates a value.
func (d *document) check(s *schema, at string, v any) error {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		named := d.Components.Schemas[name]
		if named == nil {
			return fmt.Errorf("%s: no schema %s", at, s.Ref)
		}
		return d.check(named, at, v)
	}
	if len(s.AnyOf) > 0 && !slices.ContainsFunc(s.AnyOf, func(one *schema) bool { return d.check(one, at, v) == nil }) {
		return fmt.Errorf("%s: %v is none of anyOf", at, v)
	}
	is := ""
	switch v := v.(type) {
	case nil:
		is = "null"
	case bool:
		is = "boolean"
	case string:
		is = "string"
		if s.Enum != nil && !slices.Contains(s.Enum, v) {
			return fmt.Errorf("%s: %q is not one of %q", at, v, s.Enum)
		}
	case float64:
		is = "number"
		if s.Type == "integer" && v == math.Trunc(v) {
			is = "integer"
		}
		if s.Maximum != nil && v > *s.Maximum {
			return fmt.Errorf("%s: %v is above %v", at, v, *s.Maximum)
		}
		if s.ExclusiveMinimum != nil && v <= *s.ExclusiveMinimum {
			return fmt.Errorf("%s: %v is not above %v", at, v, *s.ExclusiveMinimum)
		}
		if s.Minimum != nil && v < *s.Minimum {
			return fmt.Errorf("%s: %v is below %v", at, v, *s.Minimum)
		}
	case []any:
		is = "array"
		for i, e := range v {
			if s.Items != nil {
				if err := d.check(s.Items, fmt.Sprintf("%s[%d]", at, i), e); err != nil {
					return err
				}
			}
		}
	case map[string]any:
		is = "object"
		for _, name := range s.Required {
			if _, ok := v[name]; !ok {
				return fmt.Errorf("%s: no %q", at, name)
			}
		}
		for name, member := range v {
			of := s.Properties[name]
			if of == nil {
				switch string(s.Additional) {
				case "":
					continue
				case "false":
					return fmt.Errorf("%s: %q is not in the document", at, name)
				}
				of = new(schema)
				if err := json.Unmarshal(s.Additional, of); err != nil {
					return err
				}
			}
			if err := d.check(of, at+"."+name, member); err != nil {
				return err
			}
		}
	}
	if s.Type != "" && s.Type != is {
		return fmt.Errorf("%s: %v is not of type %s", at, v, s.Type)
	}
	return nil
}

func readDocument(t *testing.T) *document {
	t.Helper()
	var d document
	if err := json.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// The document has every path and method of the door, and no other.
func TestOpenAPIRoutes(t *testing.T) {
	var have, want []string
	for path, methods := range readDocument(t).Paths {
		for method := range methods {
			have = append(have, method+" "+path)
		}
	}
	for _, r := range routes {
		want = append(want, strings.ToLower(r.method)+" "+r.path)
		if r.both {
			want = append(want, "post "+r.path)
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("the document has\n%s\nthe door has\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// Every path answers as the document describes: with a model, without it, and with a model that has
// no container. The requests of this test match the document, too.
func TestOpenAPIAnswers(t *testing.T) {
	r := newRig(t, nil)
	r.Model("m", spec(every...), scheduler.WorkerFunc(r.Echo))
	gone := r.Model("gone", spec(every...), scheduler.WorkerFunc(r.Echo))
	gone.Remove(nil)
	file, _ := r.shared(make([]byte, 8))
	one := []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 3}}}
	r.Model("one", scheduler.Spec{Inputs: one, Outputs: one}, scheduler.WorkerFunc(r.Echo))
	r.Applications(apps.Definition{Name: "taught", Models: []string{"one"}, Policy: "exp3"})
	var inputs []string
	for _, s := range every {
		inputs = append(inputs,
			fmt.Sprintf(`{"name":%q,"datatype":%q,"shape":[1,2],"data":[[%s]]}`, s.Name, s.DType.V2(),
				everyJSON[s.DType]))
	}
	infer := `{"id":"7","parameters":{"priority":1,"timeout":9000000,"timing":true,"other":{"x":1}},"inputs":[` +
		strings.Join(inputs, ",") + `],
		"outputs":[{"name":"output_FP32","parameters":{"classification":1}},{"name":"output_BOOL"},{"name":"output_BYTES"},{"name":"output_FP64","parameters":{"binary_data":false}}]}`
	// A stream of which somebody has asked for the newest answer.
	r.ask("GET", "/v2/models/m/latest", "")
	r.ask("POST", "/v2/models/m/infer", strings.Replace(infer, `{"priority"`, `{"stream":"cam","priority"`, 1))
	d := readDocument(t)
	statuses := map[string]bool{}
	for path, methods := range d.Paths {
		for method, op := range methods {
			for _, model := range []string{"m", "gone", "none", "managed"} {
				body := ""
				if op.RequestBody != nil {
					body = "{}"
				}
				named := model
				switch {
				case strings.HasSuffix(path, "/infer"):
					body = infer
				case path == "/{model}/predict", path == "/{model}/update": // an application with a model of one input
					body = `{"uid":"u","input":[1,2,3],"label":[1,2,3]}`
					if model == "m" {
						named = "taught"
					}
				}
				if strings.HasSuffix(path, "/register") {
					body = fmt.Sprintf(`{"key":"/%s","offset":0,"byte_size":8}`, file)
				}
				// Register the region first, unless registering is under test.
				if strings.Contains(path, "/region/") && model == "m" {
					_ = r.Regions.Register(regions.Client{}, regions.Region{Name: "m", Key: file, Size: 8})
					if strings.HasSuffix(path, "/register") {
						_ = r.Regions.Unregister(regions.Client{}, "m")
					}
				}
				if op.RequestBody != nil {
					var v any
					if err := json.Unmarshal([]byte(body), &v); err != nil {
						t.Fatal(err)
					}
					if err := d.check(op.RequestBody.Content["application/json"].Schema, "request", v); err != nil {
						t.Errorf("%s %s: %v", method, path, err)
					}
				}
				url := strings.NewReplacer("{model}", named, "{region}", model, "{version}", "1").Replace(path)
				a := r.ask(strings.ToUpper(method), url, body)
				status := fmt.Sprint(a.status)
				statuses[status] = true
				re, ok := op.Responses[status]
				if !ok {
					re, ok = op.Responses[status[:1]+"XX"]
				}
				if name, isRef := strings.CutPrefix(re.Ref, "#/components/responses/"); isRef {
					re = d.Components.Responses[name]
				}
				var v any
				if err := json.Unmarshal(a.body, &v); err != nil || !ok {
					t.Errorf("%s %s: %v %v", method, url, a, err)
					continue
				}
				if err := d.check(re.Content["application/json"].Schema, "answer", v); err != nil {
					t.Errorf("%s %s: %v in %s", method, url, err, a)
				}
				if model == "m" && a.status != 200 && !strings.HasSuffix(path, "/unload") {
					t.Errorf("%s %s: %v", method, url, a)
				}
			}
		}
	}
	if got := slices.Sorted(maps.Keys(statuses)); !slices.Equal(got, []string{"200", "400", "404", "503"}) {
		t.Errorf("the paths answered %v", got)
	}
}

// The validator finds faults.
func TestOpenAPIValidator(t *testing.T) {
	d := readDocument(t)
	for text, name := range map[string]string{
		`{"error":5}`: "Error", `{}`: "Error", `{"error":"x","more":1}`: "Error",
		`{"name":"x","datatype":"FP31","shape":[]}`:    "TensorMetadata",
		`{"name":"x","datatype":"FP32","shape":[-2]}`:  "TensorMetadata",
		`{"name":"x","datatype":"FP32","shape":[1.5]}`: "TensorMetadata", `[{}]`: "TensorData", `[[1],[{}]]`: "TensorData",
	} {
		var v any
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&v); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if d.check(&schema{Ref: "#/components/schemas/" + name}, "", v) == nil {
			t.Errorf("%s passes as %s", text, name)
		}
	}
}
