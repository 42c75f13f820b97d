package parameter

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/manual/manualtest"
)

// page returns the page that shows users the table.
func page() string {
	var b strings.Builder
	b.WriteString(`# Request parameters

<!-- words: parameters, metadata keys, priority, request options -->

A request can contain these parameters besides its tensors. Over Shiva they are keys of the
message's metadata; over HTTP and gRPC keys of the request's ` + "`parameters`" + `. On Clipper's paths,
and in feedback (` + "`POST /NAME/update`, and the admin API's `/v1/apps/NAME/feedback`" + `), they are
members of the body. Go programs set the Parameters of ` + "`server.Request`" + `. "gRPC stream" means
ModelStreamInfer.

If the column "on" does not list your protocol, the key goes to the container, whatever its value.
Clipper's paths and feedback ignore such a key, and ModelInfer refuses those of the gRPC stream. In
JSON, null counts as absent. Where a string is expected, you may send a number. If a value has
another type or is out of range, the error names the key, what was expected and what came.

| key | on | value | default | meaning |
|---|---|---|---|---|
`)
	for _, k := range Table {
		var on []string
		for _, w := range Wires {
			if k.On&w.Wire != 0 {
				on = append(on, w.Name)
			}
		}
		where := strings.Join(on, ", ")
		switch k.On {
		case everywhere:
			where = "all"
		case predict:
			where = "all but Shiva"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.Name, where, k.Expected(), k.Default, k.Means)
	}
	return b.String()
}

// The page agrees with the table.
func TestManual(t *testing.T) {
	manualtest.Page(t, "../../manual/parameters.md", page())
}

// A key occurs once on a wire, and has everything that documents show of it.
func TestTable(t *testing.T) {
	seen := map[string]Wire{}
	for _, k := range Table {
		if k.On == 0 || seen[k.Name]&k.On != 0 {
			t.Errorf("%s: on no wire, or twice on one", k.Name)
		}
		seen[k.Name] |= k.On
		if k.Default == "" || k.Means == "" || !strings.HasSuffix(k.Means, ".") || !json.Valid([]byte(k.Schema())) {
			t.Errorf("%s: without default, meaning in sentences or schema: %+v", k.Name, k)
		}
	}
}

func TestOpenAPI(t *testing.T) {
	for _, w := range Wires {
		var properties map[string]struct{ Description string }
		if err := json.Unmarshal(OpenAPI(fmt.Appendf(nil, `{"$parameters": %q}`, w.Name)), &properties); err != nil ||
			len(properties) != len(w.Wire.Keys()) {
			t.Errorf("%s: %v %v", w.Name, properties, err)
		}
		for name, p := range properties {
			if k := w.Wire.Keys()[name]; k == nil || !strings.HasPrefix(p.Description, k.Means) {
				t.Errorf("%s: %s: %v", w.Name, name, p)
			}
		}
	}
}

func TestValues(t *testing.T) {
	for _, c := range []struct {
		wire  Wire
		key   string
		value Value
		want  Values
	}{
		{Shiva, "timeout_ms", JSON([]byte("12.5")), Values{Timeout: 12500 * time.Microsecond}},
		{Shiva, "timeout_ms", JSON([]byte("1e-9")), Values{Timeout: 1}},
		{Shiva, "timeout_ms", JSON([]byte("1e300")), Values{Timeout: MaxTimeout}},
		{HTTP, "timeout_ms", JSON([]byte("12.5")), Values{Timeout: 12500 * time.Microsecond}},
		{GRPC, "timeout_ms", Typed(int64(7)), Values{Timeout: 7 * time.Millisecond}},
		{HTTP, "timeout", JSON([]byte("18446744073709551615")), Values{Timeout: MaxTimeout}},
		{GRPC, "timeout", Typed(int64(7)), Values{Timeout: 7 * time.Microsecond}},
		{Shiva, "priority", JSON([]byte("0")), Values{Priority: 1}},
		{Shiva, "priority", JSON([]byte("9")), Values{Priority: 10}},
		{GRPC, "priority", Typed(uint64(1 << 63)), Values{Priority: 10}},
		{HTTP, "priority", JSON([]byte("0")), Values{}},
		{HTTP, "priority", JSON([]byte("null")), Values{}},
		{Shiva, "timeout_ms", JSON([]byte("null")), Values{}},
		{Shiva, "user", JSON([]byte("null")), Values{}},
		{Shiva, "user", JSON([]byte("5")), Values{User: "5"}},
		{Shiva, "stream", JSON([]byte("-7.50")), Values{Stream: "-7.50"}},
		{GRPC, "user", Typed(int64(5)), Values{User: "5"}},
		{GRPC, "salt", Typed(2.5), Values{Salt: "2.5"}},
		{Shiva, "keep", JSON([]byte("3")), Values{Keep: 3}},
		{Shiva, "keep", JSON([]byte(`"latest"`)), Values{Keep: 1}},
		{Shiva, "candidate_models", JSON([]byte("7")), Values{Candidates: []string{"7"}}},
		{Shiva, "user", JSON([]byte(`"a\"\u0062"`)), Values{User: `a"b`}},
		{GRPC, "cache", Typed(false), Values{Fresh: true}},
		{HTTP, "binary_data_output", JSON([]byte("true")), Values{Form: Bytes}},
		{GRPC, "binary_data_output", Typed(false), Values{Form: Elements}},
		{Stream, "in_order", Typed(true), Values{InOrder: true}},
		{Shiva, "captured_at", JSON([]byte("1795346700123")), Values{CapturedAt: time.UnixMilli(1795346700123)}},
		{Shiva, "captured_at", JSON([]byte("1795346700123.5")), Values{CapturedAt: time.UnixMicro(1795346700123500)}},
		{GRPC, "captured_at", Typed(1795346700123.5), Values{CapturedAt: time.UnixMicro(1795346700123500)}},
		{GRPC, "captured_at", Typed(int64(1795346700123)), Values{CapturedAt: time.UnixMilli(1795346700123)}},
		{Shiva, "captured_at", JSON([]byte("86400000")), Values{Undated: true}},
		{Shiva, "captured_at", JSON([]byte("1795346700")), Values{Undated: true}},
		{HTTP, "captured_at", JSON([]byte("-1")), Values{Undated: true}},
		{GRPC, "captured_at", Typed(int64(0)), Values{Undated: true}},
		{Library, "captured_at", Typed(uint64(math.MaxUint64)), Values{Undated: true}},
		{Shiva, "captured_at", JSON([]byte("NaN")), Values{Undated: true}},
		{Library, "candidate_models", Typed([]string{"a", "b/1"}), Values{Candidates: []string{"a", "b/1"}}},
		{Clipper, "candidate_models", JSON([]byte(`["a","b/1"]`)), Values{Candidates: []string{"a", "b/1"}}},
		{GRPC, "candidate_models", Typed(" a, b/1"), Values{Candidates: []string{"a", "b/1"}}},
	} {
		var got Values
		if err := c.wire.Keys()[c.key].Read(&got, c.value); err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s = %v: got %+v, %v, expected %+v", c.key, c.value, got, err, c.want)
		}
	}
	if v := (Values{}); v.Level() != DefaultPriority-1 {
		t.Errorf("without a priority the level is %d", v.Level())
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		wire  Wire
		key   string
		value Value
		want  string
	}{
		{Shiva, "priority", JSON([]byte("10")), `scheduler: invalid input: metadata key "priority": expected a whole number from 0 to 9, got 10`},
		{Shiva, "timeout_ms", JSON([]byte("0")), `scheduler: invalid input: metadata key "timeout_ms": expected a number of milliseconds above 0, got 0`},
		{Shiva, "user", JSON([]byte("true")), `scheduler: invalid input: metadata key "user": expected a string, got true`},
		{HTTP, "timeout", JSON([]byte("1.5")), `scheduler: invalid input: parameter "timeout": expected a whole number of microseconds from 0 to 18446744073709551615, got 1.5`},
		{GRPC, "timing", Typed(int64(1)), `scheduler: invalid input: parameter "timing": expected true or false, got int64 1`},
		{GRPC, "salt", Typed(nil), `scheduler: invalid input: parameter "salt": expected a string, got no value`},
		{HTTP, "salt", JSON([]byte(`["` + strings.Repeat("ä", 50) + `"]`)),
			`scheduler: invalid input: parameter "salt": expected a string, got ["` + strings.Repeat("ä", 29) + `…`},
	} {
		var v Values
		err := c.wire.Keys()[c.key].Read(&v, c.value)
		fault, typed := errors.AsType[*Error](err)
		if !typed || fault.Key != c.key || !errors.Is(err, scheduler.ErrInvalidInput) || err.Error() != c.want {
			t.Errorf("got %v, expected %s", err, c.want)
		}
	}
}

// The raw TCP door reads metadata for every request.
func TestReadAllocatesNothing(t *testing.T) {
	rows, name, text := Shiva.Keys(), []byte("timeout_ms"), []byte("12.5")
	v := new(Values)
	if n := testing.AllocsPerRun(100, func() {
		for range 3 {
			if rows[string(name)].Read(v, JSON(text)) != nil {
				t.Fatal("refused")
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Of two deadlines the shorter counts, in whatever order they come; a timeout of 0 is none.
func TestTwoDeadlines(t *testing.T) {
	for object, want := range map[string]time.Duration{
		`{"timeout_ms":5,"timeout":7000}`: 5 * time.Millisecond,
		`{"timeout":7000,"timeout_ms":5}`: 5 * time.Millisecond,
		`{"timeout_ms":5,"timeout":3000}`: 3 * time.Millisecond,
		`{"timeout_ms":5,"timeout":0}`:    5 * time.Millisecond,
	} {
		var v Values
		if err := HTTP.Members(&v, []byte(object), nil); err != nil || v.Timeout != want {
			t.Errorf("%s: %v, %v, expected %v", object, v.Timeout, err, want)
		}
	}
}
