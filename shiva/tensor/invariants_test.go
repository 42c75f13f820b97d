//go:build invariants

package tensor

import (
	"bytes"
	"strings"
	"testing"
)

func mustPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		v, _ := recover().(Violation)
		if got := string(v); !strings.Contains(got, want) || !strings.Contains(got, "TestMisuse") {
			t.Errorf("panic %q, want one that says %q and who took the buffer", v, want)
		}
	}()
	f()
}

// TestMisuse: the strict build detects misuse that other builds ignore.
func TestMisuse(t *testing.T) {
	for _, p := range []*Pool{nil, NewPool(0)} {
		b := mustGet(t, p, 100)
		data := b.Bytes()
		clear(data)
		b.Release()
		if !bytes.Equal(data, bytes.Repeat([]byte{0xDB}, 100)) {
			t.Errorf("released bytes hold %x", data)
		}
		mustPanic(t, "second release", b.Release)
		b = mustGet(t, p, 100)
		b.Release()
		mustPanic(t, "bytes of a released", func() { b.Bytes() })
		mustPanic(t, "retain of a released", b.Retain)
	}
}
