package shivatest_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A program's handling of an overloaded server can be tested without a server or a port: the first
// request is refused, the second is answered.
func ExampleServe() {
	var network shivatest.Net
	listener, err := network.Listen("models:6174")
	if err != nil {
		log.Fatal(err)
	}
	asked := 0
	server := shivatest.Serve(listener, func(c *shivatest.Conn, m *shiva.Message) {
		if asked++; asked == 1 {
			shivatest.Fail(&shiva.RemoteError{Type: shiva.Overloaded, Message: "busy", Code: 429, Retryable: true})(c,
				m)
			return
		}
		shivatest.Echo(c, m)
	})
	defer server.Close()

	ctx := context.Background()
	client, err := shiva.Dial(ctx, "models:6174", shiva.WithDialer(network.Dial))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	x, err := tensor.FromSlice(tensor.Shape{3}, []float32{1, 2, 3})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		answer, err := client.Do(ctx, &shiva.Message{Namespace: "echo", Tensors: []tensor.Tensor{x}})
		if refused, ok := errors.AsType[*shiva.RemoteError](err); ok {
			fmt.Println("refused:", refused.Message)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(tensor.Values[float32](answer.Tensors[0]))
		answer.Release()
	}
	// Output:
	// refused: busy
	// [1 2 3] <nil>
}
