package config

import (
	"fmt"
	"slices"
	"strings"
)

// A Fault is one thing wrong with a configuration.
type Fault struct {
	Key  string // "tcp.connections", "container[0].command"; "" when the file is not TOML at all
	Text string // what was expected and what came

	Origin string // file or flag that the value is from; "" for a value set by a program or a default
	Line   int    // in the file, from 1; 0 = unknown
	Column int    // in bytes, from 1
}

// String is "shivad.toml:12:1: tcp.connections: ...".
func (f Fault) String() string {
	var b strings.Builder
	if f.Origin != "" {
		b.WriteString(f.Origin)
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
		}
		b.WriteString(": ")
	}
	if f.Key != "" {
		b.WriteString(f.Key)
		b.WriteString(": ")
	}
	b.WriteString(f.Text)
	return b.String()
}

// An Error is all that is wrong with a configuration, in the order of the file.
type Error struct {
	Faults []Fault
}

// Error is one line per fault.
func (e *Error) Error() string {
	if len(e.Faults) == 1 {
		return "config: " + e.Faults[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "config: %d faults:", len(e.Faults))
	for _, f := range e.Faults {
		b.WriteString("\n  ")
		b.WriteString(f.String())
	}
	return b.String()
}

// origin is where a value came from.
type origin struct {
	name         string // file or flag
	line, column int
}

// faults gathers what is wrong; origins finds the place of each.
type faults struct {
	origins map[string]origin
	own     map[string]origin // go before origins
	list    []Fault
}

func (fs *faults) add(key, format string, args ...any) {
	o := fs.find(key)
	fs.list = append(fs.list, Fault{Key: key, Text: fmt.Sprintf(format, args...), Origin: o.name, Line: o.line, Column: o.column})
}

// find returns the origin of key, or of the nearest thing around it: for an element its list,
// for a setting that is missing from a [[container]] that container.
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
	if len(fs.list) == 0 {
		return nil
	}
	slices.SortStableFunc(fs.list, func(a, b Fault) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return &Error{Faults: fs.list}
}
