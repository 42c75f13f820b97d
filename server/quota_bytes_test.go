package server

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	grpcgzip "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A bytePayer sends requests in all the ways in which bytes reach a server. It shows no token.
type bytePayer struct {
	*Server
	t    *testing.T
	rpc  pb.GRPCInferenceServiceClient
	conn *grpc.ClientConn
}

// Enough for several reads of a body.
const regionBytes = 256 << 10

func newBytePayer(t *testing.T, change func(*config.Config)) (*bytePayer, *config.Config) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, regionBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	s, file := loaded(t, new(logged), func(c *config.Config) {
		c.SharedMemory.Directory = dir
		c.Identities = []config.Identity{{Name: "anonymous", May: []string{"infer", "feedback", "admin:write"}}}
		if change != nil {
			change(c)
		}
	})
	withSlow(t, s).letGo()
	p := &bytePayer{Server: s, t: t, conn: payGRPC(t, "", from("127.0.0.1", s.Addrs().GRPC[0])).conn}
	p.rpc = pb.NewGRPCInferenceServiceClient(p.conn)
	g := &guardedServer{Server: s}
	if code, body := g.http(t, s.Addrs().Admin.String(), "", "POST", "/v1/apps",
		`{"name":"echoes","models":["echo"]}`); code != 201 {
		t.Fatal(code, body)
	}
	if _, err := p.rpc.SystemSharedMemoryRegister(t.Context(),
		&pb.SystemSharedMemoryRegisterRequest{Name: "r", Key: "file", ByteSize: regionBytes}); err != nil {
		t.Fatal(err)
	}
	return p, file
}

// post sends a body over HTTP, with unknown size if chunked, and compressed if coding is not "".
func (p *bytePayer) post(path string, body []byte, chunked bool, coding string) error {
	sent := body
	if coding == "gzip" {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = z.Write(body)
		_ = z.Close()
		sent = packed.Bytes()
	}
	var r io.Reader = bytes.NewReader(sent)
	if chunked {
		r = io.MultiReader(r) // hides the size from net/http
	}
	q, err := http.NewRequestWithContext(p.t.Context(), "POST", "http://"+p.Addrs().REST[0].String()+path, r)
	if err != nil {
		return err
	}
	if coding != "" {
		q.Header.Set("Content-Encoding", coding)
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode == 200 {
		return err
	}
	return &httpFault{a.StatusCode, a.Header.Get("Retry-After"), string(text)}
}

func (p *bytePayer) shiva(m *shiva.Message) error {
	c := dial(p.t, p.Server)
	defer c.Close()
	a, err := c.Do(p.t.Context(), m)
	if err == nil {
		a.Release()
	}
	return err
}

// A byteWay is a request, and the bytes that it makes the server read.
type byteWay struct {
	what  string
	bytes int
	ask   func() error
}

func (p *bytePayer) ways() []byteWay {
	rows := regionBytes / 8
	values := strings.TrimSuffix(strings.Repeat("0,", 2*rows), ",")
	json := fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"INT32","shape":[%d,2],"data":[%s]}]}`, rows, values)
	inRegion := fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"INT32","shape":[%d,2],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":%d}}]}`,
		rows, regionBytes)
	clipper := []byte(`{"input_batch":[[1,2],[3,4],[5,6]]}`)
	lesson := []byte(`{"input":[1,2],"loss":0.5}`)
	message := func(m *shiva.Message) byteWay {
		size, err := shiva.MessageSize(m)
		if err != nil {
			p.t.Fatal(err)
		}
		return byteWay{"", size, func() error { return p.shiva(m) }}
	}
	plain := message(&shiva.Message{Namespace: "echo", Tensors: []tensor.Tensor{zeros(rows)}})
	shared := message(&shiva.Message{Namespace: "echo",
		Metadata: fmt.Appendf(nil, `{"shared_memory":{"inputs":[{"name":"x","datatype":"INT32","shape":[%d,2],"region":"r","offset":0,"byte_size":%d}]}}`,
			rows, regionBytes)})
	raw := inferRows("echo", rows)
	call := func(q *pb.ModelInferRequest, options ...grpc.CallOption) func() error {
		return func() error { _, err := p.rpc.ModelInfer(p.t.Context(), q, options...); return err }
	}
	region := inferRequest("echo")
	region.RawInputContents, region.Inputs[0].Shape = nil, []int64{int64(rows), 2}
	region.Inputs[0].Parameters = map[string]*pb.InferParameter{
		"shared_memory_region":    {ParameterChoice: &pb.InferParameter_StringParam{StringParam: "r"}},
		"shared_memory_byte_size": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: regionBytes}},
	}
	return []byteWay{
		{"Shiva", plain.bytes, plain.ask},
		{"Shiva, a region", shared.bytes + regionBytes, shared.ask},
		{"HTTP", len(json), func() error { return p.post("/v2/models/echo/infer", json, false, "") }},
		{"HTTP in chunks", len(json), func() error { return p.post("/v2/models/echo/infer", json, true, "") }},
		{"HTTP, gzip", len(json), func() error { return p.post("/v2/models/echo/infer", json, false, "gzip") }},
		{"HTTP, gzip in chunks", len(json), func() error { return p.post("/v2/models/echo/infer", json, true, "gzip") }},
		{"HTTP, a region", len(inRegion) + regionBytes,
			func() error { return p.post("/v2/models/echo/infer", inRegion, false, "") }},
		{"HTTP, a batch for Clipper", len(clipper), func() error { return p.post("/echo/predict", clipper, false, "") }},
		{"HTTP, feedback for Clipper", len(lesson), func() error { return p.post("/echoes/update", lesson, false, "") }},
		{"gRPC", proto.Size(raw), call(raw)},
		{"gRPC, gzip", proto.Size(raw), call(raw, grpc.UseCompressor(grpcgzip.Name))},
		{"gRPC, a region", proto.Size(region) + regionBytes, call(region)},
		{"gRPC, a stream", proto.Size(raw), func() error {
			return payStream{&grpcPayer{conn: p.conn}}.ask(p.t.Context(), "echo", rows)
		}},
	}
}

// idles waits until nothing is in flight. Connections stay.
func (p *bytePayer) idles() {
	budgettest.Until(p.t, "nothing is in flight", func() bool {
		u := p.usage()
		u.Has[access.Connections] = 0
		return u.Has == [access.Quotas]int64{}
	})
}

func (p *bytePayer) usage() access.Usage { return p.identities.Usage()["anonymous"] }

// The bytes that a request makes the server read are charged once, however they arrive: unpacked,
// including those in regions, and whether or not their size was announced.
func TestQuotasCountWhatIsRead(t *testing.T) {
	p, _ := newBytePayer(t, nil)
	for _, way := range p.ways() {
		before := p.usage()
		if err := way.ask(); err != nil {
			t.Errorf("%s: %v", way.what, err)
		}
		after := p.usage()
		if n := after.Bytes - before.Bytes; n != int64(way.bytes) || after.Requests != before.Requests+1 {
			t.Errorf("%s: %d bytes of %d requests are charged, want %d", way.what, n, after.Requests-before.Requests,
				way.bytes)
		}
	}
	p.idles()
}

// A request may be larger than the whole burst of its rate, however its bytes arrive. It pays for
// all of them, so that the next one has to wait.
func TestLargeRequestsPassAndPay(t *testing.T) {
	p, file := newBytePayer(t, nil)
	ways := p.ways()
	for n, way := range ways {
		if way.bytes < 8<<10 { // Clipper's
			continue
		}
		next := way.ask
		if way.what == "Shiva" { // a large one would not be read for minutes
			next = ways[1].ask
		}
		// A changed rate begins with a full bucket.
		file.Identities[0].Quota.BytesPerSecond = config.Bytes(1024 + n)
		if _, err := p.Reload(); err != nil {
			t.Fatal(err)
		}
		if err := way.ask(); err != nil {
			t.Errorf("%s: %v", way.what, err)
		}
		if got := refusedBy(t, next()); got != "bytes_per_second" {
			t.Errorf("%s: the next one is refused by %q", way.what, got)
		}
	}
}

// A message that has arrived in part is in flight with its announced size, until its connection
// ends.
func TestHalfAMessageIsInFlight(t *testing.T) {
	p, _ := newBytePayer(t, nil)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	body, rest := io.Pipe()
	q, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+p.Addrs().GRPC[0].String()+"/inference.GRPCInferenceService/ModelInfer", body)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/grpc")
	q.Header.Set("TE", "trailers")
	ended := make(chan error, 1)
	go func() { // ends with the body
		a, err := transport.RoundTrip(q)
		if err == nil {
			_, _ = io.Copy(io.Discard, a.Body)
			a.Body.Close()
		}
		ended <- err
	}()
	half := append(binary.BigEndian.AppendUint32([]byte{0}, 64<<10), make([]byte, 100)...)
	if _, err := rest.Write(half); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "it is in flight", func() bool {
		u := p.usage()
		return u.Has[access.BytesInFlight] == 64<<10 && u.Has[access.RequestsInFlight] == 1
	})
	rest.CloseWithError(fmt.Errorf("the client has no more"))
	<-ended
	p.idles()
}
