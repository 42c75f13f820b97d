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

	"github.com/shivad/shivad/server/admin"
)

// The manual agrees with the tags on which settings can change while the server runs and
// which wait for a restart.
func TestEverySettingIsClassed(t *testing.T) {
	text, err := os.ReadFile("../manual/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{} // by table: settings that change, settings that wait
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); len(cells) == 5 && strings.HasPrefix(cells[1], " `[") {
			for one := range strings.SplitSeq(cells[1], ",") { // tables of which the same holds
				table, _, _ := strings.Cut(strings.Trim(one, "`[] "), ".")
				rows[table] = []string{strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])}
			}
		}
	}
	unseen := maps.Clone(rows)
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
	all := settings("", reflect.ValueOf(Default()), false)
	all = append(all, settings("model", reflect.ValueOf(Model{}), false)...)
	all = append(all, settings("container", reflect.ValueOf(Container{}), false)...)
	all = append(all, settings("pipeline", reflect.ValueOf(admin.Pipeline{}), false)...)
	all = append(all, settings("route", reflect.ValueOf(Route{}), false)...)
	all = append(all, settings("model_file", reflect.ValueOf(ModelFile{}), false)...)
	all = append(all, settings("model_folder", reflect.ValueOf(ModelFolder{}), false)...)
	all = append(all, settings("identity", reflect.ValueOf(Identity{}), false)...)
	for _, s := range all {
		table, key, _ := strings.Cut(s.key, ".")
		column := 0
		if s.restart {
			column = 1
		}
		if row := rows[table]; row == nil || !names(row, column, key) || names(row, 1-column, key) {
			t.Errorf("%s: configuration.md says otherwise: %q", s.key, row)
		}
		delete(unseen, table)
	}
	for table := range unseen {
		t.Errorf("configuration.md has a table [%s], and the configuration has none", table)
	}
}

// Settings that can change are adopted, the rest are not, and both are listed, without passwords.
func TestAdopt(t *testing.T) {
	old := Default()
	old.State.At = "redis://:hunter2@a/0"
	old.Models["gone"] = Model{Policy: old.Defaults, CacheTTL: time.Second, Cache: 1 << 20}
	old.Supervised = []Container{
		{Name: "same", Command: []string{"x"}, Process: Process{Replicas: Fixed(1)}},
		{Name: "more", Command: []string{"x"}, Process: Process{Replicas: Fixed(1)}}, {Name: "gone", Command: []string{"x"}},
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
		{Name: "same", Command: []string{"x"}, Process: Process{Replicas: Fixed(1)}},
		{Name: "more", Command: []string{"x"}, Process: Process{Replicas: Fixed(2)}}, {Name: "called", Address: "tcp://a:2"},
		{Name: "new", Command: []string{"y"}, Process: Process{Env: map[string]string{"TOKEN": "hunter4"}}},
	}
	got, list := old.Adopt(next)
	if got.Log.Level != "debug" || got.Log.Format != "text" || got.TCP.Connections != 7 ||
		got.TCP.Loops != old.TCP.Loops || got.Server.Drain != time.Second ||
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
		"server.drain": false, "log.level": false, "log.format": true, "tcp.connections": false, "tcp.loops": true,
		"state.at": true, "defaults.objective": false, "defaults.batched": true,
		"model.gone.cache": false, "model.gone.cache_ttl": false, "model.new.default_version": false,
		"container.more": false, "container.gone": false, "container.called": true, "container.new": false,
	}
	// These are the settings of model.gone and model.new that differ from the defaults.
	maps.DeleteFunc(restart, func(key string, _ bool) bool {
		return strings.HasSuffix(key, ".objective") && strings.HasPrefix(key, "model.") ||
			strings.HasSuffix(key, ".batched") && strings.HasPrefix(key, "model.")
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

// Operators can change the settings that Changeable allows, by the rules of the file. For a
// misspelled setting the nearest one is suggested, and a setting with the tag file is refused.
func TestOverlay(t *testing.T) {
	c := Default()
	c.Models["a"] = Model{Policy: c.Defaults, Cache: 1 << 20}
	with, refused := c.Overlay(map[string]map[string]string{
		"a": {"objective": "20ms", "cache": "2MiB"},
		"b": {"objectiv": "20ms", "deadline": "1s"},
		"d": {"delay": "1s"},
		"e": {"cache": "4GiB"},
	})
	if a := with.Models["a"]; a.Objective != 20*time.Millisecond || a.Cache != 2<<20 || c.Models["a"].Cache != 1<<20 {
		t.Errorf("model a has %+v", a)
	}
	for name, want := range map[string][]string{
		"b": {
			"deadline=1s: model.b.deadline: not a setting that can be changed while running; known here: strategy, ",
			"objectiv=20ms: model.b.objectiv: not a setting that can be changed while running; did you mean objective?",
		},
		"d": {"delay=1s: model.d.delay: 1s is not below objective, 100ms: "},
		"e": {"cache=4GiB: model.e.cache: with it the caches of the models have "},
	} {
		got := lines(t, refused[name])
		if len(got) != len(want) || !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("model %s is refused with %q, want %q", name, got, want)
		}
		if _, changed := with.Models[name]; changed {
			t.Errorf("model %s has settings that were refused", name)
		}
	}
	if len(refused) != 3 {
		t.Errorf("refused %v", refused)
	}
}
