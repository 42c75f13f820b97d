package config

import (
	"maps"
	"reflect"
	"slices"
)

// while are the settings that can change while the server runs, by table; "*" is all of a
// table. server/README.md has the same table.
var while = map[string][]string{
	"server":     {"*"},
	"log":        {"level"},
	"tcp":        {"*"},
	"rest":       {"*"},
	"grpc":       {"*"},
	"containers": {"*"},
	"admin":      {"*"},
	"limits":     {"*"},
	"defaults":   {"*"},
	"model":      {"*"},
	"container":  {"*"},
}

// waiting are those that hold from the next start on. "*" as above.
var waiting = map[string][]string{
	"log":  {"format"}, // every line of a log has one
	"tcp":  {"listen", "loops"},
	"rest": {"listen"},
	"grpc": {"listen",
		"streams_per_connection", "idle_timeout", "ping_interval", "ping_timeout", "min_ping_interval"}, // grpc-go takes them once
	"containers": {"listen", "listen_v1b", "listen_v2", "listen_v2a"},
	"admin":      {"listen"},
	"state":      {"*"},                             // it is open
	"limits":     {"payload_bytes", "unpack_bytes"}, // caches, and the limit of the heap, were measured by them
	"defaults":   {"batched"},                       // replicas have registered by it
	"model":      {"batched"},
}

// changes reports whether a setting of a table can change while the server runs. One by name
// goes before all.
func changes(table, key string) bool {
	if slices.Contains(waiting[table], key) {
		return false
	}
	return slices.Contains(while[table], key) || slices.Contains(while[table], "*")
}

// A Change is a setting that another configuration has another value for. Values are JSON's,
// and show no password.
type Change struct {
	Key           string
	Before, After any  // nil: there was, or is, none
	Restart       bool // it holds from the next start on
}

// Adopt returns c with what next has of the settings that can change while the server runs, and
// all settings that differ, by key. What is returned has not been validated.
func (c Config) Adopt(next Config) (adopted Config, list []Change) {
	adopted, next = c.Clone(), next.Clone()
	adopted.origins = next.origins
	to, from := reflect.ValueOf(&adopted).Elem(), reflect.ValueOf(next)
	for i := range to.NumField() {
		table := to.Type().Field(i).Tag.Get("toml")
		if to.Field(i).Kind() != reflect.Struct || table == "" {
			continue
		}
		adoptTable(table, to.Field(i), from.Field(i))
	}
	adopted.Models = map[string]Model{}
	for name, m := range next.Models {
		m.Batched = c.Model(name).Batched
		adopted.Models[name] = m
	}
	// Containers that are called keep their connections: what is new of them waits.
	adopted.Supervised = slices.DeleteFunc(slices.Clone(next.Supervised), func(p Container) bool { return p.Address != "" })
	for _, p := range c.Supervised {
		if p.Address != "" {
			adopted.Supervised = append(adopted.Supervised, p)
		}
	}
	return adopted, c.differences(next)
}

func adoptTable(table string, to, from reflect.Value) {
	values := map[string]reflect.Value{}
	for f := range fieldsOf(from) {
		values[f.key] = f.value
	}
	for f := range fieldsOf(to) {
		if changes(table, f.key) {
			f.value.Set(values[f.key])
		}
	}
}

// differences are the settings of which next has another value.
func (c Config) differences(next Config) (list []Change) {
	shownOld, shownNew := c.Redacted(), next.Redacted()
	compare := func(table, name string, a, b, shownA, shownB reflect.Value) {
		others, before, after := map[string]reflect.Value{}, map[string]any{}, map[string]any{}
		for f := range fieldsOf(b) {
			others[f.key] = f.value
		}
		for f := range fieldsOf(shownA) {
			before[f.key] = jsonTree(f.value)
		}
		for f := range fieldsOf(shownB) {
			after[f.key] = jsonTree(f.value)
		}
		for f := range fieldsOf(a) {
			if !reflect.DeepEqual(jsonTree(f.value), jsonTree(others[f.key])) {
				list = append(list, Change{joinKey(name, f.key), before[f.key], after[f.key], !changes(table, f.key)})
			}
		}
	}
	a, b, sa, sb := reflect.ValueOf(c), reflect.ValueOf(next), reflect.ValueOf(shownOld), reflect.ValueOf(shownNew)
	for i := range a.NumField() {
		if table := a.Type().Field(i).Tag.Get("toml"); table != "" && a.Field(i).Kind() == reflect.Struct {
			compare(table, table, a.Field(i), b.Field(i), sa.Field(i), sb.Field(i))
		}
	}
	names := maps.Clone(c.Models)
	if names == nil {
		names = map[string]Model{}
	}
	maps.Copy(names, next.Models)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, is := reflect.ValueOf(c.Model(name)), reflect.ValueOf(next.Model(name))
		compare("model", joinKey("model", name), was, is, was, is)
	}
	return append(list, containerDifferences(c.Supervised, next.Supervised, shownOld.Supervised, shownNew.Supervised)...)
}

// containerDifferences are the containers that have arrived, gone or changed, each as a whole.
func containerDifferences(was, is, shownWas, shownIs []Container) (list []Change) {
	at := func(all []Container, name string) int {
		return slices.IndexFunc(all, func(p Container) bool { return p.Name == name })
	}
	var names []string
	for _, p := range slices.Concat(was, is) {
		if !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	for _, name := range names {
		c := Change{Key: joinKey("container", name)}
		i, k := at(was, name), at(is, name)
		if i >= 0 && k >= 0 && reflect.DeepEqual(jsonTree(reflect.ValueOf(was[i])), jsonTree(reflect.ValueOf(is[k]))) {
			continue
		}
		if i >= 0 {
			c.Before, c.Restart = jsonTree(reflect.ValueOf(shownWas[i])), was[i].Address != ""
		}
		if k >= 0 {
			c.After, c.Restart = jsonTree(reflect.ValueOf(shownIs[k])), c.Restart || is[k].Address != ""
		}
		list = append(list, c)
	}
	return list
}
