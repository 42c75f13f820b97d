// Package arena manages the memory that the server shares with containers on its machine: segments,
// each a memfd of the server, and in them the large buffers of the payload pool. DESIGN.md of
// containers describes the containers' view of it.
//
// The server makes every segment itself, including those that containers write. It seals them
// against truncation, so that no access raises SIGBUS, and opens nothing that a container names.
// Segments of inputs are sealed against future writable mappings as well: no container, not even as
// root, can change what another one reads. The price is that the kernel does not punch holes into
// such a file: its memory returns to the system as a whole, which is why an Arena replaces
// segments.
//
// Files without names leave nothing behind when a process is killed. Only Linux has them; elsewhere
// New fails, and all tensors travel as bytes.
package arena
