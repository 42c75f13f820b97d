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
// Serve holds a session with each server, reconnects with jittered back-off, and follows a name
// that resolves to several addresses. It receives the next batch while the model computes. When ctx
// ends it tells the servers to send no more batches, answers those that it has, and returns.
//
// # Memory
//
// Inputs are views of the received frames, or of memory that is shared with a server on the same
// machine, without a copy, and invalid after Predict returns. They are read-only, unless
// [Model].WritableInputs is set. Outputs are sent without a copy. They may be the inputs or parts
// of them, or memory from [Batch.Output], which is recycled once it has been sent. The model's own
// memory must be freshly allocated or constant, since the model does not learn when it has been
// sent.
//
// # Concurrency
//
// Predict is called by one goroutine at a time, unless Model.Concurrency is larger. It is not
// always the same goroutine: a fast model is computed on the goroutine that has read the batch.
// Call Serve once for each model of a process.
//
// # Rows and tests
//
// [PerRow] makes a Predict from a function that computes one row. [Check] runs a model on
// generated batches, without a server.
package container
