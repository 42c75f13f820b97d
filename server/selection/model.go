package selection

import (
	"cmp"
	"fmt"
	"strings"
)

// A Model is a candidate: one version of a model. As text, and so in JSON, it is
// "name/version". Neither part may be empty or hold a '/'.
type Model struct {
	Name, Version string
}

// String returns "name/version".
func (m Model) String() string { return m.Name + "/" + m.Version }

// MarshalText returns the same as String, and fails if UnmarshalText would not read it.
func (m Model) MarshalText() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads "name/version".
func (m *Model) UnmarshalText(text []byte) error {
	name, version, ok := strings.Cut(string(text), "/")
	read := Model{name, version}
	if err := read.check(); !ok || err != nil {
		return fmt.Errorf("selection: model %q is not of the form name/version", text)
	}
	*m = read
	return nil
}

func (m Model) check() error {
	if m.Name == "" || m.Version == "" || strings.Contains(m.Name+m.Version, "/") {
		return fmt.Errorf("selection: model %q has a name or a version that is empty or holds a '/'", m)
	}
	return nil
}

// compare orders models by name and then by version. A state keeps its models in this order, so the
// order in which a caller gives them does not matter.
func (m Model) compare(o Model) int {
	return cmp.Or(cmp.Compare(m.Name, o.Name), cmp.Compare(m.Version, o.Version))
}
