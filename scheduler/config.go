package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/tensor"
)

// Config configures a Scheduler. The zero value is valid.
type Config struct {
	Default ModelConfig // for models that are not in Models
	// By model name, all versions; zero fields mean the defaults of ModelConfig.
	Models map[string]ModelConfig
	Hooks  Hooks
	Pool   *tensor.Pool // memory in which the answers of split requests are joined; nil: the heap
	Log    *slog.Logger // nil: no log
	Clock  Clock        // nil: the real one
}

// A Clock is the scheduler's source of time. Tests and simulators provide their own, such as
// schedtest.Clock. Its methods, and those of its timers, are called with the lock of a model held:
// they must not block, and none of them may call the scheduler or f before it returns.
type Clock interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) Timer
}

// A Timer is a *[time.Timer] made by AfterFunc.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

type realClock struct{}

func (realClock) Now() time.Time                            { return time.Now() }
func (realClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// ModelConfig configures the batching of one model. A zero field means the default.
// [Scheduler.Configure] changes all of it while the model serves.
type ModelConfig struct {
	// Strategy sizes the batches: deadline (default), aimd, quantile or static. See [Strategies].
	Strategy string
	// Objective is the longest that a batch should take. It sizes batches and ends nothing.
	// Default 100 ms.
	Objective time.Duration
	// MaxBatch is the largest number of rows in a batch. Default: the maximum that the container
	// declares, else 128. If both are given, the smaller one holds.
	MaxBatch int
	// BatchBytes bounds the input bytes of a batch of more than one row. Default 256 MiB, and
	// never more than QueueBytes.
	BatchBytes int64
	// Delay is how long an idle replica may wait for more rows, as far as deadlines allow.
	// Default 0: it takes the waiting rows at once.
	Delay time.Duration
	// Together lets an idle replica wait for clients that ask again on each answer, where their
	// joint batch answers more requests a second than it costs others; see gather.go. Default true.
	Together *bool
	// QueueRows bounds the waiting rows. Default 65,536.
	QueueRows int
	// QueueBytes bounds the input bytes of the waiting rows. Default 1 GiB.
	QueueBytes int64
	// ExecTimeout is how long a replica may take for a batch before the batch is given up and its
	// requests go to other replicas, except for a request that was alone in it. A replica that
	// has answered nothing meanwhile is suspect, and gets only probes until it answers. Default
	// 30 s.
	ExecTimeout time.Duration
	// Retry lets batches of lost replicas be executed once more elsewhere, and failed batches be
	// tried again in smaller ones until one request is left that fails alone. Set it to false for
	// models that must not compute a row twice. Default true.
	Retry *bool
	// Shed makes aimd, quantile and static skip rows that are predicted to be late, and refuses
	// requests without a chance at once. False is the form in the papers. The deadline strategy
	// always sheds. Default true.
	Shed *bool
	// Slots is the number of batches in flight for a replica that does not ask for a number: those
	// that it executes, and further ones, which are sent just before an executing one is predicted
	// to end. Default: one more than it executes at once, or 1 if it is serial.
	Slots int
	// Batched is for replicas that cannot declare it themselves: false makes each request one
	// execution, as [BatchingNone] does. It applies when a replica registers. Default true: the
	// replica's declaration decides.
	Batched *bool
	// Keep is how many frames of a stream may wait if its frames do not set Frame.Keep; one more
	// supersedes the oldest. Default: all.
	Keep setting.Keep
	// StreamInterval is how often each stream that keeps only its newest frames shall have an
	// answer, as far as it sends frames. [Need] counts the replicas for it, and nothing else
	// depends on it. Default 0: as often as the replicas can, and they are enough.
	StreamInterval time.Duration
	// Streams bounds the streams of one client that the model knows. For one more, the client's
	// oldest silent stream is forgotten; if none is silent, the new one is refused. Default 1,024.
	Streams int
	// Pad fills every batch up to MaxBatch by repeating its last row, for models compiled for
	// one size. Only with the static strategy.
	Pad bool
}

// MaxSlots is the upper bound of ModelConfig.Slots.
const MaxSlots = 64

const (
	defaultObjective   = 100 * time.Millisecond
	defaultMaxBatch    = 128
	defaultBatchBytes  = 256 << 20
	defaultQueueRows   = 65536
	defaultQueueBytes  = 1 << 30
	defaultExecTimeout = 30 * time.Second
	defaultStreams     = 1024

	maxRows    = 1 << 24 // in a queue or a batch
	maxStreams = 1 << 20 // of a client

	// queueShapes bounds the number of different shapes that wait at once, since each has a queue
	// of its own.
	queueShapes = 1024

	strategyDeadline = "deadline"
	strategyAIMD     = "aimd"
	strategyQuantile = "quantile"
	strategyStatic   = "static"
)

// Strategies lists the valid values of ModelConfig.Strategy, the default first.
func Strategies() []string {
	return []string{strategyDeadline, strategyAIMD, strategyQuantile, strategyStatic}
}

// Defaults returns a ModelConfig with every default set.
func Defaults() ModelConfig { return ModelConfig{}.withDefaults() }

// withDefaults replaces zero fields by their defaults, except MaxBatch, which also depends on the
// container.
func (c ModelConfig) withDefaults() ModelConfig {
	yes := true
	c.Strategy = cmp.Or(c.Strategy, strategyDeadline)
	c.Objective = cmp.Or(c.Objective, defaultObjective)
	c.QueueRows = cmp.Or(c.QueueRows, defaultQueueRows)
	c.QueueBytes = cmp.Or(c.QueueBytes, defaultQueueBytes)
	c.ExecTimeout = cmp.Or(c.ExecTimeout, defaultExecTimeout)
	c.Retry = cmp.Or(c.Retry, &yes)
	c.Shed = cmp.Or(c.Shed, &yes)
	c.Together = cmp.Or(c.Together, &yes)
	c.Keep = cmp.Or(c.Keep, setting.KeepAll)
	c.Streams = cmp.Or(c.Streams, defaultStreams)
	if c.BatchBytes == 0 {
		c.BatchBytes = min(defaultBatchBytes, c.QueueBytes)
	}
	return c
}

// Validate reports all faults of the configuration in one error, each with its model.
func (c Config) Validate() error {
	var faults []error
	if err := c.Default.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("scheduler: the default: %w", err))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		if err := c.Models[name].Validate(); err != nil {
			faults = append(faults, fmt.Errorf("scheduler: model %s: %w", name, err))
		}
	}
	return errors.Join(faults...)
}

// Validate reports all faults in one error, which is a [setting.Faults]; zero fields mean the
// defaults.
func (c ModelConfig) Validate() error { return c.withDefaults().Faults().Err() }

// Faults returns all faults of a configuration in which a zero means zero, not the default, by the
// names that the settings have in the configuration file. Settings that make each other unreachable
// are refused with both numbers.
func (c ModelConfig) Faults() (fs setting.Faults) {
	queueBytes, batchBytes := setting.Bytes(c.QueueBytes), setting.Bytes(c.BatchBytes)
	fs.OneOf("strategy", c.Strategy, Strategies()...)
	setting.Between(&fs, "objective", c.Objective, 100*time.Microsecond, setting.MaxWait)
	setting.Between(&fs, "max_batch", c.MaxBatch, 0, maxRows)
	setting.Between(&fs, "batch_bytes", batchBytes, 0, setting.MaxBytes)
	setting.Between(&fs, "delay", c.Delay, 0, setting.MaxWait)
	setting.Between(&fs, "queue_rows", c.QueueRows, 1, maxRows)
	setting.Between(&fs, "queue_bytes", queueBytes, 1, setting.MaxBytes)
	setting.Between(&fs, "execution_timeout", c.ExecTimeout, time.Millisecond, setting.MaxWait)
	setting.Between(&fs, "slots", c.Slots, 0, MaxSlots)
	setting.Between(&fs, "stream_interval", c.StreamInterval, 0, setting.MaxWait)
	setting.Between(&fs, "streams_per_client", c.Streams, 1, maxStreams)
	if !c.Keep.Valid() {
		fs.Add("keep", "expected %s, got %s", setting.KeepValues, cmp.Or(c.Keep.String(), `""`))
	} else if frames := int(c.Keep); frames > c.QueueRows {
		fs.Add("keep", "%d is above queue_rows, %d: so many frames never wait together", frames, c.QueueRows)
	}
	if c.MaxBatch > c.QueueRows {
		fs.Add("max_batch", "%d is above queue_rows, %d: so many rows never wait together", c.MaxBatch, c.QueueRows)
	}
	if batchBytes > queueBytes {
		fs.Add("batch_bytes", "%v is above queue_bytes, %v: so many bytes never wait together", batchBytes, queueBytes)
	}
	if c.Delay > 0 && c.Delay >= c.Objective {
		fs.Add("delay", "%s is not below objective, %s: the delay alone would take as long as the whole batch may",
			setting.FormatDuration(c.Delay), setting.FormatDuration(c.Objective))
	}
	if c.ExecTimeout <= c.Objective {
		fs.Add("execution_timeout",
			"%s is not above objective, %s: a replica would become suspect during a batch that meets the objective",
			setting.FormatDuration(c.ExecTimeout), setting.FormatDuration(c.Objective))
	}
	if c.Strategy == strategyDeadline && c.Shed != nil && !*c.Shed {
		fs.Add("shed", `false has no meaning with strategy "deadline", which always sheds; use "aimd", "quantile" or "static"`)
	}
	if c.Pad && c.Strategy != strategyStatic {
		fs.Add("pad", `true has no meaning with strategy %q; use "static"`, c.Strategy)
	}
	return fs
}
