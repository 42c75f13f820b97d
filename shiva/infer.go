package shiva

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// NamesKey is the metadata key for the names of the message's tensors, in order. Texts are not
// among them: they are under [TextsKey].
const NamesKey = "__tensors__"

// Infer asks a model for its outputs and waits for them. The route is a model, "model/version" or
// an application. Inputs are in the order in which the model declares them or, if each has a Name,
// in any order. Texts, which are tensors of [tensor.Bytes], need a name.
//
// If ctx has a deadline, the server is told. Apart from that, Infer is [Client.Do] with
// [NewRequest]; use these for requests with metadata, such as a priority. The caller must release
// the answer; [Message.Output] returns its tensors by name.
func (c *Client) Infer(ctx context.Context, route string, inputs ...tensor.Tensor) (*Message, error) {
	m, err := NewRequest(route, nil, inputs...)
	if err != nil {
		return nil, err
	}
	return c.ask(ctx, m, true)
}

// NewRequest makes the message that [Client.Infer] sends, with additional metadata: a JSON object,
// or empty. The message refers to the memory of the inputs.
//
// It fails if only some of the inputs have a name, if two have the same, if a text has none, and if
// inputs have names and metadata has [NamesKey] or [TextsKey].
func NewRequest(route string, metadata []byte, inputs ...tensor.Tensor) (*Message, error) {
	members, tensors, err := appendNames(nil, metadata, inputs)
	if err != nil {
		return nil, err
	}
	if len(members) > 0 {
		metadata = appendObject(nil, members[1:], metadata)
	}
	return &Message{Namespace: route, Metadata: metadata, Tensors: tensors}, nil
}

// appendNames appends the members of metadata that name inputs, each after a comma, and returns the
// inputs that are sent as tensors. If inputs have no names, these are all, and there are no
// members.
func appendNames(members, metadata []byte, inputs []tensor.Tensor) ([]byte, []tensor.Tensor, error) {
	named := slices.ContainsFunc(inputs, func(t tensor.Tensor) bool { return t.Name != "" || t.DType == tensor.Bytes })
	if !named {
		return members, inputs, nil
	}
	for i, t := range inputs {
		switch {
		case t.Name == "" && t.DType == tensor.Bytes:
			return members, nil, fmt.Errorf("shiva: input %d is text, which needs the name of its input", i)
		case t.Name == "":
			return members, nil, fmt.Errorf("shiva: input %d has no name, and others have one", i)
		case slices.ContainsFunc(inputs[:i], func(other tensor.Tensor) bool { return other.Name == t.Name }):
			return members, nil, fmt.Errorf("shiva: two inputs have the name %q", t.Name)
		}
	}
	for _, key := range []string{NamesKey, TextsKey} {
		if jsonscan.Field(metadata, key) != nil {
			return members, nil, fmt.Errorf("shiva: metadata has key %q, which the names of the inputs set", key)
		}
	}
	var tensors, texts []tensor.Tensor
	members = append(members, `,"`+NamesKey+`":[`...)
	for _, t := range inputs {
		if t.DType == tensor.Bytes {
			texts = append(texts, t)
			continue
		}
		if len(tensors) > 0 {
			members = append(members, ',')
		}
		members = jsonscan.AppendString(members, t.Name)
		tensors = append(tensors, t)
	}
	members = append(members, ']')
	if len(texts) == 0 {
		return members, tensors, nil
	}
	members, err := AppendTexts(append(members, `,"`+TextsKey+`":`...), texts...)
	return members, tensors, err
}

// Output returns a tensor of an answer by its name. Its memory belongs to the message, except that
// a text has its own. If the server sent no names, outputs are called "0", "1" and so on.
func (m *Message) Output(name string) (tensor.Tensor, error) {
	names, err := m.names()
	if err != nil {
		return tensor.Tensor{}, err
	}
	if i := slices.Index(names, name); i >= 0 {
		t := m.Tensors[i]
		t.Name = name
		return t, nil
	}
	texts := jsonscan.Field(m.Metadata, TextsKey)
	if texts != nil {
		s := jsonscan.Scanner{Text: texts, Depth: maxTextRank + 2}
		for key := range s.Members {
			text := s.Raw()
			if string(key) != name {
				names = append(names, string(key))
				continue
			}
			t, err := ParseText(text, nil)
			if err != nil {
				return t, fmt.Errorf("shiva: output %q: %w", name, err)
			}
			t.Name = name
			return t, nil
		}
		if err := s.Err(); err != nil {
			return tensor.Tensor{}, fmt.Errorf("shiva: %s of the answer: %w", TextsKey, err)
		}
	}
	if len(names) == 0 {
		return tensor.Tensor{}, fmt.Errorf("shiva: the answer has no output %q: it has no outputs", name)
	}
	return tensor.Tensor{}, fmt.Errorf("shiva: the answer has no output %q; there are %s", name, strings.Join(names, ", "))
}

// names returns the names of the message's tensors.
func (m *Message) names() ([]string, error) {
	names := make([]string, 0, len(m.Tensors))
	list := jsonscan.Field(m.Metadata, NamesKey)
	if list == nil {
		for i := range m.Tensors {
			names = append(names, strconv.Itoa(i))
		}
		return names, nil
	}
	s := jsonscan.Scanner{Text: list, Depth: 1}
	for range s.Elements {
		names = append(names, string(s.Str()))
	}
	err := s.End()
	if err == nil && len(names) != len(m.Tensors) {
		err = errors.New("expected a name for each tensor")
	}
	if err != nil {
		return nil, fmt.Errorf("shiva: %s of an answer with %d tensors is %.100s: %w", NamesKey, len(m.Tensors), list,
			err)
	}
	return names, nil
}
