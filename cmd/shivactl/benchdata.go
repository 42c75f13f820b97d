package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	// maxVariants bounds the number of random requests, and maxRandom their bytes.
	maxVariants = 16
	maxRandom   = 64 << 20
	// maxRequest is the size of the largest random tensor: a server's default limit.
	maxRequest = 1 << 30
)

// declared asks a door for the declaration of the model behind a route.
func (c *cli) declared(d door, addr, route string) (model, error) {
	asking := *c
	asking.addr = addr
	ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
	defer cancel()
	asking.ctx = ctx
	if d.wire == load.Shiva {
		client, err := asking.dial(addr)
		if err != nil {
			return model{}, explain(err, "--addr", addr)
		}
		defer client.Close()
		return asking.describe(client, route)
	}
	ask := (*cli).askREST
	if d.wire == load.GRPC {
		ask = (*cli).askGRPC
	}
	declaration, err := ask(&asking, addr, route)
	if err != nil {
		return model{}, explain(err, "--addr", addr)
	}
	return declaration.model(route)
}

// maxMetadata bounds the metadata of a model.
const maxMetadata = 1 << 20

// askREST asks for the metadata of a model over HTTP.
func (c *cli) askREST(addr, route string) (d declaration, err error) {
	name, version := modelOf(route)
	path := apiPath("/v2/models/%s", name)
	if version != "" {
		path += apiPath("/versions/%s", version)
	}
	client, base, err := c.httpClient(addr)
	if err != nil {
		return d, err
	}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(c.ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return d, usage("bench", "--addr %s: %v", addr, err)
	}
	show(r, c.token)
	resp, err := client.Do(r)
	if err != nil {
		return d, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMetadata))
	if err != nil {
		return d, err
	}
	if resp.StatusCode != http.StatusOK {
		var e struct{ Error string }
		if json.Unmarshal(body, &e) != nil || e.Error == "" {
			return d, notTheDoor(addr, "rest", resp.Status)
		}
		return d, &failure{"refused", e.Error, remoteHints[typeOf(resp.StatusCode)], exitRefused}
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return d, notTheDoor(addr, "rest", err.Error())
	}
	return d, nil
}

func notTheDoor(addr, name, got string) *failure {
	return &failure{"protocol",
		fmt.Sprintf("%s does not answer as the %s endpoint of a server does: %s", addr, name, got),
		"check --addr " + addr, exitUnreachable}
}

// askGRPC asks for the metadata of a model over gRPC, and for its configuration, which tells what
// the metadata has no field for. A server without configurations is taken by the metadata alone. A
// gRPC library would be most of this program.
func (c *cli) askGRPC(addr, route string) (d declaration, err error) {
	name, version := modelOf(route)
	question := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	if version != "" {
		question = protowire.AppendString(protowire.AppendTag(question, 2, protowire.BytesType), version)
	}
	client, base, err := c.httpClient(addr)
	if err != nil {
		return d, err
	}
	defer client.CloseIdleConnections()
	transport := client.Transport.(*http.Transport)
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP2(true)
	transport.Protocols.SetUnencryptedHTTP2(true)
	answer, err := c.callGRPC(transport, base, addr, "ModelMetadata", question)
	if err != nil {
		return d, err
	}
	if err := d.readMetadata(answer); err != nil {
		return d, notTheDoor(addr, "grpc", err.Error())
	}
	if answer, err = c.callGRPC(transport, base, addr, "ModelConfig", question); err == nil {
		if err := d.readConfig(answer); err != nil {
			return d, notTheDoor(addr, "grpc", err.Error())
		}
	}
	return d, nil
}

// callGRPC calls a method of the Predict Protocol, and returns its answer.
func (c *cli) callGRPC(t *http.Transport, base, addr, method string, question []byte) ([]byte, error) {
	const prefix = 5 // compression flag and length
	body := string(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(question))), question...))
	r, err := http.NewRequestWithContext(c.ctx, http.MethodPost, base+"/inference.GRPCInferenceService/"+method,
		strings.NewReader(body))
	if err != nil {
		return nil, usage("bench", "--addr %s: %v", addr, err)
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	show(r, c.token)
	resp, err := t.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxMetadata))
	if err != nil {
		return nil, err
	}
	status, message := resp.Trailer.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message")
	if status == "" { // an error without a message has its trailers in the headers
		status, message = resp.Header.Get("Grpc-Status"), resp.Header.Get("Grpc-Message")
	}
	switch {
	case status == "":
		return nil, notTheDoor(addr, "grpc", resp.Status)
	case status == "5":
		return nil, &failure{"refused", message, remoteHints[shiva.NotFound], exitRefused}
	case status != "0":
		return nil, &failure{"refused", fmt.Sprintf("%s (status %s)", message, status), "", exitRefused}
	case len(answer) < prefix:
		return nil, notTheDoor(addr, "grpc", "an answer without a message")
	}
	return answer[prefix:], nil
}

// readMetadata reads the inputs and outputs (fields 4 and 5) of a ModelMetadataResponse: their
// names, datatypes and shapes are fields 1, 2 and 3.
func (d *declaration) readMetadata(message []byte) error {
	lists := map[protowire.Number]*[]declaredTensor{4: &d.Inputs, 5: &d.Outputs}
	return eachField(message, func(number protowire.Number, value []byte, _ uint64) error {
		list := lists[number]
		if list == nil {
			return nil
		}
		t := declaredTensor{Shape: tensor.Shape{}}
		err := eachField(value, func(number protowire.Number, value []byte, size uint64) error {
			switch {
			case number == 1:
				t.Name = string(value)
			case number == 2:
				t.Datatype = string(value)
			case number == 3 && value == nil:
				t.Shape = append(t.Shape, int(int64(size)))
			case number == 3:
				for len(value) > 0 {
					v, n := protowire.ConsumeVarint(value)
					if n < 0 {
						return protowire.ParseError(n)
					}
					t.Shape, value = append(t.Shape, int(int64(v))), value[n:]
				}
			}
			return nil
		})
		*list = append(*list, t)
		return err
	})
}

// readConfig reads the ModelConfig (field 1) of a ModelConfigResponse: whether the model is batched
// (field 4, the largest batch, is above 0), which inputs are optional (field 5, of which fields 1
// and 8 are name and flag), and which take files of pictures (field 14, of which field 1 is
// "image." and the name).
func (d *declaration) readConfig(message []byte) error {
	batched, optional, images := false, map[string]bool{}, map[string]bool{}
	err := eachField(message, func(number protowire.Number, config []byte, _ uint64) error {
		if number != 1 {
			return nil
		}
		return eachField(config, func(number protowire.Number, value []byte, most uint64) error {
			switch number {
			case 4:
				batched = most > 0
			case 5:
				name, flag, err := named(value, 8)
				optional[name] = flag
				return err
			case 14:
				name, _, err := named(value, 0)
				images[name] = true
				return err
			}
			return nil
		})
	})
	d.Batched = &batched
	for i := range d.Inputs {
		in := &d.Inputs[i]
		if in.Optional = optional[in.Name]; images["image."+in.Name] {
			in.Image = "pixels"
		}
	}
	return err
}

// named reads the name of a message, field 1, and a flag.
func named(message []byte, flag protowire.Number) (name string, set bool, err error) {
	err = eachField(message, func(number protowire.Number, value []byte, varint uint64) error {
		switch number {
		case 1:
			name = string(value)
		case flag:
			set = varint != 0
		}
		return nil
	})
	return name, set, err
}

// eachField calls f with the fields of a message: with value for length-delimited fields, with
// varint for varints.
func eachField(message []byte, f func(number protowire.Number, value []byte, varint uint64) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var value []byte
		var varint uint64
		switch kind {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			varint, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := f(number, value, varint); err != nil {
			return err
		}
	}
	return nil
}

// modelOf splits a route, in any of its forms.
func modelOf(route string) (name, version string) {
	path := strings.TrimPrefix(metadataRoute(route), "v2/models/")
	name, version, _ = strings.Cut(path, "/versions/")
	return name, version
}

// load makes the requests of all loads: from the files of --data, or at random.
func (b *bench) load(m model) error {
	var items []item
	var err error
	if b.o.data != "" {
		items, err = b.files(m)
	} else {
		items, err = b.random(m)
	}
	if err != nil {
		return err
	}
	if b.beside != nil {
		if err := b.encode(b.beside, m, items); err != nil {
			return err
		}
	}
	return b.encode(&b.config, m, items)
}

// encode makes the requests of a load.
func (b *bench) encode(c *load.Config, m model, items []item) error {
	for _, it := range items {
		q, err := b.request(m, it, c.Streams != nil)
		if err != nil {
			return unfit("", "%s: %v", it.name, err)
		}
		for i, t := range q.Inputs {
			if c.Wire == load.Shiva && !t.DType.OnWire() && t.DType != tensor.Bytes ||
				c.Wire != load.Shiva && t.DType.V2() == "" {
				return unfit("", "%s: input %q of %s does not travel over %s", it.name, q.Inputs[i].Name, t.DType,
					b.o.door.name)
			}
		}
		frame, stamp, err := q.Encode(c.Wire)
		if err != nil {
			return unfit("", "%s: %v", it.name, err)
		}
		c.Frames = append(c.Frames, frame)
		if s := c.Streams; s != nil {
			s.Stamps = append(s.Stamps, stamp)
		}
	}
	return nil
}

// request makes the request of an item, as a frame of a stream or by itself.
func (b *bench) request(m model, it item, frame bool) (*load.Request, error) {
	q := &load.Request{Names: len(m.inputs) > 1, Rows: !m.whole, Token: b.config.Token}
	q.Model, q.Version = modelOf(m.route)
	if frame {
		// Two runs at once have streams of their own.
		q.Stream, q.Keep = fmt.Sprintf("bench-%d-", os.Getpid()), b.o.keep
	}
	for i, t := range it.inputs {
		if t.Data == nil && t.Shape == nil {
			continue // optional, and left out
		}
		// Only Shiva's wire lacks bfloat16.
		if s := m.inputs[i]; b.config.Wire != load.Shiva && s.DType != t.DType {
			var err error
			if t, err = tensor.Cast(t, s.DType, nil); err != nil {
				return nil, fmt.Errorf("%s: %w", wants(s), err)
			}
		}
		t.Name = m.inputs[i].Name
		q.Inputs = append(q.Inputs, t)
	}
	return q, nil
}

// files reads --data: a file, or each file of a directory that is not hidden.
func (b *bench) files(m model) ([]item, error) {
	names := []string{b.o.data}
	if entries, err := os.ReadDir(b.o.data); err == nil {
		names = nil
		for _, e := range entries {
			if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
				names = append(names, filepath.Join(b.o.data, e.Name()))
			}
		}
		if len(names) == 0 {
			return nil, unfit("", "--data %s: there is no file in the directory", b.o.data)
		}
	}
	if len(m.inputs) == 0 {
		return nil, usage("bench", "--data: %s takes no inputs", m.route)
	}
	l := &loader{stdin: b.stdin, model: m}
	var items []item
	for _, name := range names {
		it, err := l.load(name)
		if err != nil {
			return nil, err
		}
		items = append(items, it)
	}
	b.inputs = []string{fmt.Sprintf("%s of %s", plural.Of(len(items), "file"), b.o.data)}
	return items, nil
}

// random makes items by the model's declaration. Sizes that the declaration leaves open are 1.
func (b *bench) random(m model) ([]item, error) {
	if len(m.inputs) == 0 {
		b.inputs = []string{"no inputs"}
		return []item{m.silent()}, nil
	}
	size := 0
	for _, s := range m.inputs {
		if s.regions != "" {
			continue // whole pictures
		}
		n, ok := openShape(s).Elements()
		if !ok || n > maxRequest/max(wire(s).Size(), 1) {
			return nil, unfit("--data sends what is in a file", "%s: a tensor of that at random would be too large", wants(s))
		}
		size += n * max(wire(s).Size(), len(randomText)+4)
		b.inputs = append(b.inputs, fmt.Sprintf("%s %s %v", s.Name, s.DType.V2(), openShape(s)))
	}
	r := rand.New(rand.NewPCG(1, 1))
	items := make([]item, min(max(maxRandom/max(size, 1), 1), maxVariants))
	for i := range items {
		items[i] = item{name: m.route, rows: 1}
		for _, s := range m.inputs {
			if s.regions != "" {
				items[i].inputs = append(items[i].inputs, tensor.Tensor{})
				continue
			}
			t, err := randomTensor(r, wire(s), openShape(s))
			if err != nil {
				return nil, unfit("--data sends what is in a file", "%s: %v", wants(s), err)
			}
			items[i].inputs = append(items[i].inputs, t)
		}
	}
	return items, nil
}

// openShape returns the declared shape, with 1 for sizes that are open.
func openShape(s spec) tensor.Shape {
	shape := make(tensor.Shape, len(s.Shape))
	for i, n := range s.Shape {
		shape[i] = max(n, 1)
		if n == 0 {
			shape[i] = 0
		}
	}
	return shape
}

// randomText is the text for inputs of text, followed by a number.
const randomText = "what a day "

// randomTensor returns numbers that most models accept: 0 to 1 for floats, else 0 to 255, or to the
// datatype's limit.
func randomTensor(r *rand.Rand, d tensor.DType, shape tensor.Shape) (tensor.Tensor, error) {
	n, _ := shape.Elements()
	if d == tensor.Bytes {
		texts := make([]string, n)
		for i := range texts {
			texts[i] = fmt.Sprint(randomText, r.IntN(1000))
		}
		return tensor.FromStrings(shape, texts)
	}
	bounds, integer := integers[d]
	if integer {
		whole := make([]uint8, n)
		for i := range whole {
			whole[i] = uint8(r.Uint64N(min(bounds.high, math.MaxUint8) + 1))
		}
		t, err := tensor.FromSlice(shape, whole)
		if err != nil {
			return t, err
		}
		return tensor.Cast(t, d, nil)
	}
	const steps = 256 // exact in every float datatype, including bfloat16
	data := make([]byte, 0, n*d.Size())
	for range n {
		var err error
		if data, err = appendFloat(data, d, float64(r.IntN(steps))/steps); err != nil {
			return tensor.Tensor{}, err
		}
	}
	return tensor.New(d, shape, data)
}
