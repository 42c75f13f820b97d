package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	crowdedBudget = 64 << 20
	bigRow        = 4 << 20
	halfSent      = 1 << 20 // of bigRow, so that its buffer is whole or nearly
)

// startCrowded starts a server with all doors, a budget of 64 MiB, the model "big" with rows of 4
// MiB, and the identities "greedy" and "modest", who may use it.
func startCrowded(t *testing.T) *guardedServer {
	t.Helper()
	log := new(logged)
	s, file := loaded(t, log, func(c *config.Config) {
		c.Identities = append(c.Identities, declared("greedy", "infer:big"), declared("modest", "infer:big"))
		c.Frigate.Listen, c.Frigate.Models = config.Addrs{"127.0.0.1:0"}, map[string]string{"yard.onnx": "big"}
		c.Limits.PayloadBytes, c.Limits.MessageBytes = crowdedBudget, 16<<20
	})
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, bigRow}}}
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "big", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	return &guardedServer{Server: s, file: file, log: log}
}

func bigTensor() tensor.Tensor {
	return tensor.Tensor{DType: tensor.Uint8, Shape: tensor.Shape{1, bigRow}, Data: make([]byte, bigRow)}
}

// A half sends the first part of a request on a new connection, and never the rest.
type half func(t *testing.T, g *guardedServer, c net.Conn)

func write(t *testing.T, c net.Conn, p []byte) {
	if _, err := c.Write(p); err != nil && t.Context().Err() == nil {
		t.Log(err) // closed by the server
	}
}

// overShiva shows a token first, unless it is "".
func overShiva(token string) half {
	return func(t *testing.T, _ *guardedServer, c net.Conn) {
		if token != "" {
			hello, err := shiva.AppendMessage(nil,
				&shiva.Message{Namespace: shiva.WhoAmINamespace, Metadata: fmt.Appendf(nil, `{"token":%q}`, token)})
			if err != nil {
				t.Error(err)
			}
			write(t, c, hello)
		}
		all, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "big", Tensors: []tensor.Tensor{bigTensor()}})
		if err != nil {
			t.Error(err)
		}
		write(t, c, all[:halfSent])
	}
}

func overFrigate(t *testing.T, _ *guardedServer, c net.Conn) {
	z, err := zmtp.Client(c, zmtp.Config{Client: zmtp.Req})
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() { z.Close() })
	header := `{"shape": [1, 4194304], "dtype": "uint8"}`
	all := append([]byte{1, 0, 1, byte(len(header))}, header...)
	all = binary.BigEndian.AppendUint64(append(all, 2), bigRow)
	write(t, c, append(all, make([]byte, halfSent)...))
}

func overREST(t *testing.T, _ *guardedServer, c net.Conn) {
	head := fmt.Sprintf("POST /v2/models/big/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n",
		tokenOf("greedy"), bigRow)
	write(t, c, append([]byte(head), bytes.Repeat([]byte(" "), halfSent)...))
}

func overGRPC(t *testing.T, _ *guardedServer, c net.Conn) {
	dial := func(context.Context, string) (net.Conn, error) { return &curtailed{Conn: c, left: 3 * halfSent}, nil } // grpc-go passes on a megabyte at a time
	client, err := grpc.NewClient("passthrough:///greedy", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial))
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() { client.Close() })
	q := &pb.ModelInferRequest{ModelName: "big",
		Inputs: []*pb.ModelInferRequest_InferInputTensor{
			{Name: "x", Datatype: "UINT8", Shape: []int64{1, bigRow}}},
		RawInputContents: [][]byte{make([]byte, bigRow)}}
	_, _ = pb.NewGRPCInferenceServiceClient(client).ModelInfer(as(t, tokenOf("greedy")), q)
}

// A curtailed connection loses what is written after some bytes.
type curtailed struct {
	net.Conn
	left int
}

func (c *curtailed) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	if c.left -= n; n > 0 {
		if _, err := c.Conn.Write(p[:n]); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func dialAs(t *testing.T, g *guardedServer, who string) *shiva.Client {
	t.Helper()
	c, err := shiva.Dial(t.Context(), g.Addrs().TCP[0].String(), shiva.WithToken(tokenOf(who)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Clients that never complete a message, from many addresses, take at most the memory that is
// theirs, and each request of somebody else is answered with its result, also a large one.
func TestUnfinishedMessages(t *testing.T) {
	const (
		conns     = 80
		strangers = crowdedBudget / 8
		known     = crowdedBudget/4*3 - strangers
		own       = bigRow + 1<<10 // of a request and its answer, which go back behind it
	)
	token := tokenOf("greedy")
	for _, c := range []struct {
		what  string
		addrs func(a Addrs) []net.Addr
		send  half
		most  int64 // bytes that they take
		least int64 // that the attack is one
	}{
		{"strangers over Shiva", func(a Addrs) []net.Addr { return a.TCP }, overShiva(""), strangers, strangers / 2},
		{"strangers over Frigate", func(a Addrs) []net.Addr { return a.Frigate }, overFrigate, strangers, 0},
		{"strangers with an unknown token over Shiva", func(a Addrs) []net.Addr { return a.TCP }, overShiva("unknown"),
			strangers, strangers / 2},
		{"another identity over Shiva", func(a Addrs) []net.Addr { return a.TCP }, overShiva(token), known, known / 2},
		{"another identity over HTTP", func(a Addrs) []net.Addr { return a.REST }, overREST, known, known / 2},
		{"another identity over gRPC", func(a Addrs) []net.Addr { return a.GRPC }, overGRPC, known, known / 4},
	} {
		t.Run(c.what, func(t *testing.T) {
			g := startCrowded(t)
			before := g.pool.InUse()
			for i := range conns {
				from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i), 1)}}
				k, err := from.DialContext(t.Context(), "tcp", c.addrs(g.Addrs())[0].String())
				if err != nil {
					t.Fatal(err)
				}
				defer k.Close()
				go c.send(t, g, k) // ends with the connection
			}
			if c.least > 0 {
				budgettest.Until(t, "the attack to take memory", func() bool {
					return g.unfinished.Stats().Held >= c.least
				})
			}
			modest := dialAs(t, g, "modest")
			for i := range 20 {
				if err := g.shivaOn(t, modest, "", "big", "", bigTensor()); err != nil {
					t.Fatalf("request %d of another identity: %v", i, err)
				}
				if taken := g.pool.InUse() - before; taken > c.most+own {
					t.Fatalf("they take %d bytes, expected %d at most", taken, c.most+own)
				}
			}
			if u := g.identities.Usage()["greedy"]; c.most == known && c.what != "another identity over gRPC" &&
				u.Has[3] == 0 {
				t.Errorf("bytes in flight do not show what arrives: %v", u.Has)
			}
		})
	}
}

// A client may send its token with a large first message, as older programs do: it is answered, or
// refused for want of memory and known from then on.
func TestLargeFirstMessage(t *testing.T) {
	g := startCrowded(t)
	ask := func(c *shiva.Client) error { return g.shivaOn(t, c, tokenOf("modest"), "big", "", bigTensor()) }
	if err := ask(dial(t, g.Server)); err != nil {
		t.Errorf("while there is room: %v", err)
	}
	k, err := net.Dial("tcp", g.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	overShiva("")(t, g, k)
	budgettest.Until(t, "a stranger to hold half of what strangers may", func() bool {
		return g.unfinished.Stats().Strangers >= bigRow
	})
	late := dial(t, g.Server)
	var told *shiva.RemoteError
	if err := ask(late); !errors.As(err, &told) || told.Type != "Overloaded" || !told.Retryable ||
		!strings.Contains(told.Message, "!whoami") {
		t.Errorf("while there is none: %v", err)
	}
	if err := ask(late); err != nil {
		t.Errorf("again on the same connection: %v", err)
	}
	stranger := dial(t, g.Server)
	if err := g.shivaOn(t, stranger, "", "big", "", bigTensor()); !errors.As(err, &told) || told.Type != "Overloaded" {
		t.Errorf("a message without a token: %v", err)
	}
	if err := g.shivaOn(t, stranger, tokenOf("unknown"), "big", "", bigTensor()); !errors.As(err, &told) ||
		told.Type != "Unauthenticated" {
		t.Errorf("one with an unknown token: %v", err)
	}
}
