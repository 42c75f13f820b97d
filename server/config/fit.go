package config

import "fmt"

// besideBytes is the least that a process needs beside payloads: the program itself, its heap,
// and what clients and containers cost.
const besideBytes = 56 << 20

// room is what a process that may have that many bytes leaves for payloads, in whole MiB: three
// in thirteen stay free, so that a cgroup of limits.payload_bytes and 30 % takes a server with
// that setting.
func room(bytes int64) Bytes {
	return Bytes(max(0, bytes-max(bytes/13*3, besideBytes)) >> 20 << 20)
}

// Fit makes limits.payload_bytes what a process can keep to that may have no more than that
// many bytes, as source says, and is killed beyond them. lowered says what was changed, for the
// log; it is empty if nothing needed to be. A setting that only has its default gives way; the
// error is about one that was given and does not fit any more. Fit is for a program whose
// memory is the server's: New does not call it.
func (c Config) Fit(bytes int64, source string) (fit Config, lowered string, err error) {
	have := room(bytes)
	if c.Limits.PayloadBytes <= have {
		return c, "", nil
	}
	fit = c.Clone()
	fit.Limits.PayloadBytes = have
	if _, given := c.origins["limits.message_bytes"]; !given {
		fit.Limits.MessageBytes = min(c.Limits.MessageBytes, have)
	}
	lowered = fmt.Sprintf("limits.payload_bytes is %v instead of %v, as the process may have no more than %v (%s) and needs some beside", have, c.Limits.PayloadBytes, Bytes(bytes), source)
	if fit.Limits.MessageBytes < c.Limits.MessageBytes {
		lowered += fmt.Sprintf("; limits.message_bytes is %v instead of %v", fit.Limits.MessageBytes, c.Limits.MessageBytes)
	}
	if err := fit.Validate(); err != nil {
		return c, "", fmt.Errorf("%s; that does not go together with the rest: %w", lowered, err)
	}
	return fit, lowered, nil
}
