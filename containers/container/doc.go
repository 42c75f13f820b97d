// Package container serves a model written in Go to one or several shivad servers, over RPC v4
// (containers/DESIGN.md).
//
//	model := container.Model{
//		Name: "sum", Version: "1",
//		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}},
//		Outputs: []tensor.Spec{{Name: "sum", DType: tensor.Float32, Shape: tensor.Shape{-1}}},
//		Predict: func(ctx context.Context, b *container.Batch) ([]tensor.Tensor, error) { … },
//	}
//	err := container.Serve(ctx, model, "tcp://127.0.0.1:7000")
//
// Serve keeps a session with each server, reconnects with jittered back-off, and follows a name
// that resolves to several addresses. It receives the next batch while the model computes. When
// ctx ends it asks the servers for no more batches, answers those it has, and returns.
//
// # Memory
//
// Inputs are views of the received frames: nothing is copied, and they die when Predict
// returns. Outputs are sent from where they are. They may be the inputs themselves or parts of
// them, or memory from [Batch.Output], which is used again once it has been sent. Memory of the
// model's own must be fresh or constant: nothing tells the model when it has been sent.
//
// # Concurrency
//
// Predict is called by one goroutine at a time, unless Model.Concurrency says otherwise. It is
// not always the same one: a model that was quick is computed where the batch was read. Several
// models in one process are several calls of Serve.
//
// # Rows and tests
//
// [PerRow] makes a Predict of a function that computes one row. [Check] runs a model on made-up
// batches, without a server.
package container
