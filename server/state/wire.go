package state

import (
	"bytes"
	"fmt"
	"strconv"
)

// A change is a message on the Redis channel of a namespace:
//
//	set REVISION TIME IDBYTES KEYBYTES idkeyvalue      a key has a new value
//	delete REVISION TIME IDBYTES KEYBYTES idkey        a key was deleted
//	read                                               much has changed: read everything
//
// One space separates fields, numbers are decimal, and nothing separates id, key and value. The id
// is a hash of 16 bytes or empty.
type change struct {
	entry  Entry
	id     idHash
	hasID  bool
	time   uint64 // ms since 1970
	reread bool
}

// decodeChange returns a change whose value is part of msg.
func decodeChange(msg []byte) (change, error) {
	if string(msg) == "read" {
		return change{reread: true}, nil
	}
	op, rest, _ := bytes.Cut(msg, []byte(" "))
	if string(op) != "set" && string(op) != "delete" {
		return change{}, fmt.Errorf("%w: change %.40q: want set, delete or read", ErrCorrupt, msg)
	}
	var n [4]uint64
	for i, field := range []string{"revision", "time", "bytes of the id", "bytes of the key"} {
		var text []byte
		var err error
		text, rest, _ = bytes.Cut(rest, []byte(" "))
		if n[i], err = number(text); err != nil {
			return change{}, fmt.Errorf("%w: change %.40q: %s: %w", ErrCorrupt, msg, field, err)
		}
	}
	var id idHash
	if n[2] != 0 && n[2] != uint64(len(id)) {
		return change{}, fmt.Errorf("%w: change %.40q: id of %d bytes, want 0 or %d", ErrCorrupt, msg, n[2], len(id))
	}
	if n[3] == 0 || n[3] > MaxKeyBytes || n[2]+n[3] > uint64(len(rest)) {
		return change{}, fmt.Errorf("%w: change %.40q: id of %d and key of %d bytes in %d",
			ErrCorrupt, msg, n[2], n[3], len(rest))
	}
	c := change{time: n[1], hasID: n[2] != 0}
	copy(c.id[:], rest[:n[2]])
	c.entry = Entry{Key: string(rest[n[2] : n[2]+n[3]]), Revision: n[0]}
	if value := rest[n[2]+n[3]:]; string(op) == "set" {
		c.entry.Value = value
	} else if len(value) > 0 {
		return change{}, fmt.Errorf("%w: change %.40q: %d bytes after a deletion", ErrCorrupt, msg, len(value))
	}
	return c, nil
}

// decodeStored decodes the stored form of a key in Redis: revision, space, value. The value is a
// copy.
func decodeStored(key, stored string) (Entry, error) {
	text, value, ok := bytes.Cut([]byte(stored), []byte(" "))
	revision, err := number(text)
	if err == nil && !ok {
		err = fmt.Errorf("no space after the revision")
	}
	if err != nil {
		return Entry{}, fmt.Errorf("%w: entry %q: %w", ErrCorrupt, key, err)
	}
	return Entry{Key: key, Value: value, Revision: revision}, nil
}

// number parses 0 or a whole number up to 2^53, as the scripts write them.
func number(text []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err == nil && n > 1<<53 {
		err = fmt.Errorf("%d is above 2^53", n)
	}
	return n, err
}
