// Package latest keeps the newest answer of each stream, for those who send no frames: robots,
// gateways, pages.
//
//	frame's call complete -Put-> Store <-Ask- poll, which is answered at once or by a later Put
//
// Answers are kept by the name that frames are sent to, a model or an application, and by the
// [Source] of the stream. Kept is one answer per stream and version, only of names that are asked
// for it (or always, if configured so), until a minute after the stream's last frame. It holds
// references to the outputs as the model made them, or copies where a reference would hold up more
// memory than the outputs have: the rest of their batch, or a container's shared memory, whose
// results are few.
//
// Neither the number of streams nor that of polls costs those whom they do not concern: a question
// finds its streams by what it tells of them (index.go), a frame the polls that it may concern, and
// memory is given back by whoever has the most of it (payer.go).
//
// A [Poll] that waits costs its own memory and a timer: no goroutine, and no work until a frame of
// its stream is answered. Once the frame's own client has been told ([Name.Serve]), one goroutine
// tells all polls that the answer satisfies, so that those who complete frames do not pay for those
// who ask.
package latest
