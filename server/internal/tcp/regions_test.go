package tcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// sharing returns a rig whose clients may register files, and a file of 4 KiB, registered as "r".
func sharing(t *testing.T) (r *rig, file string) {
	t.Helper()
	r = newRig(t, func(c *Config) {
		c.Limits = shiva.Limits{MessageBytes: 1 << 20, MetadataBytes: 128 << 10, Tensors: 16, Rank: 8, JSONDepth: 32}
	})
	dir := t.TempDir()
	r.Regions.Configure(regions.Settings{Directory: dir, RegionBytes: 4 << 20, Regions: 8})
	content := make([]byte, 4<<10)
	for i := range content {
		content[i] = byte(i % 60) // so that floats are finite numbers
	}
	file = filepath.Join(dir, "file")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Regions.Register(regions.Client{}, regions.Region{Name: "r", Key: "/file", Size: 4 << 10}); err != nil {
		t.Fatal(err)
	}
	return r, file
}

func input(offset int) string {
	return fmt.Sprintf(`{"name":"x","datatype":"FP32","shape":[1,4],"region":"r","offset":%d,"byte_size":16}`, offset)
}

func output(offset, size int) string {
	return fmt.Sprintf(`{"name":"x","region":"r","offset":%d,"byte_size":%d}`, offset, size)
}

// Regions are registered, listed and unregistered by the Predict Protocol's paths.
func TestRegionPaths(t *testing.T) {
	r, _ := sharing(t)
	w := r.dial()
	for _, c := range []struct{ route, metadata, want string }{
		{"status", "{}", `{"regions":[{"name":"r","key":"/file","offset":0,"byte_size":4096}]}`},
		{"region/s/register", `{"id":7,"key":"file","offset":16,"byte_size":32}`, `{"id":7,"name":"s","key":"file","offset":16,"byte_size":32}`},
		{"region/s/register", `{"key":"file","byte_size":32}`, "shared memory region 's' already in manager"},
		{"region/t/register", `{"key":"file","byte_size":-1}`, `metadata key "byte_size": expected a whole number of bytes, 0 or more, got -1`},
		{"region/t/register", `{"key":7}`, `metadata key "key"`},
		{"region/t/register", `{"key":"none","byte_size":1}`, "Unable to open shared memory region: 'none'"},
		{"region/t/status", "", "Unable to find system shared memory region: 't'"},
		{"region/s/status", "", `{"regions":[{"name":"s","key":"file","offset":16,"byte_size":32}]}`},
		{"region/s/unregister", `{"id":"a"}`, `{"id":"a","unregistered":"s"}`},
		{"unregister", "", `{"unregistered":""}`},
		{"status", "", `{"regions":[]}`},
		{"register", "", `"NotFound"`},
		{"region/r/x/status", "", `"NotFound"`},
	} {
		w.send(&shiva.Message{Namespace: "v2/systemsharedmemory/" + c.route, Metadata: []byte(c.metadata)})
		a := w.next()
		if got := string(a.Metadata); got != c.want &&
			!(a.Namespace == "!error" &&
				(strings.Contains(got, c.want) || strings.Contains(got, strings.ReplaceAll(c.want, `"`, `\"`)))) {
			t.Errorf("%s %s: %s, expected %s", c.route, c.metadata, got, c.want)
		}
		a.Release()
	}
	w.send(&shiva.Message{Namespace: "v2"})
	if a := w.next(); !strings.Contains(string(a.Metadata), `"system_shared_memory"`) {
		t.Errorf("it is not announced: %s", a.Metadata)
	}
	s := r.Regions.Settings()
	s.Directory = ""
	r.Regions.Configure(s)
	w.send(&shiva.Message{Namespace: "v2/systemsharedmemory/status"})
	if f := w.fault("NotFound"); !strings.Contains(f.Message, "shared_memory.directory") {
		t.Error(f)
	}
}

// Inputs come from regions and outputs go there; answers keep the order of their requests, even if
// only some of them wait for copies.
func TestSharedTensors(t *testing.T) {
	r, file := sharing(t)
	r.model("m", floats("x"), r.Echo)
	two := []tensor.Spec{{Name: "a", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}},
		{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}}
	r.model("two", scheduler.Spec{Inputs: two, Outputs: two}, r.Echo)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := r.dial()
	const rounds = 50
	for i := range rounds {
		w.send(
			&shiva.Message{Namespace: "m",
				Metadata: fmt.Appendf(nil, `{"id":%d,"shared_memory":{"inputs":[%s]}}`, 3*i, input(4*i))})
		w.send(&shiva.Message{Namespace: "m", Metadata: fmt.Appendf(nil, `{"id":%d}`, 3*i+1),
			Tensors: []tensor.Tensor{{DType: tensor.Float32, Shape: tensor.Shape{4}, Data: content[:16]}}})
		w.send(
			&shiva.Message{Namespace: "m",
				Metadata: fmt.Appendf(nil, `{"id":%d,"shared_memory":{"inputs":[%s],"outputs":[%s]}}`, 3*i+2,
					input(4*i), output(2048+16*i, 1024))})
	}
	for i := range 3 * rounds {
		a := w.next()
		var m struct {
			ID      int
			Tensors []string                       `json:"__tensors__"`
			Shared  *struct{ Outputs []placement } `json:"shared_memory"`
		}
		if err := json.Unmarshal(a.Metadata, &m); err != nil || m.ID != i || a.Namespace != "m" {
			t.Fatalf("answer %d: %v: %s", i, err, a.Metadata)
		}
		from := 4 * (i / 3)
		switch i % 3 {
		case 2:
			want := placement{Name: "x", Datatype: "FP32", Shape: []int{1, 4},
				Place: parameter.Place{Region: "r", Offset: int64(2048 + 4*from), Size: 16}}
			if m.Shared == nil || fmt.Sprint(m.Shared.Outputs) != fmt.Sprint([]placement{want}) ||
				len(a.Tensors)+len(m.Tensors) != 0 {
				t.Errorf("answer %d: %s with %d tensors", i, a.Metadata, len(a.Tensors))
			}
			now, err := os.ReadFile(file)
			if err != nil || string(now[want.Offset:][:16]) != string(content[from:][:16]) {
				t.Errorf("answer %d: wrong bytes in the file (%v)", i, err)
			}
		case 1:
			from = 0
			fallthrough
		default:
			if m.Shared != nil || len(a.Tensors) != 1 || string(a.Tensors[0].Data) != string(content[from:][:16]) {
				t.Errorf("answer %d: %s, wrong tensor", i, a.Metadata)
			}
		}
		a.Release()
	}
	// Some tensors are in the message, with names, and others in the region.
	w.send(
		&shiva.Message{Namespace: "two",
			Metadata: []byte(`{"__tensors__":["a"],"shared_memory":{"inputs":[` + input(64) + `],"outputs":[` +
				output(2048, 16) + `]}}`),
			Tensors: []tensor.Tensor{{DType: tensor.Float32, Shape: tensor.Shape{1, 4}, Data: content[:16]}}})
	a := w.next()
	if len(a.Tensors) != 1 || string(a.Tensors[0].Data) != string(content[:16]) ||
		!strings.Contains(string(a.Metadata), `"__tensors__":["a"]`) {
		t.Errorf("%s with %d tensors", a.Metadata, len(a.Tensors))
	}
	a.Release()
}

// Large outputs without a place go to the area, and outputs without room there stay in the message.
func TestArea(t *testing.T) {
	r, _ := sharing(t)
	specs := make([]tensor.Spec, 6)
	for i := range specs {
		specs[i] = tensor.Spec{Name: string(rune('a' + i)), DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}
	}
	specs[2].DType, specs[2].Shape = tensor.Bytes, tensor.Shape{-1}
	r.model("many", scheduler.Spec{Inputs: specs, Outputs: specs}, r.Echo)
	dir := r.Regions.Settings().Directory
	const size = 70_001 // not a multiple of the alignment of outputs
	if err := os.WriteFile(filepath.Join(dir, "out"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Regions.Register(regions.Client{}, regions.Region{Name: "out", Key: "out", Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	var tensors []tensor.Tensor
	for i, n := range []int{size, 100, 0, size, size, size} {
		if n > 0 {
			tensors = append(tensors,
				tensor.Tensor{DType: tensor.Uint8, Shape: tensor.Shape{n},
					Data: bytes.Repeat([]byte{byte('a' + i)}, n)})
		}
	}
	w := r.dial()
	send := func(shared string) *shiva.Message {
		t.Helper()
		w.send(&shiva.Message{Namespace: "many",
			Metadata: []byte(`{"__tensors__":["a","b","d","e","f"],"__texts__":{"c":"` +
				strings.Repeat("text", 20_000) + `"},"shared_memory":` + shared + `}`), Tensors: tensors})
		return w.next()
	}
	a := send(`{"outputs":[{"name":"d","region":"out","offset":0,"byte_size":100000}],"area":{"region":"out","offset":200000,"byte_size":150000}}`)
	var m struct {
		Tensors []string                       `json:"__tensors__"`
		Texts   map[string]string              `json:"__texts__"`
		Shared  *struct{ Outputs []placement } `json:"shared_memory"`
	}
	if err := json.Unmarshal(a.Metadata, &m); err != nil || m.Shared == nil {
		t.Fatal(err, string(a.Metadata))
	}
	want := []placement{
		{Name: "d", Datatype: "UINT8", Shape: []int{size}, Place: parameter.Place{Region: "out", Offset: 0, Size: size},
			Index: 2},
		{Name: "a", Datatype: "UINT8", Shape: []int{size},
			Place: parameter.Place{Region: "out", Offset: 200_000, Size: size}, Index: 0},
		{Name: "e", Datatype: "UINT8", Shape: []int{size},
			Place: parameter.Place{Region: "out", Offset: 200_000 + 70_016, Size: size}, Index: 3},
	}
	if fmt.Sprint(m.Shared.Outputs) != fmt.Sprint(want) || fmt.Sprint(m.Tensors) != "[b f]" || len(a.Tensors) != 2 ||
		len(m.Texts["c"]) != 80_000 {
		t.Errorf("%v, expected %v; %v with %d tensors", m.Shared.Outputs, want, m.Tensors, len(a.Tensors))
	}
	a.Release()
	file, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range want {
		if !bytes.Equal(file[p.Offset:][:size], bytes.Repeat([]byte(p.Name), size)) {
			t.Errorf("wrong bytes at %d", p.Offset)
		}
	}
	if a = send(`{"area":{"region":"out","byte_size":60000}}`); len(a.Tensors) != 5 ||
		strings.Contains(string(a.Metadata), "shared_memory") {
		t.Errorf("without room: %.200s with %d tensors", a.Metadata, len(a.Tensors))
	}
	a.Release()
	for shared, want := range map[string]string{
		`{"area":{"byte_size":1}}`:                                 "area: expected a region",
		`{"area":{"region":"out","offset":-1,"byte_size":1}}`:      "area: expected a region",
		`{"area":{"region":"none","byte_size":1}}`:                 "Unable to find shared memory region: 'none'",
		`{"area":{"region":"out","offset":1,"byte_size":1048576}}`: "Invalid offset + byte size for shared memory region: 'out'",
	} {
		if a = send(shared); a.Namespace != "!error" || !strings.Contains(string(a.Metadata), want) {
			t.Errorf("%s: %.200s, expected %s", shared, a.Metadata, want)
		}
		a.Release()
	}
	if err := os.Truncate(filepath.Join(dir, "out"), 0); err != nil {
		t.Fatal(err)
	}
	if a = send(`{"area":{"region":"out","byte_size":1048576}}`); len(a.Tensors) != 5 {
		t.Errorf("into a file that is gone: %.200s", a.Metadata)
	}
	a.Release()
}

// A region that was registered for a connection ends with it, and no other region does.
func TestRegionOfConnection(t *testing.T) {
	r, _ := sharing(t)
	names := func() string {
		list, err := r.Regions.Status(regions.Client{}, "")
		return fmt.Sprint(list, err)
	}
	before := names()
	w, other := r.dial(), r.dial()
	register := func(w *wire, name, connection string) *shiva.Message {
		w.send(&shiva.Message{Namespace: "v2/systemsharedmemory/region/" + name + "/register",
			Metadata: []byte(`{"key":"/file","byte_size":8,"connection":` + connection + `}`)})
		return w.next()
	}
	for _, name := range []string{"a", "b"} {
		register(w, name, "true").Release()
	}
	register(other, "c", "true").Release()
	register(w, "d", "false").Release()
	if a := register(w, "e", "7"); a.Namespace != "!error" || !strings.Contains(string(a.Metadata), "expected true or false") {
		t.Errorf("%s", a.Metadata)
	}
	w.send(&shiva.Message{Namespace: "v2/systemsharedmemory/region/a/unregister"})
	w.next().Release()
	register(other, "a", "false").Release() // another region has the name now
	w.Close()
	budgettest.Until(t, "b to go", func() bool { return !strings.Contains(names(), "{b ") })
	for _, name := range []string{"r", "a", "c", "d"} {
		if !strings.Contains(names(), "{"+name+" ") {
			t.Errorf("%s has gone, too: %s", name, names())
		}
	}
	other.Close()
	budgettest.Until(t, "c to go", func() bool { return !strings.Contains(names(), "{c ") })
	for _, name := range []string{"a", "d"} {
		if err := r.Regions.Unregister(regions.Client{}, name); err != nil {
			t.Error(err)
		}
	}
	if names() != before {
		t.Errorf("%s, and before %s", names(), before)
	}
}

// An invalid request is answered in its place, and those behind it continue.
func TestWrongPlaces(t *testing.T) {
	r, file := sharing(t)
	r.model("m", floats("x"), r.Echo)
	if err := os.WriteFile(file+".large", make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Regions.Register(regions.Client{},
		regions.Region{Name: "large", Key: "file.large", Size: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	w := r.dial()
	in := func(text string) string { return `{"inputs":[` + text + `]}` }
	out := func(text string) string { return `{"inputs":[` + input(0) + `],"outputs":[` + text + `]}` }
	cases := []struct {
		shared, kind, want string
		unshared           bool // the request may succeed with its tensors in the message
	}{
		{`7`, "InvalidInput", `an object with \"inputs\"`, false},
		{`{"inputs":{}}`, "InvalidInput", `an object with \"inputs\"`, false},
		{in(`{"name":"x"}`), "InvalidInput", "inputs[0]: expected a name, a region", false},
		{in(strings.Replace(input(0), "FP32", "FP31", 1)), "InvalidInput", `\"FP31\" is not a datatype`, false},
		{in(strings.Replace(input(0), "[1,4]", "[-1,4]", 1)), "InvalidInput", "shape [-1 4]", false},
		{in(strings.Replace(input(0), "[1,4]", "[1,5]", 1)), "InvalidInput", "input byte size mismatch for input 'x'", false},
		{in(strings.Replace(input(0), `"r"`, `"none"`, 1)), "NotFound", "Unable to find shared memory region: 'none'", true},
		{in(input(4096 - 15)), "InvalidInput", "Invalid offset + byte size for shared memory region: 'r'", true},
		{in(strings.NewReplacer(`"r"`, `"large"`, "16", "2097152", "[1,4]", "[131072,4]").Replace(input(0))),
			"TooLarge", "limits.message_bytes", false},
		{in(strings.Replace(input(0), `"x"`, `"y"`, 1)), "InvalidInput", `input \"x\" is missing`, false},
		{out(output(0, 15)), "InvalidInput", "should be at least 16 bytes to hold the results", false},
		{out(strings.Replace(output(0, 16), `"x"`, `"y"`, 1)), "InvalidInput", `no output \"y\"`, false},
		{out(strings.Replace(output(0, 16), `"r"`, `"none"`, 1)), "NotFound", "Unable to find shared memory region: 'none'", true},
		{in(strings.Repeat(input(0)+",", 16) + input(0)), "TooLarge", "limits.tensors", false},
	}
	for i, c := range cases {
		w.send(&shiva.Message{Namespace: "m", Metadata: fmt.Appendf(nil, `{"id":%d,"shared_memory":%s}`, i, c.shared)})
		w.send(
			&shiva.Message{Namespace: "m", Metadata: fmt.Appendf(nil, `{"shared_memory":{"inputs":[%s]}}`, input(0))})
	}
	w.send(&shiva.Message{Namespace: "m", Metadata: []byte(`{"x":"__tensor__0","shared_memory":{}}`)})
	for i, c := range cases {
		if a := w.next(); a.Namespace != "!error" || !strings.Contains(string(a.Metadata), `"`+c.kind+`"`) ||
			!strings.Contains(string(a.Metadata), c.want) || !strings.Contains(string(a.Metadata), fmt.Sprintf(`"id":%d`, i)) {
			t.Errorf("%s: %s, expected %s %s", c.shared, a.Metadata, c.kind, c.want)
		} else if e := shiva.ParseError(a); e.Unshared != c.unshared {
			t.Errorf("%s: %s, expected unshared %v", c.shared, a.Metadata, c.unshared)
		}
		if a := w.next(); a.Namespace != "m" {
			t.Errorf("behind %s: %s", c.shared, a.Metadata)
		} else {
			a.Release()
		}
	}
	w.fault("InvalidInput")
	if err := os.Truncate(file, 8); err != nil {
		t.Fatal(err)
	}
	w.send(&shiva.Message{Namespace: "m", Metadata: []byte(`{"shared_memory":{"inputs":[` + input(0) + `]}}`)})
	if e := shiva.ParseError(w.next()); !strings.Contains(e.Message, "the file ends at 8") || !e.Unshared {
		t.Errorf("%+v", e)
	}
	off := r.Regions.Settings()
	off.Directory = ""
	r.Regions.Configure(off)
	w.send(&shiva.Message{Namespace: "m", Metadata: []byte(`{"shared_memory":{"inputs":[` + input(0) + `]}}`)})
	if e := shiva.ParseError(w.next()); !strings.Contains(e.Message, "shared_memory.directory") || !e.Unshared {
		t.Errorf("%+v", e)
	}
}

// A client that disconnects while its tensors are copied leaves nothing behind.
func TestGoneWhileCopied(t *testing.T) {
	r, file := sharing(t)
	row := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
	r.model("bytes", scheduler.Spec{Inputs: row, Outputs: row}, r.Echo)
	if err := os.Truncate(file, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := r.Regions.Register(regions.Client{},
		regions.Region{Name: "large", Key: "file", Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	for i := range max(8, budgettest.Rounds(40)) {
		w := r.dial()
		for range 8 {
			w.send(&shiva.Message{Namespace: "bytes", Metadata: []byte(`{"shared_memory":{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,1048576],"region":"large","byte_size":1048576}],` +
				`"outputs":[{"name":"x","region":"large","byte_size":1048576}]}}`)})
		}
		if i%2 == 0 {
			w.next().Release()
		}
		w.Close()
	}
	budgettest.Until(t, "the memory to come back", func() bool { return r.open() == 0 && r.Pool.InUse() < 1<<20 })
}
