package rest

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/shivad/shivad/server/internal/fault"
)

// An unpacker undoes a content coding. Its parts are made when first needed, and reused: a gzip
// reader takes 40 KB.
type unpacker struct {
	in      *bufio.Reader
	gzip    *gzip.Reader
	zlib    io.ReadCloser // also a zlib.Resetter
	deflate io.ReadCloser // also a flate.Resetter
}

var unpackers = sync.Pool{New: func() any { return &unpacker{in: bufio.NewReader(nil)} }}

func (u *unpacker) free() {
	u.in.Reset(nil)
	unpackers.Put(u)
}

// unpack wraps the body in the unpacker of its content coding.
func (b *body) unpack(c *call, codings []string) error {
	coding := strings.ToLower(strings.TrimSpace(strings.Join(codings, ",")))
	if coding == "identity" || coding == "" {
		return nil
	}
	if coding != "gzip" && coding != "x-gzip" && coding != "deflate" {
		c.w.Header().Set("Accept-Encoding", "gzip, deflate")
		return &refusal{http.StatusUnsupportedMediaType, fault.Malformed("Content-Encoding %q; expected gzip, deflate or none", coding)}
	}
	share, err := c.settings.Memory.Unpacked(&b.arrival.half, &b.arrival.clock.Bytes)
	if err != nil {
		return err
	}
	b.share = share
	b.pack = unpackers.Get().(*unpacker)
	b.length = -1
	b.pack.in.Reset(b.arrival)
	if coding == "deflate" {
		b.reader, err = b.pack.inflate()
	} else {
		b.reader, err = b.pack.gunzip()
	}
	if err != nil {
		if b.arrival.err != nil && b.arrival.err != io.EOF {
			return b.arrival.err
		}
		return fault.Malformed("the body does not match its Content-Encoding %q: %v", coding, err)
	}
	return nil
}

func (u *unpacker) gunzip() (io.Reader, error) {
	if u.gzip == nil {
		u.gzip = new(gzip.Reader)
	}
	return u.gzip, u.gzip.Reset(u.in)
}

// inflate reads zlib's format, which HTTP calls deflate (RFC 9110, 8.4.1.2), or bare deflate, which
// some clients send instead.
func (u *unpacker) inflate() (io.Reader, error) {
	head, err := u.in.Peek(2)
	if err != nil {
		return nil, err
	}
	if head[0]&0x0f != 8 || (int(head[0])<<8|int(head[1]))%31 != 0 {
		if u.deflate == nil {
			u.deflate = flate.NewReader(u.in)
			return u.deflate, nil
		}
		return u.deflate, u.deflate.(flate.Resetter).Reset(u.in, nil)
	}
	if u.zlib == nil {
		u.zlib, err = zlib.NewReader(u.in)
		return u.zlib, err
	}
	return u.zlib, u.zlib.(zlib.Resetter).Reset(u.in, nil)
}

// end checks that nothing follows the compressed data.
func (u *unpacker) end(b *body) error {
	switch _, err := u.in.Peek(1); {
	case err == nil:
		return fault.Malformed("the body has more bytes after the end of its compressed data")
	case err != io.EOF:
		return b.arrival.err
	}
	return nil
}

// A packer applies a content coding to an answer.
type packer interface {
	io.WriteCloser
	Reset(io.Writer)
}

// packers are the content codings of answers, in order of preference.
var packers = []struct {
	name string
	pool *sync.Pool
}{
	{"gzip", &sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return w }}},
	{"deflate", &sync.Pool{New: func() any { w, _ := zlib.NewWriterLevel(nil, zlib.BestSpeed); return w }}},
}

// acceptable returns the index of the packer that a client prefers, or -1 if it names none.
func acceptable(accept []string) int {
	best, most := -1, 0.0
	for i := range packers {
		if q := quality(accept, packers[i].name); q > most {
			best, most = i, q
		}
	}
	return best
}

// quality is the weight of a coding in Accept-Encoding, from 0 to 1 (RFC 9110, 12.5.3); 0 if it is
// not named.
func quality(accept []string, coding string) float64 {
	for _, line := range accept {
		for item := range strings.SplitSeq(line, ",") {
			name, parameters, _ := strings.Cut(item, ";")
			if !strings.EqualFold(strings.TrimSpace(name), coding) {
				continue
			}
			weight, found := strings.CutPrefix(strings.ToLower(strings.ReplaceAll(parameters, " ", "")), "q=")
			if !found {
				return 1
			}
			q, err := strconv.ParseFloat(weight, 64)
			if err != nil || !(q >= 0 && q <= 1) {
				return 0
			}
			return q
		}
	}
	return 0
}
