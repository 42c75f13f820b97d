package operate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
)

func (s Sources) pipelines() collection[admin.Pipeline] {
	return collection[admin.Pipeline]{
		Sources: s, of: s.Pipelines, what: "pipeline", path: "/v1/pipelines", part: `{"slo": "200ms"}`,
		parse: parsePipeline,
		all: func(list []admin.Pipeline) any {
			served := make([]admin.PipelineStatus, len(list))
			for i, p := range list {
				served[i] = s.Pipelines.Status(p)
			}
			return admin.PipelineList{Pipelines: served}
		},
		name: func(p *admin.Pipeline) *string { return &p.Name },
	}
}

// pipelineExample is what an error shows.
const pipelineExample = `{"name": "plates", "inputs": ["image"], "stages": [{"name": "detect", "model": "plate-detector", "inputs": {"image": "image"}}]}`

// parsePipeline reads a pipeline: see collection.parse.
func parsePipeline(text []byte) (p admin.Pipeline, faults []string, whole bool) {
	var stages []json.RawMessage
	faults, whole = parseMembers(text, "a pipeline", pipelineExample, map[string]member{
		"name":    {&p.Name, "a string"},
		"inputs":  {&p.Inputs, `a list of strings such as "image"`},
		"outputs": {&p.Outputs, `an object with STAGE.OUTPUT for each name, such as {"text": "read.text"}`},
		"slo":     {&p.SLO, `a string such as "200ms"`},
		"keep":    {&p.Keep, setting.KeepValues},
		"stages":  {&stages, "a list of objects"},
	})
	for i, text := range stages {
		s, wrong, readable := parseStage(text)
		for _, f := range wrong {
			faults = append(faults, fmt.Sprintf("stages[%d]: %s", i, f))
		}
		p.Stages, whole = append(p.Stages, s), whole && readable
	}
	p.Inputs = append([]string{}, p.Inputs...) // [] in JSON
	return p, faults, whole
}

func parseStage(text []byte) (s admin.Stage, faults []string, whole bool) {
	var filter json.RawMessage
	faults, whole = parseMembers(text, "a stage", `{"name": "read", "model": "plate-reader"}`, map[string]member{
		"name":     {&s.Name, "a string"},
		"model":    {&s.Model, `a string such as "m" or "m/2"`},
		"inputs":   {&s.Inputs, `an object with an input of the pipeline, or STAGE.OUTPUT, for each input of the model`},
		"each":     {&s.Each, `a string such as "detect.boxes"`},
		"boxes":    {&s.Boxes, `"pixels" or "parts"`},
		"keep":     {&filter, `an object such as {"score": 0.5}`},
		"margin":   {&s.Margin, "a number"},
		"required": {&s.Required, "true or false"},
		"timeout":  {&s.Timeout, `a string such as "50ms"`},
	})
	if filter == nil {
		return s, faults, whole
	}
	s.Keep = &admin.Filter{}
	wrong, readable := parseMembers(filter, "keep", `{"classes": ["plate"], "score": 0.5}`, map[string]member{
		"classes":  {&s.Keep.Classes, "a list of strings"},
		"score":    {&s.Keep.Score, "a number"},
		"most":     {&s.Keep.Most, "an integer"},
		"smallest": {&s.Keep.Smallest, "a number from 0 to 1"},
	})
	for _, f := range wrong {
		faults = append(faults, "keep: "+f)
	}
	return s, faults, whole && readable
}

func (s Sources) pipeline(r *http.Request) (any, error) {
	p, err := s.pipelines().find(r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	return s.Pipelines.Status(p), nil
}

// createPipeline makes a pipeline or, with ?dry_run=true, says what is wrong with it.
func (s Sources) createPipeline(r *http.Request, sent []byte) (any, error) {
	dry, err := boolParameter(r, "dry_run")
	if err != nil {
		return nil, err
	}
	if !dry {
		return s.pipelines().create(r, sent)
	}
	p, faults, _ := parsePipeline(sent)
	if err := refuseAll(faults); err != nil {
		return nil, err
	}
	return admin.PipelineCheck{Pipeline: p, Faults: append([]string{}, s.Pipelines.Faults(p)...)}, nil
}

func (s Sources) drawPipeline(r *http.Request) (any, error) {
	p, err := s.pipelines().find(r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	load := s.Pipelines.Status(p).Load
	return admin.PipelineDrawing{SVG: string(drawPipeline(p, func(stage string) string {
		if i := slices.IndexFunc(load, func(l admin.StageLoad) bool { return l.Stage == stage }); i >= 0 {
			return load[i].Summary
		}
		return "no requests"
	}))}, nil
}
