package config

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
)

// Every number, size and duration has bounds, and a value beyond a bound is refused with an error
// that names the bound. The settings are found by reflection, so a setting without bounds fails
// here. message_bytes = 2^63-1 and a timeout of 292 years once passed and overflowed in the doors.
func TestEveryNumberHasBounds(t *testing.T) {
	numbers := 0
	for _, extreme := range []int64{math.MinInt64, math.MaxInt64} {
		c := Default()
		m := Model{Policy: c.Defaults, Cache: 1 << 20, CacheTTL: time.Minute}
		p := NewContainer("")
		p.Name, p.Command = "p", []string{"x"}
		file, folder := NewModelFile("f.onnx"), NewModelFolder("models")
		try := func(key string, v reflect.Value) {
			extreme := extreme
			numbers++
			old := v.Int()
			if v.OverflowInt(extreme) {
				extreme >>= 32
			}
			v.SetInt(extreme)
			defer v.SetInt(old)
			c.Models = map[string]Model{"m": m}
			c.Supervised, c.ModelFiles, c.ModelFolders = []Container{p}, []ModelFile{file}, []ModelFolder{folder}
			prefix, got := key+": expected ", ", got "+plain(v)
			for _, fault := range lines(t, c.Validate()) {
				if expected, ok := strings.CutPrefix(fault, prefix); ok && strings.HasSuffix(fault, got) {
					reasonable(t, key, strings.TrimSuffix(expected, got), v.Type())
					return
				}
			}
			t.Errorf("%s = %s is not refused with its bounds: %v", key, plain(v), c.Validate())
		}
		walk(t, "", reflect.ValueOf(&c).Elem(), try)
		walk(t, "model.m", reflect.ValueOf(&m).Elem(), try)
		walk(t, "container[0]", reflect.ValueOf(&p).Elem(), try)
		walk(t, "model_file[0]", reflect.ValueOf(&file).Elem(), try)
		walk(t, "model_folder[0]", reflect.ValueOf(&folder).Elem(), try)
	}
	if numbers < 100 {
		t.Errorf("found %d numbers: the walk misses some", numbers/2)
	}
}

// walk calls number for the settings of v that are numbers. It fails for an unknown kind of
// setting, which could be a number.
func walk(t *testing.T, table string, v reflect.Value, number func(key string, v reflect.Value)) {
	for f := range fieldsOf(v) {
		key := joinKey(table, f.key)
		switch f.value.Kind() {
		case reflect.Int, reflect.Int32, reflect.Int64:
			number(key, f.value)
		case reflect.Struct:
			walk(t, key, f.value, number)
		case reflect.String, reflect.Bool:
		case reflect.Uint8: // a word: setting.Cast
		case reflect.Slice, reflect.Map:
			switch f.value.Interface().(type) {
			case Addrs, []string, map[string]string:
			case []Container, []ModelFile, []ModelFolder, map[string]Model: // walked by themselves
			case Routes: // its metadata have the bounds of requests
			case map[string]admin.Pipeline: // package pipelines checks them
			case []Identity, Hashes, Patterns, Devices: // without numbers
			default:
				t.Errorf("%s is a %v, which this test does not look into", key, f.value.Type())
			}
		default:
			t.Errorf("%s is a %v, of which this test does not know whether it needs bounds", key, f.value.Type())
		}
	}
}

// plain returns a number as a fault shows it.
func plain(v reflect.Value) string {
	if d, ok := v.Interface().(time.Duration); ok {
		return setting.FormatDuration(d)
	}
	return fmt.Sprint(v.Interface())
}

// reasonable checks that the upper bound leaves room for arithmetic without overflow.
func reasonable(t *testing.T, key, bounds string, kind reflect.Type) {
	_, high, ok := strings.Cut(bounds, " to ")
	var n int64
	var err error
	switch kind {
	case reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = setting.ParseDuration(high)
		n = int64(d)
	case reflect.TypeFor[Bytes]():
		var b Bytes
		b, err = setting.ParseBytes(high)
		n = int64(b)
	default:
		_, err = fmt.Sscan(high, &n)
	}
	if !ok || err != nil || n > math.MaxInt64/256 {
		t.Errorf("%s: the bounds %q leave no room to add and multiply: %v", key, bounds, err)
	}
}
