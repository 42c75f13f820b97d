package jsonscan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

// A Scanner reads one JSON text from start to end. Each method reads what its name says at the
// current offset, after white space. The first fault ends the reading: from then on methods return
// zero values, loops end, and Err returns the fault. So readers are straight-line code that checks
// for errors once, at the end.
//
// Strings must be UTF-8, and an escaped half of a surrogate pair is a fault, since UTF-8 cannot
// encode it. Rules adjust these checks.
type Scanner struct {
	Text  []byte
	At    int // offset of the next byte to read
	Depth int // further levels of objects and arrays that may be opened
	Limit int // offset that reading must not pass; 0: none
	Rules Rules

	// Words counts the words that NonFinite accepted as numbers.
	Words int

	err     error
	tooDeep bool // whether skipValue failed for depth
}

// Rules are departures from strict JSON. Combine them with |.
type Rules uint8

// The rules.
const (
	Distinct Rules = 1 << iota // the names in an object that Members reads must differ
	// NaN, Infinity and -Infinity are accepted as numbers, as Python writes them.
	NonFinite
	// An escaped half of a surrogate pair reads as U+FFFD, as with encoding/json.
	LoneSurrogates
	KnownUTF8 // the caller knows that the text is UTF-8
)

// A Reason is a class of faults.
type Reason uint8

// The reasons of an Error.
const (
	Malformed Reason = iota // not the JSON that was expected
	TooDeep                 // more than Depth levels
	TooLong                 // more than Limit bytes
)

// An Error is a fault of a text, with what was expected and what was found.
type Error struct {
	Reason Reason
	Offset int
	text   string
}

func (e *Error) Error() string { return e.text }

// Err returns the first fault, an [*Error] unless it was passed to Fail; nil if there is none.
func (s *Scanner) Err() error { return s.err }

// Fail ends the reading with an error of the caller's. nil is ignored, and so is every error but
// the first.
func (s *Scanner) Fail(err error) {
	if err != nil && s.err == nil {
		s.err = err
		s.At = len(s.Text)
	}
}

func (s *Scanner) fail(reason Reason, at int, format string, args ...any) {
	if s.err == nil {
		s.Fail(&Error{reason, at, fmt.Sprintf(format, args...)})
	}
}

// Unexpected ends the reading with the error that want was expected here.
func (s *Scanner) Unexpected(want string) {
	if s.Peek(); s.At >= len(s.Text) {
		s.fail(Malformed, len(s.Text), "expected %s, but the text ends after %d bytes", want, len(s.Text))
		return
	}
	got := s.Text[s.At:min(len(s.Text), s.At+24)]
	s.fail(Malformed, s.At, "expected %s at byte %d, got %.24q", want, s.At, bytes.ToValidUTF8(got, []byte("?")))
}

// Peek skips white space and returns the next byte, 0 at the end.
func (s *Scanner) Peek() byte {
	if s.At = skipSpace(s.Text, s.At); s.At < len(s.Text) {
		return s.Text[s.At]
	}
	return 0
}

// Members reads an object: the loop body gets the name of each member, and must read its value.
func (s *Scanner) Members(yield func(name []byte) bool) {
	if !s.open('{', "an object") {
		return
	}
	var before *names
	if s.Rules&Distinct != 0 {
		before = new(names)
	}
	for first := true; s.more(first, '}'); first = false {
		at := s.At
		name := s.str("the name of a member")
		switch {
		case s.err != nil:
			return
		case before != nil && !before.add(name):
			s.fail(Malformed, at, "%q at byte %d is a duplicate name", name, at)
			return
		case s.Peek() != ':':
			s.Unexpected(`":"`)
			return
		}
		if s.At++; !yield(name) {
			return
		}
	}
}

// Elements reads an array: the loop body gets the index of each element, and must read it.
func (s *Scanner) Elements(yield func(i int) bool) {
	if !s.open('[', "an array") {
		return
	}
	for i := 0; s.more(i == 0, ']'); i++ {
		if !yield(i) {
			return
		}
	}
}

func (s *Scanner) open(bracket byte, want string) bool {
	switch {
	case s.Peek() != bracket:
		s.Unexpected(want)
		return false
	case s.Depth == 0:
		s.fail(TooDeep, s.At, "nested too deeply at byte %d", s.At)
		return false
	}
	s.Depth--
	s.At++
	return true
}

// more moves to the next member or element, or past the closing bracket after the last.
func (s *Scanner) more(first bool, closing byte) bool {
	c := s.Peek()
	switch {
	case s.err != nil, !s.within():
		return false
	case c == closing:
		s.At++
		s.Depth++
		return false
	case first:
		return true
	case c == ',':
		s.At++
		return true
	}
	s.Unexpected(`"," or ` + strconv.Quote(string(closing)))
	return false
}

// within reports whether the reading is within Limit.
func (s *Scanner) within() bool {
	if s.Limit > 0 && s.At > s.Limit {
		s.fail(TooLong, s.At, "more than %d bytes", s.Limit)
		return false
	}
	return true
}

// names is a set of names, without a map for the usual few members.
type names struct {
	few  [8][]byte
	n    int
	many map[string]struct{}
}

// add reports whether the name is new.
func (d *names) add(name []byte) bool {
	if slices.ContainsFunc(d.few[:d.n], func(s []byte) bool { return bytes.Equal(s, name) }) {
		return false
	}
	if d.n < len(d.few) {
		d.few[d.n] = name
		d.n++
		return true
	}
	if d.many == nil {
		d.many = make(map[string]struct{})
	}
	before := len(d.many)
	d.many[string(name)] = struct{}{}
	return len(d.many) > before
}

// Raw reads any value and returns its text, a view. Distinct does not apply to names in it.
func (s *Scanner) Raw() []byte { return s.raw("a value") }

func (s *Scanner) raw(want string) []byte {
	s.Peek()
	start := s.At
	end, ok := s.skipValue(start, s.Depth)
	s.At = end
	switch {
	case s.tooDeep:
		s.fail(TooDeep, end, "nested too deeply at byte %d", end)
	case !ok:
		s.Unexpected(want)
	case !s.within():
	case s.Rules&KnownUTF8 == 0 && !utf8.Valid(s.Text[start:end]):
		s.fail(Malformed, start, "the value at byte %d is not UTF-8", start)
	default:
		return s.Text[start:end]
	}
	return nil
}

// Str reads a string. The result is a view unless the string has escapes.
func (s *Scanner) Str() []byte { return s.str("a string") }

func (s *Scanner) str(want string) []byte {
	if s.Peek() != '"' {
		s.Unexpected(want)
		return nil
	}
	quoted := s.raw(want)
	if quoted == nil {
		return nil
	}
	return unescape(quoted)
}

// unescape returns the string that a valid quoted text encodes.
func unescape(quoted []byte) []byte {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var text string
	_ = json.Unmarshal(quoted, &text) // it is valid
	return []byte(text)
}

// Null steps over null, if it is next, and reports whether it was.
func (s *Scanner) Null() bool {
	return s.Peek() == 'n' && s.word("null")
}

// Bool reads true or false.
func (s *Scanner) Bool() bool {
	s.Peek()
	is := s.word("true")
	if !is && !s.word("false") {
		s.Unexpected("true or false")
	}
	return is
}

func (s *Scanner) word(word string) bool {
	end, ok := skipWord(s.Text, s.At, word)
	s.At = end
	return ok
}

// Int reads a number without fraction or exponent that fits an int.
func (s *Scanner) Int() int {
	s.Peek()
	n := scanNumber(s.Text, s.At)
	m, whole := n.magnitude(s.Text, s.At)
	if !n.ok || !whole || !fits(m, n.negative, true, strconv.IntSize) {
		s.Unexpected("a whole number of 64 bits")
		return 0
	}
	if s.At = n.end; n.negative {
		return -int(m)
	}
	return int(m)
}

// Float reads a number within the range of a float64.
func (s *Scanner) Float() float64 {
	s.Peek()
	n := scanNumber(s.Text, s.At)
	f, fits := 0.0, false
	if n.ok {
		f, fits = n.float64(s.Text, s.At)
	}
	if !fits {
		s.Unexpected("a number of at most " + strconv.FormatFloat(math.MaxFloat64, 'g', 8, 64))
		return 0
	}
	s.At = n.end
	return f
}

// End checks that nothing follows, and returns the first fault.
func (s *Scanner) End() error {
	if s.Peek(); s.At < len(s.Text) {
		s.Unexpected("the end of the text")
	}
	return s.err
}

// maxDepth is for texts whose depth was bounded before.
const maxDepth = 10000

// Members iterates over the names and values of an object that is known to be valid, in order. The
// name is unquoted, the value is its text without surrounding space; both are views, except a name
// with escapes. A duplicate name is yielded twice: a caller that assigns keeps the last one. An
// empty text is {}. At text that is not an object after all, the loop ends.
func Members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) { members(object, yield) }
}

func members(object []byte, yield func(name, value []byte) bool) {
	if len(object) == 0 {
		return
	}
	s := Scanner{Text: object, Depth: maxDepth, Rules: KnownUTF8}
	for name := range s.Members {
		if value := s.Raw(); s.err != nil || !yield(name, value) {
			return
		}
	}
}

// Field returns the value of a name in an object that is known to be valid, the last one if there
// are several; nil if there is none. The value is a view.
func Field(object []byte, name string) []byte {
	var last []byte
	for key, value := range Members(object) {
		if string(key) == name {
			last = value
		}
	}
	return last
}

// Valid reports whether a text is a value nested at most depth deep, in UTF-8, with nothing but
// white space around it.
func Valid(text []byte, depth int) bool {
	s := Scanner{Text: text, Depth: depth}
	s.Raw()
	return s.End() == nil
}

// Skip returns the offset after the value that begins at offset at of text, without space before
// it; the value may be nested depth deep. If there is no value, Skip returns the offset of the
// first unexpected byte, and false. It does not check whether strings are UTF-8.
func Skip(text []byte, at, depth int) (end int, ok bool) {
	s := Scanner{Text: text}
	return s.skipValue(at, depth)
}

// Unquote returns the string that a text encodes, and false if it is not a string.
func Unquote(text []byte) (string, bool) {
	if end, ok := skipString(text, 0, 0); !ok || end != len(text) || text[0] != '"' {
		return "", false
	}
	return string(unescape(text)), true
}

// Unmarshal reads a text into v as encoding/json does, but strictly: the text must be UTF-8, nested
// at most 128 deep, with nothing after its value, no duplicate names in an object, and no names
// unknown to v. Numbers without a type in v become json.Numbers.
func Unmarshal(text []byte, v any) error {
	s := Scanner{Text: text, Depth: 128, Rules: Distinct}
	s.walk()
	if err := s.End(); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	d.UseNumber()
	return Words(d.Decode(v))
}

// walk reads any value, and applies the rules to everything in it.
func (s *Scanner) walk() {
	switch s.Peek() {
	case '{':
		for range s.Members {
			s.walk()
		}
	case '[':
		for range s.Elements {
			s.walk()
		}
	default:
		s.Raw()
	}
}

// view returns b as a string that is valid for the duration of a call.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
