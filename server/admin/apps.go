package admin

import (
	"encoding/json"

	"github.com/shivad/shivad/scheduler/setting"
)

// An App is an application: a name that stands for one or several models, which a policy
// chooses among, combines and judges.
type App struct {
	Name string `json:"name"`
	// Models are its links: "m" follows the default version, "m/2" is one version, "m/*" is every
	// version with a live replica.
	Models []string       `json:"models"`
	Policy string         `json:"policy"`           // one of selection.Names; "" = single
	Params map[string]any `json:"params,omitempty"` // of the policy
	// SLO is the deadline of requests without one, such as "50ms"; "" = the model's.
	SLO string `json:"slo,omitempty"`
	// Keep is how many frames of a stream may wait, if the request does not say; 0 = as the models
	// are configured.
	Keep setting.Keep `json:"keep,omitzero"`
	// Default is the answer when no model has answered in time, or none can: an object with the
	// value of one row of each output.
	Default json.RawMessage `json:"default,omitempty"`
}

// AppList is the answer to /v1/apps.
type AppList struct {
	Apps []App `json:"apps"`
}

// Learned is what the policy of an application has learned.
type Learned struct {
	Application string         `json:"application"`
	Policy      string         `json:"policy"`
	Params      map[string]any `json:"params"` // in effect
	Users       []LearnedUser  `json:"users"`
	More        bool           `json:"more,omitempty"` // there are more users than were asked for
}

// LearnedUser is what a policy has learned for one user; "" means requests without a user.
type LearnedUser struct {
	User   string         `json:"user"`
	Rounds uint64         `json:"rounds"` // items of feedback that it has learned from
	Models []LearnedModel `json:"models"`
}

// LearnedModel is what a policy has learned about one model.
type LearnedModel struct {
	Model string  `json:"model"` // name/version
	Share float64 `json:"share"` // of the answers, or the model's weight where answers are combined
	Loss  float64 `json:"loss"`  // mean, 0 to 1
	Count float64 `json:"count"` // number of losses in the mean
}

// A Policy is a policy that applications can have.
type Policy struct {
	Name       string      `json:"name"`
	Parameters []Parameter `json:"parameters"`
}

// A Parameter is a parameter of a policy.
type Parameter struct {
	Name    string `json:"name"`
	Wants   string `json:"wants"`   // the values that it takes, in words
	Default any    `json:"default"` // null: no value expresses it, as for equal or learned weights
}

// PolicyList is the answer to /v1/policies.
type PolicyList struct {
	Policies []Policy `json:"policies"`
}
