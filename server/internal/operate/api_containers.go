package operate

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/shivad/shivad/server/admin"
)

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
			s.audit(r, act{path.Base(r.URL.Path), "container", before.Name, before.State, after.State, err})
		}
		return after, cmp.Or(err, gone)
	}
}

func (s Sources) load(r *http.Request) (any, error) {
	name := r.PathValue("name")
	return admin.Loaded{Model: name, State: "READY"}, s.Repository.Load(r.Context(), s.who(r), s.source(r), name)
}

func (s Sources) unload(r *http.Request) (any, error) {
	name := r.PathValue("name")
	return admin.Loaded{Model: name, State: "UNAVAILABLE"}, s.Repository.Unload(s.who(r), s.source(r), name)
}

func (s Sources) findContainer(name string) (admin.Container, error) {
	list := s.Containers.List().Containers
	i := slices.IndexFunc(list, func(c admin.Container) bool { return c.Name == name })
	if i < 0 {
		var names []string
		for _, c := range list {
			names = append(names, fmt.Sprintf("%q", c.Name))
		}
		return admin.Container{}, refuse(http.StatusNotFound,
			"no container %q in the server's configuration, which has %s", name, cmp.Or(strings.Join(names, ", "), "none"))
	}
	return list[i], nil
}
