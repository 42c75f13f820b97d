package parameter

import (
	"math"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/trace"
)

// Values holds the parameters of one request. The zero Values belongs to a request without any. The
// small fields stand together: each request has its own Values.
type Values struct {
	Timeout    time.Duration // the client's deadline, from the request's arrival; 0 = the model's
	User       string        // whose request it is; "" = no particular user
	Candidates []string      // applications: "name" or "name/version" to choose among; nil = all
	Salt       string        // requests with different salts are not equal to a cache
	Stream     string        // the request is a frame of it; "" = none
	Seq        uint64        // the client's number of the frame, plus 1; 0 = none
	CapturedAt time.Time     // when the frame was taken; zero = when the request arrived
	TraceState string        // tracestate of Parent's trace; "" = none
	Newest     *Newest       // it asks for the newest answer of a stream, and brings no tensors
	Parent     trace.Context // the client's span, parent of the request's; zero = none
	Keep       setting.Keep  // how many frames of the stream may wait; 0 = as configured
	Priority   uint8         // 1, the highest, to Priorities; 0 = DefaultPriority
	Form       Form          // of outputs for which the request gives no form
	Fresh      bool          // the caches are neither read nor filled
	Batch      bool          // models without declared tensors: the first dimension counts rows
	Timing     bool          // the answer says where the time was spent
	Nested     bool          // the answer has objects instead of tensors
	InOrder    bool          // it executes after earlier such requests of its stream
	Undated    bool          // captured_at was given, and cannot be when the frame was taken
}

// shorten sets the deadline, unless another key of the request has set a shorter one: the order of
// keys means nothing, and gRPC has none.
func (v *Values) shorten(timeout time.Duration) {
	if timeout > 0 && (v.Timeout == 0 || timeout < v.Timeout) {
		v.Timeout = timeout
	}
}

// CandidateModels is a key that errors elsewhere mention, too.
const CandidateModels = "candidate_models"

// Table lists all parameters. Where two wires differ in a value, the key has a row for each.
var Table = []Key{
	{
		Name: "timeout_ms", On: questions | Latest,
		kind: number("milliseconds", func(v *Values, ms float64) {
			v.shorten(max(time.Duration(min(ms, float64(MaxTimeout/time.Millisecond))*float64(time.Millisecond)), 1))
		}),
		Default: "the model's deadline",
		Means:   "The deadline of the request. More than 24 hours count as 24 hours. Of this and `timeout` the shorter counts.",
	},
	{
		Name: "timeout", On: predict | Latest,
		kind: whole("microseconds", math.MaxUint64, func(v *Values, us uint64) {
			v.shorten(time.Duration(min(us, uint64(MaxTimeout/time.Microsecond))) * time.Microsecond)
		}),
		Default: "0",
		Means:   "The deadline of the request; 0: the model's. More than 24 hours count as 24 hours.",
	},
	{
		Name: "priority", On: Shiva,
		kind:    whole("", Priorities-1, func(v *Values, n uint64) { v.SetPriority(n + 1) }),
		Default: "5",
		Means:   "0 is the highest.",
	},
	{
		Name: "priority", On: predict,
		kind:    whole("", math.MaxUint64, (*Values).SetPriority),
		Default: "0",
		Means:   "1 is the highest, 10 and above are the lowest; 0: the default, which is 6.",
	},
	{
		Name: "user", On: everywhere | Latest,
		kind:    text(func(v *Values, s string) { v.User = s }),
		Default: "none",
		Means: "The user that the request is for: applications learn separately for each user, and models that ask for it receive it. " +
			"In a question for the newest answer it is the `user` of the stream's frames; absent: any.",
	},
	{
		Name: CandidateModels, On: everywhere,
		kind:    names(MaxCandidates, func(v *Values, list []string) { v.Candidates = list }),
		Default: "all",
		Means:   "Applications only: the models to choose among, each a `name` or `name/version` that the application links to.",
	},
	{
		Name: "cache", On: everywhere,
		kind:    boolean(func(v *Values, yes bool) { v.Fresh = !yes }),
		Default: "true",
		Means:   "false: the model computes the answer, which is not cached.",
	},
	{
		Name: "salt", On: everywhere,
		kind:    text(func(v *Values, s string) { v.Salt = s }),
		Default: "none",
		Means:   "For a cache, requests with different salts are not equal.",
	},
	{
		Name: "timing", On: Shiva | HTTP | GRPC | Stream,
		kind:    boolean(func(v *Values, yes bool) { v.Timing = yes }),
		Default: "false",
		Means: "The answer says where the time went: in its metadata (`timing`), the header `Server-Timing`, " +
			"or over gRPC the parameters `timing_queue_us`, `timing_execute_us`, `timing_batch_rows` and `timing_total_us`.",
	},
	{
		Name: "batch", On: Shiva,
		kind:    boolean(func(v *Values, yes bool) { v.Batch = yes }),
		Default: "false",
		Means:   "Containers of RPC v0 to v3: the first dimension is the number of rows.",
	},
	{
		Name: "binary_data_output", On: HTTP | GRPC | Stream | Latest,
		kind: boolean(func(v *Values, yes bool) {
			if v.Form = Elements; yes {
				v.Form = Bytes
			}
		}),
		Default: "false over HTTP, true over gRPC",
		Means:   "Whether outputs without a parameter of their own are sent as bytes.",
	},
	{
		Name: "nested", On: HTTP,
		kind:    boolean(func(v *Values, yes bool) { v.Nested = yes }),
		Default: "false",
		Means: "Pipelines only. true: the answer has `rows` instead of `outputs`: an object for each row of the request, " +
			"with the answers of each stage. Each object that a stage has found contains the answers of later stages about it.",
	},
	{
		Name: "in_order", On: Stream,
		kind:    boolean(func(v *Values, yes bool) { v.InOrder = yes }),
		Default: "false",
		Means:   "true: the request executes after the earlier requests of its gRPC stream that also have this parameter.",
	},
	{
		Name: "stream", On: questions | Latest,
		kind:    name(MaxStream, func(v *Values, s string) { v.Stream = s }),
		Default: "none",
		Means: "The request is a frame of this stream, such as a camera. Answers of a stream are sent in order. " +
			"Two clients send the same stream only if name, route, and `user` (or without it, client address) are the same.",
	},
	{
		Name: "seq", On: questions,
		kind:    whole("", math.MaxInt64, func(v *Values, n uint64) { v.Seq = n + 1 }),
		Default: "none",
		Means:   "The client's number of the frame. The answer repeats it.",
	},
	{
		Name: "captured_at", On: questions,
		kind:    moment(func(v *Values, at time.Time) { v.CapturedAt, v.Undated = at, at.IsZero() }),
		Default: "when the request arrived",
		Means: "When the frame was taken. The answer says how long ago that was (`age_ms`). " +
			"A time before 1973 comes from a clock that was never set, or is in seconds; the time of arrival is used instead, and `shivactl explain` says so.",
	},
	{
		Name: "keep", On: questions,
		kind:    keep(func(v *Values, k setting.Keep) { v.Keep = k }),
		Default: "as the application or the model is configured",
		Means: "How many frames of the stream may wait. When more do, the oldest are answered `Superseded`: " +
			"they are not executed, and the next answer of the stream counts them (`skipped`).",
	},
	{
		Name: trace.Header, On: everywhere&^Feedback | Latest,
		kind:    text(func(v *Values, s string) { v.Parent, _ = trace.Parse(s) }),
		Default: "none",
		Means: "The client's span (W3C Trace Context). If it is sampled, the request is traced, and its spans are children of the client's span. " +
			"Over HTTP you can send it as a header instead, over gRPC as metadata. An invalid value is ignored.",
	},
	{
		Name: trace.StateHeader, On: everywhere&^Feedback | Latest,
		kind:    text(func(v *Values, s string) { v.TraceState = s }),
		Default: "none",
		Means: "What other tracing systems record about the trace (W3C Trace Context). It is passed on with `traceparent`, and ignored without it. " +
			"Send it in the same place as `traceparent`: as a parameter, a header, or metadata.",
	},
	{
		Name: "latest", On: GRPC | Stream | Latest,
		kind:    boolean(setLatest),
		Default: "false",
		Means: "true: the request has no tensors, and asks for the newest answer of a stream of the model or application. It may have the parameters whose column \"on\" lists latest. " +
			"HTTP and Shiva use a path instead: `/v2/models/NAME/latest`, and the namespace `NAME/latest`.",
	},
	{
		Name: "max_age_ms", On: Latest,
		kind: number("milliseconds", func(v *Values, ms float64) {
			v.AskNewest().
				MaxAge = max(time.Duration(min(ms, float64(MaxTimeout/time.Millisecond))*float64(time.Millisecond)), 1)
		}),
		Default: "none",
		Means:   "The greatest age of the answer. If the newest answer is older, the question fails as `Unavailable`, or with `wait` waits for the next answer.",
	},
	{
		Name: "after", On: Latest,
		kind:    whole("", math.MaxInt64-1, func(v *Values, n uint64) { v.AskNewest().After = int64(n) }),
		Default: "none",
		Means: "The `seq` of the last answer that the client has; the question asks for a newer one. " +
			"If a camera restarts and begins its numbers again, these count as newer.",
	},
	{
		Name: "wait", On: Latest,
		kind:    boolean(func(v *Values, yes bool) { v.AskNewest().Wait = yes }),
		Default: "false",
		Means: "true: the server waits for a matching answer, until the deadline. " +
			"Without `after` and `max_age_ms` it waits for the first frame that arrives after the question.",
	},
	{
		Name: "triton_enable_empty_final_response", On: GRPC | Stream,
		kind:    boolean(func(*Values, bool) {}),
		Default: "false",
		Means:   "No effect: every answer is final, and is marked as final on a stream.",
	},
}
