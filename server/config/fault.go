package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shivad/shivad/scheduler/setting"
)

// A Fault is one error in a configuration.
type Fault struct {
	Key  string // "tcp.connections", "container[0].command"; "" when the file is not TOML at all
	Text string // what was expected, and the value that was found

	Origin string // file or flag of the value; "" for a value set by a program or a default
	Line   int    // in the file, from 1; 0 = unknown
	Column int    // in bytes, from 1
}

// String returns "shivad.toml:12:1: tcp.connections: ...".
func (f Fault) String() string {
	text := f.Text
	if f.Key != "" {
		text = f.Key + ": " + text
	}
	switch {
	case f.Origin == "":
		return text
	case f.Line > 0:
		return fmt.Sprintf("%s:%d:%d: %s", f.Origin, f.Line, f.Column, text)
	}
	return f.Origin + ": " + text
}

// An Error has all faults of a configuration, in the order of the file.
type Error struct {
	Faults []Fault
}

// Error has one line per fault.
func (e *Error) Error() string {
	if len(e.Faults) == 1 {
		return "config: " + e.Faults[0].String()
	}
	text := fmt.Sprintf("config: %d faults:", len(e.Faults))
	for _, f := range e.Faults {
		text += "\n  " + f.String()
	}
	return text
}

// origin is where a value came from.
type origin struct {
	name         string // file or flag
	line, column int
}

// faults collects the faults; origins locates each of them.
type faults struct {
	setting.Faults
	origins map[string]origin
	own     map[string]origin // take precedence over origins
}

// of adds the faults that a room found in its settings; table is their table in the file.
func (fs *faults) of(table string, list setting.Faults) {
	for _, f := range list {
		key := table
		if f.Key != "" {
			key += "." + f.Key
		}
		fs.Add(key, "%s", f.Text)
	}
}

// find returns the origin of key, or of its nearest enclosing key: the list of an element, or the
// [[container]] in which a setting is missing.
func (fs *faults) find(key string) origin {
	for key != "" {
		if o, ok := fs.own[key]; ok {
			return o
		}
		if o, ok := fs.origins[key]; ok {
			return o
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return origin{}
}

func (fs *faults) err() error {
	if len(fs.Faults) == 0 {
		return nil
	}
	e := &Error{}
	for _, f := range fs.Faults {
		o := fs.find(f.Key)
		e.Faults = append(e.Faults, Fault{Key: f.Key, Text: f.Text, Origin: o.name, Line: o.line, Column: o.column})
	}
	slices.SortStableFunc(e.Faults, func(a, b Fault) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
	return e
}
