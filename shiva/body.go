package shiva

import "github.com/shivad/shivad/shiva/tensor"

// The part of the Decoder that takes memory: bodies, which are tensors' data and metadata.

// begin prepares for a body of need bytes in units of width.
func (d *Decoder) begin(need, width int) {
	d.need, d.have, d.width = need, 0, width
	d.body, d.stage = nil, nil
	if need == 0 || need > maxArenaItem {
		return
	}
	if d.fault == nil {
		d.body = d.fromArena(need)
	}
	if d.fault != nil && d.state == inMetadata {
		// The message is being discarded. Small metadata is received nevertheless, outside the
		// budget: the refusal needs the request's id, which it may hold.
		d.body = make([]byte, need)
	}
}

// fill takes bytes of the current body and reports whether it is complete.
func (d *Decoder) fill(in *[]byte) bool {
	for d.have < d.need {
		if len(*in) == 0 {
			return false
		}
		if d.have == len(d.body) && d.fault == nil {
			d.grow(len(*in))
		}
		p := (*in)[:min(len(*in), d.need-d.have)]
		if d.body != nil {
			p = p[:min(len(p), len(d.body)-d.have)]
			d.copyUnits(p)
		}
		*in = (*in)[len(p):]
		d.have += len(p)
		d.pos += int64(len(p))
	}
	return true
}

// throughBytes is the size from which a swapped tensor is written past the caches: that of the
// second-level cache on small machines. Such a tensor would be evicted before it is read.
const throughBytes = 2 << 20

// copyUnits copies p, the next bytes of the current body on the wire, to their place in its memory,
// which holds whole units. A unit that is split between two calls is reordered byte by byte.
func (d *Decoder) copyUnits(p []byte) {
	dst, at, width := d.body, d.have, d.width
	for len(p) > 0 && at%width != 0 {
		dst[at-at%width+width-1-at%width] = p[0]
		p = p[1:]
		at++
	}
	whole := len(p) &^ (width - 1)
	if width > 1 && d.need >= throughBytes {
		tensor.SwapThrough(dst[at:], p[:whole], width)
	} else {
		tensor.SwapCopy(dst[at:], p[:whole], width)
	}
	for i, c := range p[whole:] {
		dst[at+whole+width-1-i] = c
	}
}

// grow gives the current body its next stage of memory, see [tensor.Stage], with room for the bytes
// received and arriving more. It returns false if there is no memory; the rest of the message is
// then discarded.
func (d *Decoder) grow(arriving int) bool {
	size := tensor.Stage(min(d.have+arriving, d.need), d.need, tensor.StageFactor)
	// Copy whole units: the first bytes of a unit on the wire are its last in memory.
	begun := (d.have + d.width - 1) &^ (d.width - 1)
	if held := d.held - int64(len(d.body)) + int64(size); held > freeBytes && d.cfg.Grant != nil {
		if err := d.cfg.Grant(held, d.total); err != nil {
			d.overBudget(err)
			return false
		}
	}
	b, err := d.cfg.Pool.Grow(d.stage, begun, size)
	if err != nil {
		d.overBudget(err)
		return false
	}
	if d.stage == nil {
		d.own(b)
	} else {
		d.held += int64(size - len(d.body))
		d.m.bufs[len(d.m.bufs)-1] = b
	}
	d.stage, d.body = b, b.Bytes()
	return true
}

func aligned(n int) int { return (n + arenaAlign - 1) &^ (arenaAlign - 1) }

// fromArena returns memory for a small body, or nil if there is none; the message is then
// discarded.
func (d *Decoder) fromArena(need int) []byte {
	d.message() // may come with an arena
	room := aligned(need)
	if len(d.arenaFree) < room {
		// Enough for the rest of the message, if its other tensors are as small as this one.
		size := room
		if d.state == inData {
			size *= int(d.head.tensors) - d.index
			size += aligned(min(int(d.head.metadataBytes), maxArenaItem))
		}
		b, err := d.cfg.Pool.Get(max(room, min(size, arenaBytes)))
		if err != nil {
			d.overBudget(err)
			return nil
		}
		d.own(b)
		d.arena, d.arenaFree = b, b.Bytes()
	}
	b := d.arenaFree[:need:need]
	d.arenaFree = d.arenaFree[min(room, len(d.arenaFree)):]
	return b
}

// overBudget starts discarding the current message: its bodies are consumed as they arrive, and the
// error is returned at its end, in its place among the messages.
func (d *Decoder) overBudget(err error) {
	d.fault = &DecodeError{Kind: KindOverBudget, Field: d.fieldName(), Offset: d.pos,
		Limit: d.cfg.Pool.Budget(), Got: int64(d.need), Detail: err.Error(), Err: err, keep: true}
	if d.m != nil {
		d.m.Release()
		d.m = nil
	}
	d.body, d.stage, d.held = nil, nil, 0
	d.arena, d.arenaFree = nil, nil
}
