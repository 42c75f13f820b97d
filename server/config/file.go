package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Load reads a file over the defaults. Its error lists every unknown key and every value of a wrong
// type, each with its line. Ranges and rules between settings are left to Validate, which runs
// after flags have been set.
func Load(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("config: %w", err)
	}
	if text, err = plainText(text); err != nil {
		return Config{}, fmt.Errorf("config: %s: %w", path, err)
	}
	c, err := parse(path, text)
	if err != nil {
		return Config{}, err
	}
	// Paths are relative to the file, so that it works in any working directory.
	paths := append(c.TLS.paths(), &c.Frigate.ModelDirectory)
	for _, l := range c.doorsTLS() {
		paths = append(paths, l.own.paths()...)
	}
	for i := range c.Supervised {
		p := &c.Supervised[i]
		paths = append(paths, &p.Dir)
		paths = append(paths, each(p.Writable)...)
	}
	for i := range c.ModelFiles {
		m := &c.ModelFiles[i]
		paths = append(append(paths, &m.Path), m.Reading.paths(m.Writable)...)
	}
	for i := range c.ModelFolders {
		m := &c.ModelFolders[i]
		paths = append(append(paths, &m.Path), m.Reading.paths(m.Writable)...)
	}
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			if *p, err = filepath.Abs(filepath.Join(filepath.Dir(path), *p)); err != nil {
				return Config{}, fmt.Errorf("config: %w", err)
			}
		}
	}
	return c, nil
}

// each returns where the elements of a list are.
func each(list []string) (at []*string) {
	for i := range list {
		at = append(at, &list[i])
	}
	return at
}

// plainText returns text without the byte order mark that editors of Windows put before UTF-8. It
// fails for UTF-16, whose bytes a parser of TOML would only call invalid.
func plainText(text []byte) ([]byte, error) {
	switch text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")); {
	case bytes.HasPrefix(text, []byte{0xff, 0xfe}), bytes.HasPrefix(text, []byte{0xfe, 0xff}),
		bytes.IndexByte(text[:min(len(text), 2)], 0) >= 0:
		return nil, errors.New("expected UTF-8, got UTF-16: save the file as UTF-8")
	}
	return text, nil
}

// Blank reports whether the file was empty, as it is for a moment while an editor or a script
// writes it. A program that loads a file again should not take that for the operator's word.
func (c Config) Blank() bool { return c.blank }

// parse is Load without the disk; name is the file's name in faults.
//
// go-toml reads the text into a tree, and set.go puts the tree into the struct. go-toml can do
// both, but it stops at the first value of a wrong type, names Go types to readers of TOML, and
// keeps no positions for later checks.
func parse(name string, text []byte) (Config, error) {
	var tree map[string]any
	if err := toml.Unmarshal(text, &tree); err != nil {
		return Config{}, &Error{Faults: []Fault{syntaxFault(name, err)}}
	}
	c := Default()
	c.origins, c.blank = places(name, text), len(bytes.TrimSpace(text)) == 0
	fs := &faults{origins: c.origins}
	c.setTree(fs, tree)
	return c, fs.err()
}

// syntaxFault is an error of the TOML decoder, with its place.
func syntaxFault(name string, err error) Fault {
	f := Fault{Origin: name, Text: parser.ReplaceAllString(err.Error(), "")}
	if d, ok := errors.AsType[*toml.DecodeError](err); ok {
		f.Line, f.Column = d.Position()
		f.Key = joinKey("", d.Key()...)
	}
	return f
}

// parser matches the names of packages in an error of the TOML decoder.
var parser = regexp.MustCompile(`^toml: |strconv\.\w+: parsing `)

// places returns the position of each key in a well-formed document.
func places(name string, text []byte) map[string]origin {
	out := map[string]origin{}
	tables := map[string]int{} // array of tables -> number of its tables so far

	var p unstable.Parser
	p.Reset(text)
	note := func(key string, at unstable.Range) {
		if _, ok := out[key]; !ok {
			start := p.Shape(at).Start
			out[key] = origin{name, start.Line, start.Column}
		}
	}
	// walk follows a dotted key from a table, through the last element so far of each array of
	// tables on its way.
	walk := func(table string, it unstable.Iterator, element bool) string {
		for it.Next() {
			table = joinKey(table, string(it.Node().Data))
			note(table, it.Node().Raw)
			if element && it.IsLast() {
				tables[table]++
			}
			if n := tables[table]; n > 0 {
				table = indexKey(table, n-1)
				note(table, it.Node().Raw)
			}
		}
		return table
	}
	var value func(key string, v *unstable.Node)
	pair := func(table string, kv *unstable.Node) {
		value(walk(table, kv.Key(), false), kv.Value())
	}
	value = func(key string, v *unstable.Node) {
		i := 0
		for it := v.Children(); it.Next(); {
			switch {
			case v.Kind == unstable.InlineTable:
				pair(key, it.Node())
			case v.Kind == unstable.Array && it.Node().Kind != unstable.Comment:
				value(indexKey(key, i), it.Node())
				i++
			}
		}
	}

	table := ""
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table:
			table = walk("", e.Key(), false)
		case unstable.ArrayTable:
			table = walk("", e.Key(), true)
		case unstable.KeyValue:
			pair(table, e)
		}
	}
	return out
}

// joinKey appends parts to a dotted key, quoted if TOML requires it.
func joinKey(key string, parts ...string) string {
	for _, part := range parts {
		if key != "" {
			key += "."
		}
		key += quoteKey(part)
	}
	return key
}

// quoteKey returns a part of a key as TOML writes it.
func quoteKey(part string) string {
	bare := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-'
	}
	if part != "" && strings.TrimFunc(part, bare) == "" {
		return part
	}
	return quote(part)
}

func indexKey(key string, i int) string { return key + "[" + strconv.Itoa(i) + "]" }
