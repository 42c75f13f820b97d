package shiva

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// ValidObject reports whether b is metadata as the decoder accepts it: valid UTF-8, strict JSON
// (RFC 8259: no NaN, no trailing text, no byte order mark), an object, nested at most 128 deep.
// An escaped half of a surrogate pair is refused, since no UTF-8 text can carry it on. Empty b
// is valid. The error is a [*DecodeError] of the kind, with the offset in b.
//
// It does not allocate.
func ValidObject(b []byte) error {
	if kind, at := checkMetadata(b, defaultJSONDepth, nil); kind != "" {
		return metadataError(kind, at, b)
	}
	return nil
}

func metadataError(kind Kind, at int, b []byte) *DecodeError {
	e := &DecodeError{Kind: kind, Field: "metadata", Offset: int64(at), keep: true}
	switch {
	case kind == KindMetadataNotObject:
		e.Detail = fmt.Sprintf("expected a JSON object, got %.20q", b[at:])
	case at == len(b):
		e.Detail = "the JSON text ends too early"
	default:
		e.Detail = fmt.Sprintf("unexpected %.20q", b[at:])
	}
	return e
}

// checkMetadata returns the kind of fault and where it is, or "". With words, NaN, Infinity and
// -Infinity stand where numbers may, and are counted.
func checkMetadata(b []byte, maxDepth int, words *int) (Kind, int) {
	if len(b) == 0 {
		return "", 0
	}
	if !utf8.Valid(b) {
		at := 0
		for {
			r, n := utf8.DecodeRune(b[at:])
			if r == utf8.RuneError && n == 1 {
				return KindInvalidUTF8Metadata, at
			}
			at += n
		}
	}
	start := skipSpace(b, 0)
	end, ok := skipValue(b, start, maxDepth, words)
	if !ok {
		return KindInvalidJSON, end
	}
	if end = skipSpace(b, end); end < len(b) {
		return KindInvalidJSON, end
	}
	if b[start] != '{' {
		return KindMetadataNotObject, start
	}
	return "", 0
}

// appendStrict appends b, which checkMetadata has found to be good, with null in the place of
// NaN, Infinity and -Infinity.
func appendStrict(dst, b []byte) []byte {
	done := 0
	for i := 0; i < len(b); {
		switch b[i] {
		case '"':
			i, _ = skipString(b, i)
			continue
		case 'N', 'I', '-':
			if end, ok := skipNonFinite(b, i); ok {
				dst = append(append(dst, b[done:i]...), "null"...)
				i, done = end, end
				continue
			}
		}
		i++
	}
	return append(dst, b[done:]...)
}

// maxJSONDepth is what EachField takes: whoever decoded obj may have been allowed more than the
// default.
const maxJSONDepth = 10000

var errNotObject = errors.New("shiva: not the text of a JSON object")

// EachField calls f with each key and value of a JSON object, in order, until f returns false.
// The key is the string itself, the value its JSON text without surrounding space; both are
// valid only during the call. A key that occurs twice is passed twice: whoever assigns keeps
// the last one, as the reference does. Empty obj is {}.
//
// It fails where obj stops being a JSON object, after the calls for what came before, and where
// a value is nested more than 10,000 deep. It does not allocate, unless a key has escapes.
func EachField(obj []byte, f func(key, value []byte) bool) error {
	if len(obj) == 0 {
		return nil
	}
	i := skipSpace(obj, 0)
	if i == len(obj) || obj[i] != '{' {
		return errNotObject
	}
	i = skipSpace(obj, i+1)
	if i < len(obj) && obj[i] == '}' {
		return nil
	}
	for {
		if i == len(obj) || obj[i] != '"' {
			return errNotObject
		}
		end, ok := skipString(obj, i)
		if !ok {
			return errNotObject
		}
		key := obj[i+1 : end-1]
		for _, c := range key {
			if c == '\\' {
				s, _ := ParseString(obj[i:end])
				key = []byte(s)
				break
			}
		}
		if i = skipSpace(obj, end); i == len(obj) || obj[i] != ':' {
			return errNotObject
		}
		i = skipSpace(obj, i+1)
		if end, ok = skipValue(obj, i, maxJSONDepth, nil); !ok {
			return errNotObject
		}
		if !f(key, obj[i:end]) {
			return nil
		}
		i = skipSpace(obj, end)
		switch {
		case i == len(obj):
			return errNotObject
		case obj[i] == '}':
			return nil
		case obj[i] != ',':
			return errNotObject
		}
		i = skipSpace(obj, i+1)
	}
}

// Field returns the JSON text of the value of a key of a JSON object, the last one if there are
// several; nil if there is none. It is a slice of obj.
func Field(obj []byte, key string) []byte {
	var value []byte
	_ = EachField(obj, func(k, v []byte) bool {
		if string(k) == key {
			value = v
		}
		return true
	})
	return value
}

// SkipValue returns the offset after the JSON value that begins at offset at of text, which it
// must do there, without space before it; a value may be nested depth deep. If there is no
// value, it gives the offset of the first byte that does not belong there, and false. Whether
// strings are UTF-8 is not looked at. It does not allocate.
func SkipValue(text []byte, at, depth int) (end int, ok bool) { return skipValue(text, at, depth, nil) }

// ParseString returns the string that a JSON text is, and false if it is not a string.
func ParseString(text []byte) (string, bool) {
	if len(text) == 0 || text[0] != '"' {
		return "", false
	}
	if end, ok := skipString(text, 0); !ok || end != len(text) {
		return "", false
	}
	for _, c := range text {
		if c == '\\' {
			var s string
			err := json.Unmarshal(text, &s)
			return s, err == nil
		}
	}
	return string(text[1 : len(text)-1]), true
}

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	done := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(dst, s[done:i]...)
				dst = append(dst, "\ufffd"...)
				done = i + 1
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[done:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		done = i
	}
	dst = append(dst, s[done:]...)
	return append(dst, '"')
}

// The scanner: each skip function gets the offset where something begins and gives the one
// after its end, or the one of the first byte that does not belong there, and false.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue recurses once per level, at most depth times. words is as in checkMetadata.
func skipValue(b []byte, i, depth int, words *int) (int, bool) {
	if i == len(b) {
		return i, false
	}
	switch c := b[i]; c {
	case '{', '[':
		if depth == 0 {
			return i, false
		}
		return skipComposite(b, i, depth-1, words)
	case '"':
		return skipString(b, i)
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	case 'N', 'I', '-':
		if end, ok := skipNonFinite(b, i); ok && words != nil {
			*words++
			return end, true
		}
	}
	return skipNumber(b, i)
}

// skipNonFinite skips what Python writes for numbers that JSON has not.
func skipNonFinite(b []byte, i int) (int, bool) {
	for _, word := range [...]string{"NaN", "Infinity", "-Infinity"} {
		if end, ok := skipWord(b, i, word); ok {
			return end, true
		}
	}
	return i, false
}

// skipComposite skips an object or array whose opening bracket is at i.
func skipComposite(b []byte, i, depth int, words *int) (int, bool) {
	object := b[i] == '{'
	closing := byte(']')
	if object {
		closing = '}'
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == closing {
		return i + 1, true
	}
	for {
		var ok bool
		if object {
			if i == len(b) || b[i] != '"' {
				return i, false
			}
			if i, ok = skipString(b, i); !ok {
				return i, false
			}
			if i = skipSpace(b, i); i == len(b) || b[i] != ':' {
				return i, false
			}
			i = skipSpace(b, i+1)
		}
		if i, ok = skipValue(b, i, depth, words); !ok {
			return i, false
		}
		i = skipSpace(b, i)
		switch {
		case i == len(b):
			return i, false
		case b[i] == closing:
			return i + 1, true
		case b[i] != ',':
			return i, false
		}
		i = skipSpace(b, i+1)
	}
}

// skipString skips a string whose opening quote is at i. The text is known to be UTF-8, or will
// be found not to be.
func skipString(b []byte, i int) (int, bool) {
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1, true
		case c < ' ':
			return i, false
		case c == '\\':
			end, ok := skipEscape(b, i)
			if !ok {
				return i, false
			}
			i = end - 1
		}
	}
	return i, false
}

// skipEscape skips an escape whose backslash is at i; the two halves of a surrogate pair are one.
func skipEscape(b []byte, i int) (int, bool) {
	if i+1 >= len(b) {
		return i, false
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, true
	case 'u':
	default:
		return i, false
	}
	u, ok := hex4(b, i+2)
	switch {
	case !ok || 0xdc00 <= u && u < 0xe000:
		return i, false
	case u < 0xd800 || u >= 0xe000:
		return i + 6, true
	}
	if i+8 > len(b) || b[i+6] != '\\' || b[i+7] != 'u' {
		return i, false
	}
	low, ok := hex4(b, i+8)
	return i + 12, ok && 0xdc00 <= low && low < 0xe000
}

// hex4 reads four hexadecimal digits at i.
func hex4(b []byte, i int) (u uint32, ok bool) {
	if i+4 > len(b) {
		return 0, false
	}
	for _, c := range b[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		u = u<<4 | uint32(c)
	}
	return u, true
}

func skipWord(b []byte, i int, word string) (int, bool) {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return i, false
	}
	return i + len(word), true
}

func skipNumber(b []byte, i int) (int, bool) {
	if i < len(b) && b[i] == '-' {
		i++
	}
	// A leading zero stands alone.
	if i < len(b) && b[i] == '0' {
		i++
	} else {
		var ok bool
		if i, ok = skipDigits(b, i); !ok {
			return i, false
		}
	}
	if i < len(b) && b[i] == '.' {
		var ok bool
		if i, ok = skipDigits(b, i+1); !ok {
			return i, false
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipDigits(b, i)
	}
	return i, true
}

// skipDigits skips one digit or more.
func skipDigits(b []byte, i int) (int, bool) {
	start := i
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i, i > start
}
