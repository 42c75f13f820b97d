package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/admin/admintest"
)

// TestExplainAndSet: the admin door's report on a model is printed, and settings reach the door as
// written.
func TestExplainAndSet(t *testing.T) {
	var set map[string]string
	policy := map[string]any{"objective": "100ms", "max_batch": 0}
	h := httptest.NewServer(admintest.Handler(admintest.Sources{
		Report:     explained{policy},
		Settings:   &adjusted{policy: policy, set: &set},
		Containers: connecting{},
		Metrics:    http.NotFoundHandler(),
	}))
	defer h.Close()
	for _, c := range []struct {
		args string
		exit int
		want string // part of the output
	}{
		{"explain m", exitOK, "m/2\n  - It is slow.\n  - Make it fast.\n\nm/1\n  - It is old.\n"},
		{"explain m/1", exitOK, "m/1\n  - It is old.\n"},
		{"explain m/3", exitRefused, "shivactl: no container has registered m/3; m has 2 versions: 2, 1; " +
			"container \"three\" of the server's file is LOADING (its process is starting)\n  -> a version is there once"},
		{"explain app/1", exitRefused, "app\n  - It asks m.\nshivactl: no container has registered app/1\n"},
		{"explain m/3 --json", exitRefused, `no container has registered m/3; m has 2 versions: 2, 1; container \"three\"`},
		{"explain other", exitRefused, `no model, application or pipeline "other"`},
		{"explain", exitUsage, "expected one model"},
		{"explain m/1 --json", exitOK, `"It is old."`},
		{"models set m objective=20ms slots=3", exitOK, "max_batch  0\nobjective  20ms\n"},
		{"models m", exitOK, "objective  20ms\n"},
		{"models set m max_batch=9", exitRefused, "max_batch is 9, but queue_rows is 5"},
		{"models set m", exitUsage, "which settings"},
		{"models set m objective", exitUsage, "expected KEY=VALUE"},
		{"models set m slots=1 slots=2", exitUsage, "slots is set twice"},
		{"models set other slots=1", exitRefused, `no model "other"`},
	} {
		var out bytes.Buffer
		exit := run(t.Context(), append(strings.Fields(c.args), "--admin", h.Listener.Addr().String()), nil, &out, &out)
		if exit != c.exit || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: exit %d, want %d with %q; it printed\n%s", c.args, exit, c.exit, c.want, out.String())
		}
	}
	if len(set) != 2 || set["objective"] != "20ms" || set["slots"] != "3" {
		t.Errorf("the server got %v", set)
	}
}

// explained serves a report on model m, with a policy.
type explained struct{ policy map[string]any }

func (explained) Ready() admin.Readiness { return admin.Readiness{} }
func (explained) Status() admin.Status   { return admin.Status{} }

func (explained) Names() []string { return []string{"m"} }

func (e explained) Models() []admin.Model {
	return []admin.Model{{Name: "m", Version: "2", Default: true, Policy: e.policy},
		{Name: "m", Version: "1", Policy: e.policy}}
}

func (explained) Streams(string, int) []admin.VersionStreams { return nil }
func (explained) Batches() []admin.Batches                   { return nil }
func (explained) Insights(string) []admin.Insight            { return nil }

func (explained) Explain(model string) []admin.Explanation {
	if model == "app" {
		return []admin.Explanation{{Name: "app", Sentences: []string{"It asks m."}}}
	}
	if model != "m" {
		return nil
	}
	return []admin.Explanation{{Name: "m", Version: "2", Sentences: []string{"It is slow.", "Make it fast."}},
		{Name: "m", Version: "1", Sentences: []string{"It is old."}}}
}

// connecting has a container that has not registered.
type connecting struct{ admintest.Operator }

func (connecting) List() admin.Containers {
	return admin.Containers{Containers: []admin.Container{
		{Name: "three", Model: "m/3", State: "LOADING", Reason: "its process is starting"},
		{Name: "other", Model: "other/3", State: "READY"}}}
}

// adjusted accepts all settings except one, and shows the objective.
type adjusted struct {
	policy map[string]any
	set    *map[string]string
}

func (*adjusted) Config() any                     { return nil }
func (*adjusted) Reload() (admin.Reloaded, error) { return admin.Reloaded{}, nil }

func (a *adjusted) Set(_ context.Context, model string,
	settings map[string]*string) (before, after map[string]any, err error) {
	if v := settings["max_batch"]; v != nil && *v == "9" {
		return nil, nil, &admintest.Error{Status: http.StatusBadRequest, Text: "max_batch is 9, but queue_rows is 5"}
	}
	set := map[string]string{}
	for key, value := range settings {
		set[key] = *value
	}
	*a.set = set
	a.policy["objective"] = set["objective"]
	return nil, nil, nil
}
