package server

import (
	"bytes"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/tensor"
)

// With every size and duration at its maximum, and a client with the longest timeout that its wire
// can express, all doors still serve: no sum or product overflows.
func TestLargestSettings(t *testing.T) {
	s := start(t, func(c *config.Config) {
		atMost(reflect.ValueOf(c).Elem())
		// These have lower maximums than the other settings.
		c.Defaults.Delay, c.Defaults.Objective, c.Limits.PerAddress.Burst = 0, time.Hour, time.Minute
		c.Models["echo_FP32"] = config.Model{Policy: c.Defaults}
	})
	join(t, s, "echo_FP32", tensor.Float32, tensor.Shape{-1, 3}, nil)
	x := rows(tensor.Float32, 7, false)
	for _, w := range ways(t, s) {
		for _, timeout := range []time.Duration{0, math.MaxInt64 / 2, math.MaxInt64} {
			y, err := w.ask(t.Context(), "echo_FP32", x, timeout)
			if err != nil || !bytes.Equal(y.Data, x.Data) {
				t.Errorf("%s, timeout %v: %v %v", w.name, timeout, y, err)
			}
		}
	}
}

func atMost(v reflect.Value) {
	switch p := v.Addr().Interface().(type) {
	case *time.Duration:
		*p = 24 * time.Hour
	case *config.Bytes:
		*p = 16 << 40
	default:
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					atMost(v.Field(i))
				}
			}
		}
	}
}
