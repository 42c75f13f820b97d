package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/selection"
)

// TestImportIsWholeOrNothing: invalid single changes and changes that are invalid together are
// found before anything is changed, and a dry run finds the same.
func TestImportIsWholeOrNothing(t *testing.T) {
	t.Parallel() // it waits
	o := operator{t, start(t, func(c *config.Config) { c.Admin.ImportBytes = 64 << 10 })}
	state, err := json.Marshal(selection.State{Policy: "exp4",
		Models: []selection.Arm{{Model: selection.Model{Name: "echo", Version: "1"}}}})
	if err != nil {
		t.Fatal(err)
	}
	before := o.expect("GET", "/v1/export", "", 200)
	good := `{"name":"first","models":["echo"],"policy":"exp4"}`
	for what, c := range map[string]struct {
		rest   string
		status int
		want   string
	}{
		"a user whose name no store takes": {
			fmt.Sprintf(`"policies":[{"application":"first","user":"u","state":%s},{"application":"first","user":"%s","state":%s}]`,
				state, strings.Repeat("n", 1100), state),
			413, "limit is 1024"},
		"caches that fit alone":    {`"settings":{"a":{"cache":"3GiB"},"b":{"cache":"3GiB"}}`, 400, "limits.payload_bytes"},
		"a setting that is none":   {`"settings":{"a":{"objective":"20ms"},"b":{"batched":"false"}}`, 400, "batched"},
		"settings that contradict": {`"settings":{"a":{"delay":"200ms"}}`, 400, "objective"},
		"what nobody learned": {`"policies":[{"application":"second","user":"u","state":` + string(state) + `}]`,
			400, "no such application"},
	} {
		for _, query := range []string{"?dry_run=true", ""} {
			got := o.expect("POST", "/v1/import"+query, `{"format":1,"applications":[`+good+`],`+c.rest+`}`, c.status)
			if !strings.Contains(got, c.want) {
				t.Errorf("%s: %s lacks %q", what, got, c.want)
			}
			if after := o.expect("GET", "/v1/export", "", 200); after != before {
				t.Fatalf("%s: import%s has changed something:\n%s", what, query, after)
			}
		}
	}
	o.expect("POST", "/v1/import", `{"format":1,"applications":[`+strings.Repeat(" ", 64<<10)+`]}`, 413,
		"admin.import_bytes", "65536")

	// Also if the client sends everything before it reads.
	c, err := net.Dial("tcp", o.s.Addrs().Admin.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const size = 32 << 20 // more than sockets hold
	if _, err := fmt.Fprintf(c, "POST /v1/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		size, make([]byte, size)); err != nil {
		t.Fatalf("while the document is sent: %v", err)
	}
	answer := make([]byte, 12)
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "HTTP/1.1 413" {
		t.Errorf("it reads %q, %v", answer, err)
	}

	// The new application does not inherit what one of the same name had learned.
	if _, err := o.s.store.State().Update(t.Context(), "policy/first/uleft", "", func([]byte) ([]byte, error) {
		return state, nil
	}); err != nil {
		t.Fatal(err)
	}
	o.expect("POST", "/v1/import", `{"format":1,"applications":[`+good+
		`],"policies":[{"application":"first","user":"u","state":`+string(state)+`}]}`, 200)
	if got := o.expect("GET", "/v1/export", "", 200); strings.Contains(got, `"left"`) || !strings.Contains(got, `"user":"u"`) {
		t.Errorf("after the import there is %s", got)
	}
}

// BenchmarkImport: n applications, n states and n settings. The time for each of them should
// not grow with n.
func BenchmarkImport(b *testing.B) {
	for _, n := range []int{500, 2000, 8000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			documents := start(b, nil).sources().Documents
			state, err := json.Marshal(selection.State{Policy: "exp4",
				Models: []selection.Arm{{Model: selection.Model{Name: "echo", Version: "1"}}}})
			if err != nil {
				b.Fatal(err)
			}
			d := admin.Document{Format: admin.DocumentFormat, Settings: map[string]map[string]string{}}
			for i := range n {
				name := fmt.Sprint("app", i)
				d.Applications = append(d.Applications, admin.App{Name: name, Models: []string{"echo"}, Policy: "exp4"})
				d.Policies = append(d.Policies, admin.PolicyState{Application: name, User: "u", State: state})
				d.Settings[fmt.Sprint("model", i)] = map[string]string{"objective": "20ms"}
			}
			for b.Loop() {
				if faults, err := documents.Check(d); err != nil || len(faults) > 0 {
					b.Fatal(faults, err)
				}
				if _, err := documents.Import(b.Context(), d, false); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/item")
		})
	}
}
