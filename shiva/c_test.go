package shiva_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
	"github.com/shivad/shivad/shiva/tensor"
)

var crossFlag = flag.Bool("cross", false, "TestC runs the client in C on other machines, too, and measures what it takes there")

var (
	strict   = []string{"-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"}
	cTests   = []string{"c/shiva.c", "c/test/memory.c", "c/test/units.c", "c/test/vectors.c"}
	smallest = []string{"-Os", "-mcpu=cortex-m0plus", "-mthumb"}
)

// The C client reads the golden vectors, and sends them again, as the Go client does, and keeps the
// promises of its header.
func TestC(t *testing.T) {
	golden := cGolden(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "vectors.in"), golden.input, 0o600); err != nil {
		t.Fatal(err)
	}
	effort := "-O0" // compiles in half the time
	if budgettest.Whole() {
		effort = "-O1" // gives more warnings
	}
	// A machine is a compiler with its arguments, and the command that runs the program.
	machines := map[string][2][]string{
		"here": {append([]string{"cc", effort, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
			strict...)},
	}
	if *crossFlag {
		machines["big-endian"] = [2][]string{append([]string{"s390x-linux-gnu-gcc", "-O2", "-static"}, strict...), {"qemu-s390x"}}
		machines["Cortex-M"] = [2][]string{
			slices.Concat([]string{"arm-none-eabi-gcc", "--specs=rdimon.specs", "-T", "c/test/cortexm.ld", "c/test/cortexm.c"},
				smallest, strict),
			{"qemu-system-arm", "-M", "mps2-an385", "-nographic", "-semihosting-config", "enable=on,target=native", "-kernel"},
		}
	}
	for name, machine := range machines {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(dir, name)
			compiled(t, machine[0], append(slices.Clone(cTests), "-o", program)...)
			command := append(slices.Clone(machine[1]), program)
			cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != golden.printed {
				t.Errorf("%v: %v\n%s", command, err, firstDifference(string(out), golden.printed))
			}
		})
	}
	if *crossFlag {
		t.Run("small", testCSmall)
		t.Run("cppcheck", func(t *testing.T) {
			compiled(t,
				[]string{"cppcheck", "--std=c99", "--enable=warning,style,performance,portability", "--inline-suppr",
					"--error-exitcode=1", "--quiet"},
				"c/shiva.c", "c/shiva_posix.c", "c/test", "../examples/device")
		})
	}
}

// compiled runs a compiler, or another tool, and returns its output.
func compiled(t *testing.T, command []string, args ...string) string {
	t.Helper()
	hosttest.Need(t, command[0])
	out, err := exec.Command(command[0], append(command[1:len(command):len(command)], args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v %v: %v\n%s", command, args, err, out)
	}
	return string(out)
}

// firstDifference shows where a program's output first differs from the expected one.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d after %q:\n%s\nexpected\n%s", i+1, g[max(i-1, 0)], g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, expected %d; the last: %q", len(g), len(w), g[max(len(g)-3, 0):])
}

// A cVectors is the input of the program vectors.c, and its expected output.
type cVectors struct {
	input   []byte
	printed string
}

func cGolden(t *testing.T) (c cVectors) {
	t.Helper()
	out := new(strings.Builder)
	out.WriteString("units: 0 failed\n")
	for _, g := range readGoldens(t) {
		c.input = binary.BigEndian.AppendUint32(c.input, uint32(len(g.bytes)))
		c.input = append(c.input, g.bytes...)
		out.WriteString(cReads(t, g))
	}
	c.printed = out.String()
	return c
}

func sum32(b []byte) string {
	h := fnv.New32a()
	h.Write(b)
	return fmt.Sprintf("%08x", h.Sum32())
}

// cReads returns what vectors.c prints about a vector. The C client checks neither metadata nor
// whether texts are UTF-8: it passes them on.
func cReads(t *testing.T, g golden) string {
	t.Helper()
	r := decodeAll(t, shiva.DecoderConfig{Limits: wide}, g.bytes)
	defer r.release()
	messages, end, at := r.messages, r.kind, fmt.Sprint(r.at)
	if r.keep || g.File == "edge_metadata_nan.bin" {
		size := int(binary.BigEndian.Uint32(g.bytes[4:]))
		messages = []*shiva.Message{{Metadata: g.bytes[12:][:size], Namespace: string(g.bytes[12+size:])}}
		end, at = "eof", fmt.Sprint(len(g.bytes))
	}
	if end == shiva.KindSizeOverflow || g.File == "dims_4gib.bin" {
		end, at = shiva.KindSizeOverflow, "-" // the offset depends on the limit for a tensor
	}
	out := new(strings.Builder)
	for _, m := range messages {
		fmt.Fprintf(out, "message of %d tensors\n", len(m.Tensors))
		for _, tt := range m.Tensors {
			shape := ""
			for _, n := range tt.Shape {
				shape += strconv.Itoa(n) + " "
			}
			little := make([]byte, len(tt.Data)) // host order, on all tested hosts except s390x
			copy(little, tt.Data)
			if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
				tensor.SwapCopy(little, little, tt.DType.SwapWidth())
			}
			fmt.Fprintf(out, "tensor %d [%s] %d bytes %s\n", tt.DType, shape, len(tt.Data), sum32(little))
		}
		refused := ""
		if m.Namespace == shiva.ErrorNamespace {
			refused = ", refused"
		}
		fmt.Fprintf(out, "metadata of %d bytes %s%s\n", len(m.Metadata), sum32(m.Metadata), refused)
		again, err := shiva.AppendMessage(nil, m)
		switch {
		case len(messages) > 1 || len(g.Segments) > 0:
		case g.Valid:
			again, err = reencoded(t, g), nil
		case end == "eof":
			again, err = g.bytes, nil
		}
		if err != nil {
			t.Fatal(g.File, err)
		}
		fmt.Fprintf(out, "again %d bytes %s, success\n", len(again), sum32(again))
	}
	told := map[shiva.Kind]string{
		"eof": "the server closed the connection", shiva.KindTruncated: "the server closed the connection inside an answer",
		shiva.KindBadMagic: "the bytes received are not a Shiva answer",
		shiva.KindBadCRC1:  "a header's checksum is wrong", shiva.KindBadCRC2: "a header's checksum is wrong",
		shiva.KindNegativeMetadataSize: "a negative size or dimension", shiva.KindNegativeDim: "a negative size or dimension",
		shiva.KindUnknownDType: "unknown dtype", shiva.KindSizeOverflow: "a limit of the wire format is exceeded, or a tensor has 4 GiB or more",
	}[end]
	if told == "" {
		t.Fatalf("%s: %s", g.File, end)
	}
	fmt.Fprintf(out, "%s at %s\n", told, at)
	return out.String()
}

// testCSmall checks the C client's footprint on a small device: bytes of code, no data, no malloc,
// and the depth of its stack.
func testCSmall(t *testing.T) {
	dir := t.TempDir()
	object := filepath.Join(dir, "shiva.o")
	compiled(t, []string{"arm-none-eabi-gcc"},
		slices.Concat(smallest, strict, []string{"-c", "c/shiva.c", "-o", object})...)
	var text, data, bss int
	_, rest, _ := strings.Cut(compiled(t, []string{"arm-none-eabi-size"}, object), "\n")
	if _, err := fmt.Sscan(rest, &text, &data, &bss); err != nil || text > 4096 || data+bss > 0 {
		t.Errorf("text %d, data %d, bss %d; at most 4096, 0 and 0: %v", text, data, bss, err)
	}
	// Other than these, it calls only functions of the compiler's own library.
	helper := regexp.MustCompile(`^(__aeabi_\w+|__gnu_thumb1_case_\w+|mem(cpy|set|move|cmp))$`)
	for name := range strings.FieldsSeq(strings.ReplaceAll(compiled(t, []string{"arm-none-eabi-nm"}, "-u", object),
		" U ", "")) {
		if !helper.MatchString(name) {
			t.Errorf("it needs %s", name)
		}
	}
	deepest, path := deepestStack(t, dir)
	if deepest > 256 {
		t.Errorf("a stack of %d bytes, at most 256: %s", deepest, path)
	}
	t.Logf("text %d, data %d, bss %d, stack %d (%s)", text, data, bss, deepest, path)
}

// deepestStack returns the largest sum of stack frames along a call path in shiva.c, without the
// transport's.
func deepestStack(t *testing.T, dir string) (deepest int, path string) {
	t.Helper()
	object := filepath.Join(dir, "stack.o")
	// With a section for each function, relocations show the call graph.
	compiled(t, []string{"arm-none-eabi-gcc"},
		slices.Concat(smallest, strict,
			[]string{"-ffunction-sections", "-fstack-usage", "-c", "c/shiva.c", "-o", object})...)
	usage, err := os.ReadFile(filepath.Join(dir, "stack.su"))
	if err != nil {
		t.Fatal(err)
	}
	// Stack of the compiler's library functions, from their disassembly.
	own, calls := map[string]int{"__aeabi_lmul": 28, "__aeabi_uldivmod": 72}, map[string][]string{}
	for _, f := range regexp.MustCompile(`(?m):(\w+)\t(\d+)\tstatic$`).FindAllStringSubmatch(string(usage), -1) {
		own[f[1]], _ = strconv.Atoi(f[2])
	}
	if lines := strings.Count(string(usage), "\n"); lines < 12 || len(own) != lines+2 {
		t.Fatalf("the stack of %d functions of %d is known:\n%s", len(own)-2, lines, usage)
	}
	function := ""
	for line := range strings.Lines(compiled(t, []string{"arm-none-eabi-objdump"}, "-r", object)) {
		if found := regexp.MustCompile(`^RELOCATION RECORDS FOR \[\.text\.(\S+)\]`).
			FindStringSubmatch(line); found != nil {
			function = found[1]
		} else if found := regexp.MustCompile(`R_ARM_THM_\w+ +(\S+)`).FindStringSubmatch(line); found != nil {
			called := found[1]
			if _, known := own[called]; !known {
				t.Errorf("the stack of %s, which %s calls, is not known", called, function)
			}
			calls[function] = append(calls[function], called)
		}
	}
	var depth func(name string, above []string) (int, string)
	depth = func(name string, above []string) (most int, path string) {
		if slices.Contains(above, name) {
			t.Fatalf("%s calls itself", name)
		}
		for _, called := range calls[name] {
			if n, below := depth(called, append(above, name)); n > most {
				most, path = n, below
			}
		}
		return most + own[name], name + " " + path
	}
	for name := range own {
		if n, p := depth(name, nil); n > deepest {
			deepest, path = n, p
		}
	}
	return deepest, strings.TrimSpace(path)
}
