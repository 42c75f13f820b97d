package load

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// An httpWire finds the ends of HTTP/1.1 answers, by their Content-Length or by their chunks.
type httpWire struct {
	plain
	head    []byte // of the answer, as far as it has arrived; complete during the body
	inBody  bool
	over    bool // head and payload belong to the previous answer
	fault   bool
	body    int // remaining bytes of the body, or of its chunk
	chunked bool
	line    []byte // between chunks: a partial line
	ending  bool   // the last chunk has arrived
	keeping bool
	payload []byte // the body, if it is collected or that of an error
}

const (
	headStep = 512      // bytes of a head searched at a time, so that little of a body is copied
	maxHead  = 16 << 10 // larger than the head of any answer
)

var (
	headEnd          = []byte("\r\n\r\n")
	contentLength    = []byte("Content-Length")
	transferEncoding = []byte("Transfer-Encoding")
	chunkedBody      = []byte("chunked")
	statusOK         = []byte("HTTP/1.1 200 ")
)

func (h *httpWire) read(p []byte, gather bool) (a answer, n int, err error) {
	if !h.inBody {
		if n, err = h.readHead(p); err != nil || !h.inBody {
			return a, n, err
		}
		h.keeping, h.payload = h.fault || gather, h.payload[:0]
	}
	k, done, err := h.readBody(p[n:])
	n += k
	if !done {
		return a, n, err
	}
	a.done, a.fault = true, h.fault
	if h.keeping && !h.fault {
		a.whole = h.payload
	}
	h.inBody, h.over = false, true
	return a, n, nil
}

// readBody consumes p up to the end of the body.
func (h *httpWire) readBody(p []byte) (n int, done bool, err error) {
	for {
		part := p[n : n+min(h.body, len(p)-n)]
		if h.keeping {
			h.payload = append(h.payload, part...)
		}
		n += len(part)
		if h.body -= len(part); h.body > 0 || !h.chunked {
			return n, h.body == 0, nil
		}
		// The size of the next chunk, or the empty line after a chunk.
		end := bytes.IndexByte(p[n:], '\n') + 1
		if end == 0 {
			end = len(p) - n
		}
		h.line = append(h.line, p[n:n+end]...)
		n += end
		switch {
		case len(h.line) > headStep:
			return n, false, fmt.Errorf("%w: expected the size of a chunk, got a line of %d bytes", errOutOfStep,
				len(h.line))
		case !bytes.HasSuffix(h.line, headEnd[:2]):
			return n, false, nil
		}
		size := string(bytes.TrimSuffix(h.line, headEnd[:2]))
		h.line = h.line[:0]
		if size == "" && h.ending {
			return n, true, nil
		}
		if size != "" {
			length, err := strconv.ParseUint(size, 16, 31)
			if err != nil || h.ending {
				return n, false, fmt.Errorf("%w: expected the size of a chunk, got %q", errOutOfStep, size)
			}
			h.body, h.ending = int(length), length == 0
		}
	}
}

// readHead consumes p up to the end of the head, and parses the head.
func (h *httpWire) readHead(p []byte) (n int, err error) {
	if h.over {
		h.head, h.over = h.head[:0], false
	}
	had := len(h.head)
	from := max(0, had-len(headEnd)+1) // the end may straddle two reads
	h.head = append(h.head, p[:min(len(p), headStep)]...)
	end := bytes.Index(h.head[from:], headEnd)
	if end < 0 {
		if len(h.head) >= maxHead {
			return 0, fmt.Errorf("%w: expected a head of HTTP, got %d bytes without its end", errOutOfStep, len(h.head))
		}
		return len(h.head) - had, nil
	}
	h.head = h.head[:from+end+len(headEnd)]
	h.fault = !bytes.HasPrefix(h.head, statusOK)
	h.body, h.ending = 0, false
	if h.chunked = bytes.EqualFold(h.field(transferEncoding), chunkedBody); !h.chunked {
		length := h.field(contentLength)
		if h.body, err = strconv.Atoi(string(length)); err != nil || h.body < 0 {
			return 0, fmt.Errorf("%w: expected an answer of HTTP/1 that says how long it is, got %q", errOutOfStep,
				h.head)
		}
	}
	if !bytes.HasPrefix(h.head, statusOK[:7]) {
		return 0, fmt.Errorf("%w: expected an answer of HTTP/1, got %q", errOutOfStep, h.head)
	}
	h.inBody = true
	return len(h.head) - had, nil
}

// field returns the value of a field of the head; nil if it has none.
func (h *httpWire) field(name []byte) []byte {
	for p := h.head; ; {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			return nil
		}
		line := p[:end]
		p = p[end+1:]
		if n := len(name); len(line) > n && line[n] == ':' && bytes.EqualFold(line[:n], name) {
			return bytes.TrimSpace(line[n+1:])
		}
	}
}

// failure is the status and the error of the body.
func (h *httpWire) failure() (kind, text string) {
	status, _, _ := bytes.Cut(h.head, headEnd[:2])
	_, kind, _ = strings.Cut(string(status), " ")
	text, ok := jsonscan.Unquote(jsonscan.Field(h.payload, "error"))
	if !ok {
		text = string(h.payload)
	}
	return kind, text
}

func (h *httpWire) superseded(kind string) bool { return strings.HasPrefix(kind, "409 ") }
