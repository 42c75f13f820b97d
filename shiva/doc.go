// Package shiva implements the Shiva protocol: tensors, metadata and a route in one message over a
// byte stream. It has the message, a push [Decoder], encoders that append or gather, a pipelining
// [Client], and the [Stream] for a camera's frames.
//
// # The wire
//
// A message is a header, its tensors, its metadata and its namespace, with nothing in between. All
// integers are big-endian, and so are the elements of tensors. The specification is the README of
// github.com/eyecan-ai/shiva and, where the two differ, the bytes that its Python implementation
// (0.4.0) sends; testdata/golden has messages that it encoded.
//
//	 0      1      2      3      4      5      6      7      8      9      10     11
//	+------+------+------+------+------+------+------+------+------+------+------+------+
//	|  6   |  66  |  11  |  1   |  metadata size (int32)    | n of | name | crc1 | crc2 |
//	|         magic             |                           | tens.| size |      |      |
//	+------+------+------+------+------+------+------+------+------+------+------+------+
//	then, for each tensor:
//	+------+------+------+------+------+------+     +------------------------------------
//	| rank |dtype | dimension 0 (int32)       | ... | elements, C order
//	+------+------+------+------+------+------+     +------------------------------------
//	then:
//	+----------------------------------+---------------------------------+
//	| metadata: JSON object, UTF-8     | namespace: UTF-8, the route     |
//	+----------------------------------+---------------------------------+
//
// crc1 is (84 + metadata size + number of tensors + namespace size) modulo 256, sums of values
// and not of bytes; crc2 is 2*crc1 modulo 256. The smallest message is 06420b01 00000000 00 00
// 54 a8. Metadata of 0 bytes means {}. The dtype codes are the constants of [tensor.DType]; 2
// and 10 are accepted as other codes of float64 (11) and int64 (13), and never sent.
//
// An answer carries the namespace of its request, or "!error" ([RemoteError]). There are no ids:
// answers come in the order of the requests.
//
// # Strictness
//
// The reference implementation in Python accepts some malformed messages. This one does not:
//
//   - Metadata is strict JSON and an object: a byte order mark, trailing text, arrays of pairs,
//     nesting beyond Limits.JSONDepth and escaped lone surrogates are refused. NaN, Infinity and
//     -Infinity, which the reference sends for such floats, are null in the Message, so that
//     readers of Metadata need only a JSON parser.
//   - A shape whose non-zero dimensions overflow is refused even if another dimension is zero, as
//     numpy does.
//   - The magic is checked before the checksums, so that a peer of another protocol gets the right
//     error.
//   - A message that announces more than a limit is refused at once, before its body arrives.
//
// On the other hand a bool may be any byte, a rank may be up to 255 (if Limits.Rank says so),
// and the padding of a long double may be anything; it is zeroed on sending.
//
// # Faults
//
// [DecodeError] reports by Keep whether the stream is still in step. Bad JSON, bad UTF-8 and memory
// that the pool refused are faults of one message: it is consumed, the error takes its place in the
// order, and the next message is decoded. After any other fault the next message boundary is
// unknown, and the connection unusable unless DecoderConfig.Resync is set to search for it.
//
// # Memory
//
// What a [Decoder] or a [Client] returns is valid until [Message.Release]. Memory comes from a
// [tensor.Pool] and is taken as bytes arrive: a header is a claim, and claiming gigabytes must cost
// the peer more than the receiver.
//
// # Concurrency
//
// One goroutine at a time may use a Decoder or a Message; any number may use a Client or a Stream.
// The functions may be called from anywhere.
package shiva
