package config

import (
	"maps"
	"reflect"
	"slices"
)

// Overlay returns c with settings of models over its own: by model, with the keys and the words
// of [model.NAME]. c is valid. Settings of a model that do not hold, in themselves or beside c
// and those of the models before it by name, are left out, and refused says why. It takes time
// in proportion to what there is of models and settings.
func (c Config) Overlay(settings map[string]map[string]string) (with Config, refused map[string]error) {
	c = c.Clone()
	if c.Models == nil {
		c.Models = map[string]Model{}
	}
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
			set(fs, reflect.ValueOf(&m).Elem(), full, []string{key}, value)
		}
		if len(fs.list) == 0 {
			c.validateModel(fs, name, m)
			c.validateCaches(fs, joinKey("model", name, "cache"), caches-c.Models[name].Cache, m.Cache)
		}
		if refused[name] = fs.err(); refused[name] == nil {
			delete(refused, name)
			caches += m.Cache - c.Models[name].Cache
			c.Models[name] = m
		}
	}
	return c, refused
}
