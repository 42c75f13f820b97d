package setting

import (
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

func TestParseBytes(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Bytes
		err  string
	}{
		{"0", 0, ""}, {"12", 12, ""}, {"12B", 12, ""}, {"64kB", 64000, ""}, {"64KiB", 65536, ""}, {"256MiB", 256 << 20, ""},
		{"1.5GiB", 3 << 29, ""}, {"1 TB", 1e12, ""}, {"0.5KiB", 512, ""}, {"8191TiB", 8191 << 40, ""},
		{"9223372036854775807", 1<<63 - 1, ""},
		{"", 0, "is not a size"}, {"MiB", 0, "is not a size"}, {"-1", 0, "is not a size"}, {"1e9", 0, "is not a size"},
		{"1.2.3MB", 0, "is not a size"},
		{"1/2MB", 0, "is not a size"}, {"0x10", 0, "is not a size"}, {"1MiB ", 0, "is not a size"}, {".", 0, "is not a size"},
		{"1.0000001kB", 0, "not a whole number of bytes"}, {"10000000TiB", 0, "largest size"},
		{"9223372036854775808", 0, "largest size"},
		{"5K", 0, `unit "K"`}, {"5M", 0, `unit "M"`}, {"5iB", 0, `unit "iB"`}, {strings.Repeat("9", 1000), 0, "is not a size"},
	} {
		got, err := ParseBytes(c.in)
		switch {
		case c.err == "" && (err != nil || got != c.want):
			t.Errorf("%q: %d, %v; want %d", c.in, got, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q: error %v, want one with %q", c.in, err, c.err)
		}
	}
}

func TestBytesString(t *testing.T) {
	for want, b := range map[string]Bytes{"0B": 0, "1B": 1, "1000B": 1000, "1KiB": 1024, "1536KiB": 1536 << 10,
		"256MiB": 256 << 20, "4GiB": 4 << 30, "2TiB": 2 << 40} {
		if got := b.String(); got != want {
			t.Errorf("%d is %q, want %q", int64(b), got, want)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"1", "1.5GiB", "64kB", "TiB", "1e999999999", "-5", "9223372036854775807"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		budgettest.Input(t)
		b, err := ParseBytes(s)
		if err != nil {
			return
		}
		if again, err := ParseBytes(b.String()); b < 0 || err != nil || again != b {
			t.Errorf("%q is %d, which is written %q and read as %d, %v", s, b, b, again, err)
		}
	})
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"0s", "30s", "1m30s", "2h", "250ms", "-1ns", "1h0m5s", "10m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		budgettest.Input(t)
		d, err := ParseDuration(s)
		if err != nil {
			return
		}
		if again, err := ParseDuration(FormatDuration(d)); err != nil || again != d {
			t.Errorf("%q is %d, which is written %q and read as %d, %v", s, d, FormatDuration(d), again, err)
		}
	})
}

func TestFormatDuration(t *testing.T) {
	for want, d := range map[string]time.Duration{"0s": 0, "30s": 30 * time.Second, "10m": 10 * time.Minute,
		"2h": 2 * time.Hour, "1h30m": 90 * time.Minute, "1m30s": 90 * time.Second, "10s": 10 * time.Second, "100ms": 1e8} {
		if got := FormatDuration(d); got != want {
			t.Errorf("%d is %q, want %q", d, got, want)
		}
	}
}
