package gate

import (
	"errors"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
)

func TestCheckParameters(t *testing.T) {
	nested := func(levels int) string { // including the object
		return `{"a":` + strings.Repeat(`[`, levels-1) + strings.Repeat(`]`, levels-1) + `}`
	}
	for object, want := range map[string]string{
		``:   "",
		`{}`: "",
		`{"a":1,"b":[-1.5e10,{"c":"x"}],"d":true,"e":null,"f":""}`: "",
		nested(62):                              "",
		nested(63):                              `parameter "a": nested deeper than the 62 levels`,
		`{"ok":1,"b":{"c":` + nested(62) + `}}`: `parameter "b": nested`,
		`{"a":[` + strings.Repeat(`[[[]]],`, 1000) + `1]}`: "",
		`{"a":"` + strings.Repeat(`[`, 1000) + `"}`:        "",
		`{"a":"\\\"` + strings.Repeat(`[`, 1000) + `"}`:    "",
		`{"a":` + strings.Repeat("9", 308) + `}`:           "",
		`{"a":` + strings.Repeat("9", 309) + `}`:           `parameter "a": the number 99999999999999999999… of 309 characters`,
		`{"a":-1` + strings.Repeat("0", 309) + `}`:         `parameter "a": the number`,
		`{"a":` + strings.Repeat("1", 5000) + `}`:          `of 5000 characters`,
		`{"a":0.` + strings.Repeat("1", 5000) + `}`:        "",
		`{"a":[1,{"b":1e309}]}`:                            `the number 1e309`,
		`{"a":[1E308,-1e-999999,"1e999"]}`:                 "",
		`{"a":1E309}`:                                      `the number 1E309`,
		`{"a":1e998,"b":1e999}`:                            `parameter "a": the number 1e998`,
		`{"` + strings.Repeat("k", 1000) + `":1e999999}`:   `kkk…: the number 1e999999`,
	} {
		err := checkParameters([]byte(object))
		if want == "" && err != nil || want != "" &&
			(!errors.Is(err, scheduler.ErrInvalidInput) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60s: %v; want %q", object, err, want)
		}
	}
	usual := []byte(`{"threshold":0.5,"labels":["a","b"],"nested":{"k":[1,2,3e5]}}`)
	if n := testing.AllocsPerRun(100, func() { _ = checkParameters(usual) }); n > 0 {
		t.Errorf("%.0f allocations for usual parameters", n)
	}
}
