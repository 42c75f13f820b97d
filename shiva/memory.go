package shiva

// MemoryKey is the metadata key of an object that lists the tensors of a message in shared memory,
// each with its region of the server.
const MemoryKey = "shared_memory"
