package parameter

import "github.com/shivad/shivad/scheduler"

// A Key is a row of the table.
type Key struct {
	Name    string // as clients write it
	On      Wire   // wires that have the key; on all others it goes to the container
	Default string // for a request without the key
	Means   string // for documents; a sentence or two
	kind    kind   // of the value: its type, unit, range and place in Values

	wire Wire // the one of On that this copy reads
}

// Read puts the value of the key into v. The error is an *Error. It allocates only for texts and
// lists.
func (k *Key) Read(v *Values, value Value) error {
	if string(value.json) == "null" {
		return nil // serializers write unset values like this
	}
	if k.kind.read(v, value) {
		return nil
	}
	return k.unexpected(value)
}

// TakesText reports whether any text is a value of the key.
func (k *Key) TakesText() bool { return k.kind.anyText }

// Expected describes the values that the key takes.
func (k *Key) Expected() string { return k.kind.expected }

func (k *Key) unexpected(value Value) error {
	noun := "parameter"
	if k.wire == Shiva {
		noun = "metadata key"
	}
	return &Error{noun, k.Name, k.Expected(), value.String()}
}

// An Error reports a value that a key does not take. It wraps [scheduler.ErrInvalidInput].
type Error struct {
	Noun     string // the wire's word for a key
	Key      string
	Expected string // type, unit and range
	Got      string // cut to a readable length
}

func (e *Error) Error() string {
	return scheduler.ErrInvalidInput.Error() + ": " + e.Noun + ` "` + e.Key + `": expected ` + e.Expected + ", got " + e.Got
}

// Unwrap implements errors.Is for the condition.
func (e *Error) Unwrap() error { return scheduler.ErrInvalidInput }
