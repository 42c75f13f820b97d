package shiva

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/shiva/jsontext"
	"github.com/shivad/shivad/shiva/tensor"
)

// WithSharedMemory shares so many bytes of /dev/shm with a server on the same machine, if that
// offers it: tensors of 64 KiB and more are left there instead of sent, as far as there is room.
// Messages must name their tensors, in metadata "__tensors__" or by their Names. What a server
// refuses is sent as without the option; [Client.Shared] says why. Answers and frames of streams
// are sent in any case. The file is removed by Close.
func WithSharedMemory(bytes int64) Option { return func(o *options) { o.sharedBytes = bytes } }

const (
	sharedDir     = "/dev/shm"
	sharedWorth   = 64 << 10 // bytes from which on a tensor is left there
	sharedAligned = 64
)

// A span is a part of shared memory that a request has until its call is freed.
type span struct{ offset, size int64 }

// sharedMemory is that of a client. Its methods may be called on nil, which has none.
type sharedMemory struct {
	name string
	file *os.File
	size int64

	mu      sync.Mutex
	free    []span // by offset, none next to another
	refusal error  // why the server does not have it
}

func newSharedMemory(size int64) (*sharedMemory, error) {
	name := fmt.Sprintf("shiva-%d-%s", os.Getpid(), strings.ToLower(rand.Text()[:16]))
	file, err := os.OpenFile(filepath.Join(sharedDir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("shiva: shared memory: %w", err)
	}
	s := &sharedMemory{name: name, file: file, size: size, free: []span{{0, size}}, refusal: errors.New("shiva: shared memory: not registered yet")}
	if err := file.Truncate(size); err != nil {
		s.close()
		return nil, fmt.Errorf("shiva: shared memory: %w", err)
	}
	return s, nil
}

func (s *sharedMemory) close() {
	if s != nil {
		_ = os.Remove(s.file.Name())
		s.file.Close()
	}
}

// register tells the server at the other end of a new connection of the memory. An error is one of
// the connection; that the server will not have it is none.
func (s *sharedMemory) register(ctx context.Context, conn net.Conn) error {
	if s == nil {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
		defer conn.SetDeadline(time.Time{})
	}
	request, err := AppendMessage(nil, &Message{
		Namespace: "v2/systemsharedmemory/region/" + s.name + "/register",
		Metadata:  fmt.Appendf(nil, `{"key":"/%s","offset":0,"byte_size":%d}`, s.name, s.size),
	})
	if err != nil {
		return err
	}
	if _, err := conn.Write(request); err != nil {
		return err
	}
	d := NewDecoder(DecoderConfig{})
	defer d.Close()
	for block := make([]byte, 4<<10); ; {
		n, err := conn.Read(block)
		if err != nil {
			return err
		}
		_, answer, err := d.Push(block[:n])
		if err != nil {
			return err
		}
		if answer == nil {
			continue
		}
		var refusal error
		// The server may have it from an earlier connection.
		if e := ParseError(answer); e != nil && !strings.Contains(e.Message, "already in manager") {
			refusal = e
		}
		answer.Release()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refusal = refusal
		return nil
	}
}

// Shared reports why the client shares no memory with the server; nil: it does.
func (c *Client) Shared() error {
	if c.shared == nil {
		return errors.New("shiva: shared memory: the client was made without WithSharedMemory")
	}
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	return c.shared.refusal
}

// place leaves large tensors of a message in memory, as far as there is room, and returns the
// message that is to be sent.
func (s *sharedMemory) place(m *Message) (*Message, []span) {
	if s == nil || !slices.ContainsFunc(m.Tensors, func(t tensor.Tensor) bool { return len(t.Data) >= sharedWorth }) {
		return m, nil
	}
	names := tensorNames(m)
	if len(names) != len(m.Tensors) || jsontext.Field(m.Metadata, MemoryKey) != nil {
		return m, nil
	}
	type input struct {
		Name     string `json:"name"`
		Datatype string `json:"datatype"`
		Shape    []int  `json:"shape"`
		Region   string `json:"region"`
		Offset   int64  `json:"offset"`
		Size     int    `json:"byte_size"`
	}
	sent := Message{Namespace: m.Namespace}
	var inputs []input
	var spans []span
	left := []string{}
	for i, t := range m.Tensors {
		at, ok := span{}, false
		if _, known := tensor.FromV2(t.DType.V2()); known && len(t.Data) >= sharedWorth {
			at, ok = s.take(int64(len(t.Data)))
		}
		if ok {
			spans = append(spans, at)
			_, err := s.file.WriteAt(t.Data, at.offset) // an error means that the file system is full
			ok = err == nil
		}
		if !ok {
			left, sent.Tensors = append(left, names[i]), append(sent.Tensors, t)
			continue
		}
		inputs = append(inputs, input{names[i], t.DType.V2(), append([]int{}, t.Shape...), s.name, at.offset, len(t.Data)})
	}
	if len(inputs) == 0 {
		return m, spans
	}
	members := jsontext.AppendMember(nil, []byte(MemoryKey), mustJSON(map[string]any{"inputs": inputs}))
	members = jsontext.AppendMember(members, []byte("__tensors__"), mustJSON(left))
	for key, value := range jsontext.Members(m.Metadata) {
		if string(key) != "__tensors__" {
			members = jsontext.AppendMember(members, key, value)
		}
	}
	sent.Metadata = append(members, '}')
	return &sent, spans
}

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // texts and numbers cannot fail
	}
	return text
}

// tensorNames are those of a message's tensors; nil: they have none.
func tensorNames(m *Message) (names []string) {
	if list := jsontext.Field(m.Metadata, "__tensors__"); list != nil {
		_ = json.Unmarshal(list, &names) // the server says what is wrong with it
		return names
	}
	for _, t := range m.Tensors {
		if t.Name == "" {
			return nil
		}
		names = append(names, t.Name)
	}
	return names
}

// take is the first part that is large enough.
func (s *sharedMemory) take(size int64) (span, bool) {
	size = (size + sharedAligned - 1) / sharedAligned * sharedAligned
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.free, func(f span) bool { return f.size >= size })
	if i < 0 || s.refusal != nil {
		return span{}, false
	}
	taken := span{s.free[i].offset, size}
	if s.free[i].offset, s.free[i].size = s.free[i].offset+size, s.free[i].size-size; s.free[i].size == 0 {
		s.free = slices.Delete(s.free, i, i+1)
	}
	return taken, true
}

// giveBack ends the use of parts.
func (s *sharedMemory) giveBack(spans []span) {
	if s == nil || len(spans) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(s.free, spans...)
	slices.SortFunc(all, func(a, b span) int { return int(min(max(a.offset-b.offset, -1), 1)) })
	s.free = all[:1]
	for _, next := range all[1:] {
		if last := &s.free[len(s.free)-1]; last.offset+last.size == next.offset {
			last.size += next.size
		} else {
			s.free = append(s.free, next)
		}
	}
}
