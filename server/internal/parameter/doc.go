// Package parameter is the table of request parameters: everything that a client may tell the
// server about a request, besides its tensors and its route. A row of [Table] has the key, the
// wires it is known on, the kind, unit and range of its value, the default and the meaning; all
// doors read requests according to it, and the OpenAPI documents and server/manual/parameters.md
// are made from it.
//
// A key that is in no row of a wire goes to the container on that wire, whatever its value.
//
// Whatever gives a message its form is not a parameter, and the doors read it themselves: ids,
// names of models, versions and tensors, texts, and parameters of single tensors.
//
//   - Request parameters are one table (internal/parameter), which every door uses. When three
//     doors had their own parsers, there were two limits for timeouts, three meanings of priority,
//     and a key that gRPC lacked. Values count priorities as the Predict Protocol does, so that
//     zero is the default everywhere. The Parameters of a Request in a Go program are read by the
//     table, too: a new key needs no new field.
//   - Parameters are limited to what every container's JSON library accepts (gate/parameters.go):
//     62 levels, and numbers that an FP64 holds. A batch has one header for all its requests, so a
//     value that a library refuses fails all of them: Python refuses 4,301 digits, the Go SDK 65
//     levels, serde_json 128, and libraries that convert large numbers to floats refuse 1e309. The
//     limit is not a setting, since containers could not follow it.
//   - A member that is null counts as absent in the JSON of a request: serializers write unset
//     members as null. The same holds for parameters that the door reads; those for the container
//     are passed on unchanged.
//   - Unknown members are ignored, unknown parameters go to the container, those of single tensors
//     by the tensor's name under input_parameters and output_parameters: clients of other servers
//     send content_type and the like. Tensor parameters that begin with shared_memory_ are for the
//     server, which refuses them if it offers no shared memory: without it the tensor has no data.
package parameter
