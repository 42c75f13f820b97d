package rest

import (
	_ "embed"
	"net/http"
	"strconv"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
)

//go:embed openapi.json
var openAPISource []byte

// openAPI describes this door.
var openAPI = parameter.OpenAPI(openAPISource)

func (c *call) openAPI() error {
	c.respond(http.StatusOK, openAPI)
	return nil
}

// server describes the server.
func (c *call) server() error {
	return c.answer(c.service().Server(c.conn.Door(), "binary_tensor_data"), nil)
}

// tell answers a path of the protocol that takes no body.
func (c *call) tell(p predict.Path) error {
	answer, err := p.Tell(c.service(), c.model, c.version)
	if r, ok := answer.(predict.Readiness); ok && !r.Ready && err == nil {
		c.w.Header().Set("Retry-After", "1")
		return c.write(http.StatusServiceUnavailable, r)
	}
	return c.answer(answer, err)
}

// index lists the models.
func (c *call) index() error {
	onlyReady := false
	err := c.object(func(t *text, name []byte) {
		if string(name) == "ready" {
			onlyReady = t.boolean(nil, `"ready"`)
		} else {
			t.Raw()
		}
	})
	return c.answer(c.service().Index(onlyReady), err)
}

// caller identifies the client, and the door that it uses.
func (c *call) caller() predict.Caller {
	return predict.Caller{Source: c.source(), Listener: c.conn.Door()}
}

// source identifies the client for the audit trail.
func (c *call) source() access.Source {
	return access.Source{Identity: c.who.Name(), Address: c.r.RemoteAddr, Door: "rest"}
}

// load has the server start serving a model.
func (c *call) load() error {
	names, err := c.parameters("")
	if err == nil {
		err = c.service().Load(c.r.Context(), c.caller(), c.model, names)
	}
	return c.answer(struct{}{}, err)
}

// unload stops serving a model. Models have no dependents here, so unload_dependents makes no
// difference.
func (c *call) unload() error {
	names, err := c.parameters("unload_dependents")
	if err == nil && len(names) > 0 {
		err = fault.Invalid("unload of model %q with parameter %q: expected \"unload_dependents\" or none", c.model,
			names[0])
	}
	if err == nil {
		err = c.service().Unload(c.caller(), c.model)
	}
	return c.answer(struct{}{}, err)
}

// parameters reads the body of a request that changes the repository, if a program and not a page
// sent it. It returns the names of its parameters, except flag, which must be a boolean.
func (c *call) parameters(flag string) (names []string, err error) {
	if err := c.byProgram(); err != nil {
		return nil, err
	}
	err = c.object(func(t *text, name []byte) {
		if string(name) != "parameters" {
			t.Raw()
			return
		}
		for name := range t.members {
			if string(name) == flag {
				t.boolean(nil, "parameter "+strconv.Quote(flag))
				continue
			}
			names = append(names, string(name))
			t.Raw()
		}
	})
	return names, err
}
