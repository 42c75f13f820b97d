package rest

import (
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/shivad/shivad/server/internal/listen"
)

// A page in a browser may send requests anywhere, but may read answers only if the server permits
// it (the CORS protocol of the Fetch standard). Before a request that no form could send, the
// browser asks for permission: a preflight.

const (
	allowOrigin    = "Access-Control-Allow-Origin"
	exposedHeaders = headLength + ", Server-Timing, Retry-After"
	// preflightSeconds is how long a browser may cache the answer to a preflight.
	preflightSeconds = "600"
)

// crossOrigin sets the headers of the CORS protocol, and answers preflights. Without configured
// origins it does nothing, and OPTIONS is a method that no path takes. Credentials are never
// permitted.
func (c *call) crossOrigin(found *route) (answered bool) {
	origins, origin := c.settings.Origins, c.r.Header.Get("Origin")
	if len(origins) == 0 {
		return false
	}
	h := c.w.Header()
	all := slices.Contains(origins, "*")
	if !all {
		// Also without an Origin: a cache must not give that answer to a page.
		h.Add("Vary", "Origin")
	}
	if origin == "" {
		return false
	}
	allowed := all || slices.Contains(origins, strings.ToLower(origin))
	switch {
	case all:
		h.Set(allowOrigin, "*")
	case allowed:
		h.Set(allowOrigin, origin)
	}
	preflight := c.r.Method == http.MethodOptions && c.r.Header.Get("Access-Control-Request-Method") != ""
	switch {
	case preflight && !allowed:
		c.fail(&refusal{http.StatusForbidden, fmt.Errorf("pages of %.200s may not use this server; rest.cors_origins lists the origins that may", origin)})
	case preflight && found != nil:
		h.Set("Access-Control-Allow-Methods", strings.Join(found.methods(), ", "))
		if headers := c.r.Header.Values("Access-Control-Request-Headers"); len(headers) > 0 {
			h.Set("Access-Control-Allow-Headers", strings.Join(headers, ", "))
		}
		h.Set("Access-Control-Max-Age", preflightSeconds)
		c.begin(http.StatusNoContent)
	default:
		if allowed {
			h.Set("Access-Control-Expose-Headers", exposedHeaders)
		}
		return false
	}
	return true
}

// byProgram refuses a request that changes the server if a page without permission could have sent
// it: a page of another origin, one whose own name resolves to this server (DNS rebinding), or any
// form. cors_origins permits pages by their names; "*" does not, since it is about reading answers.
//
// A browser shows itself by its headers, whatever it sends. The type alone says nothing: that of
// forms is libcurl's default, and so that of all requests of Triton's C++ client.
func (c *call) byProgram() error {
	if listen.SentByPage(c.r) {
		// No form sends octet-stream, and a script of another origin needs a preflight for it.
		kind := c.r.Header.Get("Content-Type")
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" && media != "application/octet-stream" {
			return &refusal{http.StatusUnsupportedMediaType,
				fmt.Errorf("%s requires Content-Type: application/json, got %.100q, which a form on any page can send",
					c.r.URL.Path, kind)}
		}
	}
	return c.ownPage()
}

// ownPage is the error for a request from a page that is neither the server's nor of an origin in
// cors_origins.
func (c *call) ownPage() error {
	trusted := func(origin *url.URL) bool {
		return slices.Contains(c.settings.Origins, strings.ToLower(origin.Scheme+"://"+origin.Host))
	}
	err := listen.ForeignPage(c.r, trusted)
	if err == nil && listen.SentByPage(c.r) && !listen.NamedHost(c.r.Host, nil) {
		if origin, bad := url.Parse(c.r.Header.Get("Origin")); bad != nil || !trusted(origin) {
			err = fmt.Errorf("the request comes from a page that addresses this server as %.200q", c.r.Host)
		}
	}
	if err != nil {
		return &refusal{http.StatusForbidden, fmt.Errorf("%w; rest.cors_origins lists the origins that may", err)}
	}
	return nil
}
