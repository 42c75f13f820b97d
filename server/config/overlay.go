package config

import (
	"errors"
	"maps"
	"reflect"
	"slices"
)

// changeable has the settings of a model that operators can change while it serves: those without
// the tag file.
var changeable = func() (keys []string) {
	for f := range fieldsOf(reflect.ValueOf(Model{})) {
		if f.tag.Get("file") == "" {
			keys = append(keys, f.key)
		}
	}
	return keys
}()

// Changeable returns the error for a setting of [model.NAME] that an operator cannot change while
// the model serves, or nil.
func Changeable(key string) error {
	if slices.Contains(changeable, key) {
		return nil
	}
	return errors.New("not a setting that can be changed while running" + didYouMean(key, changeable))
}

// Overlay returns c with settings of models on top: by model, under the keys and in the form of
// [model.NAME]. c must be valid. A model's settings are left out if one of them cannot be changed,
// or is invalid, alone or together with c and with the models before it by name; refused has the
// reason. Overlay takes time in proportion to the number of models and settings.
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
