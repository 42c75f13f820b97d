package shiva

// MemoryKey is the key of metadata whose object lists the tensors of a message that are in shared
// memory, by which regions of a server they are in.
const MemoryKey = "shared_memory"
