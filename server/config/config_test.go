package config

import (
	"bufio"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
)

const sample = "../../cmd/shivad/shivad.toml"

func text(t *testing.T, c Config) string {
	t.Helper()
	var b strings.Builder
	if err := c.WriteTOML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestSampleIsTheDefaults(t *testing.T) {
	c, err := Load(sample)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := text(t, c), text(t, Default()); got != want {
		t.Errorf("sample differs from the defaults:\n%s\nwant:\n%s", got, want)
	}
}

// The sample names every setting, and its commented settings ("#key") work when uncommented.
func TestSampleIsComplete(t *testing.T) {
	raw, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parse(sample, regexp.MustCompile(`(?m)^#(\S)`).ReplaceAll(raw, []byte("$1")))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if c.Models["digits"].MaxBatch != 64 || c.Models["digits"].QueueRows != 65536 ||
		c.Supervised[0].Replicas != Fixed(2) {
		t.Errorf("not what the sample says: %+v %+v", c.Models, c.Supervised)
	}
	for _, key := range allKeys(t, c) {
		_, ok := c.origins[key]
		if !ok { // only one of the two kinds of [[container]], or of two stages, has it
			_, ok = c.origins[strings.Replace(key, "[0]", "[1]", 1)]
		}
		if !ok && !strings.HasPrefix(key, "model.digits.") {
			t.Errorf("the sample lacks %s", key)
		}
	}
	for _, key := range []string{"model.digits.default_version", "model.digits.retire_after", "model.digits.cache", "model.digits.cache_ttl"} {
		if _, ok := c.origins[key]; !ok {
			t.Errorf("the sample lacks %s", key)
		}
	}
}

// allKeys lists the keys of c in the order in which WriteTOML writes them.
func allKeys(t *testing.T, c Config) []string {
	var keys []string
	table, list := "", ""
	for s := bufio.NewScanner(strings.NewReader(text(t, c))); s.Scan(); {
		line := s.Text()
		switch {
		case strings.HasPrefix(line, "[["):
			list = strings.Trim(line, "[]")
			table = list + "[0]"
		case strings.HasPrefix(line, "["):
			table = strings.Trim(line, "[]")
			if rest, inside := strings.CutPrefix(table, list+"."); inside && list != "" {
				table = list + "[0]." + rest
			}
		case line != "":
			key, _, _ := strings.Cut(line, " =")
			keys = append(keys, table+"."+key)
		}
	}
	if len(keys) < 50 {
		t.Fatalf("only %d keys: %q", len(keys), keys)
	}
	return keys
}

// Every field has a key, and every kind of field can be written, read and shown.
func TestRoundTrip(t *testing.T) {
	c := Default()
	fill(reflect.ValueOf(&c).Elem(), new(int))
	c.origins = nil
	again, err := parse("x", []byte(text(t, c)))
	if err != nil {
		t.Fatal(err)
	}
	again.origins = nil
	if !reflect.DeepEqual(c, again) {
		t.Errorf("wrote\n%+v\nread\n%+v", c, again)
	}
	if _, err := c.MarshalJSON(); err != nil {
		t.Error(err)
	}
}

// fill gives every setting a value that no other has.
func fill(v reflect.Value, n *int) {
	*n++
	switch x := v.Addr().Interface().(type) {
	case *string:
		*x = "a \"b\\c\x7f\n\u2028é" + strings.Repeat("x", *n)
	case *bool:
		*x = !*x
	case *int:
		*x = *n
	case *setting.Latest:
		*x = setting.Latest(*n % 3)
	case *setting.Cast:
		*x = setting.Cast(*n % 3)
	case *setting.Keep:
		*x = setting.Keep(*n % 3)
		if *x == 0 {
			*x = setting.KeepAll
		}
	case *time.Duration:
		*x = time.Duration(*n)*time.Hour + time.Duration(*n%3)*time.Microsecond
	case *Bytes:
		*x = Bytes(*n) << (*n % 30)
	case *Addrs:
		*x = Addrs{"a", strings.Repeat("b", *n)}
	case *[]string:
		*x = []string{"a", strings.Repeat("b", *n)}
	case *map[string]string:
		*x = map[string]string{"A": "1", "b c.d\"": "=", "": "empty"}
	case *map[string]Model:
		var a, b Model
		fill(reflect.ValueOf(&a).Elem(), n)
		fill(reflect.ValueOf(&b).Elem(), n)
		*x = map[string]Model{"digits": a, "odd.name x": b}
	case *Routes:
		*x = Routes{
			"odd.name x": {To: "cells/latest", Metadata: map[string]any{"stream": "a \"b\n", "max_age_ms": 0.5, "wait": true}},
			"plain": {To: "digits", Metadata: map[string]any{
				"n": int64(*n), "x": 1e300, "y": 2.0, "odd key": []any{"a", int64(1)}, "t": map[string]any{"a b": "c"},
			}},
			"bare": {To: "digits", Metadata: map[string]any{}},
		}
	case *float64:
		*x = float64(*n) / 64
	case *map[string]admin.Pipeline:
		var a, b admin.Pipeline
		fill(reflect.ValueOf(&a).Elem(), n)
		fill(reflect.ValueOf(&b).Elem(), n)
		*x = map[string]admin.Pipeline{"plates": a, "odd.name x": b}
	case *[]admin.Stage:
		*x = make([]admin.Stage, 2)
		for i := range *x {
			fill(reflect.ValueOf(&(*x)[i]).Elem(), n)
		}
	case *[]Container:
		*x = make([]Container, 2)
		for i := range *x {
			fill(reflect.ValueOf(&(*x)[i]).Elem(), n)
		}
	case *Devices:
		*x = Devices{"a", strings.Repeat("b", *n)}
	case *Batching:
		*x = Batching(strings.Repeat("b", *n))
	case *[]ModelFile:
		*x = make([]ModelFile, 2)
		for i := range *x {
			fill(reflect.ValueOf(&(*x)[i]).Elem(), n)
		}
	case *[]ModelFolder:
		*x = make([]ModelFolder, 2)
		for i := range *x {
			fill(reflect.ValueOf(&(*x)[i]).Elem(), n)
		}
	case *[]Identity:
		*x = make([]Identity, 2)
		for i := range *x {
			fill(reflect.ValueOf(&(*x)[i]).Elem(), n)
		}
	case *Patterns:
		*x = Patterns{"c", strings.Repeat("d", *n)}
	case *Hashes:
		*x = Hashes{"a", strings.Repeat("b", *n)}
	default:
		if v.Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), n)
			return
		}
		for f := range fieldsOf(v) {
			if f.key == "" {
				panic("no key: " + v.Type().String())
			}
			fill(f.value, n)
		}
	}
}

// A configuration as shown has no passwords, not even in URLs that no parser accepts.
func TestRedactedPasswords(t *testing.T) {
	for _, at := range []string{
		"redis://:hunter2@host:6379/0", "rediss://user:hunter2@host/0", "redis://user:hun%zzter2@host/0", "redis://:hunter2#/?@host/0",
		"redis://u:hunter2@x@host", "unix://user:hunter2@/run/redis.sock?db=1",
	} {
		c := Default()
		c.State.At = at
		c.Supervised = []Container{{Name: "x", Command: []string{"run", "--store=" + at, at},
			Process: Process{Env: map[string]string{"PASSWORD": "hunter2"}}}}
		text, err := json.Marshal(c.Redacted())
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"hunter2", "hun%zz", "ter2"} {
			if strings.Contains(string(text), part) {
				t.Errorf("%s: %q is shown: %s", at, part, text)
			}
		}
		if c.State.At != at || c.Supervised[0].Command[2] != at {
			t.Errorf("%s: what was redacted is the original", at)
		}
	}
	for _, at := range []string{"redis://host:6379/0", "/var/lib/shivad/state.db", "redis://user@host/0", "unix:///run/redis.sock?db=1"} {
		if got := (State{At: at}).Redacted(); got != at {
			t.Errorf("%s became %s", at, got)
		}
	}
}

// All privileges and limits of a [[container]] reach its processes.
func TestPrivilegesOfContainers(t *testing.T) {
	parsed, err := parse("x.toml", []byte(`[[container]]
name = "a"
command = ["a"]
user = "root"
inherit_env = ["A"]
new_privileges = true
read_only = true
writable = ["/b"]
memory = "1GiB"
file_bytes = "2MiB"
open_files = 3
processes = 4
`))
	if err != nil {
		t.Fatal(err)
	}
	got, want := parsed.Supervised[0].Privileges(),
		containers.Privileges{User: "root", InheritEnv: []string{"A"}, NewPrivileges: true, ReadOnly: true,
			Writable: []string{"/b"},
			Memory:   1 << 30, FileBytes: 2 << 20, OpenFiles: 3, Processes: 4}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, expected %+v", got, want)
	}
	for i := range reflect.ValueOf(want).NumField() {
		if reflect.ValueOf(want).Field(i).IsZero() {
			t.Errorf("%s is not tried", reflect.TypeOf(want).Field(i).Name)
		}
	}
}

func TestMarshalJSON(t *testing.T) {
	c := Default()
	c.Models["m"] = Model{Policy: c.Defaults, DefaultVersion: "2"}
	c.Supervised = []Container{{Name: "p"}}
	out, err := c.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"drain":"30s"`, `"message_bytes":"256MiB"`, `"listen":["127.0.0.1:7000"]`,
		`"default_version":"2"`, `"command":[]`, `"env":{}`, `"idle_timeout":"0s"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%s is not in %s", want, out)
		}
	}
}
