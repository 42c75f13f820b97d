package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/shivad/shivad/server/internal/audit"
	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/server/internal/journal"
)

// Sources are what the door shows and changes. What they do may be called from several goroutines
// at once, and returns what the door may keep. Slices are shown in their order. An error that is to
// be shown to the client is an *Error; any other is a bug.
type Sources struct {
	Version string // of the server
	// Await waits until all of these can be called; its error is the answer, but for /livez and
	// /readyz, which do not wait. nil: they can.
	Await func(context.Context) error

	// Identities are who operators are; nil: nobody is declared, and all may do everything.
	Identities *identity.Registry

	Access       func() Access // nil: by addresses and localhost alone, and without profiles
	Report       Report
	Settings     Settings
	Caches       Caches
	Applications Applications
	Learning     Learning
	Containers   Operator
	Repository   Repository
	Documents    Documents
	Trials       Trials
	History      Chronicle        // nil: there is none
	Past         Memory           // nil: there is none
	Trail        *audit.Trail     // nil: nobody is noted
	Journal      *journal.Journal // nil: nothing of the log is kept
	Metrics      http.Handler

	Log *slog.Logger // nil is silent
}

// A Report tells what there is and how it does.
type Report interface {
	Ready() Readiness
	Status() Status
	// Models are by name, then the newest version first.
	Models() []Model
	// Explain tells of every version of a model, or of an application, what it does and why; nil of
	// a name that nothing has.
	Explain(model string) []Explanation
	// Streams are those of every version of a model, of each at most that many, the worst first;
	// nil of a name that no model has.
	Streams(model string, most int) []VersionStreams
	// Batches are those of every version of every model.
	Batches() []Batches
	// Insights are those of every version of a model, or of an application; none of a name that
	// nothing has.
	Insights(name string) []Insight
}

// Trials are requests that operators make to see what a model answers.
type Trials interface {
	Try(ctx context.Context, t Trial) (Tried, error)
}

// Settings are those of the server, and of its models.
type Settings interface {
	// Config is what holds. What json.Marshal makes of it is shown.
	Config() any
	// Reload reads the configuration again.
	Reload() (Reloaded, error)
	// Set changes settings of a model while it serves: all of them, or none and an error that says
	// why. Keys and values are those of [model.NAME] in the file, values without quotes; nil goes
	// back to what the file says. It gives what was in effect of these settings, and what is now.
	Set(ctx context.Context, model string, settings map[string]*string) (before, after map[string]any, err error)
}

// Caches are those of models.
type Caches interface {
	// ClearCache empties the cache of a model, and returns how much was in it.
	ClearCache(model string) (entries, bytes int64, err error)
}

// Applications are made and changed by their names.
type Applications interface {
	List() ([]App, error) // by name
	Check(App) error      // lists all that is wrong with it
	Create(ctx context.Context, a App) (App, error)
	// Change is one atomic step, for which change may be called again.
	Change(ctx context.Context, name string, change func(App) (App, error)) (App, error)
	Delete(ctx context.Context, name string) error // with what its policy has learned
}

// Learning is what the policies of applications know.
type Learning interface {
	Policies() []Policy
	// Learned is what was learned for one user, or for every one, of whom most are given.
	Learned(application, user string, every bool, most int) (Learned, error)
	// First is what was learned for the first user, as of some seconds ago; nil: nothing. It is
	// asked again and again, and costs little however many users there are.
	First(application string) (*LearnedUser, error)
	Forget(ctx context.Context, application string) error
	// Feedback takes an object as name/update does.
	Feedback(ctx context.Context, application string, body json.RawMessage) (any, error)
}

// An Operator starts and stops containers by the names that they have in the file.
type Operator interface {
	List() Containers
	// Start also waits until the processes have registered.
	Start(ctx context.Context, container string) error
	// Stop also waits for the end of the processes.
	Stop(ctx context.Context, container string) error
	// Restart takes one process after the other, each when a new one has registered.
	Restart(ctx context.Context, container string) error
}

// A Repository loads and unloads models by the names that clients ask for, all containers of one at
// once, as it does for clients of other doors: it checks the right to, and notes who did it.
type Repository interface {
	// Load also waits until the model is ready.
	Load(ctx context.Context, who *identity.Identity, by audit.Source, model string) error
	// Unload also waits for the end of the processes.
	Unload(who *identity.Identity, by audit.Source, model string) error
}

// Documents take the state of a server elsewhere.
type Documents interface {
	Export() (Document, error)
	Check(Document) (faults []string, err error) // all that is wrong with its contents
	Import(ctx context.Context, d Document, dryRun bool) ([]Change, error)
}

// A Memory keeps how models did in the last minutes.
type Memory interface {
	// Since is what there is of the time after that, in seconds since 1970.
	Since(at float64) Past
}

// A Chronicle knows what served by a name and who changed it.
type Chronicle interface {
	Of(name string) (History, error)
	// Changed is called for every change that an operator makes, with who it is.
	Changed(by, what, name, detail string)
}
