package containers

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/internal/wire"
)

// TestSubsetMessages: the messages in DESIGN.md of a container that chooses among servers are read
// and sent, and nonsense is refused.
func TestSubsetMessages(t *testing.T) {
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	limits := Settings{}.withDefaults().Limits
	hello := func(subset string) (registration, error) {
		return readHello(fmt.Appendf(nil, `{"protocol":4,"model":"m","version":"1","subset":%s,
			"inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}],"outputs":[{"name":"y","datatype":"FP32","shape":[-1,2]}]}`, subset), limits)
	}
	if !strings.Contains(string(text), `"subset":{"size":16,"servers":500}`) {
		t.Error("the key of hello is not in DESIGN.md")
	}
	if r, err := hello(`{"size":16,"servers":500}`); err != nil || r.subset != (Subset{16, 500}) {
		t.Errorf("%+v, %v", r.subset, err)
	}
	for _, bad := range []string{`{}`, `{"size":0,"servers":5}`, `{"size":6,"servers":5}`, `{"size":-1,"servers":5}`,
		`{"size":1,"servers":9999999}`, `[]`, `"x"`} {
		if _, err := hello(bad); err == nil {
			t.Errorf("a subset %s is taken", bad)
		}
	}
	body, err := json.Marshal(wire.CountMessage{Replicas: 7})
	if err != nil || !strings.Contains(string(text), "`heartbeat` · `"+string(body)+"`") {
		t.Errorf("a heartbeat with %s is not in DESIGN.md (%v)", body, err)
	}
	// An older server and an older container read it as a heartbeat.
	m := message(t, []string{hex.EncodeToString([]byte("heartbeat")), hex.EncodeToString(body)})
	if in, err := new(v4).parse(m); err != nil || in.event != evHeartbeat {
		t.Errorf("read as %+v, %v", in, err)
	}
}
