// Package pb is the Predict Protocol V2 as protocol buffers: the .proto files, and the Go code that
// is generated from them. After a change of a .proto file run "go generate ./server/grpc/pb".
//
// The wire is that of Triton's grpc_service.proto and model_config.proto, so that its clients work
// unchanged. The comments are our own.
package pb

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.57.2 generate
