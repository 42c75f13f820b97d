// Package parameter is the table of request parameters: what a client may say to the server about
// a request, beside its tensors and whom it asks. A row of [Table] has the key, the wires it is
// known on, the kind, unit and range of its value, the default and what it means; all doors read
// requests by it, and the OpenAPI documents and server/PARAMETERS.md are made from it.
//
// A key that is in no row of a wire is the container's there, whatever its value.
//
// What returns a message its form is no parameter, and the doors read it themselves: ids, names of
// models, versions and tensors, texts, and parameters of single tensors.
package parameter
