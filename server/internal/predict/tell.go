package predict

import (
	"iter"
	"time"
)

// Parameters returns what an answer carries besides its outputs: a bool, int64, float64 or string
// under each name. A parameter cannot be an object, so the missing models of an application are the
// text of one.
func (a *Answer) Parameters() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		if c := a.Choice; c != nil {
			if !yield("confidence", c.Confidence) ||
				len(c.Missing) > 0 && !yield("missing", string(c.AppendMissing(nil))) ||
				c.Default && !(yield("default", true) && yield("default_explanation", c.Explanation)) {
				return
			}
		}
		if f := a.Frame; f != nil {
			if f.Seq >= 0 && !yield("seq", f.Seq) {
				return
			}
			_ = yield("age_ms", float64(f.Age)/float64(time.Millisecond)) && yield("skipped", int64(f.Skipped)) &&
				!f.Captured.IsZero() && yield("captured_at", f.Captured.UnixMilli())
		}
	}
}
