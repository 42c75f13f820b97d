package setting

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size in bytes.
type Bytes int64

// units, in the order in which String tries them: binary ones first, so that 1 GiB is not
// 1073741824B.
var units = []struct {
	name string
	size int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}, {"", 1},
}

// String formats the size with the largest binary unit that divides it: 256MiB, 1536KiB, 100B.
func (b Bytes) String() string {
	for _, u := range units[:4] {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// ParseBytes parses a size: a decimal number, then a unit: B, kB, MB, GB, TB (powers of 1000),
// KiB, MiB, GiB, TiB (powers of 1024), or none for bytes. A fraction is allowed if the result is
// a whole number of bytes.
func ParseBytes(s string) (Bytes, error) {
	number := strings.TrimRight(s, "kKMGTiB")
	unit := s[len(number):]
	number = strings.TrimSpace(number)
	// Only digits and one point: big.Rat would also accept 1e999999999 and compute it.
	if strings.Trim(number, "0123456789.") != "" || strings.Count(number, ".") > 1 || len(number) > 40 {
		number = ""
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf(`%q is not a size: expected a number and a unit, such as "256MiB", "64kB" or "1.5GiB"`, s)
	}
	for _, u := range units {
		if u.name != unit {
			continue
		}
		value.Mul(value, new(big.Rat).SetInt64(u.size))
		if !value.IsInt() {
			return 0, fmt.Errorf("%q is not a whole number of bytes", s)
		}
		if !value.Num().IsInt64() {
			return 0, fmt.Errorf("%q is above the largest size, 8191TiB", s)
		}
		return Bytes(value.Num().Int64()), nil
	}
	return 0, fmt.Errorf("%q has the unit %q: expected B, kB, MB, GB, TB, KiB, MiB, GiB or TiB", s, unit)
}

// ParseDuration is [time.ParseDuration] with an error that shows the expected form.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf(`%q is not a duration: expected a number and a unit, such as "30s", "250ms" or "1m30s"`, s)
	}
	return d, nil
}

// FormatDuration formats 2h as 2h, where [time.Duration] has 2h0m0s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// text formats a number as in the configuration file.
func text(v any) string {
	if d, ok := v.(time.Duration); ok {
		return FormatDuration(d)
	}
	return fmt.Sprint(v)
}
