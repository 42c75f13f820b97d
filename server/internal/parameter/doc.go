// Package parameter is the table of request parameters: everything that a client may tell the
// server about a request, besides its tensors and its route. A row of [Table] has the key, the
// wires it is known on, the kind, unit and range of its value, the default and the meaning; all
// doors read requests according to it, and the OpenAPI documents and server/PARAMETERS.md are made
// from it.
//
// A key that is in no row of a wire goes to the container on that wire, whatever its value.
//
// Whatever gives a message its form is not a parameter, and the doors read it themselves: ids,
// names of models, versions and tensors, texts, and parameters of single tensors.
package parameter
