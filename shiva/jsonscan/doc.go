// Package jsonscan reads JSON (RFC 8259) in place: no intermediate values, no memory of its own,
// and bounds on the cost of a text. Every part of the server that takes requests reads JSON with
// it: metadata, HTTP bodies, headers of containers, operators' bodies.
//
// [Scanner] walks a text from start to end, [Members] iterates over an object that is known to be
// valid, [Elements] reads arrays of numbers and strings into slices, and [Unmarshal] is
// encoding/json after a strict check of the text. [AppendString] is for code that writes JSON by
// hand.
package jsonscan
