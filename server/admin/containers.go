package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
)

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

func (s Sources) containers(*http.Request) (any, error) { return s.Containers.List(), nil }

// operate starts, stops or restarts a container, and shows it.
func (s Sources) operate(do func(Operator, context.Context, string) error) handler {
	return func(r *http.Request) (any, error) {
		before, err := s.findContainer(r.PathValue("name"))
		if err != nil {
			return nil, err
		}
		err = do(s.Containers, r.Context(), before.Name)
		after, gone := s.findContainer(before.Name)
		if err == nil || before.State != after.State || r.Context().Err() != nil {
			s.audit(r, path.Base(r.URL.Path), "container", before.Name, before.State, after.State, err)
		}
		return after, cmp.Or(err, gone)
	}
}

// Loaded is the answer to the load or unload of a model.
type Loaded struct {
	Model string `json:"model"`
	State string `json:"state"` // READY or UNAVAILABLE
}

func (s Sources) load(r *http.Request) (any, error) {
	name := r.PathValue("name")
	return Loaded{name, "READY"}, s.Repository.Load(r.Context(), s.who(r), s.source(r), name)
}

func (s Sources) unload(r *http.Request) (any, error) {
	name := r.PathValue("name")
	return Loaded{name, "UNAVAILABLE"}, s.Repository.Unload(s.who(r), s.source(r), name)
}

func (s Sources) findContainer(name string) (Container, error) {
	list := s.Containers.List().Containers
	i := slices.IndexFunc(list, func(c Container) bool { return c.Name == name })
	if i < 0 {
		var names []string
		for _, c := range list {
			names = append(names, fmt.Sprintf("%q", c.Name))
		}
		return Container{}, refuse(http.StatusNotFound, "no container %q in the server's configuration, which has %s", name, cmp.Or(strings.Join(names, ", "), "none"))
	}
	return list[i], nil
}
