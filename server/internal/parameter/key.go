package parameter

import "github.com/shivad/shivad/scheduler"

// A Key is a row of the table.
type Key struct {
	Name    string // as clients write it
	On      Wire   // who may say it: on all other wires it is the container's
	Default string // of a request without it
	Means   string // for documents; a sentence or two
	kind    kind   // of the value: its type, unit, range and place in Values

	wire Wire // the one of On that this copy reads
}

// Read puts the value of the key into v. The error is an *Error. It does not allocate, but for
// texts and lists.
func (k *Key) Read(v *Values, value Value) error {
	if k.wire != Shiva && string(value.json) == "null" {
		return nil // serializers write what is not set so
	}
	if k.kind.read(v, value) {
		return nil
	}
	return k.unexpected(value)
}

// TakesText reports whether any text is a value of the key.
func (k *Key) TakesText() bool { return k.kind.anyText }

// Expected says what a value of the key is.
func (k *Key) Expected() string { return k.kind.expected }

func (k *Key) unexpected(value Value) error {
	noun := "parameter"
	if k.wire == Shiva {
		noun = "metadata key"
	}
	return &Error{noun, k.Name, k.Expected(), value.String()}
}

// An Error is a value that a key does not take. It wraps [scheduler.ErrInvalidInput].
type Error struct {
	Noun     string // what the wire calls a key
	Key      string
	Expected string // type, unit and range
	Got      string // cut to what is read at a glance
}

func (e *Error) Error() string {
	return scheduler.ErrInvalidInput.Error() + ": " + e.Noun + ` "` + e.Key + `": expected ` + e.Expected + ", got " + e.Got
}

// Unwrap implements errors.Is for the condition.
func (e *Error) Unwrap() error { return scheduler.ErrInvalidInput }
