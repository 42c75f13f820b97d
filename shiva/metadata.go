package shiva

import (
	"fmt"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// ValidObject checks that b is metadata as the decoder accepts it, except for NaN and the
// infinities: valid UTF-8, strict JSON (RFC 8259: no trailing text, no byte order mark), an object,
// nested at most 128 deep. An escaped half of a surrogate pair is refused, since UTF-8 cannot
// encode it. Empty b is valid. The error is a [*DecodeError] of the kind, with the offset in b.
//
// It does not allocate.
func ValidObject(b []byte) error {
	if kind, at, _ := checkMetadata(b, defaultJSONDepth, 0); kind != "" {
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

// checkMetadata returns the kind of fault, or "", its offset, and how many non-JSON words (NaN and
// the infinities) stand for numbers, if the rules allow them.
func checkMetadata(b []byte, depth int, rules jsonscan.Rules) (kind Kind, at, words int) {
	if len(b) == 0 {
		return "", 0, 0
	}
	if !utf8.Valid(b) {
		for {
			r, n := utf8.DecodeRune(b[at:])
			if r == utf8.RuneError && n == 1 {
				return KindInvalidUTF8Metadata, at, 0
			}
			at += n
		}
	}
	s := jsonscan.Scanner{Text: b, Depth: depth, Rules: rules | jsonscan.KnownUTF8}
	first := s.Peek()
	at = s.At
	s.Raw()
	switch err := s.End(); {
	case err != nil:
		return KindInvalidJSON, err.(*jsonscan.Error).Offset, 0
	case first != '{':
		return KindMetadataNotObject, at, 0
	}
	return "", 0, s.Words
}
