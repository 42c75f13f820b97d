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
package regions
