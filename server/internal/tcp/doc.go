// Package tcp is the door for clients that speak Shiva over raw TCP.
//
//	            event loop, one goroutine each
//	socket --> session.traffic -> shiva.Decoder -> call -> gate.Open -+ all of one reading
//	                                                |                 v at once
//	                                 line of answers, oldest first   scheduler.Submit
//	                                                |                 | any goroutine
//	socket <-- session.flush <-- encode <-- head answered? <-- loop.post <-- Complete
//
// Promises: every message gets one answer, in the order of the messages, in whatever order they are
// completed. A message that cannot be understood gets an error; the connection ends only if the
// next message boundary is lost. The memory that a client can make the server hold is bounded:
// requests in flight, bytes of a half-received message, unread answers, connections. Each error
// names the limit that caused it.
//
// Concurrency: everything about a session happens in turns of its loop, one at a time. Nearly all
// turns are the event loop's; other goroutines reach it through its mailbox (loop.post,
// loop.postReport). Sessions know only a transport: gnet.go and writable.go implement it for TCP,
// socket.go for Unix sockets, TLS and clients over their rate, where the goroutines that read take
// the turns.
//
// Memory: a message's bytes are copied once, from the loop's read buffer into their tensor, or not
// at all if the rest of a large body is read straight into place. An answer's tensor bytes are
// copied once, into the loop's write buffer, or not at all if they need no byte swap. Bytes that
// the transport does not take stay where they are, in memory that the pool counts, until there is
// room.
//
// # gnet, and what we do beside it
//
// A session knows only a transport (transport.go: read, write with partial results,
// unacknowledged bytes, acknowledge, end one direction, end both). gnet is behind the one for TCP.
// It saves memory: an idle TCP connection takes 0.55 KiB, where a goroutine with a net.Conn takes
// 3.7 to 7.6. Where we bypass it, a measurement gives the reason; figures are ratios within one
// run. Bypasses that could be removed are gone: a socket is added to the second epoll set once,
// edge-triggered, where each wait was a system call of its own, and a detached socket stays in it.
//
//   - internal/listen accepts, and gnet's loops are given connections (gnet.Client, an engine
//     without listeners): gnet's listener ends the engine, and all connections with it, when an
//     accept finds no descriptor; a limit does not help, as its acceptor is faster than its loops,
//     which close connections; without it: with 256 descriptors and a limit of 141 connections the
//     397th of 1,000 dials ended it. descriptors.go still sets descriptors aside for the server's
//     own files.
//   - writes go to the descriptor: gnet copies bytes that the socket does not take into a buffer
//     that no budget counts, and reports them as written; without it: 1920x1080x3 images on four
//     connections: a third of the time, 900 MB of memory for 75.
//   - the rest of a large body is read from the descriptor (session.readInto), into its tensor or,
//     if it is swapped, into a block of the loop's: otherwise it arrives in 64 KiB pieces through
//     the loop's buffer, and is copied once more; without it: images: rate 0.85, CPU 1.26 (medians
//     of seven rounds); 602 KB: the same.
//   - an epoll set for room (writable.go): gnet has no event for a socket that takes bytes again,
//     only for bytes in its own buffer; without it: sockets of slow clients would have to be
//     polled, or their answers lie in gnet's memory. Go's poller would take a descriptor and a
//     goroutine for each such client, and descriptors limit the number of clients.
//   - a client over its rate goes on with the second transport, in the same loop (conn.move): gnet
//     reads whenever a socket has bytes. SO_RCVLOWAT holds back 16 KiB: with a full window the
//     kernel reports input whatever the mark is; without it: large messages of such a client are
//     read as fast as it sends them. A connection that was over its rate once costs 4 KiB more from
//     then on.
//   - a duplicate of the descriptor for a client that has ended its direction (conn.detach): gnet
//     closes a connection when it has read its end, and cannot be told not to; without it: nc gets
//     no answer. Only clients that are still owed answers cost a system call.
//   - TCP_QUICKACK when a read leaves a message incomplete; the kernel resets it by itself: a
//     client with Nagle's algorithm holds its second piece back until the first is acknowledged,
//     and the kernel waits 40 ms for an answer to acknowledge it with; without it: the reference's
//     synchronous calls took 42 ms, and take 1.1. It costs one system call for each such read: 228
//     µs of CPU for 602 KB instead of 220, and nothing for messages that arrive whole.
//   - the goroutine that completes a lone request takes the loop's turn (loop.post): waking the
//     loop costs as much as a small request, and under load its thread waits for a core; without
//     it: 2,000 requests a second to a container: CPU 1.12, p50 1.15 (medians of nine rounds).
//     Batches of many wake it once.
//
// # Unix sockets
//
// The second transport (socket.go) uses the standard library's sockets. It also carries TLS,
// and TCP connections of clients that have been over their rate, since it can wait before it reads.
// Each connection has a goroutine that stays in RawConn.Read: the runtime's poller wakes it, it
// reads without waiting, and it takes the turn of its session's loop itself, so that no event
// loop's thread has to be woken. Writes go to the descriptor, and the rest of a large body is read
// into place, as with gnet. A goroutine that waits for room exists only while a client's socket is
// full. The descriptor is valid as long as the goroutine is in RawConn.Read, which outlasts the
// session.
//
//   - gnet could carry them, and is slower. go test -run '^$' -bench Sockets ./server/internal/tcp,
//     an echo in the process, on a machine with other load: one small request at a time has a p50
//     of 8 µs, and 13 to 14 with gnet on the same kind of socket (TCP with gnet: 12 to 13); one
//     1920x1080x3 image at a time takes 3.7 to 3.9 ms, with gnet 8.7 and more (TCP: 5.8 and more).
//     An idle connection costs 4 KiB more (-bench Idle), which is why TCP, with tens of thousands
//     of devices, stays with gnet.
//   - A read continues until the socket is empty. The poller is edge-triggered: data and the end
//     after it may be one edge, and if a client sends descriptors along, the kernel ends a read
//     early.
//   - The kernel tells a client that has closed from one that only waits for answers (POLLHUP),
//     where TCP has the same FIN for both. The byte that TCP therefore sends ahead does no harm
//     here.
//   - A user takes the place of an address (SO_PEERCRED): for limits, which apply with
//     server.limit_loopback, for the owner of a stream, and in the log.
//   - Only socket uses the descriptor. The loops, the goroutines and the end of a connection use a
//     listen.Conn, so a connection without a descriptor needs another socket and nothing else.
//
// shiva/unixsocket opens Unix sockets for all doors and for containers. flock on the directory
// keeps servers that start at the same time apart while they check for an old socket, remove it and
// create theirs. Without it 3 of 8 servers that started at once believed that they listened at the
// same path. A lock file would stay behind; if two servers rename new sockets over the old one,
// neither knows which was last. To find out whether a server listens, a new one connects: only
// ECONNREFUSED means that none does. The file gets its mode and owner between bind and listen, so
// no client connects under others. At the end it is removed only if its inode is still the
// server's.
//
// # TLS
//
//   - tls:// is an address in a door's list, like unix:. A list has plain and encrypted ports side
//     by side, or no plain one; a switch per door, or a second list, could express neither without
//     a rule for combining the two.
//   - A door's TLS configuration is part of its settings (Settings.TLS), loaded for each handshake.
//     A reload replaces it only if a file differs from the one that was read, so sessions that
//     clients resume survive unrelated reloads. If clients show certificates, no session is
//     resumed: it would bring back a verification against authorities and lists of an earlier
//     reload.
//   - Handshakes are listen's, for the three doors of clients (that of containers has sessions of
//     its own, and borrows the turns, see containers/DESIGN.md): they count against the limits
//     of connections, and a door sees plaintext. They take turns at half of the processors, and
//     release them while they wait, as unpacking does. A handshake beyond tls.handshakes ends
//     another one: of the host with the most, the one that has waited longest for its client. If
//     newcomers were refused, silent clients would keep everyone out for the length of a timeout;
//     when the oldest gave way, a thousand clients that reconnected each second now and then ended
//     a handshake of the same host that only waited for its turn.
//   - The Shiva door reads and writes crypto/tls without waiting (tls.go). A writing goroutine,
//     with a buffer in between, would cost a wake-up for each answer, and memory that no budget
//     counts. A read that fails with EAGAIN may be repeated, by the rule of crypto/tls for
//     temporary errors. A write always succeeds: the part of a batch of records that the socket
//     does not take waits as ciphertext, and its plaintext counts as taken when the socket has all
//     of it, so stalls, limits and the end of a session work as on a plain socket, and a stalled
//     client holds one batch of 64 KiB. TLS by itself would write each record separately, and read
//     it in two pieces.
//   - Each answer is one record up to a record's maximum (16 KiB): its parts are copied together,
//     as a record for each part would cost 22 bytes, an encryption and a system call. Large tensors
//     are encrypted in place.
//
// # Turns and sessions
//
//   - A session borrows a decoder from its loop only while a message is partly received: an idle
//     connection costs no decoder.
//   - awake in the loop's mailbox means that a turn is pending or running. It is cleared under the
//     lock under which the mailbox is found empty, so a completion either finds the loop awake or
//     wakes it; none is lost. A superfluous turn is harmless.
//   - The loop writes answers, in turns. Writing from the goroutine that completed a batch saves a
//     wake-up, but needs a lock per session and care with descriptors that are closed meanwhile; it
//     gains nothing measurable beyond noise (server/DESIGN.md, "Life of a request (TCP)").
//   - An event that wakes an idle loop costs up to a millisecond of processor time, whatever it
//     is for. gnet waits in epoll_wait, which Go's runtime takes for a short system call: for 10 ms
//     sysmon looks after its thread, 56 times, each of which cost 16 µs on the virtual machine that
//     was measured. A loop in Go's own poller would not, but gnet cannot be told to use it
//     (bench/METHODS.md, "Those who ask for the newest answer").
//   - A deadline's answer is as late as its timer. When the process is idle, timers of Go's runtime
//     wait in epoll_wait, in whole milliseconds: internal/clock has a timerfd instead. And the
//     goroutine that expires a request takes its loop's turn and writes, as the one that answers a
//     batch of one does (Request.Alone), instead of waking the loop: under load every thread that
//     has to be woken waits for a core. bench/goodput -deadlines measures both.
//   - gnet cannot pause reading, so refusals bound a client's backlog: requests above the in-flight
//     limit are refused, and after sixteen times that limit or outbound_bytes of waiting refusals
//     the connection is closed. A refusal that waits in the line holds an id and a text, and
//     nothing else of its request.
//   - A lower tcp.in_flight_per_connection applies at once: requests above it are refused, and a
//     connection with sixteen times as many waiting is closed at its next request. A limit fixed
//     when the connection began would not stop a flood that is under way, which is when operators
//     change it.
//
// # The end of a connection
//
//   - When the server stops, it keeps reading each session and refuses its requests until the
//     client has been silent for 200 ms, or a second has passed. A client with many requests in
//     transit learns from the refusals to stop, and knows for each whether it was executed. A
//     message that is incomplete by then is refused.
//   - leave closes our direction and keeps reading: the kernel resets a socket that is closed with
//     unread input, and a client that sends everything before it reads would see a broken pipe
//     instead of its answer. A message that is too large is read to its announced end, as long as
//     it arrives at 16 KiB/s; anything else until the client has been silent for a second, 10 s at
//     most. The data is discarded.
//   - Closed, or only half-closed? Both send the same FIN, and a client that has closed may want
//     its request executed all the same: the reference's own example sends a trigger and closes. So
//     a FIN cancels nothing, and neither does the reset that an answer then provokes: requests that
//     were received whole are executed and counted as undelivered. A reset without a FIN before it
//     cancels what is queued.
//   - With cancel_on_close the session asks. A peer that has closed answers any data with a reset.
//     So 100 ms after the FIN, if no answer is complete, the session sends the first byte of its
//     next answer ahead (all messages begin alike). The queued requests of a peer that has closed
//     are then dropped within two ticks. Answers that are complete sooner are sent in one write as
//     usual.
//   - Doors on net/http do the same (listen/hangup.go): it takes the FIN for a client that hangs
//     up, so it does not see the FIN until its handler has ended; meanwhile up to five bytes of the
//     answer, which all answers have in common, are sent ahead.
//
// # Metadata, texts and bridges
//
//   - NaN and Infinity in Shiva metadata are null from the decoder on. The reference sends them for
//     such floats. If they were passed on, a container's strict parser would fail; if they were
//     refused, the reference's clients would lose a request because of a field that no program
//     reads.
//   - The metadata of an answer ends with a prepared tail. Model, version and output names do not
//     change between requests; only id, text and timing are written per answer.
//   - Texts over Shiva are nested lists by name (__texts__, server/manual/wire.md), not a flat
//     list with a shape: tolist and numpy.array use this form, and so does a bridge's field. It
//     loses only the dimensions that follow a dimension of 0. Bytes that are not UTF-8 are
//     {"b64": …}, as in TensorFlow Serving; before, they were replaced by U+FFFD.
//   - inputs is refused for models of RPC v4, and the error names the other form. If it were passed
//     on as a parameter, the sender would only learn "input is missing".
//   - A request in bridge form is recognised by one search for __tensor__ in its metadata; only a
//     message that has it is parsed twice. Its fields are read in two passes over the text,
//     whatever their nesting: the first assigns to inputs the fields whose path is the input's
//     name, the second those whose own key is; the others go to the container. Each tensor belongs
//     to one field, since a list of short references could otherwise multiply a large tensor.
//   - An answer in bridge form nests as its question, by the same walk over the question's text
//     with outputs in place of inputs (form.go), so that one Pydantic class reads both. With
//     top-level keys only, a class with a model or a list of arrays in it could not read any
//     answer.
//   - A bridge's request without tensors is recognised by its names, as it has no reference.
//     Before, any such request was an error, as the named input was missing.
//
// # What a small request costs
//
// go test -run '^$' -bench Request ./server/internal/tcp: about 0.8 µs of CPU for a 16-byte tensor
// with an id, in bursts of 16, from bytes to bytes without sockets. Of a profile of the door under
// 16 x 16 requests of 64 bytes (1.0 µs each with its system calls, bench/door): writing the socket
// 26 %, the scheduler 20 %, decoding 10 %, encoding 8 %, opening 9 %, freeing 6 %, reading the
// socket 3 %. Costs that were removed, per request: deriving the latency profile for every batch
// (120 ns), taking messages from pools and putting them back (120 ns), counting with atomics (35
// ns), clearing whole calls (80 ns), collecting a heap of four megabytes twenty times a second (100
// ns and more).
//
// # What a large tensor costs
//
// go run ./bench/frames compares the door with the bare echo for frames of 6.2 MB; the echo reads
// and writes them in 64 KiB of memory that stays in the cache. On a quiet machine a frame of 6.2 MB
// takes the door 2.0 ms of processor time and the echo 2.2: the door's copies miss the caches, but
// it makes a fifteenth of the echo's system calls. Both are bound by the kernel's copies and by
// TCP's work for each of its pieces. The protocol has no checksum over the data. perf of eight
// frames in flight, 1,000 frames each on a busy machine, in percent of the processor time:
//
//	                             echo, uint8  door, uint8  door, float32  with a Go container, uint8
//	kernel, copies from sockets  25           32           19             28
//	kernel, copies to sockets    19           33           18             29
//	kernel, all else             47           26           25             27
//	swapping                     -            1            32             1
//	copies by the programs       3            2            2              10
//	Go's runtime, gnet           5            4            3              5
//	the server's own code        -            2            2              2
//
// Calls for each frame (strace -c): the echo 79 of read and 78 of write; the door for uint8 4.5 of
// read, 2.1 of writev, 1.0 of ioctl and 1.4 of setsockopt, and for float32 22 of read and 20 of
// write, one for each block. So only faster or fewer copies could still help: the first 64 KiB come
// through gnet's buffer, which is one percent.
//
//   - Swapped tensors pass through one block of 256 KiB per loop, on their way in and out. Before,
//     an answer was swapped as a whole, into a buffer of its size that no budget counted and that
//     was allocated, cleared and collected again whenever the socket did not take it at once; a
//     request arrived in 64 KiB turns of the loop. 6.2 MB of float32: CPU 0.59, rate 1.7.
//   - A tensor of 2 MiB and more is written past the caches (tensor.SwapThrough, non-temporal
//     stores): a plain store loads the line into the caches first, and the line is evicted before
//     it is read. Copying out of the block into memory takes 0.6 of the time; reading and swapping
//     6.2 MB 0.65, less than reading bytes that need no swap into place; the door's CPU for such a
//     frame is 0.92. A tensor of 602 KB is faster in the caches (1.05 with such stores), and a
//     uint8 frame goes straight into its place: through the block and past the caches costs as
//     much.
//   - The socket is asked how much has arrived before a body gets more memory (FIONREAD), so that
//     it gets memory for all of that in one step. If memory grows with each read, from 64 KiB on, a
//     seventh of the bytes is copied once more: that took 4.5 % of the door's CPU for 6.2 MB of
//     uint8 and 5.3 % for float32, and now takes 1.4 and 2.2 %, with 4 reads for a frame of uint8
//     where there were 7. The remaining copy is that of the first 64 KiB out of gnet's buffer.
//   - Reading into the tensor's place and swapping there, 64 KiB to 1 MiB at a time, takes 1.5
//     times as long as the block and those stores.
//   - AVX-512 does the stores past the caches in 0.8 of AVX2's time. When it reads from memory, it
//     works on two halves of a block at once, with two pages in flight, in 0.75 of the time.
//   - AVX2 works on one half of a block at a time: two at once are 1.02 times as fast at 256 KiB,
//     and no faster at 64, since its loop has four vectors in flight and fetches ahead.
//   - Larger socket buffers are not worth their memory: SO_RCVBUF of 4 MiB takes 0.96 of the CPU
//     and SO_SNDBUF of 4 MiB 0.89, each with 0.75 to 1.05 of the rate; the kernel would hold 8 MiB
//     of answers for each client that does not read, which no budget counts.
//   - A whole tensor is written at once: 256 KiB at a time takes 1.07 of the CPU, 1 MiB at a time
//     1.0. TCP_QUICKACK makes no difference to large bodies (1.0 without).
//   - MSG_ZEROCOPY costs 1.35 times a plain write on the loopback device, which copies all the same
//     (as the kernel reports for every piece) and reports each piece on the error queue. It is not
//     used.
//   - The relative alignment of source and destination makes no difference to the kernel's copies,
//     beyond noise.
//   - The block is written 256 KiB at a time: 64 KiB at a time costs half as much again, in the
//     kernel, which then wakes the peer for every piece.
package tcp
