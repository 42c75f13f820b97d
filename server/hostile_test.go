package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpcgzip "google.golang.org/grpc/encoding/gzip"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// hostileMessage is the message limit in these tests.
const hostileMessage = 1 << 20

// An attack is a malicious message, and how it must be answered.
type attack struct {
	name string
	send func() error
	want condition // kind, HTTP and gRPC code; http 0: any answer that is no error
}

var (
	protocol = condition{"Protocol", 400, 3, false}
	invalid  = condition{"InvalidInput", 400, 3, false}
	tooLarge = condition{"TooLarge", 413, 8, false}
	good     = condition{}
)

// httpAttacks are bodies that are hard to read.
func httpAttacks(c *httpClient) []attack {
	input := func(members string) string { return `{"inputs":[{"name":"x","datatype":"FP32",` + members + `}]}` }
	one := func(number string) string { return input(`"shape":[1,3],"data":[0,` + number + `,0]`) }
	with := func(members string) string { return one("1")[:len(one("1"))-1] + "," + members + "}" }
	deep := strings.Repeat("[", hostileMessage/2)
	objects := strings.Repeat(`{"a":`, hostileMessage/8)
	zeros := strings.Repeat("0", hostileMessage/2)
	digits := strings.Repeat("123456789", hostileMessage/20)
	var member bytes.Buffer
	w, _ := gzip.NewWriterLevel(&member, gzip.BestSpeed)
	_, _ = w.Write(make([]byte, hostileMessage))
	_ = w.Close()
	bomb := strings.Repeat(member.String(), 64) // a body that gzip inflates as one stream
	var list []attack
	post := func(name, body string, want condition, headers ...string) {
		list = append(list, attack{name, func() error {
			q, err := http.NewRequest("POST", c.base+"/v2/models/m/infer", strings.NewReader(body))
			if err != nil {
				return err
			}
			for _, h := range headers {
				name, value, _ := strings.Cut(h, ": ")
				q.Header.Set(name, value)
			}
			_, _, err = c.do(q)
			return err
		}, want})
	}
	post("a body that is all brackets", deep, protocol)
	post("brackets for data", input(`"shape":[1,3],"data":`+deep), protocol)
	post("brackets before the shape", input(`"data":`+deep), protocol)
	post("brackets for a shape", input(`"shape":`+deep), protocol)
	post("brackets for a parameter", with(`"parameters":{"p":`+deep), protocol)
	post("objects that nobody reads", with(`"p":`+objects), protocol)
	post("closed brackets, too many", with(`"p":`+strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000)), protocol)
	post("an exponent beyond all floats", one("1e999999999"), invalid)
	post("an exponent beyond all integers", one("1e99999999999999999999999999"), invalid)
	post("an exponent of half a megabyte", one("1e"+zeros+"9999"), invalid)
	post("a small exponent beyond all floats", one("-1e-999999999"), good)
	post("half a megabyte of zeros", one("0."+zeros+"1"), good)
	post("half a megabyte of digits", one("0."+digits), good)
	post("a float of half a megabyte", one("1"+zeros), invalid)
	post("zeros that an exponent takes back", one("1"+zeros+"e-524288"), good)
	post("a dimension with an exponent", input(`"shape":[1e9,3],"data":[1]`), invalid)
	post("a dimension beyond all integers", input(`"shape":[`+digits+`,3],"data":[1]`), invalid)
	post("a shape that overflows", input(`"shape":[4294967296,4294967296],"data":[1]`), tooLarge)
	post("a priority with an exponent", with(`"parameters":{"priority":1e999999999}`), invalid)
	post("inputs twice", with(`"inputs":[]`), protocol)
	post("data twice", input(`"shape":[1,3],"data":[1,2,3],"data":[1,2,3]`), protocol)
	post("the same key, written otherwise", with(`"id":"a","\u0069d":"b"`), protocol)
	post("a parameter twice", with(`"parameters":{"p":1,"p":2}`), protocol)
	post("a length longer than the body", one("1"), invalid, "Inference-Header-Content-Length: 1000000")
	post("a negative length", one("1"), invalid, "Inference-Header-Content-Length: -1")
	post("bytes that do not follow", input(`"shape":[1,3],"parameters":{"binary_data_size":12}`), invalid,
		fmt.Sprintf("Inference-Header-Content-Length: %d", len(input(`"shape":[1,3],"parameters":{"binary_data_size":12}`))))
	post("a bomb", bomb, tooLarge, "Content-Encoding: gzip")
	post("no gzip", one("1"), protocol, "Content-Encoding: gzip")
	post("a body above the limit", strings.Repeat(" ", hostileMessage+1), tooLarge)
	return list
}

func grpcAttacks(c *grpcClient) []attack {
	x := tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{1, 3}}
	ask := func(q *pb.ModelInferRequest, options ...grpc.CallOption) func() error {
		return func() error {
			if _, err := c.client.ModelInfer(context.Background(), q, options...); err != nil {
				return grpcFault(err)
			}
			return nil
		}
	}
	large := grpcQuestion("m", x, 0)
	// In addition, a message may have metadata up to a separate limit.
	large.RawInputContents = [][]byte{make([]byte, 4*hostileMessage)}
	overflow := grpcQuestion("m", tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{1 << 40, 1 << 40}}, 0)
	overflow.RawInputContents = [][]byte{make([]byte, 12)}
	negative := grpcQuestion("m", tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{-1, 3}}, 0)
	negative.RawInputContents = [][]byte{make([]byte, 12)}
	twice := grpcQuestion("m", x, 0)
	twice.Inputs = append(twice.Inputs, twice.Inputs[0])
	twice.RawInputContents = [][]byte{make([]byte, 12), make([]byte, 12)}
	short := grpcQuestion("m", x, 0)
	short.RawInputContents = [][]byte{make([]byte, 11)}
	return []attack{
		{"a message above the limit", ask(large), tooLarge},
		{"a bomb", ask(large, grpc.UseCompressor(grpcgzip.Name)), tooLarge},
		{"a shape that overflows", ask(overflow), invalid},
		{"a negative dimension", ask(negative), invalid},
		{"an input twice", ask(twice), invalid},
		{"bytes that are missing", ask(short), invalid},
		{"no message", c.garbage, protocol},
	}
}

func tcpAttacks(t *testing.T, c *tcpClient) []attack {
	t.Helper()
	x, _ := tensor.FromSlice(tensor.Shape{1, 3}, []float32{1, 2, 3})
	frame := func(metadata string) []byte {
		b, err := shiva.AppendMessage(nil,
			&shiva.Message{Namespace: "m", Metadata: []byte(metadata), Tensors: []tensor.Tensor{x}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	send := func(message []byte) func() error { return func() error { return c.send(message) } }
	claim := frame("{}")
	const header, dims = 12, 12 + 2
	binary.BigEndian.PutUint32(claim[dims:], 1<<30)
	deep := `{"p":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}"
	return []attack{
		{"no message", c.garbage, protocol},
		{"a tensor of many gigabytes", send(claim[:header+20]), tooLarge},
		{"deep metadata", send(frame(deep)), protocol},
		{"an exponent beyond all floats", send(frame(`{"timeout_ms":1e999999999}`)), invalid},
	}
}

// Clients that send malicious messages over all doors, or nothing at all, are answered as the table
// says and hold little memory, and other clients are served.
func TestHostileClients(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Limits.MessageBytes = hostileMessage
		c.Limits.PayloadBytes = 64 * hostileMessage
	})
	join(t, s, "m", tensor.Float32, tensor.Shape{-1, 3}, nil)
	all := ways(t, s)
	served := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for _, w := range all {
			if _, err := w.ask(ctx, "m", rows(tensor.Float32, 2, false), 0); err != nil {
				t.Errorf("%s: a client in good faith: %v", w.name, err)
			}
		}
	}
	served()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)

	// They announce much and send almost nothing.
	slow := slowClients(t, s)
	const most = 64 << 10 // for each
	if n := s.pool.InUse(); n > int64(len(slow)*most) {
		t.Errorf("%d clients that sent a few bytes hold %d bytes", len(slow), n)
	}
	for range 1 + budgettest.Rounds(20) {
		served()
	}
	for _, c := range slow {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		// The slow connections must still be open: others were served despite them.
		if _, err := io.Copy(io.Discard, c); err == nil {
			t.Error("a slow client was given up before its time")
		}
	}

	var attackers sync.WaitGroup
	var sent, peak atomic.Int64
	rest := newHTTP(t, s.Addrs().REST[0])
	attacks := map[string][]attack{"rest": httpAttacks(rest), "grpc": grpcAttacks(newGRPC(t, s.Addrs().GRPC[0])),
		"tcp": tcpAttacks(t, newTCP(t, s.Addrs().TCP[0]))}
	const attackersEach = 2
	for door, list := range attacks {
		for range attackersEach {
			attackers.Go(func() {
				for range budgettest.Rounds(3) {
					for _, a := range list {
						answered(t, door, a, a.send())
						sent.Add(1)
					}
				}
			})
		}
	}
	over := make(chan struct{})
	go func() { attackers.Wait(); close(over) }()
	rounded := 0
	for running := true; running; rounded++ {
		select {
		case <-over:
			running = false
		default:
			served()
			peak.Store(max(peak.Load(), s.pool.InUse()))
		}
	}
	t.Logf("%d rounds of requests in good faith beside %d attacks; at most %d bytes of the pool were in use", rounded,
		sent.Load(), peak.Load())
	// A message or two for each of the attackers, plus the slow clients.
	if limit := int64(len(attacks)*attackersEach*4*hostileMessage + len(slow)*most); peak.Load() > limit {
		t.Errorf("%d bytes of the pool were in use, expected at most %d", peak.Load(), limit)
	}
	for _, c := range slow {
		c.Close()
	}
	rest.client.CloseIdleConnections()
	budgettest.Until(t, "the memory to come back", func() bool { return s.pool.InUse() < most })
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64*hostileMessage {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	served()
}

// answered checks the answer to an attack.
func answered(t *testing.T, door string, a attack, err error) {
	t.Helper()
	if a.want == good {
		if err != nil {
			t.Errorf("%s, %s: %v", door, a.name, err)
		}
		return
	}
	code := a.want.http
	if door == "grpc" {
		code = a.want.grpc
	}
	if f, ok := err.(*refusal); !ok || f.code != code || door != "rest" && f.kind != a.want.kind {
		t.Errorf("%s, %s: got %v, expected %s, %d", door, a.name, err, a.want.kind, code)
	}
}

// slowClients returns connections to all doors that have sent only the beginning of a message of
// almost the limit.
func slowClients(t *testing.T, s *Server) (conns []net.Conn) {
	t.Helper()
	const each, announced = 10, hostileMessage - 1024
	x := tensor.Tensor{DType: tensor.Uint8, Shape: tensor.Shape{announced}, Data: make([]byte, announced)}
	m, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "m", Tensors: []tensor.Tensor{x}})
	if err != nil {
		t.Fatal(err)
	}
	head := `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1],"parameters":{"binary_data_size":1}}]}`
	post := "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
	for addr, begins := range map[net.Addr][]string{
		s.Addrs().TCP[0]: {string(m[:40]), string(m[:5])},
		s.Addrs().REST[0]: {
			fmt.Sprintf("%sContent-Length: %d\r\n\r\n{", post, announced),
			fmt.Sprintf("%sContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n%s", post, announced,
				len(head), head),
			post + "Transfer-Encoding: chunked\r\n\r\n100000\r\n{",
			post[:20],
		},
		// The preface of HTTP/2, and the beginning of a SETTINGS frame.
		s.Addrs().GRPC[0]: {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00", "PRI"},
	} {
		for _, begin := range begins {
			for range each {
				c, err := net.Dial(addr.Network(), addr.String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				if _, err := io.WriteString(c, begin); err != nil {
					t.Fatal(err)
				}
				conns = append(conns, c)
			}
		}
	}
	return conns
}
