// Package gate is the one entrance for all doors: it turns a client's request into one to the
// scheduler, and the scheduler's result into an answer.
//
//	door -Request--> Open -> Submit ... Owner.Complete -> door -AppendMetadata, Outputs-> client
//	                   \-> an error, or a control answer at once
//
// A name may belong to an application instead of a model. Such a call becomes a [Fanout]. A
// client's judgement of an answer is not a request; it is opened as [Feedback].
//
// Routes are one immutable table behind an atomic pointer, rebuilt whenever a model's replicas or
// declaration change. A request costs one map lookup and no lock.
//
// Concurrency: a Gate may be used from any goroutine. A Call belongs to the door that opened it;
// from Submit until its Owner's Complete it belongs to the gate, and may only be cancelled.
//
// Memory: a Call refers to the request's tensors and metadata without copying them, so the door
// keeps the message alive until it has written the answer. A completed Call holds references to its
// outputs, which Close releases.
//
// # Streams
//
//   - keep comes from, in this order: the request, tcp.keep of a connection's own stream, the
//     application, the model, [defaults]. setting.Keep is the type of all of them; its zero defers
//     to the next. An application's value reaches its models with the calls of its fan-out.
//   - A connection's own stream is identified by the connection's number, not by a name
//     (gate.OwnStream): another client could send any name, and its frames would replace the
//     device's. The name, the client's address, is for display. closed ends the stream in the
//     models that had a frame of it, so that short-lived connections leave nothing behind. Named
//     streams last a minute, since their client may come back on another connection or door.
//   - An application orders the answers of a stream itself (internal/apps/order.go): a model's
//     order does not cover frames that a policy sent to another model, and a fast model would
//     overtake a slow one. A successful answer waits for older ones, until its own deadline, which
//     may be earlier than theirs: then it is DeadlineExceeded, even if it is the default. A cancel
//     ends the wait, too. Errors neither wait nor are waited for. When more answers than keep wait
//     for a frame, that frame is superseded and its calls are canceled, as the scheduler does when
//     a replica hangs: otherwise a slow model that a policy tries now and then would make a fast
//     one's answers as old as its own, or make them miss their deadlines, and their memory would
//     grow with the frame rate. Answers leave one after another, each after Complete of the one
//     before has returned: another goroutine could overtake. The order belongs to the registry, so
//     that a stream continues when its application is changed or made again; it holds only streams
//     with an unanswered call. Each model's queue still decides which frames are superseded.
//     skipped counts the superseded answers that the client got, whichever models superseded them,
//     and starts again when the stream has no unanswered call.
//   - A superseded frame is not remembered for feedback: no model saw it, and feedback that names
//     it is NotFound instead of being learned as if the models had failed.
//
// # Tensors and values
//
//   - A request of no rows is answered with no rows, by the gate. Rows are independent, so this is
//     the right answer, and an empty batch crashes containers of old generations. If an output
//     declares another size as -1, the request is InvalidInput: only an execution determines that
//     size, and 0, the answer of earlier releases, was a shape that the model may never have. What
//     the model answered last is no better, since its sizes may depend on the inputs.
//   - The maximum rank is 64 by default, as in numpy since 2.0, which the reference uses. numpy 1
//     stops at 32, but a model only gets ranks it declares.
//   - A model that is not batched is served one request at a time. Its shapes get a leading 1 in
//     the gate and lose it in the session; the scheduler knows rows only. An omitted optional input
//     is a tensor without a shape; no other tensor there is. The cache's key tells it from an empty
//     tensor.
//   - Picture files are inspected, not decoded (picture.go, server/picture): format,
//     sides, kind of pixels and EXIF orientation, from a bounded number of parts of the file and
//     without an allocation, since the loop of the Shiva door does it. So 100 bytes that would
//     become 30,000 x 30,000 pixels are refused at the door (limits.image_pixels), and a container
//     can decode each file that it gets unless it is damaged after the header. Formats on which
//     decoders differ (CMYK, 16 bits, animations) are refused instead of being decoded in one of
//     the ways. uint8 of one dimension is a file: pixels have three.
//   - Ragged outputs are not combined. Their first dimension is not the row dimension, so an
//     ensemble cannot take row 2 from one model and row 3 from another. Such a request is refused;
//     an application whose policy has one model answer may link to such a model.
//   - JSON has neither NaN nor infinities: outputs have null there, inputs are refused. Triton
//     writes NaN, which is not JSON and makes strict parsers fail; 1e999 makes those of typed
//     languages fail. JavaScript writes null, and numpy reads it as NaN. Clients that must tell
//     them apart use bytes.
//   - A duplicate name in a JSON object is refused. Parsers disagree on which member counts, and if
//     a gateway's parser and ours disagree, a client can get around the gateway.
//
// # Compressed bodies
//
//   - Bodies that unpack to far more than their size share a part of the payload memory. Deflate
//     unpacks a kilobyte to a megabyte, so a few clients with little bandwidth could hold gigabytes
//     (four connections, 1 MB sent: 2 GB), memory that other clients' requests need. Each stage of
//     a compressed request's memory is reserved before it is filled: from the whole pool up to
//     limits.unpack_ratio times the bytes received so far, beyond that from a part of the pool,
//     limits.unpack_bytes (memory.go, tensor.Pool.Part). The tensors count there until they
//     are released, also in the queue. Requests that are compressed and unpack like ordinary data
//     need none of it, and no ratio is forbidden: masks and one-hot rows do unpack a thousandfold.
//     The unpacker's own memory counts from its first byte. Memory of a compressed request grows by
//     doubling instead of eightfold (tensor.Stage), since the arrival of an eighth is no sign that
//     the rest follows.
//   - Unpacking takes turns, half as many as there are processors (gate.Turn): a piece of 32 KiB
//     each; and so does growing a request's memory, which is clearing it and copying 128 KiB a turn
//     (gate.Share.Grow). With 24 bodies of 10 KB that unpack to 250 MB, the p50 of small requests
//     was 3 to 788 ms, 64 and 648 times that next to other processes that burn as much CPU;
//     yielding after each piece made it 16 and 35 times, turns for unpacking alone 2.4: half of the
//     processor time was copies of up to 8 MiB into new memory, 13 ms at a stretch on every core.
//     With turns for both it is 0.9 (bench/run -only bombs, medians on a busy machine), and a gzip
//     body of 0.65 MB takes as long as before (BenchmarkInfer of package rest). A turn is released
//     while its body waits for bytes, so a stalled client holds none.
package gate
