// Package jsontext reads JSON (RFC 8259) in place: no values in between, no memory of its own, and
// bounds on what a text may cost. It is what all that takes requests reads JSON with: metadata,
// the bodies of HTTP, the headers of containers, the bodies of operators.
//
// [Scanner] walks a text from its start to its end, [Members] goes over the members of an object
// that is known to be valid, [Elements] are arrays of numbers and strings read into slices, and
// [Unmarshal] is encoding/json behind a strict look at the text. What is written by hand
// elsewhere has [AppendString].
package jsontext
