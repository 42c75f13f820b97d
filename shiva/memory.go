package shiva

// MemoryKey is the metadata key of an object that lists the tensors of a message in shared memory,
// each with its region of the server. In an error it is false if the server could not use the
// memory of the request; see [RemoteError].Unshared.
const MemoryKey = "shared_memory"
