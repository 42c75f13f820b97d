package config

import (
	"maps"
	"reflect"
	"slices"
)

// A Change is a setting whose value differs in another configuration. Values are in their JSON
// form, without passwords.
type Change struct {
	Key           string
	Before, After any  // nil: no value
	Restart       bool // the change applies from the next start
}

// Adopt returns c with the values of next for all settings that can change while the server runs,
// and lists all settings that differ, by key. The result has not been validated.
//
// A setting can change unless its field or its table has the tag restart, which gives the reason.
func (c Config) Adopt(next Config) (adopted Config, list []Change) {
	adopted, next = c.Clone(), next.Clone()
	adopted.origins = next.origins
	from := settings("", reflect.ValueOf(&next).Elem(), false)
	for i, s := range settings("", reflect.ValueOf(&adopted).Elem(), false) {
		if !s.restart {
			s.value.Set(from[i].value)
		}
	}
	adopted.Models = map[string]Model{}
	for name, m := range next.Models {
		m.Batched = c.Model(name).Batched
		adopted.Models[name] = m
	}
	adopted.Identities, adopted.Routes = next.Identities, next.Routes
	adopted.Pipelines = next.Pipelines
	adopted.ModelFiles, adopted.ModelFolders = next.ModelFiles, next.ModelFolders
	// Containers that the server connects to stay as they are: their changes wait for a restart.
	called := func(p Container) bool { return p.Address != "" }
	adopted.Supervised = slices.DeleteFunc(slices.Clone(next.Supervised), called)
	for _, p := range c.Supervised {
		if called(p) {
			adopted.Supervised = append(adopted.Supervised, p)
		}
	}
	return adopted, c.differences(next)
}

// A settingValue is one setting of a table.
type settingValue struct {
	key     string
	value   reflect.Value
	restart bool
}

// settings lists the settings in the tables of v. v is a table itself unless table is "".
func settings(table string, v reflect.Value, restart bool) (list []settingValue) {
	for f := range fieldsOf(v) {
		restart := restart || f.tag.Get("restart") != ""
		switch {
		case f.value.Kind() == reflect.Struct:
			list = append(list, settings(joinKey(table, f.key), f.value, restart)...)
		case table != "":
			list = append(list, settingValue{joinKey(table, f.key), f.value, restart})
		}
	}
	return list
}

// differences lists the settings whose values differ in next, and the tables of lists, such as
// containers and identities, that were added, removed or changed, each as a whole.
func (c Config) differences(next Config) (list []Change) {
	models := map[string]bool{}
	for _, one := range []Config{c, next} {
		for name := range one.Models {
			models[name] = true
		}
	}
	var keys []string // of the elements of lists
	for _, one := range append(c.tables(), next.tables()...) {
		if !slices.Contains(keys, one.key) {
			keys = append(keys, one.key)
		}
	}
	// all lists the same settings of each configuration, in the same order.
	all := func(c Config) []settingValue {
		list := settings("", reflect.ValueOf(c), false)
		for _, name := range slices.Sorted(maps.Keys(models)) {
			list = append(list, settings(joinKey("model", name), reflect.ValueOf(c.Model(name)), false)...)
		}
		tables := c.tables()
		for _, key := range keys {
			one := settingValue{key: key}
			if i := slices.IndexFunc(tables, func(t settingValue) bool { return t.key == key }); i >= 0 {
				one = tables[i]
			}
			list = append(list, one)
		}
		return list
	}
	is, shownWas, shownIs := all(next), all(c.Redacted()), all(next.Redacted())
	for i, was := range all(c) {
		if !reflect.DeepEqual(jsonTree(was.value), jsonTree(is[i].value)) {
			list = append(list, Change{was.key, jsonTree(shownWas[i].value), jsonTree(shownIs[i].value), was.restart ||
				is[i].restart})
		}
	}
	return list
}

// tables lists the elements of the lists of tables, each under a key that tells it from others.
func (c Config) tables() (list []settingValue) {
	for _, p := range c.Supervised {
		list = append(list, settingValue{joinKey("container", p.Name), reflect.ValueOf(p), p.Address != ""})
	}
	for _, m := range c.ModelFiles {
		list = append(list, settingValue{joinKey("model_file", m.ModelName()), reflect.ValueOf(m), false})
	}
	for _, m := range c.ModelFolders {
		list = append(list, settingValue{joinKey("model_folder", m.Path), reflect.ValueOf(m), false})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Routes)) {
		list = append(list, settingValue{joinKey("route", name), reflect.ValueOf(c.Routes[name]), false})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pipelines)) {
		list = append(list, settingValue{joinKey("pipeline", name), reflect.ValueOf(c.Pipelines[name]), false})
	}
	for _, i := range c.Identities {
		list = append(list, settingValue{joinKey("identity", i.Name), reflect.ValueOf(i), false})
	}
	return list
}
