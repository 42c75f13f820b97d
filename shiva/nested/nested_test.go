package nested_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/nested"
	"github.com/shivad/shivad/shiva/tensor"
)

// plates finds plates in pictures, reads each of them, and says of what country a text is.
var plates = nested.Pipeline{
	Stages: []nested.Stage{
		{Name: "detect", Model: "d"}, {Name: "scene", Model: "s"},
		{Name: "read", Model: "r", Each: "detect.boxes"},
		{Name: "country", Model: "c"},
		{Name: "letter", Model: "l", Each: "read.letters"},
	},
	Outputs: map[string]string{
		"boxes": "detect.boxes", "detect.labels": "detect.labels", "detect.count": "detect.count", "scene.label": "scene.label",
		"text": "read.text", "read.letters": "read.letters", "read.n": "read.n", "country.code": "country.code",
		"letter.sure": "letter.sure",
	},
}

func spec(name string, d tensor.DType, ragged string, shape ...int) tensor.Spec {
	return tensor.Spec{Name: name, DType: d, Ragged: ragged, Shape: shape}
}

var declared = []tensor.Spec{
	spec("boxes", tensor.Float32, "detect.count", -1, 2),
	spec("detect.labels", tensor.Bytes, "detect.count", -1),
	spec("detect.count", tensor.Int32, "", -1),
	spec("scene.label", tensor.Bytes, "", -1),
	spec("read.rows", tensor.Int32, "", -1),
	spec("read.of", tensor.Int32, "read.rows", -1),
	spec("read.status", tensor.Int32, "read.rows", -1),
	spec("text", tensor.Bytes, "read.rows", -1),
	spec("read.letters", tensor.Float32, "read.n", -1, 1),
	spec("read.n", tensor.Int32, "read.rows", -1),
	spec("country.code", tensor.Bytes, "read.rows", -1),
	spec("letter.rows", tensor.Int32, "read.rows", -1),
	spec("letter.of", tensor.Int32, "letter.rows", -1),
	spec("letter.status", tensor.Int32, "letter.rows", -1),
	spec("letter.sure", tensor.Float32, "letter.rows", -1),
}

func values[T tensor.Element](name string, shape tensor.Shape, v ...T) tensor.Tensor {
	t, err := tensor.FromSlice(shape, v)
	if err != nil {
		panic(err)
	}
	t.Name = name
	return t
}

func texts(name string, shape tensor.Shape, v ...string) tensor.Tensor {
	t, err := tensor.FromStrings(shape, v)
	if err != nil {
		panic(err)
	}
	t.Name = name
	return t
}

// answer is for two pictures: one of three objects, of which the second was left out and the third
// could not be read, and one without objects.
func answer() []tensor.Tensor {
	return []tensor.Tensor{
		values("boxes", tensor.Shape{3, 2}, float32(1), 2, 3, 4, 5, 6),
		texts("detect.labels", tensor.Shape{3}, "plate", "face", "plate"),
		values("detect.count", tensor.Shape{2}, int32(3), 0),
		texts("scene.label", tensor.Shape{2}, "street", "yard"),
		values("read.rows", tensor.Shape{2}, int32(2), 0),
		values("read.of", tensor.Shape{2}, int32(0), 2),
		values("read.status", tensor.Shape{2}, int32(0), 504),
		texts("text", tensor.Shape{2}, "B 42", ""),
		values("read.letters", tensor.Shape{2, 1}, float32(7), 8),
		values("read.n", tensor.Shape{2}, int32(2), 0),
		texts("country.code", tensor.Shape{2}, "DE", ""),
		values("letter.rows", tensor.Shape{2}, int32(1), 0),
		values("letter.of", tensor.Shape{1}, int32(1)),
		values("letter.status", tensor.Shape{1}, int32(0)),
		values("letter.sure", tensor.Shape{1}, float32(0.5)),
	}
}

// text writes objects in few characters.
func text(list []*nested.Object) string {
	var all []string
	for _, o := range list {
		var fields []string
		for _, f := range o.Fields {
			value := ""
			switch {
			case f.Object != nil:
				value = text([]*nested.Object{f.Object})
			case f.List != nil:
				value = "[" + text(f.List) + "]"
			case f.Value.DType == tensor.Bytes:
				list, _ := tensor.Strings(f.Value)
				value = strings.Join(list, "|")
			default:
				wide, _ := tensor.Cast(f.Value, tensor.Float64, nil)
				list, _ := tensor.Values[float64](wide)
				value = fmt.Sprint(list)
			}
			fields = append(fields, f.Name+":"+value)
		}
		all = append(all, "{"+strings.Join(fields, " ")+"}")
	}
	return strings.Join(all, ", ")
}

// TestOf: every object has what belongs to it, at any depth, and rows that failed have no values.
func TestOf(t *testing.T) {
	got, err := plates.Of(declared, answer(), 2)
	if err != nil {
		t.Fatal(err)
	}
	const want = "{detect:{objects:[" +
		"{boxes:[1 2] labels:plate read:{text:B 42 objects:[{letters:[7]}, {letters:[8] letter:{sure:[0.5]}}] country:{code:DE}}}, " +
		"{boxes:[3 4] labels:face}, " +
		"{boxes:[5 6] labels:plate read:{status:[504] country:{code:}}}" +
		"]} scene:{label:street}}, {detect:{objects:[]} scene:{label:yard}}"
	if text(got) != want {
		t.Errorf("got\n%s\nwant\n%s", text(got), want)
	}
}

// TestOfSomeOutputs: what was not asked for is left out. The rows of a stage whose elements are not
// in the answer say of which element each is.
func TestOfSomeOutputs(t *testing.T) {
	some := func(names ...string) (list []tensor.Tensor) {
		for _, one := range answer() {
			for _, name := range names {
				if one.Name == name {
					list = append(list, one)
				}
			}
		}
		return list
	}
	for names, want := range map[string]string{
		"scene.label":                "{scene:{label:street}}, {scene:{label:yard}}",
		"text read.rows read.of":     "{read:[{of:[0] text:B 42}, {of:[2] text:}]}, {read:[]}",
		"boxes detect.count":         "{detect:{objects:[{boxes:[1 2]}, {boxes:[3 4]}, {boxes:[5 6]}]}}, {detect:{objects:[]}}",
		"detect.labels detect.count": "{detect:{labels:plate|face|plate}}, {detect:{labels:}}",
		"boxes":                      "{}, {}",
	} {
		got, err := plates.Of(declared, some(strings.Fields(names)...), 2)
		if err != nil || text(got) != want {
			t.Errorf("%s: %v\ngot  %s\nwant %s", names, err, text(got), want)
		}
	}
}

// TestOneRow: the answer to a row without its dimension has values without one.
func TestOneRow(t *testing.T) {
	p := nested.Pipeline{Stages: []nested.Stage{{Name: "scene"}}, Outputs: map[string]string{"scene.label": "scene.label"}}
	got, err := p.Of(declared, []tensor.Tensor{texts("scene.label", tensor.Shape{}, "street")}, 1)
	if err != nil || text(got) != "{scene:{label:street}}" {
		t.Errorf("%v, %s", err, text(got))
	}
}

// TestAnswersThatLie: an answer whose counts contradict each other is an error, and no panic.
func TestAnswersThatLie(t *testing.T) {
	for _, tt := range []struct {
		lie  tensor.Tensor
		want string
	}{
		{values("detect.count", tensor.Shape{2}, int32(4), 0), "detect.count: counts of more than the 3 values"},
		{values("detect.count", tensor.Shape{2}, int64(1<<62), 1<<62), "detect.count: counts of more"},
		{values("detect.count", tensor.Shape{2}, int32(-1), 4), "detect.count: counts of more"},
		{values("detect.count", tensor.Shape{3}, int32(1), 1, 1), "detect.count: 3 counts, expected 2"},
		{values("detect.count", tensor.Shape{2}, int32(1), 1), "boxes: shape [3, 2], expected 2 rows"},
		{values("read.of", tensor.Shape{2}, int32(0), 3), "read.of: row 1 is of element 3, and detect.boxes has 3"},
		{values("read.of", tensor.Shape{2}, int32(0), -1), "read.of: row 1 is of element -1"},
		{values("read.status", tensor.Shape{1}, int32(0)), "read.status: 1 codes, expected 2"},
		{texts("read.status", tensor.Shape{2}, "0", "0"), "read.status: "},
		{values("letter.of", tensor.Shape{0}, []int32{}...), "letter.status: 1 codes, expected 0"},
		{texts("text", tensor.Shape{1}, "B 42"), "text: shape [1], expected 2 rows"},
	} {
		list := answer()
		for i := range list {
			if list[i].Name == tt.lie.Name {
				list[i] = tt.lie
			}
		}
		if got, err := plates.Of(declared, list, 2); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %v: got %v and %s, expected %s", tt.lie.Name, tt.lie.Shape, err, text(got), tt.want)
		}
	}
}
