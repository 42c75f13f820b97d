package shiva

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// How the tensors of a [Client]'s requests and answers are moved into and out of shared memory.

// A place describes in metadata where a tensor is.
type place struct {
	Name     string `json:"name,omitempty"`
	Datatype string `json:"datatype,omitempty"`
	Shape    []int  `json:"shape,omitempty"`
	Region   string `json:"region"`
	Offset   int64  `json:"offset"`
	Size     int64  `json:"byte_size"`
	Index    int    `json:"index,omitempty"` // of an output, in the answer's list of tensors
}

// places holds the places of the tensors of a request or an answer.
type places struct {
	Inputs  []place `json:"inputs,omitempty"`
	Area    *place  `json:"area,omitempty"` // for outputs
	Outputs []place `json:"outputs,omitempty"`
}

// parts holds the parts of shared memory that a request owns until its call is freed.
type parts struct {
	memory *sharedMemory // of the connection at the time; nil: it shared none
	inputs []span
	area   span // of size 0: none
}

func (p *parts) empty() bool { return len(p.inputs) == 0 && p.area.size == 0 }

func (p *parts) release() {
	if p.empty() {
		return
	}
	p.memory.giveBack(p.inputs...)
	if p.area.size > 0 {
		p.memory.giveBack(p.area)
	}
	*p = parts{}
}

// place copies the large inputs of a message to shared memory, as far as there is room, and
// reserves room for its outputs. It returns the message to send.
func (c *link) place(m *Message) (*Message, parts) {
	if c.opts.sharedBytes <= 0 {
		return m, parts{}
	}
	p := parts{memory: c.memory()}
	if !p.memory.usable() || jsonscan.Field(m.Metadata, MemoryKey) != nil || ValidObject(m.Metadata) != nil {
		return m, parts{}
	}
	sent, names, there := p.takeInputs(m)
	if size := c.sizes.of(m.Namespace); size > 0 {
		if at, ok := p.memory.take(size, "the output of", m.Namespace); ok {
			p.area = at
			there.Area = &place{Region: p.memory.name, Offset: at.offset, Size: at.size}
		}
	}
	if len(there.Inputs) == 0 && there.Area == nil {
		return m, p
	}
	members := jsonscan.AppendMember(nil, MemoryKey, mustJSON(there))
	if len(there.Inputs) > 0 {
		members = jsonscan.AppendMember(members, NamesKey, mustJSON(names))
	}
	for key, value := range jsonscan.Members(m.Metadata) {
		if string(key) != NamesKey || len(there.Inputs) == 0 {
			members = jsonscan.AppendMember(members, key, value)
		}
	}
	sent.Metadata = append(members, '}')
	return &sent, p
}

// takeInputs copies large inputs to parts of the memory, whose places it returns. It also returns
// the message with the remaining inputs, and their names.
func (p *parts) takeInputs(m *Message) (sent Message, left []string, there places) {
	sent, left = Message{Namespace: m.Namespace, Tensors: m.Tensors}, []string{}
	if !slices.ContainsFunc(m.Tensors, func(t tensor.Tensor) bool { return len(t.Data) >= minSharedBytes }) {
		return sent, left, there
	}
	names := tensorNames(m)
	if len(names) != len(m.Tensors) {
		return sent, left, there
	}
	sent.Tensors = nil
	for i, t := range m.Tensors {
		at, ok := span{}, false
		if t.DType.OnWire() && len(t.Data) >= minSharedBytes {
			at, ok = p.memory.take(int64(len(t.Data)), "input", names[i])
		}
		if !ok {
			left, sent.Tensors = append(left, names[i]), append(sent.Tensors, t)
			continue
		}
		p.inputs = append(p.inputs, at)
		copy(p.memory.mem[at.offset:], t.Data)
		there.Inputs = append(there.Inputs,
			place{Name: names[i], Datatype: t.DType.V2(), Shape: t.Shape, Region: p.memory.name, Offset: at.offset,
				Size: int64(len(t.Data))})
	}
	return sent, left, there
}

// tensorNames returns the names of a message's tensors; nil: they have none.
func tensorNames(m *Message) (names []string) {
	if list := jsonscan.Field(m.Metadata, NamesKey); list != nil {
		_ = json.Unmarshal(list, &names) // the server reports what is wrong with it
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

// collect adds the outputs in shared memory to their answer, as if they had been sent. From then on
// they own their parts of the memory.
func (c *link) collect(p *parts, answer *Message) error {
	if answer.Namespace == ErrorNamespace {
		if !p.empty() {
			p.memory.noteError(answer)
		}
		return nil
	}
	if text := jsonscan.Field(answer.Metadata, MemoryKey); text != nil && p.area.size > 0 {
		if err := p.fetch(answer, text); err != nil {
			return fmt.Errorf("shiva: %s of an answer is %.300s: %w", MemoryKey, text, err)
		}
	}
	c.sizes.learn(answer.Namespace, answer.Tensors)
	return nil
}

func (p *parts) fetch(answer *Message, text []byte) error {
	var there places
	if err := json.Unmarshal(text, &there); err != nil {
		return err
	}
	names, err := answer.names()
	if err != nil {
		return err
	}
	area, free := p.area, p.area.offset // outputs so far are before free
	for i, o := range there.Outputs {
		d, ok := tensor.FromV2(o.Datatype)
		elements, counted := tensor.Shape(o.Shape).Elements()
		switch {
		case o.Region != p.memory.name || o.Offset < free || o.Size <= 0 || o.Size > area.offset+area.size-o.Offset ||
			o.Offset%sharedAligned != 0:
			return fmt.Errorf("output %q is outside the area at offset %d of %d bytes, or not after the previous output",
				o.Name, area.offset, area.size)
		case !ok || !counted || d.Size() == 0 || o.Size/int64(d.Size()) != int64(elements) ||
			o.Size%int64(d.Size()) != 0:
			return fmt.Errorf("output %q has %d bytes, which do not make a tensor of %s with shape %v", o.Name, o.Size,
				o.Datatype, o.Shape)
		case o.Index < 0 || o.Index > i+len(names):
			return fmt.Errorf("output %q has index %d, expected 0 to %d", o.Name, o.Index, i+len(names))
		}
		free = o.Offset + (o.Size+sharedAligned-1)/sharedAligned*sharedAligned
	}
	for _, o := range there.Outputs {
		d, _ := tensor.FromV2(o.Datatype)
		end := min(o.Offset+(o.Size+sharedAligned-1)/sharedAligned*sharedAligned, area.offset+area.size)
		// The part includes the gap before it.
		owner := &part{p.memory, span{p.area.offset, end - p.area.offset}}
		if p.area = (span{end, area.offset + area.size - end}); p.area.size > 0 {
			p.memory.split()
		}
		b := tensor.Lend(p.memory.mem[o.Offset:o.Offset+o.Size:o.Offset+o.Size], owner)
		answer.own(b)
		answer.Tensors = slices.Insert(answer.Tensors, o.Index,
			tensor.Tensor{DType: d, Shape: append(tensor.Shape{}, o.Shape...), Data: b.Bytes(), Buf: b})
		names = slices.Insert(names, o.Index, o.Name)
	}
	members := jsonscan.AppendMember(nil, NamesKey, mustJSON(names))
	for key, value := range jsonscan.Members(answer.Metadata) {
		if string(key) != NamesKey && string(key) != MemoryKey {
			members = jsonscan.AppendMember(members, key, value)
		}
	}
	answer.Metadata = append(members, '}')
	return nil
}
