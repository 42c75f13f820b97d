package config

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
)

// Replicas is how many processes a container has: between Min and Max, as its models need. In the
// file it is a number, for both Min and Max, or a table.
type Replicas struct {
	// Min may be 0: without requests the last process ends eventually, and the next request waits
	// for a start.
	Min int `toml:"min" default:"1"`
	Max int `toml:"max"`
	// DownAfter is how long fewer processes must suffice before one is ended.
	DownAfter time.Duration `toml:"down_after" default:"5m"`
}

// mostReplicas is the most processes of one container.
const mostReplicas = 1024

// Fixed returns Replicas for a constant number of processes.
func Fixed(n int) Replicas {
	r := Replicas{}
	setDefaults(reflect.ValueOf(&r).Elem())
	r.Min, r.Max = n, n
	return r
}

// Scales reports whether the number changes with the load.
func (r Replicas) Scales() bool { return r.Min != r.Max }

// faults adds the faults. A constant number of processes is reported at most once, under key
// itself.
func (r Replicas) faults(fs *setting.Faults, key string) {
	if !r.Scales() {
		setting.Between(fs, key, r.Min, 1, mostReplicas)
	} else {
		setting.Between(fs, key+".min", r.Min, 0, mostReplicas)
		setting.Between(fs, key+".max", r.Max, max(1, r.Min), mostReplicas)
	}
	if !r.Scales() && r.DownAfter == 0 {
		return // left out by a program, and unused
	}
	setting.Between(fs, key+".down_after", r.DownAfter, time.Second, setting.MaxIdle)
}

// put takes a number or a table.
func (r *Replicas) put(fs *faults, key string, value any) {
	switch v := value.(type) {
	case int64:
		*r = Fixed(int(v))
	case map[string]any:
		*r = Fixed(1)
		r.Max = 0
		putStruct(fs, reflect.ValueOf(r).Elem(), key, v)
		if _, ok := v["max"]; !ok {
			fs.Add(key+".max", "missing: the most processes there may be")
			r.Max = max(1, r.Min) // avoids a second fault
		}
	default:
		fs.Add(key, "expected a number of processes, or a table such as { min = 1, max = 4 }, got %s", describe(value))
	}
}

// toml returns the value as in the file.
func (r Replicas) toml() string {
	if !r.Scales() {
		return strconv.Itoa(r.Min)
	}
	return fmt.Sprintf("{ min = %d, max = %d, down_after = %q }", r.Min, r.Max, setting.FormatDuration(r.DownAfter))
}

// json returns the value in its JSON form.
func (r Replicas) json() any {
	if !r.Scales() {
		return r.Min
	}
	return map[string]any{"min": r.Min, "max": r.Max, "down_after": setting.FormatDuration(r.DownAfter)}
}
