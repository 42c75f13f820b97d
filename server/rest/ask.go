package rest

import (
	_ "embed"
	"net/http"
	"strconv"

	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
)

//go:embed openapi.json
var openAPISource []byte

// openAPI is the description of this door.
var openAPI = parameter.OpenAPI(openAPISource)

func (c *call) openAPI() error {
	c.respond(http.StatusOK, openAPI)
	return nil
}

// server reports what the server is.
func (c *call) server() error {
	return c.write(http.StatusOK, c.door.predict.Server(c.door.Addr(), "binary_tensor_data"))
}

func (c *call) live() error { return c.write(http.StatusOK, predict.Alive) }

func (c *call) ready() error { return c.readiness(c.door.predict.Ready()) }

func (c *call) modelReady() error {
	r, err := c.door.predict.ModelReady(c.model, c.version)
	if err != nil {
		return err
	}
	return c.readiness(r)
}

func (c *call) readiness(r predict.Readiness) error {
	if !r.Ready {
		c.w.Header().Set("Retry-After", "1")
		return c.write(http.StatusServiceUnavailable, r)
	}
	return c.write(http.StatusOK, r)
}

func (c *call) models() error { return c.write(http.StatusOK, c.door.predict.List()) }

// metadata reports what a model takes and gives.
func (c *call) metadata() error {
	m, err := c.door.predict.Model(c.model, c.version)
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, m)
}

func (c *call) config() error {
	m, err := c.door.predict.ModelConfig(c.model, c.version)
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, m)
}

// statistics are those of a version, of all versions of a model, or of all models.
func (c *call) statistics() error {
	s, err := c.door.predict.Statistics(c.model, c.version)
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, s)
}

// index lists the models.
func (c *call) index() error {
	onlyReady := false
	err := c.small(func(t *text) error {
		return t.members(func(key string) (err error) {
			if key != "ready" {
				return t.skip()
			}
			onlyReady, err = t.boolean(member("ready"))
			return err
		})
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, c.door.predict.Index(onlyReady))
}

// caller is who sent the request.
func (c *call) caller() predict.Caller {
	return predict.Caller{From: c.r.RemoteAddr, Door: c.door.Addr()}
}

// load makes a model served.
func (c *call) load() error {
	if err := c.byProgram(); err != nil {
		return err
	}
	names, err := c.parameters(nil)
	if err == nil {
		err = c.door.predict.Load(c.r.Context(), c.caller(), c.model, names)
	}
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, struct{}{})
}

// unload makes a model no longer served. It has no dependents, so that it does not matter
// whether they should be unloaded too.
func (c *call) unload() error {
	if err := c.byProgram(); err != nil {
		return err
	}
	names, err := c.parameters(func(key string, t *text) (bool, error) {
		if key != "unload_dependents" {
			return false, nil
		}
		_, err := t.boolean(parameterNamed("unload_dependents"))
		return true, err
	})
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return invalid("unload of model %q with parameter %q: expected \"unload_dependents\" or none", c.model, names[0])
	}
	if err := c.door.predict.Unload(c.caller(), c.model); err != nil {
		return err
	}
	return c.write(http.StatusOK, struct{}{})
}

// parameters reads the body of a request to the repository, and gives the names of the
// parameters that known does not take.
func (c *call) parameters(known func(key string, t *text) (bool, error)) (names []string, err error) {
	err = c.small(func(t *text) error {
		return t.members(func(key string) error {
			if key != "parameters" {
				return t.skip()
			}
			return t.members(func(key string) error {
				if known != nil {
					if taken, err := known(key, t); taken || err != nil {
						return err
					}
				}
				names = append(names, key)
				return t.skip()
			})
		})
	})
	return names, err
}

// member and parameterNamed say whose value is wrong.
func member(name string) func() string { return func() string { return strconv.Quote(name) } }
func parameterNamed(name string) func() string {
	return func() string { return "parameter " + strconv.Quote(name) }
}
