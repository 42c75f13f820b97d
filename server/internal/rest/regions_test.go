package rest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva/tensor"
)

// shared lets clients register files of a directory, and creates one there with that content.
func (r *rig) shared(content []byte) (name, path string) {
	r.T.Helper()
	s := r.Regions.Settings()
	if s.Directory == "" {
		s = regions.Settings{Directory: r.T.TempDir(), RegionBytes: 64 << 20, Regions: 4}
		r.Regions.Configure(s)
	}
	f, err := os.CreateTemp(s.Directory, "region")
	if err != nil {
		r.T.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		r.T.Fatal(err)
	}
	return filepath.Base(f.Name()), f.Name()
}

// register registers a file as a region of that name.
func (r *rig) register(name, file string, size int) {
	r.T.Helper()
	if a := r.ask("POST", "/v2/systemsharedmemory/region/"+name+"/register",
		fmt.Sprintf(`{"key":"/%s","offset":0,"byte_size":%d}`, file, size)); a.status != 200 {
		r.T.Fatal(a)
	}
}

func floats(values ...float32) (b []byte) {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// A region is registered, listed and unregistered in Triton's words.
func TestRegions(t *testing.T) {
	r := newRig(t, nil)
	const base = "/v2/systemsharedmemory"
	for _, path := range []string{"GET " + base + "/status", "POST " + base + "/region/a/register",
		"POST " + base + "/unregister", "POST " + base + "/region/a/unregister"} {
		method, path, _ := strings.Cut(path, " ")
		if a := r.ask(method, path, ""); a.status != 404 || !strings.Contains(string(a.body), "shared_memory.directory") {
			t.Errorf("%s where it is not offered: %v", path, a)
		}
	}
	if a := r.ask("GET", "/v2", ""); strings.Contains(string(a.body), "shared_memory") {
		t.Error(a)
	}
	file, path := r.shared(make([]byte, 64))
	if err := os.Symlink(path, path+".link"); err != nil {
		t.Fatal(err)
	}
	if a := r.ask("GET", "/v2", ""); !strings.Contains(string(a.body), `"system_shared_memory"`) {
		t.Error(a)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", base + "/status", "", 200, "[]"},
		{"POST", base + "/region/a/register", `{"key":"/` + file + `","offset":16,"byte_size":48}`, 200, "{}"},
		{"POST", base + "/region/a/register", `{"key":"/` + file + `","offset":0,"byte_size":8}`, 400, "shared memory region 'a' already in manager"},
		{"POST", base + "/region/b/register", `{"key":"` + file + `","byte_size":8}`, 200, "{}"},
		{"POST", base + "/region/c/register", `{"key":"/` + file + `","offset":16,"byte_size":49}`, 400, "failed to register shared memory region 'c': invalid args"},
		{"POST", base + "/region/c/register", `{"key":"/` + file + `","offset":9223372036854775807,"byte_size":9223372036854775807}`,
			413, "shared_memory.region_bytes"},
		{"POST", base + "/region/c/register", `{"key":"/` + file + `","offset":9223372036854775807,"byte_size":1}`, 400,
			"invalid args"},
		{"POST", base + "/region/c/register", `{"key":"/` + file + `","offset":0,"byte_size":0}`, 400, "invalid args"},
		{"POST", base + "/region/c/register", `{"key":"/none","byte_size":8}`, 404, "Unable to open shared memory region: '/none': "},
		{"POST", base + "/region/c/register", `{"key":"/../` + file + `","byte_size":8}`, 400, "Unable to open shared memory region: '/../"},
		{"POST", base + "/region/c/register", `{"key":"..","byte_size":8}`, 400, "without a further slash"},
		{"POST", base + "/region/c/register", `{"key":"//` + file + `","byte_size":8}`, 400, "without a further slash"},
		{"POST", base + "/region/c/register", `{"byte_size":8}`, 400, "without a further slash"},
		{"POST", base + "/region/c/register", `{"key":"/` + file + `.link","byte_size":8}`, 400, "a symbolic link"},
		{"POST", base + "/region/c/register", `{"key":7,"byte_size":8}`, 400, `region c: \"key\"`},
		{"GET", base + "/region/a/status", "", 200, `[{"name":"a","key":"/` + file + `","offset":16,"byte_size":48}]`},
		{"GET", base + "/status", "", 200, `[{"name":"a","key":"/` + file +
			`","offset":16,"byte_size":48},{"name":"b","key":"` + file + `","offset":0,"byte_size":8}]`},
		{"GET", base + "/region/c/status", "", 404, "Unable to find system shared memory region: 'c'"},
		{"POST", base + "/region/c/unregister", "", 200, "{}"},
		{"POST", base + "/region/a/unregister", "", 200, "{}"},
		{"GET", base + "/region/a/status", "", 404, "'a'"},
		{"POST", base + "/unregister", "", 200, "{}"},
		{"GET", base + "/status", "", 200, "[]"},
	} {
		if a := r.ask(c.method, c.path, c.body); a.status != c.status || !strings.Contains(string(a.body), c.want) {
			t.Errorf("%s %s %s: %v, expected %d %s", c.method, c.path, c.body, a, c.status, c.want)
		}
	}
}

// Clients list and unregister regions of CUDA shared memory before they begin: there are none.
func TestNoCudaRegions(t *testing.T) {
	r := newRig(t, nil)
	for path, want := range map[string]string{"GET status": "[]", "POST unregister": "{}", "POST region/x/unregister": "{}"} {
		method, path, _ := strings.Cut(path, " ")
		if a := r.ask(method, "/v2/cudasharedmemory/"+path, ""); a.status != 200 ||
			strings.TrimSpace(string(a.body)) != want {
			t.Errorf("%s: %v, expected %s", path, a, want)
		}
	}
	r.refused(r.ask("POST", "/v2/cudasharedmemory/region/x/register", "{}"), 404)
}

// A page of another origin cannot register a region, and neither can another machine.
func TestRegionsAreForPrograms(t *testing.T) {
	r := newRig(t, nil)
	file, _ := r.shared(make([]byte, 8))
	if a := r.ask("POST", "/v2/systemsharedmemory/region/a/register", "{}", "Content-Type: application/json",
		"Origin: https://example.org"); a.status != 403 {
		t.Error(a)
	}
	// Triton's C++ client leaves the type to libcurl.
	body := fmt.Sprintf(`{"key":"/%s","offset":0,"byte_size":8}`, file)
	for _, ask := range [][2]string{{"region/c/register", body}, {"region/c/unregister", ""}} {
		path, body := ask[0], ask[1]
		c := r.raw(fmt.Sprintf("POST /v2/systemsharedmemory/%s HTTP/1.1\r\nHost: localhost:8000\r\nUser-Agent: libcurl-agent/1.0\r\nAccept: */*\r\nContent-Length: %d\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n%s",
			path, len(body), body))
		if a := r.answerOn(c); a.status != 200 {
			t.Errorf("%s as libcurl sends it: %v", path, a)
		}
	}
	r.floats("m")
	r.register("a", file, 8)
	use := fp32(1, `,"outputs":[{"name":"output0","parameters":{"shared_memory_region":"a","shared_memory_byte_size":8}}]`)
	if a := r.ask("POST", inferM, use, "Content-Type: application/json",
		"Origin: https://example.org"); a.status != 403 {
		t.Error(a)
	}
	for client, ok := range map[string]bool{"127.0.0.1": true, "10.1.2.3": false, "2001:db8::/64": false,
		"/run/x.sock": true, "": true} {
		_ = r.Regions.Unregister(regions.Client{}, "")
		if err := r.Regions.Register(regions.Client{Address: client},
			regions.Region{Name: "a", Key: file, Size: 8}); (err == nil) != ok {
			t.Errorf("%q: %v", client, err)
		}
	}
}

// Inputs come from regions and outputs go there, mixed with others that do not.
func TestInferInRegions(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	in, _ := r.shared(append(make([]byte, 8), floats(1, 2, 3, 4.5)...))
	out, path := r.shared(make([]byte, 32))
	r.register("in", in, 24)
	r.register("out", out, 32)
	const input = `{"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"shared_memory_region":"in","shared_memory_offset":8,"shared_memory_byte_size":16}}`
	a := r.ask("POST", inferM, `{"inputs":[`+input+`],"outputs":[{"name":"output0","parameters":{"shared_memory_region":"out","shared_memory_offset":4,"shared_memory_byte_size":20}}]}`)
	const want = `"parameters":{"shared_memory_region":"out","shared_memory_offset":4,"shared_memory_byte_size":16,"binary_data_size":0}}]}`
	if a.status != 200 || !strings.Contains(string(a.body), want) {
		t.Errorf("got %v, expected %s", a, want)
	}
	got, err := os.ReadFile(path)
	if expected := append(append(make([]byte, 4), floats(1, 2, 3, 4.5)...), make([]byte, 12)...); err != nil ||
		string(got) != string(expected) {
		t.Errorf("the file has %v, %v, expected %v", got, err, expected)
	}
	if a := r.ask("POST", inferM, `{"inputs":[`+input+`]}`); a.status != 200 || string(a.body) != echoed(1, "") {
		t.Errorf("an output in the answer: %v", a)
	}
	a = r.ask("POST", inferM, fp32(1,
		`,"outputs":[{"name":"output0","parameters":{"binary_data":true,"shared_memory_region":"out","shared_memory_byte_size":16}}]`))
	if a.status != 200 || !json.Valid(a.body) {
		t.Errorf("an input in the request: %v", a)
	}
}

// A wrong place is refused before a model is asked, unless only the answer shows the fault.
func TestWrongPlaces(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.MessageBytes = 1 << 10 })
	r.floats("m")
	words := []tensor.Spec{{Name: "w", DType: tensor.Bytes, Shape: tensor.Shape{-1}}}
	r.Model("words", scheduler.Spec{Inputs: words, Outputs: words}, scheduler.WorkerFunc(r.Echo))
	file, path := r.shared(make([]byte, 4<<10))
	r.register("r", file, 2<<10)
	at := func(region string, offset, size int) string {
		return fmt.Sprintf(`"parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%d}`,
			region, offset, size)
	}
	input := func(parameters string) string {
		return `{"inputs":[{"name":"input0","datatype":"FP32","shape":[1,4],` + parameters + `}]}`
	}
	output := func(parameters string) string {
		return fp32(1, `,"outputs":[{"name":"output0",`+parameters+`}]`)
	}
	for _, c := range []struct {
		model, body string
		status      int
		want        string
	}{
		{"m", input(at("none", 0, 16)), 404, `Unable to find shared memory region: 'none': it is not registered, or no longer (input \"input0\")`},
		{"m", output(at("none", 0, 16)), 404, `Unable to find shared memory region: 'none': it is not registered, or no longer (output \"output0\")`},
		{"m", input(at("r", 2<<10, 16)), 400, "Invalid offset for shared memory region: 'r'"},
		{"m", input(at("r", 2<<10-15, 16)), 400, "Invalid offset + byte size for shared memory region: 'r'"},
		{"m", output(at("r", 1, 1<<62-1)), 400, "Invalid offset + byte size for shared memory region: 'r'"},
		{"m", output(at("r", 0, 15)), 400, "shared memory size specified with the request for output 'output0' (15 bytes) should be at least 16 bytes to hold the results"},
		{"m", input(at("r", 0, 15)), 400, "input byte size mismatch for input 'input0': expected 16"},
		{"m", input(`"parameters":{"shared_memory_region":"r"}`), 400, "shared_memory_byte_size is missing"},
		{"m", input(`"parameters":{"shared_memory_offset":4}`), 400, "shared_memory_region is missing"},
		{"m", input(`"parameters":{"shared_memory_region":true}`), 400, `\"shared_memory_region\": expected the name of a region, got true`},
		{"m", input(`"parameters":{"shared_memory_byte_size":-1}`), 400, `expected a whole number of bytes, 0 or more, got -1`},
		{"m", input(`"parameters":{"shared_memory_key":"x"}`), 400, `\"shared_memory_key\": expected shared_memory_region`},
		{"m", input(at("r", 0, 16) + `,"data":[1,2,3,4]`), 400, "expected one of them"},
		{"m", strings.Replace(input(at("r", 0, 1008)), "[1,4]", "[63,4]", 1), 413, "limits.message_bytes"},
		{"m", strings.Replace(input(at("r", 0, 16)), "[1,4]", "[4611686018427387904,4]", 1), 400, "more bytes than can be counted"},
		{"words",
			`{"inputs":[{"name":"w","datatype":"BYTES","shape":[2],"data":["abc","defgh"]}],"outputs":[{"name":"w",` +
				at("r", 0, 15) + `}]}`, 400, "(15 bytes) should be at least 16 bytes"},
		{"words", `{"inputs":[{"name":"w","datatype":"BYTES","shape":[3],` + at("r", 0, 8) + `}]}`, 400, `input \"w\", in shared memory region 'r'`},
		{"words", `{"inputs":[{"name":"w","datatype":"BYTES","shape":[2],` + at("r", 0, 8) + `}]}`, 200, `"data":["",""]`},
	} {
		if a := r.ask("POST", "/v2/models/"+c.model+"/infer", c.body); a.status != c.status ||
			!strings.Contains(string(a.body), c.want) {
			t.Errorf("%s: %v, expected %d %s", c.body, a, c.status, c.want)
		}
	}
	if err := os.Truncate(path, 20); err != nil {
		t.Fatal(err)
	}
	for body, ok := range map[string]bool{input(at("r", 4, 16)): true, output(at("r", 4, 16)): true,
		input(at("r", 8, 16)): false, output(at("r", 8, 16)): false} {
		a := r.ask("POST", inferM, body)
		if ok && a.status != 200 || !ok && (a.status != 400 || !strings.Contains(string(a.body), "the file ends at 20: it has become shorter")) {
			t.Errorf("a file of 20 bytes: %s: %v", body, a)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 20 {
		t.Errorf("the file has %d bytes now", info.Size())
	}
}

// BenchmarkRegions asks for 6.2 MB and gets them back, through the socket and through regions on
// the file system of shared memory. The client only names the regions, as if its data were there.
func BenchmarkRegions(b *testing.B) {
	frame := tensor.Shape{1080, 1440} // as many bytes as 1080p in RGB
	count, _ := frame.Elements()
	for _, way := range []string{"socket", "regions"} {
		b.Run(way, func(b *testing.B) {
			r := newRig(b, nil)
			c := r.bare(frame)
			request := question(frame, false)
			if way == "regions" {
				dir, err := os.MkdirTemp("/dev/shm", "shivad-bench")
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { os.RemoveAll(dir) })
				r.Regions.Configure(regions.Settings{Directory: dir, RegionBytes: 64 << 20, Regions: 4})
				file, _ := r.shared(make([]byte, 8*count))
				r.register("r", file, 8*count)
				at := func(offset int) string {
					return fmt.Sprintf(`"parameters":{"shared_memory_region":"r","shared_memory_offset":%d,"shared_memory_byte_size":%d}`,
						offset, 4*count)
				}
				body := fmt.Sprintf(`{"inputs":[{"name":"input0","datatype":"FP32","shape":[1,1080,1440],%s}],"outputs":[{"name":"output0",%s}]}`,
					at(0), at(4*count))
				request = fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", inferM,
					len(body), body)
			}
			b.SetBytes(int64(8 * count))
			for b.Loop() {
				if err := c.ask(request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
