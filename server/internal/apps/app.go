package apps

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler/naming"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/selection"
)

// A Definition is an application as operators write it.
type Definition = admin.App

// SplitLink returns the model and the version of a link, which is "name", "name/version" or
// "name/*"; the version is "" for the default and "*" for all.
func SplitLink(link string) (model, version string) {
	model, version, _ = strings.Cut(link, "/")
	return model, version
}

// An App is an application in force. It is immutable.
type App struct {
	Definition
	Selection *selection.Policy
	slo       time.Duration              // SLO, parsed
	fallback  map[string]json.RawMessage // Default, by output
}

// MaxLinks bounds the models of an application.
const MaxLinks = 64

// New checks a definition. The error wraps scheduler.ErrInvalidInput and lists all faults.
func New(d Definition) (*App, error) {
	a := &App{Definition: d}
	var faults []string
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if err := naming.CheckModel(d.Name); err != nil {
		add("name: %v", err)
	}
	switch n := len(d.Models); {
	case n == 0:
		add(`models: none, expected one or more, such as ["digits"], ["digits/2"] or ["digits/*"]`)
	case n > MaxLinks:
		add("models: %d, expected at most %d", n, MaxLinks)
	}
	for i, l := range d.Models {
		model, version := SplitLink(l)
		if err := naming.CheckModel(model); err != nil {
			add("models[%d]: %v", i, err)
		}
		if err := naming.CheckVersion(version); strings.Contains(l, "/") && version != "*" && err != nil {
			add("models[%d]: version %v", i, err)
		}
		if slices.Contains(d.Models[:i], l) {
			add("models[%d]: %q is linked twice", i, l)
		}
	}
	a.Policy = cmp.Or(a.Policy, "single")
	var err error
	if a.Selection, err = selection.Parse(a.Policy, d.Params); err != nil {
		add("%s", strings.TrimPrefix(err.Error(), "selection: "))
	}
	if d.SLO != "" {
		if a.slo, err = time.ParseDuration(d.SLO); err != nil {
			add("slo: %q is not a duration such as \"50ms\"", d.SLO)
		} else if a.slo != 0 && (a.slo < time.Millisecond || a.slo > setting.MaxWait) {
			add("slo: %v, expected 1ms to %s, or 0 for the model's deadline", a.slo,
				setting.FormatDuration(setting.MaxWait))
		}
		if a.SLO = ""; a.slo != 0 {
			a.SLO = a.slo.String()
		}
	}
	if d.Keep != 0 && !d.Keep.Valid() {
		add("keep: %d, expected %s, or 0 for the setting of its models", d.Keep, setting.KeepValues)
	}
	if len(d.Default) > 0 {
		if err := json.Unmarshal(d.Default, &a.fallback); err != nil || len(a.fallback) == 0 {
			add(`default: expected an object with the value of one row for each output, as {"label": -1}`)
		}
		for name, value := range a.fallback {
			// A container with an adapter may answer with any JSON.
			if _, err := untyped(value); err != nil && value[0] != '{' {
				add("default: %q: expected numbers, booleans, texts or nested lists of them: %v", name, err)
			}
		}
	}
	if faults != nil {
		return nil, fault.Invalid("application %q: %s", d.Name, strings.Join(faults, "; "))
	}
	return a, nil
}

// Only reports whether the application links to versions of that model and to nothing else:
// then both may have the same name.
func (a *App) Only(model string) bool {
	return !slices.ContainsFunc(a.Models, func(l string) bool { m, _ := SplitLink(l); return m != model })
}

// Keeps reports whether the application links to that version of a model even when it is not the
// default.
func (a *App) Keeps(model, version string) bool {
	return slices.Contains(a.Models, model+"/"+version) || slices.Contains(a.Models, model+"/*")
}

var errNoDefault = errors.New("the application has no default output")
