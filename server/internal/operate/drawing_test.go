package operate

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
)

// TestDrawing: a drawing is XML whatever the names, and each stage is to the right of those that it
// reads. A definition with a circle, which is only refused later, ends too.
func TestDrawing(t *testing.T) {
	p := admin.Pipeline{
		Name: "a<b>&\x01\"", Inputs: []string{"image"}, Outputs: map[string]string{"<text>": "read.text", "boxes": "find.boxes"},
		Stages: []admin.Stage{
			{
				Name: "read", Model: "r", Each: "find.boxes", Inputs: map[string]string{"image": "image"},
				Keep: &admin.Filter{Classes: []string{"<i>"}},
			},
			{Name: "find", Model: "f", Inputs: map[string]string{"image": "image"}},
		},
	}
	svg := string(drawPipeline(p, func(stage string) string { return "<" + stage + ">" }))
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
	d := arrange(p, func(string) string { return "-" })
	d.layOut()
	for _, a := range d.arrows {
		if a.from.x+a.from.w >= a.to.x {
			t.Errorf("%s is not to the left of %s", a.from.name, a.to.name)
		}
	}
	if len(d.arrows) != 5 || !strings.Contains(svg, "each boxes") || !strings.Contains(svg, `data-stage="find"`) {
		t.Errorf("%d arrows in\n%s", len(d.arrows), svg)
	}
	p.Stages[1].Inputs["more"] = "read.text"
	drawPipeline(p, func(string) string { return "" })
}
