package config

import (
	"fmt"

	"github.com/shivad/shivad/server/internal/capacity"
)

// besideBytes is the least memory that a process needs besides payloads: for the program itself,
// its heap, clients and containers.
const besideBytes = 56 << 20

// room returns the memory for payloads, in whole MiB, in a process limited to that many bytes.
// Three thirteenths stay free, so that a cgroup of limits.payload_bytes and 30 % is enough for a
// server with that setting.
func room(bytes int64) Bytes {
	return Bytes(max(0, bytes-max(bytes/13*3, besideBytes)) >> 20 << 20)
}

// Fit makes limits.payload_bytes fit into the memory that this process may have: what its cgroups,
// the machine and GOMEMLIMIT allow. lowered describes the change for the log; it is empty if there
// was none. Only a default is lowered; a value that was set and does not fit is an error. Fit is
// for programs that do nothing but serve: server.New does not call it.
func (c Config) Fit() (fit Config, lowered string, err error) { return c.fitInto(capacity.Memory()) }

func (c Config) fitInto(limit capacity.Limit) (fit Config, lowered string, err error) {
	have := room(limit.Bytes)
	if c.Limits.PayloadBytes <= have {
		return c, "", nil
	}
	fit = c.Clone()
	fit.Limits.PayloadBytes = have
	if _, given := c.origins["limits.message_bytes"]; !given {
		fit.Limits.MessageBytes = min(c.Limits.MessageBytes, have)
	}
	lowered = fmt.Sprintf("limits.payload_bytes is %v instead of %v, as the process may have no more than %v (%s) and needs some beside",
		have, c.Limits.PayloadBytes, Bytes(limit.Bytes), limit.Source)
	if fit.Limits.MessageBytes < c.Limits.MessageBytes {
		lowered += fmt.Sprintf("; limits.message_bytes is %v instead of %v",
			fit.Limits.MessageBytes, c.Limits.MessageBytes)
	}
	if err := fit.Validate(); err != nil {
		return c, "", fmt.Errorf("%s; that does not go together with the rest: %w", lowered, err)
	}
	return fit, lowered, nil
}
