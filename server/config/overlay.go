package config

import (
	"errors"
	"maps"
	"reflect"
	"slices"
)

// changeable are the settings of a model that operators can change while it serves: all that do
// not have the tag file.
var changeable = func() (keys []string) {
	for f := range fieldsOf(reflect.ValueOf(Model{})) {
		if f.tag.Get("file") == "" {
			keys = append(keys, f.key)
		}
	}
	return keys
}()

// Changeable says why an operator cannot change a setting of [model.NAME] while the model
// serves, or returns nil.
func Changeable(key string) error {
	if slices.Contains(changeable, key) {
		return nil
	}
	return errors.New("not a setting that can be changed while running" + didYouMean(key, changeable))
}

// Overlay returns c with settings of models over its own: by model, with the keys and the words
// of [model.NAME]. c is valid. Settings of a model that cannot be changed, or do not hold, in
// themselves or beside c and those of the models before it by name, are left out, and refused
// says why. It takes time in proportion to what there is of models and settings.
func (c Config) Overlay(settings map[string]map[string]string) (with Config, refused map[string]error) {
	c = c.Clone()
	refused = map[string]error{}
	var caches Bytes
	for _, m := range c.Models {
		caches += m.Cache
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		m := c.Model(name)
		fs := &faults{origins: c.origins, own: map[string]origin{}}
		for _, key := range slices.Sorted(maps.Keys(settings[name])) {
			value := settings[name][key]
			full := joinKey("model", name, key)
			fs.own[full] = origin{name: key + "=" + value}
			if err := Changeable(key); err != nil {
				fs.Add(full, "%v", err)
			} else {
				set(fs, reflect.ValueOf(&m).Elem(), full, []string{key}, value)
			}
		}
		others := caches - c.Models[name].Cache
		if len(fs.Faults) == 0 {
			fs.of(joinKey("model", name), c.modelFaults(name, m, others))
		}
		if err := fs.err(); err != nil {
			refused[name] = err
			continue
		}
		caches = others + m.Cache
		c.Models[name] = m
	}
	return c, refused
}
