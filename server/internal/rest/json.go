package rest

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// A text is the JSON of a request, which is read once from start to end. The names in each of its
// objects must differ. When a method does not find what it expects, reading fails; the error names
// the tensor by what (unless nil) and its member by part.
type text struct {
	jsonscan.Scanner
	apart int // bytes of tensors' data so far, excluded from limits.metadata_bytes
}

// newText makes a text with at most limit bytes besides tensors' data; 0: no limit.
func newText(b []byte, depth, limit int) *text {
	return &text{Scanner: jsonscan.Scanner{Text: b, Depth: depth, Limit: limit, Rules: jsonscan.Distinct}}
}

// end checks that nothing follows, and returns the first error, as one of this door's.
func (t *text) end() error {
	err := t.End()
	e, ok := errors.AsType[*jsonscan.Error](err)
	switch {
	case !ok:
		return err
	case e.Reason == jsonscan.TooDeep:
		return fault.Malformed("JSON: nested deeper than limits.json_depth allows, at byte %d", e.Offset)
	case e.Reason == jsonscan.TooLong:
		return fault.TooLarge("the JSON has at least %d bytes without the tensors' data; limits.metadata_bytes is %d",
			e.Offset-t.apart, t.Limit-t.apart)
	}
	return fault.Malformed("JSON: %v", e)
}

// wrong reads the value here and fails: want was expected. A malformed value has failed already.
func (t *text) wrong(what func() string, part, want string) {
	raw := t.Raw()
	if raw == nil {
		return
	}
	switch {
	case what != nil && part != "":
		part = what() + ": " + part
	case what != nil:
		part = what()
	}
	more := ""
	if len(raw) > 40 {
		raw, more = bytes.ToValidUTF8(raw[:40], nil), "…"
	}
	t.Fail(fault.Invalid("%s: expected %s, got %s%s", part, want, raw, more))
}

// members are the members of an object that are not null: serializers of many languages write null
// for what is not set.
func (t *text) members(yield func(name []byte) bool) {
	for name := range t.Members {
		if !t.Null() && !yield(name) {
			return
		}
	}
}

// array checks that an array begins here.
func (t *text) array(want string) {
	if t.Peek() != '[' {
		t.Unexpected(want)
	}
}

func (t *text) str(what func() string, part string) string {
	if t.Peek() != '"' {
		t.wrong(what, part, "a string")
	}
	return string(t.Str())
}

func (t *text) boolean(what func() string, part string) bool {
	if c := t.Peek(); c != 't' && c != 'f' {
		t.wrong(what, part, "true or false")
	}
	return t.Bool()
}

// whole reads a number without sign, fraction or exponent, no greater than most.
func (t *text) whole(what func() string, part string, most uint64) uint64 {
	t.Peek()
	start := t.At
	raw := t.Raw()
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if raw != nil && (err != nil || n > most) {
		t.At = start
		t.wrong(what, part, "a whole number from 0 to "+strconv.FormatUint(most, 10))
	}
	return n
}
