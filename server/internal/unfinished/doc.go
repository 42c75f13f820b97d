// Package unfinished bounds the memory of messages that have begun to arrive and are not complete.
//
//	Room      the memory that all unfinished messages of a server may hold, with who holds how much
//	Message   one of them, from its first memory until it is complete
//
// A client can begin any number of messages and complete none. So memory is shared by these rules:
//
//   - A quarter of the budget for payloads is not for unfinished messages: what is complete, and
//     its answer, find room whatever arrives.
//   - Strangers, who have not shown yet who they are where the server asks for it, have a small
//     room of their own: enough to say who they are.
//   - If room is short, the largest message of the payer who holds most ends, unless the message
//     that needs room would make its own payer the one who holds most: then that one is refused. A
//     payer's own messages never make room for each other, and what a message will need in the end
//     counts, not what it has so far: otherwise newcomers would end messages that are nearly
//     complete, only to be ended themselves.
//   - The fuller the room, the sooner a message must be complete.
//
// Payers are the quota accounts of identities, and of addresses (IPv6: of a /64 network).
//
// A Message is ended where the goroutine that reads it can release its memory: that takes a moment,
// for which the room lends its last part to others.
//
// Concurrency: a Room may be used from any goroutine. A Message belongs to the goroutine that reads
// it; only its room uses it from others.
//
// # Whose message ends
//
// Package unfinished has the rules, and why they are so. What doors add:
//
//   - A door asks before it takes memory, with what the message holds and what it has announced.
//     Over Shiva a message of up to 64 KiB that arrives in one turn asks for nothing: a small
//     request takes no lock. It is counted at the end of the turn in which it is half-received.
//   - An ended message is discarded, not cut off (Shiva): its memory is released at once, its rest
//     is read and dropped, and the error is answered in its place, so that the connection stays in
//     step. HTTP answers at once. gRPC ends the call, and Frigate's door the connection: nothing
//     else wakes what waits for their bytes.
//   - A stranger's large first message may bring the token. Metadata follows tensors on this wire.
//     If strangers have room, the message is answered as any other. If not, its tensors are dropped
//     and its token is read all the same, so the client is known when it sends the message again.
package unfinished
