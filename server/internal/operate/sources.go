package operate

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
)

// Sources are what the door shows and changes. They may be called from several goroutines
// at once, and the door may keep what they return. Slices are shown in their order. An error is
// answered as a request would be for the same condition, unless it is an *Error; an error without a
// condition is a bug.
type Sources struct {
	Version string // of the server
	// Await waits until the other sources can be called; its error is the answer to requests,
	// except for /livez and /readyz, which do not wait. nil: they can always be called.
	Await func(context.Context) error

	// Identities has the identities of operators; nil: none is declared, and every client has all
	// rights.
	Identities *access.Identities

	// Addresses has the quota accounts of client addresses; nil: bodies are not charged.
	Addresses *access.Addresses

	// Access says who may use the door and how; nil: addresses and localhost alone, and without
	// profiles.
	Access func() Access

	// Report describes the server, its models and how well they serve.
	Report interface {
		Ready() admin.Readiness
		Status() admin.Status
		// Names are those of models, applications and pipelines.
		Names() []string
		// Models are sorted by name, then newest version first.
		Models() []admin.Model
		// Explain explains what every version of a model, or an application, does and why; nil if
		// nothing has that name.
		Explain(model string) []admin.Explanation
		// Streams returns the streams of every version of a model, the worst first, and no more
		// than most for each version; nil if no model has that name.
		Streams(model string, most int) []admin.VersionStreams
		// Batches describes the batches of every version of every model.
		Batches() []admin.Batches
		// Insights returns the insights into every version of a model, or into an application; none
		// if nothing has that name.
		Insights(name string) []admin.Insight
	}

	// Settings are those of the server and of its models.
	Settings interface {
		// Config returns the configuration in effect, which is shown as json.Marshal writes it.
		Config() any
		// Reload loads the configuration again.
		Reload() (admin.Reloaded, error)
		// Set changes settings of a model while it serves: all of them or, with an error, none.
		// Keys and values are those of [model.NAME] in the file, without quotes; nil reverts to the
		// file's value. It returns the values in effect before and after.
		Set(ctx context.Context, model string, settings map[string]*string) (before, after map[string]any, err error)
	}

	// Applications are created and changed by name; with one ends what its policy has learned.
	Applications Definitions[admin.App]

	// Pipelines are created and changed by name, except those of the configuration.
	Pipelines interface {
		Definitions[admin.Pipeline]
		// Status returns how one of the List is served.
		Status(admin.Pipeline) admin.PipelineStatus
		// Faults lists all that is wrong with a pipeline, with the models that serve now.
		Faults(admin.Pipeline) []string
	}

	// Learning is what the policies of applications have learned.
	Learning interface {
		Policies() []admin.Policy
		// Learned returns what was learned for one user or, with every, for all, but no more than
		// most.
		Learned(application, user string, every bool, most int) (admin.Learned, error)
		// First returns what was learned for the first user, possibly some seconds old; nil:
		// nothing. It is called often, so it must be cheap however many users there are.
		First(application string) (*admin.LearnedUser, error)
		Forget(ctx context.Context, application string) error
		// Feedback takes an object as name/update does.
		Feedback(ctx context.Context, application string, body json.RawMessage) (any, error)
	}

	Containers Operator

	// Repository loads and unloads all containers of a model at once, by the model's name, as it
	// does for clients of other doors: it checks their rights, and records who did it.
	Repository interface {
		// Load also waits until the model is ready.
		Load(ctx context.Context, who *access.Identity, by access.Source, model string) error
		// Unload also waits for the end of the processes.
		Unload(who *access.Identity, by access.Source, model string) error
	}

	// Documents export and import the state of a server.
	Documents interface {
		Export() (admin.Document, error)
		Check(admin.Document) (faults []string, err error) // all that is wrong with its contents
		Import(ctx context.Context, d admin.Document, dryRun bool) ([]admin.Change, error)
	}

	// History records which versions served under a name, and who changed it; nil: there is none.
	History interface {
		Of(name string) (admin.History, error)
		// Changed is called for every change by an operator; by is the operator.
		Changed(by, what, name, detail string)
	}

	// ClearCache empties the cache of a model, and returns what was in it.
	ClearCache func(model string) (entries, bytes int64, err error)
	// Try asks a model for an operator, who wants to see what it answers.
	Try func(context.Context, Trial) (admin.Tried, error)
	// Newest shows the newest answers of a model's streams that an operator may see, no more than
	// most.
	Newest func(who *access.Identity, model string, most int) (admin.NewestList, error)
	// Past returns how models did in the last minutes, after a time in seconds since 1970; nil:
	// there is no past.
	Past func(after float64) admin.Past

	Trail   *access.Trail // nil: no action is recorded
	Journal *Journal      // nil: nothing of the log is kept
	Metrics http.Handler

	Log *slog.Logger // nil is silent
}

// An Operator starts and stops containers by their names in the file.
type Operator interface {
	List() admin.Containers
	// Start also waits until the processes have registered.
	Start(ctx context.Context, container string) error
	// Stop also waits for the end of the processes.
	Stop(ctx context.Context, container string) error
	// Restart replaces the processes one by one, each after its successor has registered.
	Restart(ctx context.Context, container string) error
}
