package grpc

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/grpc/wire"
	"github.com/shivad/shivad/shiva/tensor"
)

// BenchmarkRead reads requests with raw and with typed contents from frames as grpc-go has them.
func BenchmarkRead(b *testing.B) {
	requests := map[string]*pb.ModelInferRequest{}
	for _, size := range []int{64, 602_112, 8 << 20} {
		requests[fmt.Sprintf("raw/size=%d", size)] = raw("m", "FP32", []int{1, size / 4}, make([]byte, size))
	}
	const elements = 150_528
	floats, ints, texts := make([]float32, elements), make([]int32, elements), make([][]byte, elements)
	for i := range elements {
		floats[i], ints[i], texts[i] = float32(i), int32(i), []byte("hello")
	}
	requests["typed/FP32"] = typed("m", "FP32", []int64{elements}, &pb.InferTensorContents{Fp32Contents: floats})
	requests["typed/INT32"] = typed("m", "INT32", []int64{elements}, &pb.InferTensorContents{IntContents: ints})
	requests["typed/BYTES"] = typed("m", "BYTES", []int64{elements}, &pb.InferTensorContents{BytesContents: texts})
	door := new(Door)
	door.settings.Store(&Settings{Limits: testLimits, Memory: gate.Memory{Pool: tensor.NewPool(0)}})
	for name, request := range requests {
		data, err := proto.Marshal(request)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if err := receiveOnce(door, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func receiveOnce(door *Door, data []byte) error {
	var r request
	defer r.release()
	w := wire.New(&delivery{data: data, announced: len(data), frame: 16 << 10}, statusOf)
	_, err := w.Receive(door.bounds(&r), false, r.read)
	return err
}
