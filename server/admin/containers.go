package admin

// Containers is the answer to /v1/containers: those that the server starts or connects to, and all
// sessions.
type Containers struct {
	Containers []Container `json:"containers"`
	Sessions   []Session   `json:"sessions"`
}

// A Container is a [[container]] of the file.
type Container struct {
	Name  string `json:"name"`
	Model string `json:"model"` // the model by which it is loaded and unloaded
	// Address is that of a container that runs elsewhere and to which the server connects; it
	// cannot be started or stopped.
	Address string `json:"address,omitempty"`
	// State is READY, FAILING (on every batch), LOADING, UNLOADING or UNAVAILABLE.
	State     string    `json:"state"`
	Reason    string    `json:"reason,omitempty"` // why it is not ready
	Processes []Process `json:"processes"`
	Scaling   *Scaling  `json:"scaling,omitempty"` // of a container whose processes follow the load
}

// Scaling is how many processes a container has, and why.
type Scaling struct {
	Min    int `json:"min"`
	Max    int `json:"max"`
	Wanted int `json:"wanted"` // some of them may be starting
	// Why is the reason for the last change, and Since the time since then; left out if there was
	// none.
	Why   string  `json:"why,omitempty"`
	Since float64 `json:"since_seconds,omitempty"`
}

// Loaded is the answer to the load or unload of a model.
type Loaded struct {
	Model string `json:"model"`
	State string `json:"state"` // READY or UNAVAILABLE
}
