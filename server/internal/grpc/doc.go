// Package grpc is the door for clients that speak the Predict Protocol V2 over gRPC, with
// Triton's extensions.
//
//	connection -HTTP/2-> grpc-go -frames-> wire -fields-> request -> predict.Door.Infer
//	           <--------- grpc-go <-codec-- reply <---------------answer-----
//
// grpc-go handles the wire up to messages. Package wire reads messages of the Predict Protocol
// piece by piece as they arrive. Answers reference the outputs' memory instead of copying it.
// Everything but inference goes through the generated code.
//
// Concurrency: grpc-go runs each call in a goroutine of its own, and each request of a stream gets
// one as well.
//
// Memory: a request owns its tensors until Infer takes them over. An answer's outputs have one
// reference for the handler that sends them, and one for the connection until the bytes have left;
// see conn.
//
// Sources: the protocol's text (Predict Protocol, version 2); pb/*.proto; gRPC over HTTP/2; the
// protocol buffers' encoding.
//
// # Reading
//
//   - The gRPC door does not read through grpc-go's RecvMsg, but from the stream below it
//     (package wire: Transport has the four methods, and a test names the versions of grpc-go
//     for which they work). RecvMsg reads a whole message into memory that no budget counts before
//     our code sees it, and its error about the size can be neither reworded nor suppressed. The
//     public API is fast enough: a CodecV2 that copies each mem.BufferSlice into the pool's memory
//     and answers with it made 1.2 times this door's rate at 602 KB (median of 11 rounds, 0.4 to
//     2.4; without gate and scheduler behind it). But it cannot refuse. MaxRecvMsgSize is all that
//     bounds a message before Unmarshal sees it, and it is limits.message_bytes. A counted
//     mem.BufferPool learns of each frame, but its Get must return a buffer or panic, and is told
//     neither the call nor the connection; and compressed messages are unpacked as a whole. So each
//     call that never ends could hold the largest message, outside the budget. The tests fail if a
//     method is missing.
//   - grpc-go runs interceptors for streams only since 1.85: a handler of a StreamDesc that streams
//     neither way is called directly. All of our methods are such handlers, so they are registered
//     as streaming. Without that no answer filled the account of resets (see "Cancels and
//     sequences"), and no call waited for it; TestRapidReset checks the account.
//   - A frame of HTTP/2 reaches the gRPC door only when it is complete: grpc.message_timeout begins
//     with a message's first frame, and a ping detects a client that stalls within that frame.
//   - A message above the limit ends a ModelStreamInfer, as the rest of it would have to be read to
//     find the next one. All other errors of a request are answered in its place.
//
// # Answers
//
//   - An answer over gRPC counts as sent when grpc-go releases it, not when SendMsg returns:
//     SendMsg returns once grpc-go has the message, however large, so that clients with windows of
//     0 held 250 answers per connection. An answer counts until grpc-go gives back its last part
//     (departure); it does not give back parts below a KiB, so the first is never that small.
//     Progress shows in the DATA frames that are written (cancelFilter): one answer of 100 MiB is
//     given back only at its end. Requests of one ModelStreamInfer get room in their order (lane),
//     since a later one's answer would hold the room that an earlier one waits for.
//   - Expected answers of one gRPC connection share grpc.outbound_bytes, whichever models they are
//     from. A request whose answer has no room waits, and so do those behind it, even for models
//     with small answers: a client that requests more large answers than fit, and small ones that
//     must not wait, should open a second connection. A share per model would let a client multiply
//     the limit.
//   - When a connection ends, grpc-go drops the references to data that waits for the client's
//     window. conn in the gRPC door releases that data at ConnEnd, which comes after the
//     connection's writer has ended.
//   - Answers over gRPC are raw, whatever the form of the request, as in Triton: four of its
//     official examples and its Node client send typed contents and read raw_output_contents.
//     binary_data_output = false requests typed ones; if an output's datatype has no typed form,
//     all are raw, so that each output is found by its position.
//   - Answers of a ModelStreamInfer come in the order of its requests, as over TCP: clients match
//     them by their order. grpc.in_flight_per_stream bounds the requests that wait; above it
//     nothing is read. An error there has no code, so its text begins with the type.
//   - grpc-go's reset of an expired call is left out (frames.go). It arrived before the status
//     for half of a hundred calls, and gRPC's C core takes it for CANCELLED unless its own clock
//     shows that the deadline has passed. Each side of a call detects that by itself. A status sent
//     five milliseconds early still lost 1 to 18 of 100 races on a busy machine.
//
// # Cancels and sequences
//
//   - Rapid reset. HTTP/2 bounds the open calls, and grpc-go the running handlers, but a reset call
//     counts as neither, while its rows may be executing. With 8 such connections 45,000 of 174,000
//     reset calls reached a model, whose capacity all clients share. Each connection has an
//     account: an answer adds four, a reset takes one, and 100 a second are added, so that hedging
//     and a gateway with typing users never empty it. An empty account limits calls to that rate,
//     and the reading of frames (pause); after 400 more the connection gets a GOAWAY, which the
//     client can read, since the connection lingers (listen.Conn.Linger), and the next connections
//     from its host begin with an empty account. Delaying calls alone was not enough: they start
//     all the same, and 26,000 goroutines a second raised the p50 of other clients to 28 to 100 ms,
//     362 times that next to processes that burn as much CPU; now it is 1.1 times (bench/run -only
//     resets). Resets are charged when they are read, since calls learn of them only after the next
//     frames have arrived. A call can be reset after its answer was handed over, which no handler
//     sees; it shows because there are more resets than calls that ended early.
//   - What ends a call makes no difference. With frames that break the protocol a client makes the
//     server reset its calls (MadeYouReset, CVE-2025-8671): cancelFilter sees those resets, and
//     they are charged like the client's own. Only a broken or hostile client sends a window update
//     of 0, data after the end of a call, or data beyond a window: the connection ends, and calls
//     in the same read do not begin. Deadlines that no answer meets do as much: with deadlines of
//     100 µs on 8 connections the p50 of other clients was 111 to 1,300 times that next to as much
//     CPU burnt, and now it is the same. Late calls are charged one, but disconnect nobody, as a
//     model may have stopped answering. The account paces what is read, not what is executed: calls
//     that are read when a model answers again have answers, each of which pays for four, so that
//     no debt lasts. A reset after half of a call's time counts as one for the deadline, since
//     clients' clocks reach it first.
//   - PINGs, each setting, priorities, continued headers, window updates and data frames of less
//     than 64 bytes that end no call are chores; the same account pays for them, fifty for the
//     price of one reset, and each data frame of an answer pays for four, since a client that reads
//     answers sends two updates for it at most. grpc-go closes connections that send too many
//     PINGs, but the PINGs read until then cost time, and the client comes back: its next
//     connections begin without credit, too.
//   - A connection that always has input yields to others (listen.Conn.Read). A goroutine that
//     never waits keeps its processor for the 10 ms of the runtime's time slice, and the event loop
//     of the Shiva door, which wakes from a system call, waits for a processor: next to an endless
//     series of PINGs the p50 of other clients was 45 ms; now it is 0.4 ms.
//   - Sequence ids go to the container unchanged. sequence is not among the extensions: nothing is
//     routed by them. Requests of one ModelStreamInfer with the same id are executed one after the
//     other (order.go), since a stateful model's sums were wrong otherwise; each waits for the
//     answer of the one before it, as a model need not keep the order of a batch.
//
// # What a request over gRPC costs
//
// go run ./bench/run -only doors; go test -run '^$' -bench Read ./server/internal/grpc for reading
// a message alone. With 602 KB each way, 43 % of the server's time are system calls and 22 % the
// three copies: grpc-go writes to the socket in pieces of a buffer, reads it through another, and
// allows frames of 16 KiB only, which no option changes. Answers leave 60 KiB at a time
// (buffers.go), in 10 writes where grpc-go's 32 KiB made 19: 0.91 of the processor time of
// server and Go container. 64 KiB is no better than 32, as a segment on the loopback device has
// 65,483 bytes and the last 53 travel by themselves; 127 and 254 KiB are as good as 60. The buffers
// for frames are ours, too, since grpc-go's are cleared before each frame is read into them (3 % of
// a profile). Tried without a difference: reading frames into their place past the buffer, by readv
// with the head of the next one; a read buffer of 128 KiB; a window of 4 MiB per call, which saves
// two window updates. Of a call of 64 bytes, 30 % was growing a new goroutine's stack, which
// callWorkers avoids (31 to 33 µs, from 34 to 41). Headers of HTTP/2, its goroutines and the
// stats handler (which makes an unused map of the headers) are most of the rest.
package grpc
