package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"
)

// A scanner reads one JSON text from left to right without reflection and without memory of its
// own. The first fault poisons it: from then on everything reads as empty, and err tells at the
// end. So the readers of headers are straight lines.
//
// It is strict where encoding/json is (a fuzz test compares the two), and stricter on one
// point: text must be valid UTF-8, which encoding/json would replace.
type scanner struct {
	b     []byte
	i     int
	depth int
	err   error
}

const maxDepth = 64 // of nested values in what a header carries

func (s *scanner) fail(text string) {
	if s.err == nil {
		s.err = errors.New("byte " + strconv.Itoa(s.i) + ": " + text)
		s.i = len(s.b)
	}
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) bool {
	if s.peek() != c || s.err != nil {
		s.fail("expected " + strconv.QuoteRune(rune(c)))
		return false
	}
	s.i++
	return true
}

// open enters an object ('{') or an array ('[').
func (s *scanner) open(c byte) bool {
	if s.depth++; s.depth > maxDepth {
		s.fail("nested too deeply")
	}
	return s.expect(c)
}

// more moves to the next member of the object or array that ends with end, and leaves it after
// the last. n counts the members seen so far and starts at 0.
func (s *scanner) more(n *int, end byte) bool {
	if s.err != nil {
		return false
	}
	c := s.peek()
	if c == end {
		s.i++
		s.depth--
		return false
	}
	if *n > 0 {
		if !s.expect(',') {
			return false
		}
	}
	*n++
	return true
}

// members reads an object: it yields the name of each member, and the loop reads the value.
func (s *scanner) members(yield func(name []byte) bool) {
	s.open('{')
	for n := 0; s.more(&n, '}'); {
		if name := s.str(); !s.expect(':') || !yield(name) {
			return
		}
	}
}

// elements reads an array: it yields the number of each element, from 1, and the loop reads it.
func (s *scanner) elements(yield func(n int) bool) {
	s.open('[')
	for n := 0; s.more(&n, ']'); {
		if !yield(n) {
			return
		}
	}
}

// str reads a string. The result shares the text's memory unless it has escapes.
func (s *scanner) str() []byte {
	if !s.expect('"') {
		return nil
	}
	from, plain := s.i, true
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			raw := s.b[from:s.i]
			s.i++
			if plain {
				return raw
			}
			return s.unescape(s.b[from-1 : s.i])
		case c == '\\':
			plain = false
			s.i += 2
		case c < ' ':
			s.fail("control character in a string")
		case c < utf8.RuneSelf:
			s.i++
		default:
			r, size := utf8.DecodeRune(s.b[s.i:])
			if r == utf8.RuneError && size == 1 {
				s.fail("invalid UTF-8")
			}
			s.i += size
		}
	}
	s.fail("string without an end")
	return nil
}

// unescape is the slow path, for names and messages that people wrote.
func (s *scanner) unescape(quoted []byte) []byte {
	var text string
	if err := json.Unmarshal(quoted, &text); err != nil {
		s.fail("bad escape in a string")
		return nil
	}
	return []byte(text)
}

// number reads the text of a number.
func (s *scanner) number() []byte {
	s.peek()
	from := s.i
	if s.i < len(s.b) && s.b[s.i] == '-' {
		s.i++
	}
	switch n := s.digits(); {
	case n == 0:
		s.fail("expected a number")
		return nil
	case n > 1 && s.b[s.i-n] == '0':
		s.fail("number with a leading zero")
		return nil
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if s.digits() == 0 {
			s.fail("number without digits after the point")
			return nil
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if s.digits() == 0 {
			s.fail("number without an exponent")
			return nil
		}
	}
	return s.b[from:s.i]
}

func (s *scanner) digits() int {
	from := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i - from
}

// integer reads a number that must be whole and fit.
func (s *scanner) integer() int {
	text := s.number()
	if s.err != nil {
		return 0
	}
	n := 0
	digits := bytes.TrimPrefix(text, []byte{'-'})
	if len(digits) > 18 { // so that n cannot overflow
		s.fail("number too large")
		return 0
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			s.fail("expected a whole number")
			return 0
		}
		n = n*10 + int(c-'0')
	}
	if len(digits) < len(text) {
		return -n
	}
	return n
}

// float reads a number.
func (s *scanner) float() float64 {
	text := s.number()
	if s.err != nil {
		return 0
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		s.fail("number out of range")
	}
	return f
}

// raw reads any value and returns its text.
func (s *scanner) raw() []byte {
	s.peek()
	from := s.i
	switch c := s.peek(); c {
	case '{':
		for range s.members {
			s.raw()
		}
	case '[':
		for range s.elements {
			s.raw()
		}
	case '"':
		s.str()
	case 't':
		s.word("true")
	case 'f':
		s.word("false")
	case 'n':
		s.word("null")
	default:
		s.number()
	}
	if s.err != nil {
		return nil
	}
	return s.b[from:s.i]
}

func (s *scanner) word(w string) {
	if !bytes.HasPrefix(s.b[s.i:], []byte(w)) {
		s.fail("expected " + w)
		return
	}
	s.i += len(w)
}

// end checks that nothing follows.
func (s *scanner) end() error {
	if s.err == nil && (s.peek() != 0 || s.i < len(s.b)) {
		s.fail("text after the end")
	}
	return s.err
}
