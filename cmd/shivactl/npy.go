package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva/tensor"
)

// The .npy format, as documented in numpy.lib.format: magic, two bytes of version, the length of
// the header (2 bytes in version 1, 4 in 2 and 3, little-endian), the header, which is a Python
// dict with the keys descr, fortran_order and shape, and then the elements.

const npyMagic = "\x93NUMPY"

var (
	npyDescr   = regexp.MustCompile(`['"]descr['"]\s*:\s*['"]([^'"]*)['"]`)
	npyFortran = regexp.MustCompile(`['"]fortran_order['"]\s*:\s*(True|False)`)
	npyShape   = regexp.MustCompile(`['"]shape['"]\s*:\s*\(([0-9,\sL]*)\)`)
)

// readNPY reads an array in C order and host byte order. Arrays of text become tensors of Bytes.
func readNPY(file []byte) (tensor.Tensor, error) {
	var none tensor.Tensor
	header, data, err := splitNPY(file)
	if err != nil {
		return none, err
	}
	descr, fortran, dims := npyDescr.FindSubmatch(header), npyFortran.FindSubmatch(header),
		npyShape.FindSubmatch(header)
	if fortran == nil || dims == nil {
		return none, fmt.Errorf("not a .npy file: its header has no fortran_order or shape: %.200q", header)
	}
	if descr == nil {
		return none, fmt.Errorf("an array of records: %.200q; save the field that the model takes: np.save(file, a[\"field\"])", header)
	}
	shape, err := parseNPYShape(string(dims[1]))
	if err != nil {
		return none, err
	}
	n, ok := shape.Elements()
	if !ok {
		return none, fmt.Errorf("shape %v is too large", shape)
	}
	kind, err := parseNPYKind(string(descr[1]))
	if err != nil {
		return none, err
	}
	if n > len(data)/kind.size || n*kind.size != len(data) {
		return none, fmt.Errorf("%d bytes of elements; its header announces %v of %s, which is %d each", len(data),
			shape, descr[1], kind.size)
	}
	data = slices.Clone(data) // a copy: the swap must not change the file
	if kind.swap {
		tensor.SwapCopy(data, data, kind.unit)
	}
	if string(fortran[1]) == "True" {
		data = transpose(data, shape, kind.size)
	}
	if kind.text == 0 {
		return tensor.New(kind.dtype, shape, data)
	}
	texts := make([]string, n)
	for i := range texts {
		texts[i] = kind.string(data[i*kind.size : (i+1)*kind.size])
	}
	return tensor.FromStrings(shape, texts)
}

// splitNPY cuts a file into its header and its elements.
func splitNPY(file []byte) (header, data []byte, err error) {
	rest, ok := strings.CutPrefix(string(file[:min(len(file), 12)]), npyMagic)
	if !ok || len(rest) < 4 {
		return nil, nil, fmt.Errorf("not a .npy file: it is cut off or does not begin with \\x93NUMPY")
	}
	var start, length int
	switch major := rest[0]; {
	case major == 1:
		start, length = 10, int(binary.LittleEndian.Uint16(file[8:]))
	case (major == 2 || major == 3) && len(file) >= 12:
		start, length = 12, int(binary.LittleEndian.Uint32(file[8:]))
	default:
		return nil, nil, fmt.Errorf("version %d of .npy; 1, 2 and 3 are known", major)
	}
	if length > len(file)-start {
		return nil, nil, fmt.Errorf("the file is cut off in its header")
	}
	return file[start : start+length], file[start+length:], nil
}

func parseNPYShape(text string) (tensor.Shape, error) {
	shape := tensor.Shape{}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSuffix(strings.TrimSpace(part), "L") // Python 2 wrote longs with it
		if part == "" {
			continue // (5,) has an empty part at its end
		}
		d, err := strconv.Atoi(part)
		if err != nil {
			return nil, fmt.Errorf("not a .npy file: shape (%s)", text)
		}
		shape = append(shape, d)
	}
	return shape, nil
}

// npyKind is the meaning of a descr such as "<f4".
type npyKind struct {
	dtype tensor.DType
	size  int  // bytes of an element
	unit  int  // bytes of a unit of swapping
	swap  bool // the byte order is not this machine's
	text  byte // 'S': bytes padded with zeros, 'U': UTF-32 padded with zeros; 0: a number
}

// npyNumber returns the dtype of a letter for its kind and its size in bytes, such as "f4".
func npyNumber(name string) (tensor.DType, bool) {
	letters := map[tensor.Kind]string{
		tensor.KindBool: "b", tensor.KindInt: "i", tensor.KindUint: "u", tensor.KindFloat: "f", tensor.KindComplex: "c",
	}
	for d := range tensor.DTypes() { // numpy has those that Shiva has
		if d.OnWire() && name == letters[d.Kind()]+strconv.Itoa(d.Size()) {
			return d, true
		}
	}
	return 0, false
}

func parseNPYKind(descr string) (npyKind, error) {
	refuse := func(why string) (npyKind, error) {
		return npyKind{}, fmt.Errorf("elements of type %q: %s", descr, why)
	}
	if len(descr) < 2 {
		return refuse("not a type of numpy")
	}
	order, name := descr[0], descr[1:]
	swap := order == '>' && littleEndian || order == '<' && !littleEndian
	if !strings.ContainsRune("<>|=", rune(order)) {
		return refuse("not a type of numpy")
	}
	if d, ok := npyNumber(name); ok {
		return npyKind{dtype: d, size: d.Size(), unit: d.SwapWidth(), swap: swap && d.SwapWidth() > 1}, nil
	}
	switch name[0] {
	case 'S', 'U':
		unit := map[byte]int{'S': 1, 'U': 4}[name[0]]
		n, err := strconv.Atoi(name[1:])
		// An empty file could hold any number of elements of size 0.
		if err != nil || n < 1 || n > math.MaxInt32/unit {
			return refuse("not a type of text that an array of some size has")
		}
		return npyKind{dtype: tensor.Bytes, size: n * unit, unit: unit, swap: swap && unit > 1, text: name[0]}, nil
	case 'O':
		return refuse("Python objects are not read from files; save an array of numbers or of fixed-size strings")
	case 'c', 'V':
		return refuse("no tensor has it; convert it, for example: np.save(file, a.astype(np.complex128))")
	case 'M', 'm':
		return refuse("dates are not numbers; convert them, for example: np.save(file, a.astype(np.int64))")
	}
	return refuse("not a type of numpy")
}

// string decodes one element of an array of text.
func (k npyKind) string(b []byte) string {
	if k.text == 'S' {
		return strings.TrimRight(string(b), "\x00")
	}
	var out []byte
	for i := 0; i+4 <= len(b); i += 4 {
		// An invalid code point becomes U+FFFD.
		out = utf8.AppendRune(out, rune(binary.NativeEndian.Uint32(b[i:])))
	}
	return strings.TrimRight(string(out), "\x00")
}

// transpose returns the elements of an array in Fortran order (first dimension fastest) in C order.
func transpose(data []byte, shape tensor.Shape, size int) []byte {
	out := make([]byte, 0, len(data))
	strides := make([]int, len(shape))
	stride := size
	for i, d := range shape {
		strides[i] = stride
		stride *= d
	}
	index := make([]int, len(shape))
	for at := 0; len(out) < len(data); {
		out = append(out, data[at:at+size]...)
		for i := len(shape) - 1; i >= 0; i-- {
			index[i]++
			at += strides[i]
			if index[i] < shape[i] {
				break
			}
			at -= strides[i] * shape[i]
			index[i] = 0
		}
	}
	return out
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1
