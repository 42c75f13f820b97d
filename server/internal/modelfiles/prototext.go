package modelfiles

import (
	"fmt"
	"strconv"
	"strings"
)

// A message is a protocol buffer in text form, as Triton's config.pbtxt, without its schema. A
// decoder with one would drop the keys that it does not know, and people should be told of them.
type message []textField

// A textField is a key with a value: a string, a word (a number or a name), or a message. A list is
// several fields.
type textField struct {
	name  string
	line  int
	value any
}

type word string

// parseText reads a message.
func parseText(text string) (message, error) {
	p := textParser{rest: text, line: 1}
	m, err := p.message("")
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", p.line, err)
	}
	return m, nil
}

// A textParser is at a place in a text.
type textParser struct {
	rest  string
	line  int
	depth int
}

// mostDepth bounds how far messages may be nested.
const mostDepth = 32

// next returns the first byte that is no space and no comment, without taking it; 0 at the end.
func (p *textParser) next() byte {
	for p.rest != "" {
		switch c := p.rest[0]; c {
		case '\n':
			p.line++
			p.rest = p.rest[1:]
		case ' ', '\t', '\r':
			p.rest = p.rest[1:]
		case '#':
			end := strings.IndexByte(p.rest, '\n')
			if end < 0 {
				end = len(p.rest)
			}
			p.rest = p.rest[end:]
		default:
			return c
		}
	}
	return 0
}

// take takes a byte if it is the next one.
func (p *textParser) take(c byte) bool {
	if p.next() != c || c == 0 {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// message reads fields up to a closing bracket; "": up to the end.
func (p *textParser) message(closing string) (m message, err error) {
	if p.depth++; p.depth > mostDepth {
		return nil, fmt.Errorf("messages are nested more than %d deep", mostDepth)
	}
	defer func() { p.depth-- }()
	for {
		switch c := p.next(); {
		case c == 0 && closing == "":
			return m, nil
		case c == 0:
			return nil, fmt.Errorf("expected %q before the end of the file", closing)
		case closing != "" && c == closing[0]:
			p.rest = p.rest[1:]
			return m, nil
		case c == ',' || c == ';':
			p.rest = p.rest[1:]
			continue
		}
		name, line := p.word(), p.line
		if name == "" {
			return nil, fmt.Errorf("expected a key, got %q", p.rest[:1])
		}
		colon := p.take(':')
		values, err := p.values(colon)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, v := range values {
			m = append(m, textField{name, line, v})
		}
	}
}

// values reads what follows a key: a value, or a list of them.
func (p *textParser) values(colon bool) (list []any, err error) {
	if !p.take('[') {
		v, err := p.value(colon)
		return []any{v}, err
	}
	for !p.take(']') {
		v, err := p.value(true)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		if !p.take(',') && p.next() != ']' {
			return nil, fmt.Errorf("expected a comma or ] in a list")
		}
	}
	return list, nil
}

// value reads a message, or, if there may be one, a string or a word.
func (p *textParser) value(scalar bool) (any, error) {
	switch c := p.next(); {
	case c == '{' || c == '<':
		p.rest = p.rest[1:]
		return p.message(map[byte]string{'{': "}", '<': ">"}[c])
	case !scalar:
		return nil, fmt.Errorf("expected a colon or {")
	case c == '"' || c == '\'':
		return p.text()
	}
	if w := p.word(); w != "" {
		return word(w), nil
	}
	return nil, fmt.Errorf("expected a value")
}

// word takes a name or a number.
func (p *textParser) word() string {
	p.next()
	end := strings.IndexFunc(p.rest, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-+.", r))
	})
	if end < 0 {
		end = len(p.rest)
	}
	w := p.rest[:end]
	p.rest = p.rest[end:]
	return w
}

// text takes a string; adjacent ones are one.
func (p *textParser) text() (string, error) {
	var b strings.Builder
	for c := p.next(); c == '"' || c == '\''; c = p.next() {
		p.rest = p.rest[1:]
		for {
			if p.rest == "" || p.rest[0] == '\n' {
				return "", fmt.Errorf("a string has no end")
			}
			if p.rest[0] == c {
				p.rest = p.rest[1:]
				break
			}
			r, multibyte, tail, err := strconv.UnquoteChar(p.rest, c)
			if err != nil {
				return "", fmt.Errorf("a string has an escape that is none")
			}
			if p.rest = tail; r < 0x80 || multibyte {
				b.WriteRune(r)
			} else {
				b.WriteByte(byte(r))
			}
		}
	}
	return b.String(), nil
}

// all returns the values of a key.
func (m message) all(name string) (list []any) {
	for _, f := range m {
		if f.name == name {
			list = append(list, f.value)
		}
	}
	return list
}

// last returns the value of a key, of which the last one counts.
func (m message) last(name string) any {
	if list := m.all(name); len(list) > 0 {
		return list[len(list)-1]
	}
	return nil
}

// text returns the string or word of a key; "": there is none.
func (m message) text(name string) string { return textOf(m.last(name)) }

func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case word:
		return string(v)
	}
	return ""
}

// messages returns the values of a key that are messages.
func (m message) messages(name string) (list []message) {
	for _, v := range m.all(name) {
		if one, ok := v.(message); ok {
			list = append(list, one)
		}
	}
	return list
}

// numbers returns the values of a key, which are integers.
func (m message) numbers(name string) ([]int, error) {
	list := []int{}
	for _, v := range m.all(name) {
		n, err := strconv.Atoi(textOf(v))
		if err != nil {
			return nil, fmt.Errorf("%s: expected an integer, got %q", name, textOf(v))
		}
		list = append(list, n)
	}
	return list, nil
}

// number returns the value of a key that is an integer.
func (m message) number(name string, otherwise int) (int, error) {
	list, err := m.numbers(name)
	if err != nil || len(list) == 0 {
		return otherwise, err
	}
	return list[len(list)-1], nil
}
