// Package regions has the shared memory that clients on the same machine register, so that tensors
// need not travel through a socket: Triton's extension system_shared_memory. All doors share one
// Registry.
//
//	client --register name, key--> door --> Registry.Register: a file in shared_memory.directory
//	client --request, Place------> door --> Registry.Read ----pread--> memory of the payload pool
//	                               door <-- Registry.Write <--pwrite-- output of the model
//
// A file belongs to its client, who may truncate, replace and remove it at any time. So it is
// never mapped, since a page that is gone would end the process: it is read with pread and written
// with pwrite, and what is missing is an error of the one request. Nothing about a file is believed
// longer than for one call.
//
// Which files a client may name is the operator's: see Settings. A key is the name of a file, as
// shm_open takes it, and neither a link nor a mount point is followed.
//
// Concurrency: any goroutine may call anything. Read and Write take as long as the copy takes, and
// are not for an event loop.
//
// Errors: those that clients of Triton compare have Triton's words, and ours behind them. Each
// wraps a condition of gate's table.
//
// Sources: Triton's documentation of the extension (protocol/extension_shared_memory.md) and its
// source (shared_memory_manager.cc) for the words.
package regions
