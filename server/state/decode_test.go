package state

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

func FuzzDecodeRecord(f *testing.F) {
	f.Add("key", appendRecord(nil, Entry{Key: "key", Value: []byte("value"), Revision: 7}))
	f.Add("", appendRecord(nil, Entry{}))
	f.Add("key", []byte("short"))
	f.Fuzz(func(t *testing.T, key string, b []byte) {
		budgettest.Input(t)
		e, err := decodeRecord(key, b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v", err)
			}
			// Every written record can be read.
			e = Entry{Key: key, Value: b, Revision: uint64(len(b))}
			b = appendRecord(nil, e)
			if e, err = decodeRecord(key, b); err != nil {
				t.Fatal(err)
			}
		}
		if again := appendRecord(nil, e); !bytes.Equal(again, b) {
			t.Errorf("%q was decoded and encoded to %q", b, again)
		}
		if _, err := decodeRecord(key+"x", b); err == nil {
			t.Error("a record of another key was read")
		}
	})
}

func FuzzDecodeChange(f *testing.F) {
	f.Add([]byte("set 12 1795181184000 16 3 0123456789abcdefkeyvalue"))
	f.Add([]byte("delete 13 1795181184000 0 3 key"))
	f.Add([]byte("set 13 1795181184000 0 3 key"))
	f.Add([]byte("read"))
	f.Add([]byte("set 99999999999999999999 1 0 3 key"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		budgettest.Input(t)
		c, err := decodeChange(msg)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v", err)
			}
			return
		}
		if c.reread {
			return
		}
		op, id := "set", c.id[:]
		if c.entry.Value == nil {
			op = "delete"
		}
		if !c.hasID {
			id = nil
		}
		again := fmt.Appendf(nil, "%s %d %d %d %d %s%s%s", op, c.entry.Revision, c.time, len(id), len(c.entry.Key), id,
			c.entry.Key, c.entry.Value)
		if d, err := decodeChange(again); err != nil || d.entry.Key != c.entry.Key ||
			!bytes.Equal(d.entry.Value, c.entry.Value) || d.id != c.id || d.entry.Revision != c.entry.Revision {
			t.Errorf("%q became %+v, %q and %+v, %v", msg, c, again, d, err)
		}
	})
}

func FuzzDecodeStored(f *testing.F) {
	f.Add("12 value")
	f.Add("12 ")
	f.Add("12")
	f.Fuzz(func(t *testing.T, stored string) {
		budgettest.Input(t)
		e, err := decodeStored("key", stored)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v", err)
			}
			return
		}
		if e.Value == nil || e.Revision > 1<<53 {
			t.Errorf("%q became %+v", stored, e)
		}
		if again, err := decodeStored("key", fmt.Sprintf("%d %s", e.Revision, e.Value)); err != nil ||
			!bytes.Equal(again.Value, e.Value) {
			t.Errorf("%q became %+v and %+v, %v", stored, e, again, err)
		}
	})
}

func TestCommitReplies(t *testing.T) {
	for _, bad := range [][]any{nil, {}, {1}, {"what"}, {"done"}, {"done", int64(1)}, {"done", "1", "2"}, {"hold"},
		{"hold", "5"}, {"changed", "no revision"}} {
		if r, err := decodeCommitReply("key", nil, bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%v: %+v, %v", bad, r, err)
		}
	}
}
