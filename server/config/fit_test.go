package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/internal/capacity"
)

func TestFit(t *testing.T) {
	const source = "/sys/fs/cgroup/a/memory.max"
	for name, c := range map[string]struct {
		file             string
		bytes            int64
		payload, message Bytes
		words            []string // in lowered, or in the error
		fails            bool
	}{
		"enough": {"", 24 << 30, 4 << 30, 256 << 20, nil, false},
		"the budget and 30 %": {"[limits]\npayload_bytes = \"200MiB\"\nmessage_bytes = \"32MiB\"", 260 << 20,
			200 << 20, 32 << 20, nil, false},
		"a MiB less": {"[limits]\npayload_bytes = \"200MiB\"\nmessage_bytes = \"32MiB\"", 259 << 20,
			199 << 20, 32 << 20, []string{"199MiB instead of 200MiB", "259MiB", source}, false},
		"nothing said": {"", 2 << 30, 1575 << 20, 256 << 20,
			[]string{"limits.payload_bytes is 1575MiB instead of 4GiB", "2GiB", source}, false},
		"messages give way as well": {"", 128 << 20, 72 << 20, 72 << 20, []string{"72MiB instead of 4GiB", "limits.message_bytes is 72MiB instead of 256MiB"}, false},
		"but not if they were given": {"[limits]\nmessage_bytes = \"256MiB\"", 128 << 20, 0, 0,
			[]string{"72MiB instead of 4GiB", "128MiB", source, "limits.payload_bytes", "72MiB is below limits.message_bytes, 256MiB"}, true},
		"nor caches":               {"[model.m]\ncache = \"1GiB\"", 1 << 30, 0, 0, []string{"instead of 4GiB", "model.m.cache"}, true},
		"nor what may be unpacked": {"[limits]\nunpack_bytes = \"1GiB\"", 1 << 30, 0, 0, []string{"instead of 4GiB", "limits.unpack_bytes"}, true},
		"not even the program":     {"", 40 << 20, 0, 0, []string{"40MiB", source, "limits.payload_bytes"}, true},
	} {
		path := filepath.Join(t.TempDir(), "x.toml")
		if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		fit, lowered, err := before.fitInto(capacity.Limit{Bytes: c.bytes, Source: source})
		text := lowered
		if err != nil {
			text = err.Error()
		}
		if (err != nil) != c.fails || (text == "") != (c.words == nil) {
			t.Errorf("%s: %q, %v", name, lowered, err)
		}
		for _, w := range c.words {
			if !strings.Contains(text, w) {
				t.Errorf("%s: expected %q in %q", name, w, text)
			}
		}
		if l := fit.Limits; err == nil && (l.PayloadBytes != c.payload || l.MessageBytes != c.message) {
			t.Errorf("%s: %v for payloads, messages of %v; expected %v and %v", name, l.PayloadBytes, l.MessageBytes,
				c.payload, c.message)
		}
	}
}

func TestDescriptorsAreDivided(t *testing.T) {
	wanted := Share{Doors: map[string]int{"tcp": 65536, "rest": 4096, "grpc": 1024}, Containers: 1024}
	got, err := divide(wanted, 2)
	if err != nil || got.Containers < 1 || got.Containers > wanted.Containers {
		t.Errorf("%+v (%v)", got, err)
	}
	for name, n := range wanted.Doors {
		if got.Doors[name] < 1 || got.Doors[name] > n {
			t.Errorf("%s: %+v (%v)", name, got, err)
		}
	}
	quiet := Default()
	quiet.TCP.Listen, quiet.REST.Listen = nil, nil
	if got, _, err := quiet.Share(); err != nil || len(got.Doors) != 1 || got.Doors["grpc"] < 1 {
		t.Errorf("doors that do not listen: %+v (%v)", got, err)
	}
	if _, err := divide(wanted, 1<<28); err == nil ||
		!strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("too many processes: expected advice, got %v", err)
	}
}
