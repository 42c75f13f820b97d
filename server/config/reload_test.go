package config

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every setting is said to change while the server runs, or to wait for a restart, and the
// server's server/README.md says the same.
func TestEverySettingIsClassed(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string][]string{} // by table: what changes, what waits
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); len(cells) == 5 && strings.HasPrefix(cells[1], " `[") {
			table, _, _ := strings.Cut(strings.Trim(cells[1], "`[] "), ".")
			said[table] = []string{strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])}
		}
	}
	names := func(row []string, column int, key string) bool {
		listed := func(cell string) bool { return strings.Contains(cell, "`"+key+"`") }
		switch cell := row[column]; {
		case strings.HasPrefix(cell, "all others"):
			return !listed(row[1-column])
		case strings.HasPrefix(cell, "all but"):
			return !listed(cell)
		case strings.HasPrefix(cell, "all"):
			return true
		default:
			return listed(cell)
		}
	}
	tables := map[string]reflect.Value{"model": reflect.ValueOf(Model{}), "container": reflect.ValueOf(Container{})}
	for f := range fieldsOf(reflect.ValueOf(Default())) {
		if f.value.Kind() == reflect.Struct {
			tables[f.key] = f.value
		}
	}
	for table, v := range tables {
		for f := range fieldsOf(v) {
			now, later := slices.Contains(while[table], f.key), slices.Contains(waiting[table], f.key)
			if all := slices.Contains(while[table], "*") || slices.Contains(waiting[table], "*"); now && later || !now && !later && !all {
				t.Errorf("%s.%s: neither changes while the server runs nor waits for a restart, or both: see reload.go", table, f.key)
			}
			column := 1
			if changes(table, f.key) {
				column = 0
			}
			if row := said[table]; row == nil || !names(row, column, f.key) || names(row, 1-column, f.key) {
				t.Errorf("%s.%s: server/README.md says otherwise: %q", table, f.key, row)
			}
		}
	}
	for _, list := range []map[string][]string{while, waiting} {
		for table, keys := range list {
			for _, key := range keys {
				if v, ok := tables[table]; !ok || key != "*" && !slices.ContainsFunc(slices.Collect(fieldsOf(v)), func(f field) bool { return f.key == key }) {
					t.Errorf("%s.%s is classed, and no setting", table, key)
				}
			}
		}
	}
}

// What can change is adopted, what cannot is not, and both are listed, without passwords.
func TestAdopt(t *testing.T) {
	old := Default()
	old.State.At = "redis://:hunter2@a/0"
	old.Models["gone"] = Model{Policy: old.Defaults, CacheTTL: time.Second, Cache: 1 << 20}
	old.Supervised = []Container{
		{Name: "same", Command: []string{"x"}, Replicas: 1}, {Name: "more", Command: []string{"x"}, Replicas: 1}, {Name: "gone", Command: []string{"x"}},
		{Name: "called", Address: "tcp://a:1"},
	}
	next := old.Clone()
	next.State.At = "redis://:hunter3@a/0"
	next.Log.Level, next.Log.Format = "debug", "json"
	next.TCP.Connections, next.TCP.Loops = 7, 3
	next.Server.Drain = time.Second
	delete(next.Models, "gone")
	next.Models["new"] = Model{Policy: next.Defaults, DefaultVersion: "2"}
	next.Defaults.Objective = 50 * time.Millisecond
	next.Defaults.Batched = false
	next.Supervised = []Container{
		{Name: "same", Command: []string{"x"}, Replicas: 1}, {Name: "more", Command: []string{"x"}, Replicas: 2}, {Name: "called", Address: "tcp://a:2"},
		{Name: "new", Command: []string{"y"}, Env: map[string]string{"TOKEN": "hunter4"}},
	}
	got, list := old.Adopt(next)
	if got.Log.Level != "debug" || got.Log.Format != "text" || got.TCP.Connections != 7 || got.TCP.Loops != old.TCP.Loops || got.Server.Drain != time.Second ||
		got.State.At != old.State.At || got.Defaults.Objective != 50*time.Millisecond || !got.Defaults.Batched {
		t.Errorf("adopted %+v", got)
	}
	if _, ok := got.Models["gone"]; ok || got.Models["new"].DefaultVersion != "2" {
		t.Errorf("models %+v", got.Models)
	}
	var names []string
	for _, p := range got.Supervised {
		names = append(names, p.Name+" "+p.Address)
	}
	if want := "same |more |new |called tcp://a:1"; strings.Join(names, "|") != want {
		t.Errorf("containers %q", names)
	}
	restart := map[string]bool{}
	for _, c := range list {
		restart[c.Key] = c.Restart
	}
	want := map[string]bool{
		"server.drain": false, "log.level": false, "log.format": true, "tcp.connections": false, "tcp.loops": true, "state.at": true, "defaults.objective": false, "defaults.batched": true,
		"model.gone.cache": false, "model.gone.cache_ttl": false, "model.new.default_version": false, "container.more": false, "container.gone": false, "container.called": true, "container.new": false,
	}
	maps.DeleteFunc(restart, func(key string, _ bool) bool { // of model.gone and model.new what they have of other defaults
		return strings.HasSuffix(key, ".objective") && strings.HasPrefix(key, "model.") || strings.HasSuffix(key, ".batched") && strings.HasPrefix(key, "model.")
	})
	if !reflect.DeepEqual(restart, want) {
		t.Errorf("listed %v, expected %v", restart, want)
	}
	for _, c := range list {
		if text := fmt.Sprint(c); strings.Contains(text, "hunter") {
			t.Errorf("a password in %s", text)
		}
	}
	if _, list := old.Adopt(old); len(list) != 0 {
		t.Errorf("of the same: %v", list)
	}
}
