package shiva_test

import (
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// TestManualFrame: the bytes of the frame in the manual are a message.
func TestManualFrame(t *testing.T) {
	page, err := os.ReadFile("../server/manual/streams.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "A frame, 8x8 pixels:\n\n```\n")
	block, _, ok := strings.Cut(rest, "```")
	lines := strings.Split(block, "\n")
	if !ok || len(lines) != 6 {
		t.Fatalf("streams.md has no frame of five lines: %q", block)
	}
	var wire []byte
	for _, line := range lines[:2] {
		digits := regexp.MustCompile(`^(?:[0-9a-f]{2} {1,2})+`).FindString(line)
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		wire = append(wire, b...)
	}
	wire = append(wire, make([]byte, 64)...)
	wire = append(wire, lines[3]+lines[4]...)
	r := decodeAll(t, shiva.DecoderConfig{}, wire)
	defer r.release()
	if len(r.messages) != 1 {
		t.Fatalf("%d messages, %s at byte %d", len(r.messages), r.kind, r.at)
	}
	m := r.messages[0]
	if m.Namespace != "digits" || string(jsonscan.Field(m.Metadata, "seq")) != "17" ||
		!m.Tensors[0].Shape.Equal([]int{8, 8}) {
		t.Errorf("%s %s %v", m.Namespace, m.Metadata, m.Tensors[0].Shape)
	}
}
