package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/shivad/shivad/scheduler/naming"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/parameter"
)

// A Route is a name that clients ask for in the place of another one, with metadata that they need
// not send, or cannot: a robot that sends constant bytes.
type Route struct {
	// To is what the name stands for: "NAME" or "NAME/VERSION" of a model, an application, another
	// route, or, with "/latest" after the name, the newest answer of a stream that is sent there.
	To string `toml:"to"`
	// Metadata are all other keys of the table. They apply to each request as if its client had
	// sent them, and instead of what it sends under these keys.
	Metadata map[string]any
}

// Routes are routes by name.
type Routes map[string]Route

// put takes a table for each.
func (rs *Routes) put(fs *faults, key string, value any) {
	var tables map[string]any
	if !assign(fs, &tables, key, value, "tables (["+key+".NAME])") {
		return
	}
	*rs = make(Routes, len(tables))
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		var r Route
		r.put(fs, joinKey(key, name), tables[name])
		(*rs)[name] = r
	}
}

// put takes a table.
func (r *Route) put(fs *faults, key string, value any) {
	var table map[string]any
	if !assign(fs, &table, key, value, "a table (["+key+"])") {
		return
	}
	*r = Route{Metadata: map[string]any{}}
	for _, k := range slices.Sorted(maps.Keys(table)) {
		if k == "to" {
			assign(fs, &r.To, joinKey(key, k), table[k], "a string")
		} else {
			r.Metadata[k] = table[k]
		}
	}
}

// tree returns the table.
func (r Route) tree() map[string]any {
	t := map[string]any{"to": r.To}
	maps.Copy(t, r.Metadata)
	return t
}

// A Destination is what a route stands for in the end, without further routes.
type Destination struct {
	Model, Version string // of a model; an application has no version, and "" is the default one
	Latest         bool   // the newest answer of a stream
	// Values are the parameters for the server, and Own those for the model, both as JSON by key.
	Values, Own map[string][]byte
}

// Destination follows a route of the configuration, which must be valid. Of a key that several
// routes on the way have, the value of the first one counts.
func (c Config) Destination(route string) Destination {
	d, _ := c.follow(route)
	return d
}

// follow is Destination for a route that may be invalid. The error is a fault of its field "to".
func (c Config) follow(route string) (d Destination, err error) {
	d.Values, d.Own = map[string][]byte{}, map[string][]byte{}
	metadata := map[string]any{}
	for way := []string{route}; ; way = append(way, d.Model) {
		r := c.Routes[way[len(way)-1]]
		for key, value := range r.Metadata {
			if _, given := metadata[key]; !given {
				metadata[key] = value
			}
		}
		name, rest, _ := strings.Cut(r.To, "/")
		switch {
		case r.To == "":
			return d, errors.New(`missing: what the name stands for, as "cells" or "cells/latest"`)
		case rest == "latest":
			d.Latest = true
		case rest != "" && d.Version == "":
			d.Version = rest
		}
		d.Model = name
		if slices.Contains(way, name) {
			return d, fmt.Errorf("a cycle: %s", strings.Join(append(way, name), " -> "))
		}
		if _, more := c.Routes[name]; !more {
			break
		}
	}
	keys := d.keys()
	for key, value := range metadata {
		text, err := json.Marshal(value)
		switch {
		case err != nil: // validateRoutes reports it
		case key == "version":
			d.Version = fmt.Sprint(value)
		case keys[key] != nil:
			d.Values[key] = text
		default:
			d.Own[key] = text
		}
	}
	return d, nil
}

// keys are the server's keys in the metadata of a request for d.
func (d Destination) keys() map[string]*parameter.Key {
	if d.Latest {
		return parameter.Latest.Keys()
	}
	return parameter.Shiva.Keys()
}

// single are keys that have no constant value: each is about one request.
var single = []string{"id", "seq", "captured_at", "after", "traceparent", "tracestate", "latest", "inputs",
	"parameters"}

// validateRoutes checks the routes.
func (c Config) validateRoutes(fs *faults) {
	served := c.servedNames()
	for _, name := range slices.Sorted(maps.Keys(c.Routes)) {
		var own setting.Faults
		own.Check("", naming.CheckModel(name))
		if by := served[name]; by != "" {
			own.Add("", "hides the model %q of %s: requests for it would not reach the model; give the route another name",
				name, by)
		}
		d, err := c.follow(name)
		if own.Check("to", err); err == nil {
			own = append(own, d.faults(c.Routes[name])...)
		}
		fs.of(joinKey("route", name), own)
	}
}

// faults returns what is wrong with a route that leads to d.
func (d Destination) faults(r Route) (fs setting.Faults) {
	fs.Check("to", naming.CheckModel(d.Model))
	if d.Version != "" {
		fs.Check("version", naming.CheckVersion(d.Version))
	}
	_, to, _ := strings.Cut(r.To, "/")
	if v, fixed := r.Metadata["version"]; fixed && to != "" && to != "latest" && to != d.Version {
		fs.Add("version", "%v is not the version of to = %q", v, r.To)
	}
	keys := d.keys()
	for _, key := range slices.Sorted(maps.Keys(r.Metadata)) {
		value := r.Metadata[key]
		text, err := json.Marshal(value)
		_, date := value.(fmt.Stringer) // TOML's dates and times
		switch {
		case slices.Contains(single, key) || strings.HasPrefix(key, "__"):
			fs.Add(key, "is of one request, and has no value that suits all of them")
		case err != nil || date:
			fs.Add(key, "expected a value of JSON, got %s", describe(value))
		case key == "version":
			if kind := reflect.TypeOf(value).Kind(); kind != reflect.String && kind != reflect.Int64 {
				fs.Add(key, "expected a string or an integer, got %s", describe(value))
			}
		case keys[key] != nil:
			err := keys[key].Read(new(parameter.Values), parameter.JSON(text))
			if wrong, ok := errors.AsType[*parameter.Error](err); ok {
				fs.Add(key, "expected %s, got %s", wrong.Expected, wrong.Got)
			}
		case d.Latest:
			known := append(slices.Sorted(maps.Keys(keys)), "version")
			known = slices.DeleteFunc(known, func(k string) bool { return slices.Contains(single, k) })
			fs.Add(key, "unknown key%s", didYouMean(key, known))
		}
	}
	return fs
}

// servedNames returns where the configuration says that there is a model, by name.
func (c Config) servedNames() map[string]string {
	by := map[string]string{}
	for i, required := range c.Server.RequiredModels {
		name, _, _ := strings.Cut(required, "/")
		by[name] = indexKey("server.required_models", i)
	}
	for name := range c.Models {
		by[name] = "[" + joinKey("model", name) + "]"
	}
	for i, m := range c.ModelFiles {
		by[m.ModelName()] = indexKey("model_file", i)
	}
	for i, p := range c.Supervised {
		if p.Model != "" {
			by[p.Model] = indexKey("container", i)
		} else if p.Address == "" {
			by[p.Name] = indexKey("container", i)
		}
	}
	return by
}
