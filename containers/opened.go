package containers

import (
	"iter"
	"maps"
	"slices"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// Pictures that several models look at are decoded by the first container and handed on to the
// others, by shared memory alone: see "Opened pictures" in DESIGN.md, and [scheduler.Opened].

const (
	// mostOpened is the size of the largest picture that is handed on.
	mostOpened = 32 << 20
	// looksShare is the fraction of the pool's budget that all of them may take: requests that wait
	// for a later model hold ten times their own bytes by it.
	looksShare = 8
)

// appendOpened appends which pictures of a batch the container should hand on, and those that
// others have handed on to it.
func (c *v4) appendOpened(h []byte, b *scheduler.Batch) []byte {
	var asked, given []wire.OpenedHeader
	for i := range c.spec.Inputs {
		if c.spec.Inputs[i].Image == nil {
			continue
		}
		name := []byte(c.spec.Inputs[i].Name)
		ask, give := wire.OpenedHeader{Input: name}, wire.OpenedHeader{Input: name}
		for at, o := range opened(b, i) {
			pixels, is := o.Pixels()
			switch {
			case is && (!c.opens || c.share == nil || pixels.Channels != c.spec.Inputs[i].Image.Channels):
				o.Looked(0)
			case is:
				if place, ok := c.share.placeOf(pixels.Data); ok {
					give.List = append(give.List, wire.Opened{Picture: at, Step: pixels.Step, At: place})
				}
			case c.opens && c.share != nil && !b.Whole(i):
				if step := o.Wanted(); step > 0 {
					ask.List = append(ask.List, wire.Opened{Picture: at, Step: step})
				}
			}
		}
		if len(ask.List) > 0 {
			asked = append(asked, ask)
		}
		if len(give.List) > 0 {
			given = append(given, give)
		}
	}
	if asked != nil {
		h = wire.AppendOpened(h, "open", asked)
	}
	if given != nil {
		h = wire.AppendOpened(h, "opened", given)
	}
	return h
}

// opened yields the pictures of an input that others look at, too, each once: by their index in the
// batch.
func opened(b *scheduler.Batch, input int) iter.Seq2[int, *scheduler.Opened] {
	return func(yield func(int, *scheduler.Opened) bool) {
		whole, row, pictures := b.Whole(input), 0, 0
		for k := range b.Parts {
			p := &b.Parts[k]
			at := row
			if row += p.Rows; whole {
				if at = p.Picture; at < pictures {
					continue // an earlier part has it
				}
				pictures++
			}
			one := whole || p.Rows == 1
			if p.Opened != nil && p.OpenedAt == input && one && !yield(at, p.Opened) {
				return
			}
		}
	}
}

// placeOf returns where the container finds data in the segment of inputs; not ok: nowhere yet.
func (x *sharing) placeOf(data []byte) (at [3]int, ok bool) {
	segment, offset := x.arena.Find(data)
	if segment == nil {
		return at, false
	}
	x.mu.Lock()
	in := x.in
	x.mu.Unlock()
	if segment != in {
		x.propose(segment)
		return at, false
	}
	return [3]int{int(segment.Number), int(offset), len(data)}, true
}

// takeOpened hands on what the container has decoded of the pictures of b, and learns from it how
// much memory for them it lacks, and how fine those had to be that were handed on to it.
func (c *v4) takeOpened(b *scheduler.Batch) {
	for _, h := range c.header.Looked {
		_, pictures := c.pictures(b, h.Input)
		for _, o := range h.List {
			if picture := pictures[o.Picture]; picture != nil {
				picture.Looked(max(0, o.Step))
			}
		}
	}
	lacked := int64(0)
	for _, h := range c.header.Opened {
		image, pictures := c.pictures(b, h.Input)
		for _, o := range h.List {
			region, segment := c.share.region(o.At[:])
			if region == nil {
				lacked += int64(min(max(0, o.Bytes), mostOpened))
				continue
			}
			if picture := pictures[o.Picture]; picture != nil {
				if buf := c.share.copyOf(region); buf != nil {
					picture.Give(scheduler.Pixels{Data: buf.Bytes(), Buf: buf, Step: o.Step, Channels: image.Channels})
				}
			}
			segment.Put(region)
		}
	}
	if lacked > 0 {
		c.share.learn(lacked)
	}
}

// pictures returns those of an input of b that others look at, too, by their index in the batch.
func (c *v4) pictures(b *scheduler.Batch, input []byte) (*tensor.Image, map[int]*scheduler.Opened) {
	i := slices.IndexFunc(c.spec.Inputs, func(t tensor.Spec) bool { return t.Name == string(input) })
	if i < 0 || c.spec.Inputs[i].Image == nil {
		return nil, nil
	}
	return c.spec.Inputs[i].Image, maps.Collect(opened(b, i))
}

// copyOf copies the pixels of a picture, since the container could still write them; nil if there
// is not enough memory.
func (x *sharing) copyOf(pixels []byte) *tensor.Buffer {
	left := x.looks.Budget() - x.looks.InUse()
	if size := int64(len(pixels)); size > mostOpened || x.looks.Budget() > 0 && size > left {
		return nil
	}
	buf, err := x.looks.Get(len(pixels))
	if err != nil {
		return nil
	}
	copy(buf.Bytes(), pixels)
	return buf
}
