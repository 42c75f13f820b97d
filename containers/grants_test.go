package containers

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestGrantMessages: the messages about grants in DESIGN.md are sent byte for byte, and read.
func TestGrantMessages(t *testing.T) {
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	hexed := func(frames ...string) []string {
		for i, f := range frames {
			frames[i] = hex.EncodeToString([]byte(f))
		}
		return frames
	}
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1}}}
	c := &v4{limits: Settings{}.withDefaults().Limits}
	yes, no := true, false
	for body, want := range map[string]wire.GrantMessage{
		`{"each":true}`: {Each: &yes}, `{"each":false}`: {Each: &no},
		`{"grant":17,"here":12,"elsewhere":20,"target":40}`: {Grant: 17, Here: 12, Elsewhere: 20, Target: 40},
	} {
		if !strings.Contains(page, "`grant` · `"+body+"`") {
			t.Errorf("%s is not in DESIGN.md", body)
		}
		c.bind(registration{spec: scheduler.Spec{Inputs: x, Outputs: x}})
		if _, err := c.parse(message(t, hexed("grant", body))); err == nil {
			t.Error("a grant is taken from a container that has not declared it")
		}
		c.bind(registration{grants: true, spec: scheduler.Spec{Inputs: x, Outputs: x}})
		in, err := c.parse(message(t, hexed("grant", body)))
		got := in.grant
		if err != nil || in.event != evGrant || (got.Each == nil) != (want.Each == nil) ||
			got.Each != nil && *got.Each != *want.Each ||
			got.Grant != want.Grant || got.Here != want.Here || got.Elsewhere != want.Elsewhere ||
			got.Target != want.Target {
			t.Errorf("%s is read as %+v, %v", body, got, err)
		}
	}
	for _, body := range []string{``, `{}`, `[]`, `{"grant":-1}`, `{"grant":1.5}`, `{"grant":1,"here":-1}`,
		`{"grant":1,"elsewhere":-1}`, `{"grant":1,"target":-9}`,
		`{"grant":18446744073709551616}`, `{"each":1}`, `{"grant":1,"x":"` + strings.Repeat("x", grantLimit) + `"}`} {
		if _, err := c.parse(message(t, hexed("grant", body))); err == nil {
			t.Errorf("%s is taken for a grant", body)
		}
	}
	for want, o := range map[string]scheduler.Offer{
		`{"rows":12,"due_ms":34.5,"age_ms":3.25}`: {Rows: 12, Due: 34500 * time.Microsecond,
			Age: 3250 * time.Microsecond},
		`{"pass":17,"rows":16}`: {Grant: 17, Rows: 16},
	} {
		var out zmtp.Outgoing
		say(&out, wire.Offer, offerMessage(o))
		frames := newLine(t).frames(t, &out)
		body, _ := hex.DecodeString(frames[1])
		if string(body) != want || !strings.Contains(page, "`offer` · `"+want+"`") {
			t.Errorf("the offer is %s, expected %s as in DESIGN.md", body, want)
		}
	}
	row, err := tensor.FromSlice(tensor.Shape{1}, []uint8{1})
	if err != nil {
		t.Fatal(err)
	}
	b := &scheduler.Batch{Rows: 1, Grant: scheduler.Grant{ID: 17, Best: 38, Left: 4},
		Parts: []scheduler.Part{{Inputs: []tensor.Tensor{row}, Rows: 1}}}
	var out zmtp.Outgoing
	if err := c.batch(&out, b, time.Now()); err != nil {
		t.Fatal(err)
	}
	header, _ := hex.DecodeString(newLine(t).frames(t, &out)[2])
	if end := `,"grant":17,"best":38,"left":4}`; !strings.HasSuffix(string(header), end) ||
		!strings.Contains(page, end) {
		t.Errorf("the header is %s, expected %s at the end as in DESIGN.md", header, end)
	}
	var h wire.BatchHeader
	if err := h.Parse(header); err != nil || h.GrantUse != (wire.GrantUse{Grant: 17, Best: 38, Left: 4}) {
		t.Errorf("read as %+v, %v", h.GrantUse, err)
	}
	end := `,"together":36,"queued_ms":2.5}`
	if text := string(wire.AppendTogether(nil, 36, 2500)) + "}"; text != end || !strings.Contains(page, end) {
		t.Errorf("a result ends with %s, expected %s as in DESIGN.md", text, end)
	}
	var r wire.ResultHeader
	if err := r.Parse([]byte(`{"outputs":[]`+end), 1); err != nil || r.Together != 36 || r.Queued != 2.5 {
		t.Errorf("read as %d and %v, %v", r.Together, r.Queued, err)
	}
}
