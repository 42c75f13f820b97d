// Package regions manages shared memory that clients on the same machine register, so that tensors
// need not travel through a socket: Triton's extension system_shared_memory. All doors share one
// Registry.
//
//	client --register name, key--> door --> Registry.Register: a file in shared_memory.directory
//	client --request, Place------> door --> Registry.Hold…: the region, until the request ends
//	                               door --> Hold.Fetch ------pread--> memory of the payload pool
//	                               door <-- Hold.Put <-------pwrite-- output of the model
//
// A file belongs to its client, which may truncate, replace or remove it at any time. It is
// therefore never mapped: touching a page that has been truncated would kill the process. It is
// read with pread and written with pwrite, and missing bytes are an error of that one request. No
// knowledge about a file is relied on beyond one call.
//
// The operator decides which files clients may name: see Settings. A key is a file name as shm_open
// takes it. Neither links nor mount points are followed.
//
// Concurrency: everything may be called from any goroutine. Fetch and Put block for as long as the
// copy takes, and must not be called on an event loop.
//
// Errors: where Triton's clients compare texts, an error begins with Triton's words and continues
// with ours. Each wraps a condition of gate's table.
//
// Sources: Triton's documentation of the extension (protocol/extension_shared_memory.md), and its
// source (shared_memory_manager.cc) for the texts of errors.
//
// # Files, copies and owners
//
//   - Regions are read with pread and written with pwrite, never mapped. The file belongs to its
//     client: if the client truncates it under a mapping, a read is a SIGBUS for the whole server.
//     The copy that a mapping would save is the one into the payload pool, from where the tensor
//     continues like any other.
//   - A region holds its file open from its registration on, as Triton holds a mapping. Opening it
//     by name for each request would read a file that has replaced it, and would need the checks
//     each time. The price is a descriptor per region, which descriptors.go sets aside, and that a
//     file which its client has removed stays allocated until it is unregistered (Registry.forget).
//   - A request resolves the name of a region once (Hold), when it is accepted, and the file stays
//     open until the request ends. A name that is looked up again for the answer may belong to
//     another client by then: each of Triton's examples begins by unregistering all regions, and
//     registers output0_data. Files that only requests still use count as regions, or else
//     registering and unregistering beside a slow model would take all descriptors.
//   - A file is located before it is opened (O_PATH), and opened through that descriptor: opening a
//     FIFO or a device has effects, and between a check of a name and the open the name may change.
//     openat2 refuses links and mounts: a user may mount a FUSE file system on a file, and every
//     call on it waits for that user.
//   - A region may end with the connection that registered it (RegisterFor), over Shiva only: HTTP
//     has no lasting connection. Our clients create a file, register it and remove its name, so a
//     kill -9 of either side leaves nothing behind: no file in the directory, and no open file in
//     the registry, which would otherwise fill up. Each connection has its own memory, as a server
//     may still write outputs of the previous connection there.
//   - An area for outputs (fillArea) is for clients that cannot know output sizes in advance. Our
//     clients reserve the size of the route's last answers. A place that is too small is an error,
//     since its client meant that output; an area that is too small is not, and the output is sent
//     on the connection.
//   - Memory that the server makes in a client's file is charged to the payload budget (accounts).
//     A file that a client has only made long, as Triton's client does, has no pages, and a write
//     makes them. The kernel charges pages of shared memory to the control group of whoever makes
//     them, until nobody has the file: with outputs at growing offsets, a client without memory of
//     its own could have the server killed. Refusing these outputs would refuse Triton's clients.
//     Unregistering ends no charge, as it frees no page, and neither does removing the name. What
//     shows that a file has ended is the deletion of its inode, which inotify reports without
//     keeping the file open. A quarter of the budget is the most for all files, since their clients
//     decide for how long. Before each piece the holes of its range are counted (SEEK_HOLE), in the
//     file system's unit; a client that frees pages in the microsecond between the count and the
//     write gets them unpaid, and pays for each that it frees too early.
//   - The size of a file is checked before a write, since pwrite beyond its end would make it
//     longer. If a client truncates the file between the two, the file does become longer.
//   - Copies are made in pieces of 1 MiB, at most one per processor at a time. Each holds a thread
//     while it lasts, so thousands of requests would be thousands of threads, and small tensors
//     would wait for large ones.
//   - What a copy costs (two quiet cores, perf, and the same calls in a program of their own): 6.2
//     MB in the caches take 0.56 ms to read from a region into the arena and 0.54 to write, where a
//     copy in memory takes 0.43. Regions have pages of 4 KiB, and finding, locking and releasing
//     these takes half as much time as the copy. For memory outside the caches, as with eight
//     frames in flight, each copy takes 1.2 ms, and the two are 2.4 of the 4.0 ms of processor time
//     for a frame. Over TCP the kernel's side of each copy is a socket's buffer, which stays in the
//     cache.
//   - A frame over shared memory, one at a time, cannot be answered in 0.35 of the time that it
//     takes over TCP: the two copies alone are 0.42 of it (1.1 of 2.6 ms). The whole path takes 1.6
//     ms: 0.01 until the copy begins, 0.65 to read, 0.35 to a container in Python and back (0.13 in
//     Go), since megabytes have just emptied the caches, 0.6 to write, and 0.03 for the rest.
//     Saving a copy is ruled out: the server maps no region, and a container that mapped one would
//     crash when the client truncates the file. Tried: two threads for one copy took 0.58 ms where
//     one takes 0.44; larger and smaller pieces than 1 MiB are no faster. Nor are other calls
//     (medians of five on a busy machine, 6.2 MB from a file in /dev/shm to a memfd): a copy in
//     memory 0.56 ms, pread 0.69, process_vm_readv from the client's memory 0.67, sendfile 0.94,
//     splice through a pipe 0.98, and copy_file_range refuses another file system. Cold memory is
//     not the reason either: one at a time, each frame lies in the arena where the last one did.
//   - Pieces are written to a file one at a time (file.writing): the kernel admits one writer per
//     file, and the others spin on a processor, which was 7 % of the server's time with eight
//     frames in flight.
//   - The Shiva door copies outside its loop: inputs before the call is opened, while its place in
//     the line is held as if it waited for room, and outputs between Complete and the mailbox. A
//     loop that copied 250 MiB itself would stall for a tenth of a second.
//   - The client's address decides whether it may use regions, not the listener's: a listener on
//     all addresses has local clients, too. Regions belong to no client, as in Triton.
//   - With identities a region belongs to the identity that registered it, and each identity has
//     its own names. With shared names, one identity could discover the names of others, or take
//     them first. A file belongs to whoever may open it: the user on a Unix socket, or an identity
//     whose table names its key. Whoever comes first would be an attacker who guesses the name of a
//     file, reads its frames and has its owner refused. A connection over TCP shows no user, so
//     several identities need patterns.
package regions
