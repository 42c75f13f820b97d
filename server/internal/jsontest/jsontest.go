// Package jsontest makes wrong JSON from right JSON, and drives the tests of code that reads
// requests (Drive, Fuzz).
//
//	Choices ──► Value.Mutate ──► Value.Append ──► Spoil ──► text
//	bytes       other types, shapes, counts,      cut, one byte
//	            names, nesting, twins             more or other
//
// Random changes of bytes seldom get past a parser: the code behind it then sees only the few
// values that its tests list. So the changes here are made to the tree, and most results are JSON.
//
// A string of bytes, the choices, determines what is changed and how. A fuzzer that changes these
// bytes changes decisions, and the same bytes reproduce a finding.
//
// TestMutants of tcp, rest, grpc and server (the admin door) do this with valid requests. Some of
// these are frames of a few streams to a slow model, so that frames supersede each other. Each
// request has a time budget (shiva/budgettest), so that an endless loop ends with a stack trace.
package jsontest

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Choices are the bytes that determine decisions. When they are used up, the choice is always the
// first.
type Choices []byte

// N chooses a number from 0 to n-1, where n is 65,536 at most.
func (c *Choices) N(n int) int {
	v := 0
	for limit := 1; limit < n && len(*c) > 0; limit <<= 8 {
		v = v<<8 | int((*c)[0])
		*c = (*c)[1:]
	}
	return v % n
}

// One chooses one of several; the first when the choices are used up.
func One[T any](c *Choices, list []T) T { return list[c.N(len(list))] }

// A Value is JSON, or nearly JSON.
type Value struct {
	kind  byte     // '{', '[', or 0 for a literal
	text  string   // of a literal
	names []string // of an object's items
	items []*Value
}

// Parse parses right JSON.
func Parse(t testing.TB, text string) *Value {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	v, err := parse(d)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func parse(d *json.Decoder) (*Value, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	open, ok := token.(json.Delim)
	if !ok {
		text, err := json.Marshal(token)
		return &Value{text: string(text)}, err
	}
	v := &Value{kind: byte(open)}
	for d.More() {
		if open == '{' {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			v.names = append(v.names, name.(string))
		}
		item, err := parse(d)
		if err != nil {
			return nil, err
		}
		v.items = append(v.items, item)
	}
	_, err = d.Token()
	return v, err
}

// Append writes v as text.
func (v *Value) Append(b []byte) []byte {
	if v.kind == 0 {
		return append(b, v.text...)
	}
	b = append(b, v.kind)
	for i, item := range v.items {
		if i > 0 {
			b = append(b, ',')
		}
		if v.kind == '{' {
			b = append(strconv.AppendQuote(b, v.names[i]), ':')
		}
		b = item.Append(b)
	}
	return append(b, v.kind+2) // the closing bracket, in ASCII
}

// Clone returns a deep copy of v.
func (v *Value) Clone() *Value {
	c := *v
	c.names = slices.Clone(v.names)
	c.items = make([]*Value, len(v.items))
	for i, item := range v.items {
		c.items[i] = item.Clone()
	}
	return &c
}

// all appends v and all values in it to list.
func (v *Value) all(list []*Value) []*Value {
	list = append(list, v)
	for _, item := range v.items {
		list = item.all(list)
	}
	return list
}

// literals are values that seldom occur in place of another.
var literals = []string{
	"null", "true", "false", "{}", "[]", `""`, `"a"`, "0", "1", "-1", "2", "7", "-0", "0.5", "1e2", "1E-2", "1e400",
	"-1e400", "255", "256", "65536", "2147483648", "4294967296",
	"9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551615",
	"18446744073709551616", "1" + strings.Repeat("0", 400),
	"[null]", "[[]]", "[{}]", "[[],[]]", `{"a":1}`, `{"":{}}`, `[1,"a"]`, `[1,[2]]`, "[0,0]", `"\u0000"`,
	`"\ud83d\ude00"`, `"\ud800"`, `"é"`, `"null"`, `"[1]"`,
	// No JSON at all.
	"NaN", "-Infinity", "nul", "01", "1.", ".5", "+1", "'a'", `"`, "\"\xff\"", "\"\n\"", "[1,]", "[1 2]", `{"a"}`,
	`{"a":1,}`, "undefined", "",
}

// names are keys that have a meaning in several of our requests.
var names = []string{
	"id", "name", "inputs", "outputs", "shape", "datatype", "data", "parameters", "binary_data", "binary_data_size",
	"classification", "priority", "timeout", "user",
	"uid", "input", "input_batch", "label", "loss", "losses", "reward", "models", "policy", "params", "slo", "default",
	"version", "format", "settings", "", "a", "__proto__", "ID",
	"stream", "seq", "captured_at", "keep",
}

// mostBytes bounds what one change adds.
const mostBytes = 64 << 10

// Mutate changes something in v. c chooses what is changed and how.
func (v *Value) Mutate(c *Choices) {
	all := v.all(nil)
	at := One(c, all)
	switch c.N(12) {
	case 0, 1:
		*at = Value{text: One(c, literals)}
	case 2: // a copy of another value
		*at = *One(c, all).Clone()
	case 3: // deeper
		for range []int{1, 2, 3, 31, 200}[c.N(5)] {
			in := *at
			*at = Value{kind: '[', items: []*Value{&in}}
			if c.N(4) == 3 {
				*at = Value{kind: '{', names: []string{One(c, names)}, items: []*Value{&in}}
			}
		}
	case 4: // less deep
		if len(at.items) > 0 {
			*at = *at.items[c.N(len(at.items))].Clone()
		}
	case 5: // fewer
		if n := len(at.items); n > 0 {
			at.remove(c.N(n))
		}
	case 6: // more
		if n := len(at.items); n > 0 {
			i := c.N(n)
			item, name := at.items[i], at.name(i)
			times := []int{1, 2, 20, 300, 5000}[c.N(5)]
			for range min(times, mostBytes/(1+len(item.Append(nil)))) {
				at.insert(len(at.items), item.Clone(), name)
			}
		}
	case 7: // in another order
		if n := len(at.items); n > 1 {
			i, j := c.N(n), c.N(n)
			at.items[i], at.items[j] = at.items[j], at.items[i]
			if at.kind == '{' && c.N(2) == 0 {
				at.names[i], at.names[j] = at.names[j], at.names[i]
			}
		}
	case 8: // under another name
		if at.kind == '{' && len(at.items) > 0 {
			at.names[c.N(len(at.items))] = One(c, names)
		}
	case 9: // with one more
		if at.kind != 0 {
			at.insert(c.N(len(at.items)+1), &Value{text: One(c, literals)}, One(c, names))
		}
	case 10: // nearly the same number, or text
		if n, err := strconv.ParseInt(at.text, 10, 64); err == nil {
			at.text = strconv.FormatInt([]int64{n + 1, n - 1, -n, n * 1000, n << 32}[c.N(5)], 10)
		} else if strings.HasPrefix(at.text, `"`) && len(at.text) > 1 {
			inner := at.text[1 : len(at.text)-1]
			at.text = `"` + []string{inner + inner, inner + "x", inner + `\u0041`, strings.ToLower(inner),
				strings.Repeat("x", 1<<c.N(17))}[c.N(5)] + `"`
		}
	case 11: // an array as an object, and the other way
		if at.kind == '[' {
			at.kind = '{'
			at.names = at.names[:0]
			for range at.items {
				at.names = append(at.names, One(c, names))
			}
		} else if at.kind == '{' {
			at.kind, at.names = '[', nil
		}
	}
}

// name returns the name of an item; "" in an array.
func (v *Value) name(i int) string {
	if v.kind == '{' {
		return v.names[i]
	}
	return ""
}

func (v *Value) insert(i int, item *Value, name string) {
	v.items = slices.Insert(v.items, i, item)
	if v.kind == '{' {
		v.names = slices.Insert(v.names, i, name)
	}
}

func (v *Value) remove(i int) {
	v.items = slices.Delete(v.items, i, i+1)
	if v.kind == '{' {
		v.names = slices.Delete(v.names, i, i+1)
	}
}

// Spoil changes a byte of a text or cuts the text; most results are not JSON.
func Spoil(c *Choices, text []byte) []byte {
	if len(text) == 0 {
		return text
	}
	i := c.N(min(len(text), 1<<16))
	switch b := One(c, []byte("\x00 \n\"\\{}[],:0-.e\xff\xc3")); c.N(4) {
	case 0:
		return text[:i]
	case 1:
		text[i] = b
	case 2:
		return slices.Insert(text, i, b)
	case 3:
		return slices.Delete(text, i, i+1)
	}
	return text
}
