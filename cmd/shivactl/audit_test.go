package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/shivad/shivad/server/admin"
)

// Each kind of entry is a line.
func TestPrintAudit(t *testing.T) {
	var a admin.Audit
	if err := json.Unmarshal([]byte(`{"entries": [
		{"at": "2026-11-01T09:00:00Z", "identity": "ann", "address": "10.0.0.7:4", "door": "admin", "action": "change", "what": "model", "name": "digits", "before": "{}", "after": "{\"delay\":\"1ms\"}"},
		{"at": "2026-11-01T09:00:01Z", "address": "uid=1000,pid=7", "door": "rest", "action": "unload", "what": "model", "name": "digits", "refused": true, "error": "unauthenticated: no"},
		{"at": "2026-11-01T09:00:02Z", "door": "server", "action": "retire", "what": "model", "name": "digits/1"},
		{"at": "2026-11-01T09:00:03Z", "identity": "bob", "address": "10.0.0.8:5", "door": "grpc", "action": "load", "what": "model", "name": "\\x1b[2J", "error": "it ended"}]}`), &a); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := &cli{stdout: &out, columns: 120}
	if err := c.printAudit(a); err != nil {
		t.Fatal(err)
	}
	const want = `AT                   WHO                ENDPOINT  ACTION  WHAT   NAME      RESULT
2026-11-01 09:00:00  ann at 10.0.0.7:4  admin     change  model  digits    {} → {"delay":"1ms"}
2026-11-01 09:00:01  uid=1000,pid=7     rest      unload  model  digits    refused: unauthenticated: no
2026-11-01 09:00:02  -                  server    retire  model  digits/1  done
2026-11-01 09:00:03  bob at 10.0.0.8:5  grpc      load    model  \x1b[2J   failed: it ended
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
