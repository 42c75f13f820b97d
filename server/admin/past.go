package admin

import (
	"math"
	"strconv"
)

// A Past is how models and applications did in the last ten minutes, sampled every few seconds, for
// plots that begin before the page was opened.
type Past struct {
	Times        []float64         `json:"times"` // seconds since 1970
	Models       []PastModel       `json:"models"`
	Applications []PastApplication `json:"applications"`
}

// A PastModel is a version of a model, or an application, whose version is "". Each series has a
// value for each of the times.
type PastModel struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Requests Series `json:"requests"` // answered per second, with results or errors
	Failed   Series `json:"failed"`   // of these, those answered with errors
	InTime   Series `json:"in_time"`  // share of the results
	P50      Series `json:"p50"`      // seconds
	P99      Series `json:"p99"`
	Waiting  Series `json:"waiting"` // rows
}

// A PastApplication is the share of each model, as name/version, in the answers of an application.
type PastApplication struct {
	Name   string            `json:"name"`
	Shares map[string]Series `json:"shares"`
}

// A Series has NaN where there was no value; JSON has null there, and four digits of each value.
type Series []float32

// MarshalJSON implements json.Marshaler.
func (s Series) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, v := range s {
		if i > 0 {
			b = append(b, ',')
		}
		if math.IsNaN(float64(v)) {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendFloat(b, float64(v), 'g', 4, 32)
		}
	}
	return append(b, ']'), nil
}
